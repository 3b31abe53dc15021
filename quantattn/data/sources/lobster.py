"""LOBSTER: message and order-book files of one entity and day, row for row, as one event table.

The format, its units and what is refused: docs/sources/lobster.md. No time and no price passes through a float.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import polars as pl

from quantattn.data.market.sessions import midnight
from quantattn.data.schema import Instrument
from quantattn.data.sources.lobster_files import Pair, Unusable, count_lines, find_pairs
from quantattn.data.sources.lobster_rows import DayTable, read_day
from quantattn.data.sources.source import Source, SourceReport, file_sha256, write_set_aside

EXCHANGE_ZONE = "America/New_York"
PRICE_EXPONENT = -4
_EARLY_MS = 300_000
_SET_ASIDE = {"entity": pl.String, "file": pl.String, "line": pl.Int64, "reason": pl.String, "text": pl.String}


@dataclass(frozen=True)
class _Day:
    pair: Pair
    table: DayTable
    start: int
    hashes: dict[str, str]


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

    Every row of every file is looked at once, a day at a time, before this returns; the frame reads the files again
    when it is collected. `available_time` is `event_time`: the files carry the exchange's clock alone.

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
    for pair in pairs:
        try:
            days.append(_read(pair, levels, rounded_times, quarantine=on_bad == "quarantine"))
        except Unusable as error:
            if on_bad == "refuse":
                raise
            unusable.append(error)
    if not days:
        raise ValueError(f"{path}: every file was set aside; the first because {unusable[0]}")
    left_out = _left_out(days, unusable)
    if set_aside is not None:
        write_set_aside(left_out, Path(set_aside))
    depth = levels or min(found.table.levels for found in days)
    return Source(
        frame=_join(days, depth),
        instruments=tuple(Instrument(name, PRICE_EXPONENT, tick) for name in sorted({d.pair.entity for d in days})),
        report=_report(days, unusable, left_out, depth, passed_over),
    )


def _read(pair: Pair, levels: int | None, rounded_times: bool, quarantine: bool) -> _Day:
    try:
        start = midnight(pair.date, EXCHANGE_ZONE)
    except ValueError as error:
        raise Unusable("ambiguous times", f"{pair.message.name}: {error}", pair.message, pair.book) from error
    table = read_day(pair, rounded_times=rounded_times, quarantine=quarantine)
    if levels is not None and levels > table.levels:
        raise Unusable(
            "too few levels",
            f"{pair.book.name} has {table.levels} levels of the book, but levels={levels} was asked for",
            pair.message,
            pair.book,
        )
    return _Day(pair, table, start, {file.name: file_sha256(file) for file in (pair.message, pair.book)})


def _join(days: list[_Day], depth: int) -> pl.LazyFrame:
    parts: list[pl.LazyFrame] = []
    first_seq: Counter[str] = Counter()
    for day in days:
        name = day.pair.entity
        parts.append(day.table.events(name, day.start, first_seq[name], depth))
        first_seq[name] += day.table.lines
    return pl.concat(parts)


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
