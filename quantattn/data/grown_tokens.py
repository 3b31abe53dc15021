"""A table of events taken in bounded runs, and its tokens as columns that grow: no more of it is in memory than a run.

A token looks at its own event and the one before, so a run brings the last event of the run before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from quantattn.data.carried import TokenVectors
from quantattn.data.filed import Growing, Room
from quantattn.data.pack import Ints, TokenTable
from quantattn.data.schema import Events, check

RUN = 2**18
"""Events of a run, at least, but for the last one."""


def event_runs(
    frame: pl.LazyFrame, schema: type[Events], whole: Callable[[pl.DataFrame], int] = len
) -> Iterator[tuple[pl.DataFrame, int]]:
    """The events of a table, checked by value and order, in runs; and how many events of a run, 0 or 1, came before it.

    Args:
        frame: in canonical order.
        schema: which it must obey.
        whole: how many of these events a run may end with, those after them being put off to the next one.

    Raises:
        ValueError: the table breaks its schema or is empty.
    """
    check(frame, schema)
    held, before, done = pl.DataFrame(schema=frame.collect_schema()), 0, 0
    for batch in _gathered(frame):
        events = pl.concat([held, batch], rechunk=True)
        check(events, schema, done - before)
        count = whole(events[before:])
        if count:
            yield events[: before + count], before
        held, done = events[max(before + count - 1, 0) :], done + count
        before = min(done, 1)
    if held.height > before:
        yield held, before
    if not done + held.height:
        raise ValueError("the source holds no event")


def _gathered(frame: pl.LazyFrame) -> Iterator[pl.DataFrame]:
    held: list[pl.DataFrame] = []
    for batch in frame.collect_batches(chunk_size=RUN, maintain_order=True):
        held.append(batch)
        if sum(map(len, held)) >= RUN:
            yield pl.concat(held)
            held.clear()
    if any(map(len, held)):
        yield pl.concat(held)


class GrownTokens:
    """Tokens of runs, one behind the other, with what is told of their events.

    Args:
        room: where the columns are kept.
    """

    def __init__(self, room: Room) -> None:
        self._room, self.tokens = room, 0
        self._columns: dict[tuple[str, str], Growing] = {}
        self._names: list[str] = []
        self._lengths: list[int] = []

    def add(self, table: TokenTable, more: Mapping[str, Mapping[str, npt.NDArray[Any]]]) -> None:
        """The tokens of a run, and further columns by their kind and name."""
        lengths = np.diff(table.offsets).tolist()
        goes_on = bool(self._names) and self._names[-1] == table.entities[0]
        if goes_on:
            self._lengths[-1] += lengths[0]
        self._names += table.entities[goes_on:]
        self._lengths += lengths[goes_on:]
        vectors = {name: each.rows + self.tokens for name, each in table.vectors.items()}
        every = {"field": table.fields, "": {"time": table.time}, "rows": vectors, **more}
        every["vectors"] = {name: each.values for name, each in table.vectors.items()}
        for kind, columns in every.items():
            for name, column in columns.items():
                if (kind, name) not in self._columns:
                    self._columns[kind, name] = self._room.growing(column.dtype)
                self._columns[kind, name].add(column)
        self.tokens += len(table)

    def entities(self, table: TokenTable) -> int:
        """Number that the first entity of a run has, before the run is added."""
        return len(self._names) - int(bool(self._names) and self._names[-1] == table.entities[0])

    def whole(self, kind: str) -> dict[str, npt.NDArray[Any]]:
        """The columns of a kind, which grow no more."""
        return {name: column.whole() for (which, name), column in self._columns.items() if which == kind}

    def table(self) -> TokenTable:
        """All tokens."""
        rows, values = self.whole("rows"), self.whole("vectors")
        offsets: Ints = np.concatenate([[0], np.cumsum(self._lengths, dtype=np.int64)])
        vectors = {name: TokenVectors(rows[name], values[name]) for name in rows}
        return TokenTable(self.whole("field"), self.whole("")["time"], offsets, tuple(self._names), vectors)
