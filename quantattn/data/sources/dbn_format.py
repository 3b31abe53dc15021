"""Databento Binary Encoding: files of versions 1 to 3 → pieces of records, by the vendor's own layouts.

`databento_dbn` decodes the metadata and says what a record of each schema looks like; `zstandard`, which the vendor's
client uses too, unpacks. Both are the extra `dbn`, and this is the only file that imports them.
"""

from __future__ import annotations

import gzip
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

BARS: Mapping[str, int] = {
    f"ohlcv-{name}": seconds * 10**9 for name, seconds in (("1s", 1), ("1m", 60), ("1h", 3_600), ("1d", 86_400))
}
"""Schemas of bars, and the length of each in ns; the record has its beginning."""
QUOTES = ("bbo-1s", "bbo-1m")
"""Schemas of quotes as they stood at the end of a stretch."""
SCHEMAS = ("mbo", "mbp-1", "mbp-10", "trades", "tbbo", *QUOTES, *BARS)
"""Schemas that are read."""
UNDEFINED_PRICE = 2**63 - 1
UNDEFINED_TIME = 2**64 - 1
LAST, SNAPSHOT, BAD_TIME, BAD_BOOK = 128, 32, 8, 4
"""Flags: last record of an event, record of a snapshot, `ts_recv` not to be trusted, a book after a gap."""

_MESSAGES = {"mbo": "MBOMsg", "mbp-1": "MBP1Msg", "mbp-10": "MBP10Msg", "trades": "TradeMsg", "tbbo": "MBP1Msg"}
_MESSAGES |= dict.fromkeys(QUOTES, "BBOMsg") | dict.fromkeys(BARS, "OHLCVMsg")
_ZSTD, _GZIP, _SKIPPABLE = b"\x28\xb5\x2f\xfd", b"\x1f\x8b", b"\x50\x2a\x4d\x18"
_PACKED_PIECE = 2**15  # a block of zstd may unpack to thousands of times its size
_PIECE = 2**24
_HEADER = 16  # bytes that every record begins with


class DamagedDbn(ValueError):
    """Bytes that are no DBN that this library reads; the sentence names the file and the byte."""


@dataclass(frozen=True)
class Header:
    """What a file says of itself.

    Attributes:
        version: of the encoding, 1 to 3.
        schema: of the records, one of `SCHEMAS`.
        dataset: such as "GLBX.MDP3".
        symbols: instrument id → its (first day, day after the last, symbol), days as datetime64[D].
    """

    version: int
    schema: str
    dataset: str
    symbols: dict[int, list[tuple[np.datetime64, np.datetime64, str]]]


