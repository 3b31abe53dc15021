"""A first look at a file: its packing and the beginning of what is in it, 64 KiB at most, whatever its size."""

from __future__ import annotations

import csv
import gzip
import lzma
import re
import zipfile
import zlib
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, cast

import polars as pl

from quantattn.data.filings.package import NotInIt, main_file
from quantattn.data.filings.text import decode
from quantattn.data.sources.pieces import members

HEAD = 1 << 16
"""Bytes, after unpacking, that a format is told by."""
_PACKED: tuple[tuple[bytes, str], ...] = (
    (b"\x1f\x8b", "gzip"),
    (b"\xfd7zXZ\0", "xz"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"PK\x03\x04", "zip"),
)
_UNREAD: tuple[tuple[bytes, str], ...] = ((b"BZh", "bzip2"), (b"7z\xbc\xaf\x27\x1c", "7-Zip"), (b"Rar!", "RAR"))
"""Packings that no source reads."""
_BROKEN = (OSError, EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, NotImplementedError, RuntimeError)
"""What a damaged stream raises; RuntimeError: a zip is encrypted."""
_CONTROL = bytes(set(range(1, 32)) - {9, 10, 12, 13, 26, 27})
_MOST_CONTROL = 1 / 200
"""Share of control characters up to which old documents are still text."""
_SEPARATORS = (",", ";", "\t", "|")
_LINES = 200


@dataclass(frozen=True)
class Look:
    """What the beginning of a file shows.

    Attributes:
        path: the file.
        size: its bytes on disk.
        packing: "gzip", "xz", "zstd", "zip", or "" for none; told by its first bytes.
        head: its first bytes, unpacked; none of a zstd stream that is not text.
        whole: whether `head` is all of it.
        fault: why the beginning cannot be read, or "".
    """

    path: Path
    size: int
    packing: str
    head: bytes
    whole: bool
    fault: str = ""

    @staticmethod
    def at(path: Path) -> Look:
        """Look at a file; never raises for what it holds, or for lack of permission to read it."""
        try:
            size = path.stat().st_size
            with path.open("rb") as raw:
                start = raw.read(8)
        except OSError as error:
            return Look(path, 0, "", b"", True, f"cannot be opened: {error.strerror}")
        packing = next((name for magic, name in _PACKED if start.startswith(magic)), "")
        if unread := next((name for magic, name in _UNREAD if start.startswith(magic)), ""):
            return Look(path, size, unread, b"", True, f"it is packed with {unread}, which is not read; unpack it")
        try:
            head = _zstd_text(path) if packing == "zstd" else _head(path, packing)
        except NotInIt as error:
            return Look(path, size, packing, b"", True, f"is {error}; unpack it, and name the file or the folder")
        except _BROKEN as error:
            return Look(path, size, packing, b"", True, f"its {packing or 'content'} is damaged: {error}")
        return Look(
            path, size, packing, head[:HEAD], len(head) <= HEAD, "" if head or packing == "zstd" else "is empty"
        )

    @cached_property
    def text(self) -> str | None:
        """The beginning as text; None where it is binary."""
        if not self.head:
            return None
        control = len(self.head) - len(self.head.translate(None, _CONTROL))
        if self.head[:2] not in (b"\xff\xfe", b"\xfe\xff") and (
            b"\0" in self.head or control > _MOST_CONTROL * len(self.head)
        ):
            return None
        return decode(self.head)

    @cached_property
    def lines(self) -> tuple[str, ...]:
        """The first lines that are there whole and not empty, without their ends."""
        rows = (self.text or "").split("\n")
        if not self.whole:
            rows = rows[:-1]
        return tuple(row.removesuffix("\r") for row in rows if row.strip())[:_LINES]

    @cached_property
    def separator(self) -> str:
        """The character under which the first line has the most fields."""
        return max(_SEPARATORS, key=lambda each: len(self._row(self.lines[0], each))) if self.lines else ","

    @cached_property
    def header(self) -> tuple[str, ...]:
        """Fields of the first line, without outer spaces."""
        return tuple(self._row(self.lines[0], self.separator)) if self.lines else ()

    @cached_property
    def rows(self) -> tuple[tuple[str, ...], ...]:
        """Fields of the lines after the first, as many as the first has."""
        found = (tuple(self._row(line, self.separator)) for line in self.lines[1:])
        return tuple(row for row in found if len(row) == len(self.header))

    @cached_property
    def columns(self) -> pl.Schema | None:
        """Columns of a Parquet file; None for any other."""
        if self.head[:4] != b"PAR1":
            return None
        try:
            str(self.path).encode()  # Polars opens no other path
            return pl.scan_parquet(self.path, glob=False).collect_schema()
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, UnicodeEncodeError):
            return pl.Schema()

    @staticmethod
    def mostly(pattern: re.Pattern[str], lines: Sequence[str]) -> bool:
        """Whether there are lines and four of five have this form; a file may have a few that are damaged."""
        return bool(lines) and sum(pattern.fullmatch(line) is not None for line in lines) >= 0.8 * len(lines)

    @staticmethod
    def _row(line: str, separator: str) -> list[str]:
        try:
            return [cell.strip() for cell in next(csv.reader([line], delimiter=separator), [])]
        except csv.Error:
            return [line]


def _head(path: Path, packing: str) -> bytes:
    with ExitStack() as closing:
        raw = closing.enter_context(path.open("rb"))
        file: IO[bytes] = raw
        if packing == "gzip":
            file = cast("IO[bytes]", closing.enter_context(gzip.GzipFile(fileobj=raw)))
        elif packing == "xz":
            file = cast("IO[bytes]", closing.enter_context(lzma.LZMAFile(raw)))
        elif packing == "zip":
            archive = closing.enter_context(zipfile.ZipFile(raw))
            names = members(archive)
            file = closing.enter_context(archive.open(names[0] if len(names) == 1 else main_file(archive)))
        return _as_far_as_it_goes(file)


def _as_far_as_it_goes(file: IO[bytes]) -> bytes:
    """Up to a byte more than `HEAD`; of a stream that breaks off, what comes before, if anything does."""
    head = b""
    while len(head) <= HEAD:
        try:
            block = file.read(4096)
        except _BROKEN:
            if not head:
                raise
            return head
        if not block:
            break
        head += block
    return head


def _zstd_text(path: Path) -> bytes:
    """Polars unpacks zstd as lines of text alone; of anything else the beginning stays unknown here."""
    lines = pl.scan_lines(path, name="line", glob=False).head(_LINES)
    try:
        return "\n".join(lines.collect(engine="streaming")["line"].to_list()).encode()
    except pl.exceptions.ComputeError as error:
        if "utf8" in str(error) or "utf-8" in str(error):
            return b""
        raise OSError(str(error).splitlines()[0]) from error
