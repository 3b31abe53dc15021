"""Rows of many entities in the order of a feed → in canonical order, on disk where memory would not hold them.

An external merge sort: rows are gathered up to a number of bytes, sorted, and set down as a run (Arrow, not packed, so
that a part of it is read without the rest); then the runs are read side by side, an entity or a few at a time.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from polars.io.plugins import register_io_source

KEPT = 1 << 27
"""Bytes of rows that are held in memory before they are set down."""
TABLE = 1 << 29
"""Bytes of a finished table that is held in memory."""
ROWS = 1 << 18
"""Rows of a batch."""

Ints = NDArray[np.int64]
Places = NDArray[np.int32]


class Scratch:
    """A folder of its own for what memory does not hold, removed with this object; made when it is first needed.

    Args:
        parent: where it is made; None is the system's folder for temporary files.
    """

    def __init__(self, parent: str | Path | None = None) -> None:
        self._parent, self._files = parent, 0
        self._folder: Path | None = None

    def write(self, rows: pl.DataFrame) -> Path:
        """Set a table down and return its file.

        Raises:
            OSError: it does not fit, or the folder cannot be written to.
        """
        try:
            if self._folder is None:
                self._folder = Path(tempfile.mkdtemp(prefix="quantattn-rows-", dir=self._parent))
                weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
            path = self._folder / f"{self._files:06}.arrow"
            self._files += 1
            rows.write_ipc(path, compression="uncompressed")
        except (OSError, pl.exceptions.ComputeError) as error:
            where = self._folder or self._parent or tempfile.gettempdir()
            raise OSError(
                f"{rows.height:,} rows could not be set down in {where}: {error}; "
                "scratch= or TMPDIR names another folder"
            ) from error
        return path


@dataclass(frozen=True)
class _Run:
    """Sorted rows, on disk or in memory, and where those of each name stand.

    Attributes:
        rows: the file or the table.
        names: (n,) codes, in the order of the run.
        edges: (n + 1,) where the rows of each begin.
        first, last: (n,) `available_time` of the first and the last of them.
    """

    rows: Path | pl.DataFrame
    names: Ints
    edges: Ints
    first: Ints
    last: Ints

    def places(self, names: int) -> Places:
        """(names,) where each name is among those of the run, −1 where it is not."""
        found = np.full(names, -1, np.int32)
        found[self.names] = np.arange(len(self.names))
        return found

    def slice(self, start: int, end: int) -> pl.DataFrame:
        if isinstance(self.rows, pl.DataFrame):
            return self.rows.slice(start, end - start)
        return pl.scan_ipc(self.rows, glob=False).slice(start, end - start).collect()


class Runs:
    """Rows that come in the order of a feed and leave in that of (name, available_time, seq), any number of times.

    Rows have the columns `name` (UInt32, a place in `names`) and `available_time`, and come in the order of their
    `seq`. A column that some of them lack is null there.

    Args:
        names: what each name stands for; names leave in its order. It may grow while rows come, and never change.
        scratch: where rows go that memory does not hold.
    """

    def __init__(self, names: Sequence[Any], scratch: Scratch) -> None:
        self._names, self._scratch = names, scratch
        self._held: list[pl.DataFrame] = []
        self._bytes = 0
        self._runs: list[_Run] = []
        self._none = pl.DataFrame()

    def add(self, rows: pl.DataFrame) -> None:
        """Take the rows that follow."""
        self._none = pl.concat([self._none, rows.clear()], how="diagonal")
        self._held.append(rows)
        self._bytes += int(rows.estimated_size())
        if self._bytes > KEPT:
            self._set_down(on_disk=True)

    def names(self) -> list[int]:
        """Those that have rows, in order."""
        self._set_down(on_disk=bool(self._runs))
        present = {int(name) for run in self._runs for name in run.names}
        return [name for name in self._order() if name in present]

    def batches(self, order: Sequence[int] | None = None) -> Iterator[pl.DataFrame]:
        """All rows, sorted, in tables of about `ROWS` rows; a table without a row first, whatever there is.

        Args:
            order: in which the names leave, where it is not that of what they stand for.
        """
        names = self.names() if order is None else order
        yield self._none
        places = [run.places(len(self._names)) for run in self._runs]
        counts = np.zeros(len(self._names), np.int64)
        for run in self._runs:
            counts[run.names] += np.diff(run.edges)
        rank = np.zeros(len(self._names), np.int64)
        rank[names] = np.arange(len(names))
        group: list[int] = []
        size = 0
        for name in [*names, -1]:
            if group and (name < 0 or size + counts[name] > ROWS):
                yield from self._group(group, places, rank)
                group, size = [], 0
            if name >= 0:
                group.append(name)
                size += int(counts[name])

    def _group(self, names: list[int], places: Sequence[Places], rank: Ints) -> Iterator[pl.DataFrame]:
        spans = [(run, span) for run, at in zip(self._runs, places, strict=True) for span in _spans(run, at, names)]
        if len(names) > 1 or sum(end - start for _, (start, end) in spans) <= ROWS:
            yield _sorted(_together([run.slice(*span) for run, span in spans]), rank)
            return
        name = names[0]
        own = [(run, at[name]) for run, at in zip(self._runs, places, strict=True) if at[name] >= 0]
        if all(after.first[j] >= before.last[i] for (before, i), (after, j) in pairwise(own)):
            yield from _one_after_the_other(spans)
        else:
            yield from _side_by_side(spans, rank)

    def _order(self) -> list[int]:
        return sorted(range(len(self._names)), key=self._names.__getitem__)

    def _set_down(self, *, on_disk: bool) -> None:
        if not self._held:
            return
        rank = np.zeros(len(self._names), np.int64)
        rank[self._order()] = np.arange(len(rank))
        rows = pl.concat(self._held, how="diagonal")
        self._held, self._bytes = [], 0
        rows = _sorted(rows, rank)
        if not rows.height:
            return
        name, time = rows["name"].to_numpy().astype(np.int64), rows["available_time"].to_numpy()
        edges = np.flatnonzero(np.diff(name, prepend=-1, append=-1))
        kept = self._scratch.write(rows) if on_disk else rows
        self._runs.append(_Run(kept, name[edges[:-1]], edges, time[edges[:-1]], time[edges[1:] - 1]))


class Tables(Mapping[str, pl.DataFrame]):
    """Tables by name that grow piece by piece and are read when they are asked for."""

    def __init__(self, scratch: Scratch) -> None:
        self._scratch, self._bytes = scratch, 0
        self._held: dict[str, list[pl.DataFrame]] = {}
        self._files: dict[str, list[Path]] = {}

    def add(self, name: str, rows: pl.DataFrame) -> None:
        """Take the rows that follow in a table."""
        self._held.setdefault(name, []).append(rows)
        self._files.setdefault(name, [])
        self._bytes += int(rows.estimated_size())
        if self._bytes > KEPT:
            for each, parts in self._held.items():
                if parts:
                    self._files[each].append(self._scratch.write(pl.concat(parts, how="diagonal_relaxed")))
                    parts.clear()
            self._bytes = 0

    def __getitem__(self, name: str) -> pl.DataFrame:
        parts = [pl.scan_ipc(file, glob=False).collect() for file in self._files[name]] + self._held[name]
        return pl.concat(parts, how="diagonal_relaxed")

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


def lazy_table(make: Callable[[], Iterator[pl.DataFrame]], look: Callable[[pl.DataFrame], None]) -> pl.LazyFrame:
    """The table that `make` gives in batches, of which there is at least one; `look` sees each of them now.

    Up to `TABLE` bytes of it are held in memory; a larger one is made again whenever it is computed.
    """
    kept: list[pl.DataFrame] = []
    schema, size = pl.Schema(), 0
    for made in make():
        look(made)
        schema, size = made.schema, size + int(made.estimated_size())
        if size <= TABLE:
            kept.append(made)
        else:
            kept.clear()
    if size <= TABLE:
        return pl.concat(kept).lazy()

    return made_again(make, schema)


def made_again(make: Callable[[], Iterator[pl.DataFrame]], schema: pl.Schema) -> pl.LazyFrame:
    """The table that `make` gives in batches, made again whenever it is computed, as far as it is asked for."""

    def again(columns: list[str] | None, where: pl.Expr | None, rows: int | None, _: int | None) -> Iterator[Any]:
        for made in make():
            found = made if where is None else made.filter(where)
            found = found if columns is None else found.select(columns)
            if rows is not None:
                found = found.head(rows)
                rows -= found.height
            yield found
            if rows == 0:
                return

    return register_io_source(again, schema=schema)


def _spans(run: _Run, at: Places, names: Sequence[int]) -> list[tuple[int, int]]:
    """Where the rows of these names stand in a run, neighbours joined."""
    spans: list[tuple[int, int]] = []
    for name in names:
        if at[name] >= 0:
            start, end = int(run.edges[at[name]]), int(run.edges[at[name] + 1])
            if spans and spans[-1][1] == start:
                spans[-1] = (spans[-1][0], end)
            else:
                spans.append((start, end))
    return spans


def _together(parts: Sequence[pl.DataFrame]) -> pl.DataFrame:
    return parts[0] if len(parts) == 1 else pl.concat(parts, how="diagonal", rechunk=True)


def _sorted(rows: pl.DataFrame, rank: Ints) -> pl.DataFrame:
    """By rank of the name, then time; rows that tie stay as they were."""
    if not rows.height:
        return rows
    key: NDArray[Any] = rank[rows["name"].to_numpy()]
    time = rows["available_time"].to_numpy()
    if len(rank) <= 2**16:
        key = key.astype(np.uint16)  # which numpy sorts by radix
    if not (key[1:] < key[:-1]).any() and not _falls(key, time):
        return rows
    order = np.argsort(key, kind="stable")
    if _falls(key[order], time[order]):
        order = np.lexsort((time, key))
    places = pl.Series(order.astype(np.uint32))
    # Column by column: a table in pieces is gathered slowly, and one made whole would be a copy more.
    return pl.DataFrame([column.rechunk().gather(places) for column in rows.get_columns()])


def _falls(key: NDArray[Any], time: Ints) -> bool:
    """Whether a time falls from one row to the next of the same key."""
    return bool(((key[1:] == key[:-1]) & (time[1:] < time[:-1])).any())


def _one_after_the_other(spans: Sequence[tuple[_Run, tuple[int, int]]]) -> Iterator[pl.DataFrame]:
    """Rows of one name from runs that follow each other in time."""
    parts: list[pl.DataFrame] = []
    for run, (start, end) in spans:
        for at in range(start, end, ROWS):
            parts.append(run.slice(at, min(at + ROWS, end)))
            if sum(part.height for part in parts) >= ROWS:
                yield _together(parts)
                parts = []
    if parts:
        yield _together(parts)


def _side_by_side(spans: Sequence[tuple[_Run, tuple[int, int]]], rank: Ints) -> Iterator[pl.DataFrame]:
    """Rows of one name from runs that overlap in time: those before the earliest time that is still to be read on."""
    parts = [run.slice(start, start) for run, (start, _) in spans]
    at = [start for _, (start, _) in spans]
    size = max(ROWS // len(spans), 1)
    while True:
        for i, (run, (_, end)) in enumerate(spans):
            if parts[i].height < size and at[i] < end:
                upto = min(at[i] + size, end)
                parts[i] = _together([parts[i], run.slice(at[i], upto)])
                at[i] = upto
        unread = [parts[i]["available_time"][-1] for i, (_, (_, end)) in enumerate(spans) if at[i] < end]
        if not unread:
            yield _sorted(_together(parts), rank)
            return
        ready = [int(np.searchsorted(part["available_time"].to_numpy(), min(unread))) for part in parts]
        if sum(ready):
            yield _sorted(_together([part.head(n) for part, n in zip(parts, ready, strict=True)]), rank)
            parts = [part.slice(n) for part, n in zip(parts, ready, strict=True)]
        else:
            size *= 2  # so many rows have one time
