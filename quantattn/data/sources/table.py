"""Any long table with an id, a time and typed columns → events: bank transactions, logins, claims.

The types, the forms of time and what is refused: docs/sources/table.md. No number and no time passes through a float.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from quantattn.data.schema import CANONICAL_ORDER, Events
from quantattn.data.sources.source import Source, SourceReport, write_set_aside
from quantattn.data.sources.table_files import FAULT, Part, TextForm, is_delta
from quantattn.data.sources.table_rows import Looked, OnBad, Plan, Through, Typed, open_table
from quantattn.data.sources.table_types import Clock, Column, duration


@dataclass(frozen=True)
class TableSource(Source):
    """A source of events with the columns that its table was asked for.

    Attributes:
        columns: name → its type; the columns of `frame` beyond those of `Events`, in this order.
        zone: time zone of the calendar, by which the hour and the weekday of an event are told.
    """

    columns: Mapping[str, Column]
    zone: str


def scan_table(
    path: str | Path | pl.LazyFrame,
    *,
    id: str,
    time: str | Sequence[str],
    columns: Mapping[str, str],
    time_format: str = "iso",
    zone: str = "UTC",
    origin: str = "1970-01-01",
    available: str | None = None,
    delay: str | int = 0,
    rename: Mapping[str, str] | None = None,
    keep: Mapping[str, Sequence[Any]] | None = None,
    through: Mapping[str, str] | None = None,
    separator: str | None = None,
    quote: str | None = '"',
    names: Sequence[str] | None = None,
    null_values: Sequence[str] = ("",),
    decimal_comma: bool = False,
    on_bad: OnBad = "refuse",
    set_aside: str | Path | None = None,
) -> TableSource:
    """A long table as events (schema `Events` and the columns asked for), checked now and computed when asked for.

    Every row is looked at once before this returns; the frame reads the files again when it is collected.

    Args:
        path: a text file (plain, .gz, .zst, .xz, .zip), a Parquet file, a pattern of either, a folder of either (hive
            folders give columns), a Delta table, or a lazy frame, such as the result of a database query.
        id: column of the entity; text or whole numbers.
        time: column of the event's time, or several that are joined by a space.
        columns: name → "category" (String), "integer", "decimal2" (Int64 in units of 10^−2) or "float".
        time_format: see `Clock`; columns that hold dates or times of Parquet or Delta need none.
        zone: of times that name none, and of the calendar.
        origin: YYYY-MM-DD of day number 0, for time_format "day".
        available: column of the time at which a row could be known, written like `time`.
        delay: how long after its event a row could be known when no column says it: "1d", "90s".
        rename: column of the file → name in `columns`.
        keep: column of the file → the values with which a row is kept; the others are counted in a note.
        through: {path, id, to}: the id of this table is column `id` of another, whose column `to` is the entity.
        separator: of a text file; None finds it.
        quote: of a text file; None for none. A quoted field may hold separators, but no end of line.
        names: of the columns of a text file without a header line.
        null_values: texts that say that a value is missing.
        decimal_comma: whether numbers are written 1,5.
        on_bad: "refuse" raises at the first bad row; "quarantine" leaves bad rows out, counts them under their reason,
            and writes them to `set_aside`.
        set_aside: CSV file for what is left out; needed with "quarantine".

    Raises:
        ValueError: one sentence that names the setting, or the file, the line, what was found and what was expected.
    """
    _require_place(on_bad, set_aside)
    named = dict(rename or {})
    plan = Plan(
        id=id,
        time=(time,) if isinstance(time, str) else tuple(time),
        columns={name: Column.parse(kind) for name, kind in columns.items()},
        origin_of={name: next((old for old, new in named.items() if new == name), name) for name in columns},
        clock=Clock(time_format, zone, str(origin)),
        available=available,
        delay=duration(delay),
        keep={name: tuple(map(str, values)) for name, values in (keep or {}).items()},
        through=Through.of(through) if through is not None else None,
        null_values=tuple(null_values),
        decimal_comma=decimal_comma,
    )
    stray = sorted(set(named.values()) - set(columns))
    if stray:
        raise ValueError(f"rename gives the names {', '.join(stray)}, which are not among columns")
    parts, files = open_table(path, plan.wanted, TextForm(separator, quote, None if names is None else tuple(names)))
    typed = [Typed.of(part, plan) for part in parts]
    looked = [each.look(on_bad) for each in typed]
    left_out = pl.concat([each.left_out for each in looked])
    if set_aside is not None:
        write_set_aside(left_out, Path(set_aside))
    counted = left_out.group_by("reason", maintain_order=True).agg(pl.len())
    rows = sum(each.rows for each in looked)
    if not rows:
        raise ValueError(f"{parts[0].name}: no row is left ({left_out.height} bad, the others passed over by keep)")
    return TableSource(
        frame=_events(typed, plan),
        instruments=(),
        report=SourceReport(rows, dict(counted.iter_rows()), files, (*_unended(parts), *_notes(plan, looked, path))),
        columns=plan.columns,
        zone=zone,
    )


def _require_place(on_bad: str, set_aside: str | Path | None) -> None:
    if on_bad not in ("refuse", "quarantine"):
        raise ValueError(f"on_bad must be 'refuse' or 'quarantine', got {on_bad!r}")
    if (on_bad == "quarantine") != (set_aside is not None):
        raise ValueError(
            "on_bad='quarantine' and set_aside=FILE go together: what is left out must be written somewhere"
        )


def _events(typed: Sequence[Typed], plan: Plan) -> pl.LazyFrame:
    """All parts, one after the other, without the rows that cannot be used; `seq` counts those too."""
    rows = pl.concat([each.frame for each in typed]).with_row_index("seq").filter(pl.col(FAULT).is_null())
    return (
        rows.with_columns(pl.col("seq").cast(pl.Int64)).select(*Events.columns(), *plan.columns).sort(CANONICAL_ORDER)
    )


def _unended(parts: Sequence[Part]) -> list[str]:
    said = "the last line has no end; if the file was cut there, its last field is not whole"
    return [f"{part.name}: {said}" for part in parts if part.unended]


def _notes(plan: Plan, looked: Sequence[Looked], path: str | Path | pl.LazyFrame) -> tuple[str, ...]:
    notes = []
    if plan.clock.format == "day":
        notes.append(
            f"day numbers are counted from {plan.clock.origin}, which no row says: dates and weekdays are right up to "
            "one shift"
        )
    if plan.available is None and not plan.delay:
        notes.append("nothing says when a row could be known: available_time is event_time")
    if blank := sum(each.blank for each in looked):
        notes.append(f"{blank:,} empty lines are no rows")
    if plan.keep:
        passed = sum(each.passed_over for each in looked)
        notes.append(f"{passed:,} rows are passed over by keep ({', '.join(plan.keep)})")
    if isinstance(path, pl.LazyFrame):
        notes.append("the table was given as a frame: there is no file to hash")
    elif is_delta(Path(path)):
        notes.append("a Delta table has no order of rows; seq is that of its files as they were read")
    return tuple(notes)
