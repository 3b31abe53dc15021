"""Both files of a LOBSTER day as integers in memory, where every line of them is plain."""

from __future__ import annotations

import gzip
import mmap
from itertools import pairwise
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from quantattn.data.market.rebuild import compiled
from quantattn.data.schema import NEW
from quantattn.data.sources.lobster_files import BROKEN_STREAM, MESSAGE_COLUMNS, File
from quantattn.data.threads import each, spans

LARGEST = 1 << 28
"""Bytes of a file, unpacked, that is read so."""
_PART = 1 << 16
_PIECE = 1 << 21  # bytes from which on a thread of its own is begun for a part of a file


def read_whole(message: File, book: File) -> tuple[pl.DataFrame, dict[str, int]] | None:
    """Messages beside books, and the values of `lobster_notes.facts`.

    None where a file is large, a line is not plain or a row breaks a rule, which the scanner then judges. Columns as in
    the files, with `line` (from 0), and `ns` in place of the time.

    Raises:
        RuntimeError: numba is not installed.
    """
    parser = compiled("quantattn.data.sources.lobster_parse")
    read: list[list[NDArray[np.uint8]]] = []
    for file in (message, book):
        data = _bytes(file.path)
        if data is None:
            return None
        if file.header:
            data = data[int(np.argmax(data == ord("\n"))) + 1 :]
        if not len(data) or data[-1] != ord("\n"):
            data = np.append(data, np.uint8(ord("\n")))
        read.append(_pieces(data))
    counts = [each(parser.lines, pieces) for pieces in read]
    if sum(counts[0]) != sum(counts[1]):
        return None
    # One array, no longer than its lines: memory comes in large pages then, which are cleared before they are had.
    names, n = (*message.columns, *book.columns), sum(counts[0])
    made, decimals = np.empty((len(names), n), np.int64), np.empty(n, np.int8)
    out = (made[: len(message.columns)], made[len(message.columns) :])

    def parse(piece: tuple[int, int]) -> bool:
        file, i = piece
        first, lines = sum(counts[file][:i]), counts[file][i]
        return bool(parser.parse(read[file][i], file == 0, first, out[file], decimals) == lines)

    if not all(each(parse, [(file, i) for file in (0, 1) for i in range(len(read[file]))])):
        return None
    found = np.zeros(5, np.int64)
    if not n or not parser.judge(out[0], decimals, out[1], found):
        return None
    frame = pl.DataFrame(dict(zip(names, made, strict=True))).rename({MESSAGE_COLUMNS[0]: "ns"}).with_row_index("line")
    facts = dict(zip(("finest", "coarsest", "new", "strangers", "first_stranger"), found.tolist(), strict=True))
    numbers = frame["order_id"].filter(frame["kind"] == NEW).n_unique()
    return frame, facts | {"last": int(out[0][0, -1]), "rows": n, "new_numbers": numbers}


def _pieces(data: NDArray[np.uint8]) -> list[NDArray[np.uint8]]:
    """The lines in pieces of whole lines, one a thread where they are many."""
    begins = [0, *(_after_line(data, first) for first, _ in spans(len(data), _PIECE)[1:])]
    return [data[first:last] for first, last in pairwise([*begins, len(data)]) if first < last]


def _after_line(data: NDArray[np.uint8], place: int) -> int:
    """Where the first line begins that does not begin before `place`."""
    for at in range(place - 1, len(data), _PART):
        ends = np.flatnonzero(data[at : at + _PART] == ord("\n"))
        if len(ends):
            return at + int(ends[0]) + 1
    return len(data)


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
