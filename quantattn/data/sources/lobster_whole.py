"""Both files of a LOBSTER day as integers in memory, where every line of them is plain."""

from __future__ import annotations

import gzip
import mmap
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from quantattn.data.market.rebuild import compiled
from quantattn.data.sources.lobster_files import BROKEN_STREAM, MESSAGE_COLUMNS, File

LARGEST = 1 << 28
"""Bytes of a file, unpacked, that is read so."""
_PART = 1 << 16


def read_whole(message: File, book: File) -> pl.DataFrame | None:
    """Messages beside books, or None where a file is large or a line is not plain, which the scanner then judges.

    Columns as in the files, with `line` (from 0), and `ns` and `decimals` in place of the time.

    Raises:
        RuntimeError: numba is not installed.
    """
    parser = compiled("quantattn.data.sources.lobster_parse")
    read: list[NDArray[np.uint8]] = []
    for file in (message, book):
        data = _bytes(file.path)
        if data is None:
            return None
        if file.header:
            data = data[int(np.argmax(data == ord("\n"))) + 1 :]
        if not len(data) or data[-1] != ord("\n"):
            data = np.append(data, np.uint8(ord("\n")))
        read.append(data)
    # One array, no longer than its lines: memory comes in large pages then, which are cleared before they are had.
    names = (*message.columns, *book.columns)
    made = np.empty((len(names), max(map(_lines, read))), np.int64)
    decimals = np.empty(made.shape[1], np.int8)
    n = parser.parse(read[0], True, made[: len(message.columns)], decimals)
    if n < 0 or parser.parse(read[1], False, made[len(message.columns) :], decimals) != n:
        return None
    columns: dict[str, NDArray[np.signedinteger]] = dict(zip(names, made[:, :n], strict=True))
    columns |= {"ns": columns.pop(MESSAGE_COLUMNS[0]), "decimals": decimals[:n]}
    return pl.DataFrame(columns).with_row_index("line")


def _lines(data: NDArray[np.uint8]) -> int:
    return sum(int(np.count_nonzero(data[at : at + _PART] == ord("\n"))) for at in range(0, len(data), _PART))


def _bytes(path: Path) -> NDArray[np.uint8] | None:
    """What is in a plain or gzipped file; None of a large or a broken one."""
    with path.open("rb") as raw:
        packed = raw.read(2) == b"\x1f\x8b"
        if not packed:
            size = path.stat().st_size
            whole = mmap.mmap(raw.fileno(), 0, access=mmap.ACCESS_READ) if 0 < size <= LARGEST else None
            return None if whole is None else np.frombuffer(whole, np.uint8)
        raw.seek(0)
        try:
            plain = gzip.GzipFile(fileobj=raw).read(LARGEST + 1)
        except BROKEN_STREAM:
            return None
    return None if len(plain) > LARGEST else np.frombuffer(plain, np.uint8)