@dataclass
class Records:
    """A file that is being read.

    Attributes:
        header: what it says of itself.
        layout: the vendor's layout of a record.
        others: record type (the vendor's number) → records of that type, which are no data of the schema.
    """

    path: Path
    header: Header
    layout: np.dtype[np.void]
    _rtype: int
    _stream: Iterator[bytes]
    _start: int
    others: Counter[int] = field(default_factory=Counter)

    def pieces(self) -> Iterator[NDArray[np.void]]:
        """Records of the schema in the order of the file, (n,) in the vendor's layout; once.

        Raises:
            DamagedDbn: a record whose length is not that of its type, or a file that ends within a record.
        """
        byte, rest = self._start, b""
        for chunk in self._stream:
            data = rest + chunk
            used = 0
            for records, end in self._runs(data, byte):
                used = end
                if len(records):
                    yield records
            byte, rest = byte + used, data[used:]
        if rest:
            raise DamagedDbn(
                f"{self.path.name} ends within the record at byte {byte}: it has {len(rest)} bytes, expected "
                f"{max(4 * rest[0], _HEADER)}"
            )

    def _runs(self, data: bytes, offset: int) -> Iterator[tuple[NDArray[np.void], int]]:
        """Runs of the schema's records in `data`, each with the byte after it; other records are counted."""
        size, place, ahead = self.layout.itemsize, 0, 2**20
        while len(data) - place >= _HEADER:
            n = min((len(data) - place) // size, ahead)
            records = np.frombuffer(data, self.layout, n, place)
            other = np.flatnonzero((records["length"] != size // 4) | (records["rtype"] != self._rtype))
            good = int(other[0]) if len(other) else n
            place += good * size
            yield records[:good], place
            # Where other records are frequent, little is looked at in vain.
            ahead = min(2 * ahead, 2**20) if good == n else max(good, 16)
            length = 4 * data[place] if place < len(data) else 0
            if place >= len(data) or len(data) - place < max(length, _HEADER):
                return
            if (length, data[place + 1]) == (size, self._rtype):
                continue
            if length < _HEADER or data[place + 1] == self._rtype:
                what = f"a record of type {data[place + 1]} with {length} bytes"
                expected = f"{size} bytes in a record of type {self._rtype}"
                raise DamagedDbn(f"{self.path.name}, byte {offset + place}: found {what}, expected {expected}")
            self._other(data[place + 1], offset + place)
            place += length
            yield records[:0], place

    def _other(self, rtype: int, byte: int) -> None:
        if rtype not in _known_types():
            raise DamagedDbn(f"{self.path.name}, byte {byte}: {rtype} is no type of a record; the bytes are damaged")
        self.others[rtype] += 1


def open_dbn(path: Path, schema: str | None = None) -> Records:
    """Read the metadata of a file; `schema` says which records are meant where the file holds several kinds.

    Raises:
        DamagedDbn: the file is no DBN, is older than its first version, or holds another schema.
        RuntimeError: `databento_dbn` or `zstandard` is not installed (extra `dbn`).
    """
    vendor = _vendor()
    stream = _unpacked(path)
    start = bytearray()
    for chunk in stream:
        start += chunk
        if len(start) >= 8 and len(start) >= 8 + int.from_bytes(start[4:8], "little"):
            break
        if len(start) >= 4 and start[:3] != b"DBN":
            break
    if start[:3] != b"DBN":
        raise DamagedDbn(f"{path.name} does not begin with DBN metadata: found {bytes(start[:8])!r}, expected b'DBN'")
    version, length = (start[3] if len(start) > 3 else 0), 8 + int.from_bytes(start[4:8], "little")
    if version not in (1, 2, 3):
        raise DamagedDbn(f"{path.name} is DBN of version {version}, expected 1, 2 or 3")
    if len(start) < length:
        raise DamagedDbn(f"{path.name} ends within its metadata, at byte {len(start)} of {length}")
    try:
        metadata = vendor.Metadata.decode(bytes(start[:length]))
    except (vendor.DBNError, ValueError) as error:
        raise DamagedDbn(f"{path.name}: its metadata cannot be decoded: {' '.join(str(error).split())}") from error
    found = None if metadata.schema is None else str(metadata.schema)
    wanted = found or schema
    if wanted not in SCHEMAS or (schema is not None and schema != wanted):
        held = f"the schema {found}" if found else "records of several schemas"
        expected = f"the schema {schema}" if schema in SCHEMAS else f"one of {', '.join(SCHEMAS)}"
        if not found:
            expected += " as schema=NAME"
        raise DamagedDbn(f"{path.name} holds {held}, expected {expected}")
    layout = list(getattr(vendor, _MESSAGES[wanted])._dtypes)
    dtype = np.dtype(layout + ([("ts_out", "u8")] if metadata.ts_out else []))
    header = Header(version, wanted, str(metadata.dataset), _symbols(metadata))
    rtype = int(vendor.RType.from_schema(vendor.Schema.from_str(wanted)))
    return Records(path, header, dtype, rtype, _in_pieces(bytes(start[length:]), stream), length)


def _vendor() -> Any:
    try:
        import databento_dbn
    except ModuleNotFoundError as error:
        raise RuntimeError("DBN is read by databento-dbn, which is not here: pip install 'quantattn[dbn]'") from error
    return databento_dbn


def _known_types() -> frozenset[int]:
    return frozenset(int(rtype) for rtype in _vendor().RType.variants())


def record_type(rtype: int) -> str:
    """The vendor's name of a type of record."""
    return str(_vendor().RType.from_int(rtype)).replace("_", " ")


def _symbols(metadata: Any) -> dict[int, list[tuple[np.datetime64, np.datetime64, str]]]:
    """Ids that are not numbers are left out: the file then names its symbols in a way that records do not use."""
    found: dict[int, list[tuple[np.datetime64, np.datetime64, str]]] = {}
    for symbol, intervals in sorted(metadata.mappings.items()):
        for each in intervals:
            if each["symbol"].isdigit():
                days = (np.datetime64(each["start_date"], "D"), np.datetime64(each["end_date"], "D"))
                found.setdefault(int(each["symbol"]), []).append((*days, symbol))
    return found


def _in_pieces(first: bytes, stream: Iterator[bytes]) -> Iterator[bytes]:
    """Chunks joined to pieces that are worth an array."""
    held, size = [first], len(first)
    for chunk in stream:
        held.append(chunk)
        size += len(chunk)
        if size >= _PIECE:
            yield b"".join(held)
            held, size = [], 0
    if size:
        yield b"".join(held)


def _unpacked(path: Path) -> Iterator[bytes]:
    """The bytes of a plain, zstd (of any number of frames) or gzip file.

    Raises:
        DamagedDbn: a packed stream that is broken or breaks off, or the old container.
    """
    with path.open("rb") as file:
        magic = file.read(12)
        file.seek(0)
        if magic[:4] == _SKIPPABLE and magic[8:11] == b"DBZ":
            raise DamagedDbn(
                f"{path.name} is DBZ, the container before DBN, which is not read; get the file again as DBN"
            )
        try:
            if magic[:4] == _ZSTD:
                yield from _zstd(path, file)
            elif magic[:2] == _GZIP:
                with gzip.GzipFile(fileobj=file) as plain:
                    yield from iter(lambda: plain.read(2**20), b"")
            else:
                yield from iter(lambda: file.read(2**20), b"")
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise DamagedDbn(f"{path.name}: its gzip stream is broken: {error}") from error


def _zstd(path: Path, file: IO[bytes]) -> Iterator[bytes]:
    try:
        import zstandard
    except ModuleNotFoundError as error:
        raise RuntimeError("zstd is unpacked by zstandard, which is not here: pip install 'quantattn[dbn]'") from error
    unpacker = zstandard.ZstdDecompressor()
    frame, packed = unpacker.decompressobj(), b""
    started = False
    try:
        while packed or (packed := file.read(_PACKED_PIECE)):
            started = True
            plain = frame.decompress(packed)
            packed = b""
            if plain:
                yield plain
            if frame.eof:  # a reader that stops here sees the first frame alone
                packed, started = frame.unused_data, False
                frame = unpacker.decompressobj()
    except zstandard.ZstdError as error:
        raise DamagedDbn(f"{path.name}: its zstd stream is broken near byte {file.tell()}: {error}") from error
    if started:
        raise DamagedDbn(f"{path.name} breaks off within a zstd frame, at byte {file.tell()}")
