"""LOBSTER: message and order-book files of one entity and day, row for row, as one event table.

The format, its units and what is refused: docs/sources/lobster.md. No time and no price passes through a float.
"""

from __future__ import annotations

import datetime as dt
import importlib.util
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import call
from pathlib import Path
from typing import Any, Literal

import polars as pl

from quantattn.data.market.sessions import midnight
from quantattn.data.schema import Instrument, level_columns
from quantattn.data.sources.lobster_files import Pair, Unusable, count_lines, find_pairs
from quantattn.data.sources.lobster_rows import DayTable, read_day
from quantattn.data.sources.runs import TABLE
from quantattn.data.sources.source import Source, SourceReport, file_sha256, write_set_aside
from quantattn.data.threads import each

EXCHANGE_ZONE = "America/New_York"
PRICE_EXPONENT = -4
_EARLY_MS = 300_000
_COMPILED_FROM = 1 << 25  # bytes of files; compiling takes as long as the scanner needs for so many
_TOGETHER = 1 << 26  # bytes of files that are read beside each other, of which tables take some times as much
_PACKED = 8  # times as many are packed
_SET_ASIDE = {"entity": pl.String, "file": pl.String, "line": pl.Int64, "reason": pl.String, "text": pl.String}


@dataclass(frozen=True)
class _Day:
    """A pair that was read; `first` is the `seq` of its first line, `held` its events where memory holds them."""

    pair: Pair
    table: DayTable
    start: int
    hashes: dict[str, str]
    first: int = 0
    held: pl.DataFrame | None = None

    def numbered(self, first: int, levels: int | None) -> _Day:
        """With `first`, and with its events if its rows are in memory."""
        if self.table.whole is None:
            return replace(self, first=first)
        made = self.table.events(self.pair.entity, self.start, first, levels or self.table.levels)
        return replace(self, first=first, held=made.collect(engine="in-memory"), table=replace(self.table, whole=None))

    @property
    def size(self) -> int:
        """Bytes of the events that are held."""
        return 0 if self.held is None else int(self.held.estimated_size())

    def events(self, depth: int) -> pl.LazyFrame:
        """The day as book events with so many levels."""
        if self.held is None:
            return self.table.events(self.pair.entity, self.start, self.first, depth)
        deeper = [name for level in range(depth + 1, self.table.levels + 1) for name in level_columns(level)]
        return self.held.lazy().select(pl.exclude(deeper))


def scan_lobster(
    path: str | Path,
    levels: int | None = None,
    *,
    entity: str | None = None,
    date: str | dt.date | None = None,
    tick: int = 100,
    rounded_times: bool = False,
    on_bad: Literal["refuse", "quarantine"] = "refuse",
    set_aside: str | Path | None = None,
) -> Source:
    """LOBSTER files as book events (schema `BookEvents`, and `halted`), checked now and computed when asked for.

    Every row of every file is looked at once, a day at a time, before this returns. Days stay in memory up to 512 MiB;
    others are read again when the frame is collected. Where numba is there and the files are many, compiled code parses
    them. `available_time` is `event_time`: the files carry the exchange's clock alone.

    Args:
        path: a folder, searched with its subfolders, or one message file (.csv or .csv.gz) beside its partner.
        levels: levels of the book to keep; None keeps as many as every file has.
        entity: name of the entity when file names lack the form TICKER_YYYY-MM-DD_START_END_…, or another name.
        date: day at the exchange when file names lack it, as a date or YYYY-MM-DD.
        tick: smallest price step in units of 10⁻⁴ (100 is a cent).
        rounded_times: accept times that a spreadsheet has rounded; the report then says so. Ties are more frequent
            in such a file, and the order of its rows is still kept.
        on_bad: "refuse" raises at the first bad row or file; "quarantine" leaves them out, counts them under their
            reason, and writes them to `set_aside`.
        set_aside: CSV file for what is left out; needed with "quarantine".

    Raises:
        ValueError: one sentence that names the file, the line, what was found and what was expected.
    """
    if on_bad not in ("refuse", "quarantine"):
        raise ValueError(f"on_bad must be 'refuse' or 'quarantine', got {on_bad!r}")
    if (on_bad == "quarantine") != (set_aside is not None):
        raise ValueError(
            "on_bad='quarantine' and set_aside=FILE go together: what is left out must be written somewhere"
        )
    if levels is not None and levels < 1:
        raise ValueError(f"levels must be at least 1, got {levels}")
    day = dt.date.fromisoformat(date) if isinstance(date, str) else date
    pairs, unusable, passed_over = find_pairs(Path(path), entity, day)
    if unusable and on_bad == "refuse":
        raise unusable[0]
    days: list[_Day] = []
    compiled = sum(map(_size, pairs)) >= _COMPILED_FROM and importlib.util.find_spec("numba") is not None
    read = partial(_read, levels=levels, rounded=rounded_times, quarantine=on_bad == "quarantine", compiled=compiled)
    room, lines = TABLE, Counter[str]()
    for together in _batches(pairs):
        good: list[tuple[_Day, int]] = []
        for found in each(read, together):
            if isinstance(found, Unusable):
                unusable.append(found)
                continue
            good.append((found, lines[found.pair.entity]))
            lines[found.pair.entity] += found.table.lines
        for made in each(lambda day: day[0].numbered(day[1], levels), good):
            days.append(made if made.size <= room else replace(made, held=None))
            room -= days[-1].size
    if not days:
        raise ValueError(f"{path}: every file was set aside; the first because {unusable[0]}")
    left_out = _left_out(days, unusable)
    if set_aside is not None:
        write_set_aside(left_out, Path(set_aside))
    depth = levels or min(found.table.levels for found in days)
    return Source(
        frame=pl.concat([found.events(depth) for found in days]),
        instruments=tuple(Instrument(name, PRICE_EXPONENT, tick) for name in sorted({d.pair.entity for d in days})),
        report=_report(days, unusable, left_out, depth, passed_over),
    )


