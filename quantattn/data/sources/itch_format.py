"""Nasdaq TotalView-ITCH 5.0: the fields of every message, and a file's bytes cut into tables of one type each.

The layout is that of Nasdaq's specification, section 1; all numbers are big-endian and unsigned.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, cast

import numpy as np
from numpy.typing import NDArray

from quantattn.data.market.rebuild import compiled

_HEAD = [("type", "S1"), ("locate", ">u2"), ("tracking", ">u2"), ("time", "u1", (6,))]
_STOCK, _SIDE, _MATCH, _ORDER = ("stock", "S8"), ("side", "S1"), ("match", ">u8"), ("order_id", ">u8")
_SHARES, _PRICE = ("shares", ">u4"), ("price", ">u4")
_ADD = [_ORDER, _SIDE, _SHARES, _STOCK, _PRICE]
_BODIES: dict[str, list[tuple[str, str]]] = {
    "S": [("event", "S1")],
    "R": [
        *(_STOCK, ("market", "S1"), ("financial_status", "S1"), ("round_lot", ">u4"), ("round_lots_only", "S1")),
        *(("issue_class", "S1"), ("issue_subtype", "S2"), ("authenticity", "S1"), ("short_sale_threshold", "S1")),
        *(("ipo", "S1"), ("luld_tier", "S1"), ("etp", "S1"), ("etp_leverage", ">u4"), ("inverse", "S1")),
    ],
    "H": [_STOCK, ("state", "S1"), ("reserved", "S1"), ("reason", "S4")],
    "Y": [_STOCK, ("action", "S1")],
    "L": [("participant", "S4"), _STOCK, ("primary", "S1"), ("mode", "S1"), ("state", "S1")],
    "V": [("level_1", ">u8"), ("level_2", ">u8"), ("level_3", ">u8")],
    "W": [("level", "S1")],
    "K": [_STOCK, ("release_time", ">u4"), ("qualifier", "S1"), _PRICE],
    "J": [_STOCK, ("reference_price", ">u4"), ("upper_price", ">u4"), ("lower_price", ">u4"), ("extension", ">u4")],
    "h": [_STOCK, ("market", "S1"), ("action", "S1")],
    "A": _ADD,
    "F": [*_ADD, ("attribution", "S4")],
    "E": [_ORDER, _SHARES, _MATCH],
    "C": [_ORDER, _SHARES, _MATCH, ("printable", "S1"), _PRICE],
    "X": [_ORDER, _SHARES],
    "D": [_ORDER],
    "U": [_ORDER, ("new_order_id", ">u8"), _SHARES, _PRICE],
    "P": [*_ADD, _MATCH],
    "Q": [("shares", ">u8"), _STOCK, _PRICE, _MATCH, ("cross_type", "S1")],
    "B": [_MATCH],
    "I": [
        *(("paired_shares", ">u8"), ("imbalance_shares", ">u8"), ("direction", "S1"), _STOCK, ("far_price", ">u4")),
        *(("near_price", ">u4"), ("reference_price", ">u4"), ("cross_type", "S1"), ("price_variation", "S1")),
    ],
    "N": [_STOCK, ("interest", "S1")],
    "O": [
        *(_STOCK, ("open_eligibility", "S1"), ("minimum_price", ">u4"), ("maximum_price", ">u4")),
        *(("near_price", ">u4"), ("near_time", ">u8"), ("lower_collar", ">u4"), ("upper_collar", ">u4")),
    ],
}
MESSAGES: Mapping[str, np.dtype[Any]] = MappingProxyType(
    {code: np.dtype([*_HEAD, *body]) for code, body in _BODIES.items()}
)
"""Type → its layout, the type itself first. Its `itemsize` is the length that stands before the message."""

_PIECE = 1 << 24


class DamagedItch(ValueError):
    """A stream that is no sound ITCH; the sentence names the file and the byte, counted after unpacking."""


@dataclass(frozen=True)
class Piece:
    """Whole messages from the middle of a file.

    Attributes:
        data: (n,) uint8, their bytes.
        starts: where each type stands in `data`.
        codes: the types, as bytes.
        offset: of `data` in the file.
        zeros: whether the lengths before messages are all 0.
    """

    data: NDArray[np.uint8]
    starts: NDArray[np.int64]
    codes: NDArray[np.uint8]
    offset: int
    zeros: bool

    def rows(self, code: str) -> NDArray[Any]:
        """The messages of a type as a structured array."""
        layout = MESSAGES[code]
        taken = self.data[self.starts[self.codes == ord(code)][:, None] + np.arange(layout.itemsize)]
        return np.ascontiguousarray(taken).view(layout)[:, 0]


def read_pieces(path: Path, piece: int = _PIECE, digest: Any = None) -> Iterator[Piece]:
    """Cut a plain or gzipped file into pieces of whole messages; at most about two pieces are in memory at once.

    Args:
        path: the file.
        piece: bytes of a piece, about.
        digest: of `hashlib`; gets the file's bytes as they lie on disk, if all pieces are taken.

    Raises:
        DamagedItch: an unknown type, a length that is not the type's, a file that ends inside a message, broken gzip.
        RuntimeError: numba is not installed.
    """
    walker = compiled("quantattn.data.sources.itch_walk")
    lengths = np.zeros(256, np.int64)
    for code, layout in MESSAGES.items():
        lengths[ord(code)] = layout.itemsize
    rest, offset, zeros = np.zeros(0, np.uint8), 0, None
    with path.open("rb") as raw:
        file = _unpacked(raw, digest)
        while len(data := _with_more(path, file, rest, piece, offset)) > len(rest):
            if zeros is None and len(data) >= 3:
                zeros = not data[:2].any()
            room = len(data) // 14 + 1
            starts, codes = np.empty(room, np.int64), np.empty(room, np.uint8)
            count, at, wrong = walker.walk(data, lengths, bool(zeros), starts, codes)
            if count:
                yield Piece(data[:at], starts[:count], codes[:count], offset, bool(zeros))
            rest, offset = data[at:], offset + at
            if wrong == walker.WRONG_TYPE:
                raise DamagedItch(
                    f"{path.name}, byte {offset + 2}: found 0x{rest[2]:02x} as the type of a message, expected one of "
                    f"{' '.join(MESSAGES)}"
                )
            if wrong == walker.WRONG_LENGTH:
                given, expected = int(rest[0]) * 256 + int(rest[1]), 0 if zeros else lengths[rest[2]]
                raise DamagedItch(
                    f"{path.name}, byte {offset}: found length {given} before a message of type {chr(rest[2])}, "
                    f"expected {expected}{', as before every message here' if zeros else ''}"
                )
    # Nasdaq may close a session with a length of 0 and nothing after it.
    if len(rest) and rest.tobytes() != b"\0\0":
        raise DamagedItch(f"{path.name} ends at byte {offset + len(rest)}, inside the message that begins at {offset}")


def _unpacked(raw: IO[bytes], digest: Any) -> Any:
    """A file that fills arrays with the bytes of a plain or gzipped one, and tells `digest` those on disk."""
    packed = raw.read(2) == b"\x1f\x8b"
    raw.seek(0)
    disk = raw if digest is None else _Digested(raw, digest)
    return gzip.GzipFile(fileobj=cast("IO[bytes]", disk)) if packed else disk


def _with_more(path: Path, file: Any, rest: NDArray[np.uint8], size: int, offset: int) -> NDArray[np.uint8]:
    """`rest`, which begins at byte `offset` of the file, and the bytes that follow it; `rest` alone at the end."""
    data = np.empty(len(rest) + size, np.uint8)
    data[: len(rest)] = rest
    try:
        got = file.readinto(data[len(rest) :])
    except (OSError, EOFError, zlib.error) as error:
        where = offset + len(rest)
        raise DamagedItch(f"{path.name} breaks off after about byte {where} unpacked: {error}") from error
    return data[: len(rest) + got]


class _Digested:
    """A file that tells a digest of all that is read from it."""

    def __init__(self, raw: IO[bytes], digest: Any) -> None:
        self._raw, self._digest = raw, digest

    def read(self, size: int = -1) -> bytes:
        data = self._raw.read(size)
        self._digest.update(data)
        return data

    def readinto(self, buffer: NDArray[np.uint8]) -> int:
        got: int = self._raw.readinto(buffer)  # type: ignore[attr-defined]
        self._digest.update(buffer[:got])
        return got
