"""Everything that can be said of the table of a source before anybody trains on it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import polars as pl

from quantattn.data.examine.balance import Balance, count_outside, measure_balance
from quantattn.data.examine.columns import ColumnFacts, measure_columns, measure_histories
from quantattn.data.examine.curve import Curve, cut_curve
from quantattn.data.examine.filings import examine_filings
from quantattn.data.examine.prices import PriceRange, count_books, count_kinds, measure_prices, priced
from quantattn.data.examine.times import Gap, Times, count_repeated, largest_gaps, measure_times
from quantattn.data.market.book import halt_intervals
from quantattn.data.sources.source import Source
from quantattn.data.sources.table_types import Column

MOST_ROWS = 5_000_000
"""Rows that are held in memory; what needs the order of rows is said of so many from the beginning."""
SHOWN_ENTITIES = 10


@dataclass(frozen=True)
class Examination:
    """What a table holds and what is odd about it.

    Attributes:
        rows: of the table.
        looked_at: rows from its beginning that the facts below `kinds` are of.
        entities: how many.
        largest: those with the most rows, and their rows.
        histories: events of an entity: the fewest, the median, the most.
        kinds: kind of event → rows.
        times: the clocks.
        gaps: the longest within a day of the zone; `nights`: the longest over the end of one.
        repeated: rows equal to an earlier one.
        books: state of the book → rows; `incomplete`: rows within an event, which show the book from before it.
        halts: entity, start and end in ns UTC (None: to the end of its table), the first of `halts_count`.
        outside: rows outside the sessions of the calendar.
        prices: of the largest entities.
        balance: of classes, for several horizons, within sessions unless all rows lie outside; `no_balance` says why
            there is none.
        columns: of a long table; labels that a table ships.
        filings: what is counted of filings, see `examine_filings`.
    """

    rows: int
    looked_at: int
    entities: int
    largest: Mapping[str, int]
    histories: tuple[int, int, int]
    kinds: Mapping[str, int]
    times: Times | None = None
    gaps: list[Gap] = field(default_factory=list)
    nights: list[Gap] = field(default_factory=list)
    repeated: int = 0
    books: Mapping[str, int] = field(default_factory=dict)
    incomplete: int = 0
    halts: list[tuple[str, int, int | None]] = field(default_factory=list)
    halts_count: int = 0
    outside: int = 0
    prices: list[PriceRange] = field(default_factory=list)
    balance: list[Balance] = field(default_factory=list)
    no_balance: str = ""
    columns: list[ColumnFacts] = field(default_factory=list)
    filings: Mapping[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


def examine(
    source: Source, zone: str = "UTC", calendar: str | None = None, most_rows: int = MOST_ROWS
) -> tuple[Examination, Curve | None]:
    """Look at a source's table, and cut what a drawing of it needs.

    Rows, entities, histories and kinds are counted over the whole table as it streams by. All else needs rows in their
    order, or a set of all of them, and is said of the first `most_rows`, which are held in memory.

    Args:
        source: of any schema.
        zone: time zone in which days begin.
        calendar: exchange whose sessions bound the horizons of class balance.
        most_rows: that are held in memory.
    """
    whole = source.frame
    events = whole.head(most_rows).collect()
    if events.height < most_rows:
        whole = events.lazy()
    counted = whole.group_by("entity").agg(pl.len()).sort("len", "entity", descending=[True, False])
    by_entity = counted.collect(engine="streaming")
    largest = dict(by_entity.head(SHOWN_ENTITIES).iter_rows())
    found: dict[str, Any] = {
        "rows": int(by_entity["len"].sum()),
        "looked_at": events.height,
        "entities": by_entity.height,
        "largest": largest,
        "histories": measure_histories(whole),
        "kinds": count_kinds(whole),
    }
    if "text" in events.columns:
        found["filings"] = examine_filings(source, events)
    if not events.height:
        return Examination(**found), None
    found["times"] = measure_times(events)
    found["gaps"], found["nights"] = largest_gaps(events, zone)
    if "text" in events.columns:
        return Examination(**found), cut_curve(events, None)
    found["repeated"] = count_repeated(events)
    shipped = [name for name in events.columns if re.fullmatch(r"label_\d+", name)]
    told = getattr(source, "columns", {}) | dict.fromkeys(shipped, Column("category"))
    found["columns"] = measure_columns(events.with_columns(pl.col(shipped).cast(pl.String)), told)
    found["books"] = count_books(events)
    if "complete" in events.columns:
        found["incomplete"] = events.height - int(events["complete"].sum())
    if "halted" in events.columns:
        halts = halt_intervals(events)
        found["halts"], found["halts_count"] = halts.head(20).rows(), halts.height
    found["outside"] = count_outside(events, calendar)
    known = {each.entity: each for each in source.instruments}
    if priced(events.columns):
        found["prices"] = [measure_prices(events, known[name]) for name in largest if name in known]
    # Where no row lies in a session, the whole table has to be one.
    within = None if found["outside"] == events.height else calendar
    found["balance"], found["no_balance"] = measure_balance(events, within)
    first = next((known[name] for name in largest if name in known), None)
    curve = (
        cut_curve(events, None) if first is None else cut_curve(events, first.entity, first.price_exponent, first.tick)
    )
    return Examination(**found), curve