def _size(pair: Pair) -> int:
    return sum(file.stat().st_size for file in (pair.message, pair.book))


def _batches(pairs: Sequence[Pair]) -> Iterator[list[Pair]]:
    """Pairs in their order, so many at a time as memory takes beside each other."""
    batch: list[Pair] = []
    room = _TOGETHER
    for pair in pairs:
        size = _size(pair) * (_PACKED if pair.message.suffix == ".gz" else 1)
        if batch and size > room:
            yield batch
            batch, room = [], _TOGETHER
        batch.append(pair)
        room -= size
    if batch:
        yield batch


def _read(pair: Pair, levels: int | None, rounded: bool, quarantine: bool, compiled: bool) -> _Day | Unusable:
    """A pair, checked and hashed; what makes it unusable as a whole is raised unless `quarantine`."""
    files = (pair.message, pair.book)
    table = partial(_table, pair, levels, rounded, quarantine, compiled)
    steps: tuple[Callable[[], Any], ...] = (table, *(partial(file_sha256, file) for file in files))
    try:
        (rows, start), *hashes = each(call, steps)
    except Unusable as error:
        if quarantine:
            return error
        raise
    return _Day(pair, rows, start, dict(zip((file.name for file in files), hashes, strict=True)))


def _table(pair: Pair, levels: int | None, rounded: bool, quarantine: bool, compiled: bool) -> tuple[DayTable, int]:
    """The rows, and midnight at the exchange in ns UTC."""
    try:
        start = midnight(pair.date, EXCHANGE_ZONE)
    except ValueError as error:
        raise Unusable("ambiguous times", f"{pair.message.name}: {error}", pair.message, pair.book) from error
    table = read_day(pair, rounded_times=rounded, quarantine=quarantine, compiled=compiled)
    if levels is not None and levels > table.levels:
        raise Unusable(
            "too few levels",
            f"{pair.book.name} has {table.levels} levels of the book, but levels={levels} was asked for",
            pair.message,
            pair.book,
        )
    return table, start


def _left_out(days: list[_Day], unusable: list[Unusable]) -> pl.DataFrame:
    rows = [day.table.bad.with_columns(entity=pl.lit(day.pair.entity)) for day in days if day.table.bad.height]
    for error in unusable:
        count = max((count_lines(file) for file in error.files), default=0)
        files = " and ".join(file.name for file in error.files)
        rows.append(
            pl.DataFrame({"file": files, "reason": error.reason, "text": str(error), "rows": count}, strict=False)
        )
    empty = pl.DataFrame(schema={**_SET_ASIDE, "rows": pl.Int64})
    return pl.concat([empty, *rows], how="diagonal_relaxed").select(empty.columns)


def _report(
    days: list[_Day], unusable: list[Unusable], left_out: pl.DataFrame, depth: int, passed_over: list[str]
) -> SourceReport:
    counts = left_out.group_by("reason", maintain_order=True).agg(pl.col("rows").sum())
    notes = [note for day in days for note in day.table.notes]
    for day in days:
        last, end = day.table.last // 10**6, day.pair.end
        if end is not None and last < end - _EARLY_MS:
            notes.append(f"{day.pair.message.name} stops at millisecond {last}, its name promises data to {end}")
        if day.table.levels > depth:
            notes.append(f"{day.pair.book.name} has {day.table.levels} levels of the book, {depth} were kept")
    notes += [f"set aside: {error}" for error in unusable]
    if passed_over:
        notes.append(f"passed over, no LOBSTER files: {', '.join(passed_over)}")
    return SourceReport(
        rows_read=sum(day.table.rows for day in days),
        rows_set_aside=dict(counts.iter_rows()),
        files={name: digest for day in days for name, digest in day.hashes.items()},
        notes=tuple(notes),
    )
