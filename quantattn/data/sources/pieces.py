"""Files of lines, plain or compressed, in pieces of whole lines, so that a file may be larger than memory."""

from __future__ import annotations

import gzip
import lzma
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

PIECE = 1 << 24
LONGEST_LINE = 1 << 26
_PACKED = 1 << 15  # of Zstandard at once: it may unpack to thousands of times its size
_BROKEN = (OSError, EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, NotImplementedError)


class DamagedFile(ValueError):
    """A file that cannot be read to its end; the sentence names it."""


@dataclass(frozen=True)
class Piece:
    """Whole lines from the middle of a file.

    Attributes:
        first: number of its first line, counted from 1 as an editor does.
        data: the lines with their ends; the last line of a file may lack its end.
    """

    first: int
    data: bytes

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Number and bytes of every line, without LF or CRLF."""
        rows = self.data.split(b"\n")
        if not rows[-1]:
            rows.pop()
        for n, row in enumerate(rows):
            yield self.first + n, row.removesuffix(b"\r")


def members(archive: zipfile.ZipFile) -> list[str]:
    """Names of the files of a zip, those apart that macOS puts beside them."""
    names = [each.filename for each in archive.infolist() if not each.is_dir()]
    return [name for name in names if not name.startswith("__MACOSX/") and name.rpartition("/")[2] != ".DS_Store"]


def read_pieces(path: Path, size: int | None = None) -> Iterator[Piece]:
    """Cut a file (plain, gzip, xz, Zstandard, or a zip of one file) into pieces of about `size` bytes, or else `PIECE`.

    About two of them are in memory at once. What a file is, its first bytes say and not its name. A byte-order mark is
    left out.

    Raises:
        DamagedFile: broken compression, a zip of more than one file, UTF-16, a line of more than 64 MiB.
        RuntimeError: the file is Zstandard and `zstandard` is not installed.
    """
    rest, held, first, done = list[bytes](), 0, 1, 0  # joined once: a line of many blocks would be copied at each
    with _opened(path) as file:
        while True:
            try:
                block = file.read(PIECE if size is None else size)
            except _BROKEN as error:
                raise DamagedFile(f"{path.name} breaks off after about byte {done} unpacked: {error}") from error
            done += len(block)
            cut = block.rfind(b"\n") + 1
            if block and not cut:
                rest.append(block)
                held += len(block)
                if held > LONGEST_LINE:
                    raise DamagedFile(f"{path.name}, line {first}: expected lines of at most {LONGEST_LINE} bytes")
                continue
            whole = b"".join((*rest, block[:cut]))
            if first == 1:
                if whole.startswith((b"\xff\xfe", b"\xfe\xff")):
                    raise DamagedFile(f"{path.name} is UTF-16, expected UTF-8; convert the file first")
                whole = whole.removeprefix(b"\xef\xbb\xbf")
            if whole:
                yield Piece(first, whole)
                first += whole.count(b"\n")
            rest, held = [block[cut:]], len(block) - cut
            if not block:
                return


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    with path.open("rb") as raw:
        head = raw.read(6)
        raw.seek(0)
        if head[:2] == b"\x1f\x8b":
            with gzip.GzipFile(fileobj=raw) as unpacked:
                yield cast("IO[bytes]", unpacked)
        elif head == b"\xfd7zXZ\0":
            with lzma.LZMAFile(raw) as plain:
                yield cast("IO[bytes]", plain)
        elif head[:4] == b"\x28\xb5\x2f\xfd":
            yield cast("IO[bytes]", _Zstandard(raw))
        elif head[:4] == b"PK\x03\x04":
            with _member(path, raw) as file:
                yield file
        else:
            yield raw


class _Zstandard:
    """The bytes of any number of frames; a reader that stops after the first would see a part of the file."""

    def __init__(self, raw: IO[bytes]) -> None:
        try:
            import zstandard
        except ModuleNotFoundError as error:
            raise RuntimeError("Zstandard needs a package that is not here: pip install zstandard") from error
        self._raw, self._broken = raw, zstandard.ZstdError
        self._new = zstandard.ZstdDecompressor().decompressobj
        self._frame, self._packed, self._inside = self._new(), b"", False

    def read(self, _: int) -> bytes:
        """The next bytes, few or many; none at the end of the last frame."""
        plain = b""
        while not plain:
            self._packed = self._packed or self._raw.read(_PACKED)
            if not self._packed:
                if self._inside:
                    raise EOFError("it ends within a frame")
                return b""
            try:
                plain, self._inside = self._frame.decompress(self._packed), True
            except self._broken as error:
                raise OSError(str(error)) from error
            self._packed = b""
            if self._frame.eof:
                self._packed, self._frame, self._inside = self._frame.unused_data, self._new(), False
        return plain


@contextmanager
def _member(path: Path, raw: IO[bytes]) -> Iterator[IO[bytes]]:
    try:
        archive = zipfile.ZipFile(raw)
        names = members(archive)
        if len(names) != 1:
            raise DamagedFile(f"{path.name} holds {len(names)} files, expected a zip of one")
        file = archive.open(names[0])
    except (*_BROKEN, UnicodeError, RuntimeError) as error:  # RuntimeError: it is encrypted
        raise DamagedFile(f"{path.name} is no zip that can be read: {str(error)[:120]}") from error
    with archive, file:
        yield file
