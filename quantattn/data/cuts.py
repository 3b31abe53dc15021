"""Where sequences begin and end: the layouts of `quantattn.data.pack.SequenceSet`, a bounded run of them at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from quantattn.data.filed import blocks

Ints = npt.NDArray[np.int64]
Layout = Literal["each", "chunks", "windows", "document"]


def cut(
    offsets: Ints, entities: Sequence[str], row: Ints, layout: Layout, max_seq_len: int, context: int
) -> Iterator[tuple[Ints, Ints]]:
    """Starts and stops of the sequences, in order; a layout that makes one of every decision, in several pieces.

    Args:
        offsets: (E + 1,) where the rows of each entity begin.
        entities: their E names.
        row: (Q,) rising rows of the decisions.
        layout: see `SequenceSet`, as for the numbers.
        max_seq_len: the most tokens of a sequence.
        context: `min_context`.

    Raises:
        ValueError: a document is too long.
    """
    if layout == "each":
        yield from _each(offsets, row, max_seq_len)
    elif layout == "chunks":
        yield from _chunks(offsets, row, max_seq_len, context)
    elif layout == "windows":
        yield _windows(offsets, max_seq_len)
    else:
        yield _documents(offsets, entities, max_seq_len)


def ranges(start: Ints, lengths: Ints, offsets: Ints) -> Ints:
    """Start[0], start[0] + 1, … (lengths[0] of them), start[1], …; offsets are the running sums of lengths, from 0."""
    return np.arange(offsets[-1], dtype=np.int64) + np.repeat(start - offsets[:-1], lengths)


def entity_of(offsets: Ints, row: Ints) -> Ints:
    """Number of the entity that each row belongs to."""
    return np.asarray(np.searchsorted(offsets, row, side="right") - 1, np.int64)


def _each(offsets: Ints, row: Ints, max_seq_len: int) -> Iterator[tuple[Ints, Ints]]:
    for here in blocks(len(row)):
        stop = np.asarray(row[here]) + 1
        yield np.maximum(offsets[entity_of(offsets, row[here])], stop - max_seq_len), stop


def _chunks(offsets: Ints, row: Ints, max_seq_len: int, context: int) -> Iterator[tuple[Ints, Ints]]:
    q = 0
    for here in blocks(len(row)):
        first = here.start
        entity = entity_of(offsets, row[here])
        begin = np.maximum(offsets[entity], row[here] + 1 - context)
        # The decisions that a sequence opening with decision q has room for end before decision beyond[q], and they are
        # not more than it has tokens.
        room = np.minimum(begin + max_seq_len, offsets[entity + 1])
        beyond = (first + np.searchsorted(row[first : here.stop + max_seq_len], room, side="left")).tolist()
        opens: list[int] = []
        while q < here.stop:
            opens.append(q)
            q = beyond[q - first]
        closing = np.asarray([*opens, q][1:], np.int64) - 1
        yield begin[np.asarray(opens, np.int64) - first], np.asarray(row[closing]) + 1


def _windows(offsets: Ints, max_seq_len: int) -> tuple[Ints, Ints]:
    rows = np.diff(offsets)
    pieces = -(-rows // max_seq_len)
    nth = ranges(np.zeros_like(pieces), pieces, np.concatenate([[0], np.cumsum(pieces)]))
    start = np.repeat(offsets[:-1], pieces) + nth * max_seq_len
    return start, np.minimum(start + max_seq_len, np.repeat(offsets[1:], pieces))


def _documents(offsets: Ints, entities: Sequence[str], max_seq_len: int) -> tuple[Ints, Ints]:
    rows = np.diff(offsets)
    if len(rows) and int(rows.max()) > max_seq_len:
        longest = int(rows.argmax())
        raise ValueError(
            f"document {entities[longest]!r} has {int(rows[longest])} tokens, more than data.max_seq_len = "
            f"{max_seq_len}"
        )
    filled = rows > 0
    return offsets[:-1][filled], offsets[1:][filled]
