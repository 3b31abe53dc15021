"""When things happened: first and last times, the largest gaps, clocks that run backwards, rows that repeat."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from quantattn.data.schema import book_levels, level_columns


@dataclass(frozen=True)
class Gap:
    """A stretch without a row of an entity.

    Attributes:
        entity: whose.
        start: available time of the row before it, ns UTC.
        end: that of the row after it.
        within_day: whether both lie on one day of the exchange's time zone.
    """

    entity: str
    start: int
    end: int
    within_day: bool


@dataclass(frozen=True)
class Times:
    """What the two clocks of a table say.

    Attributes:
        first_event, last_event: least and greatest `event_time`, ns UTC.
        first_available, last_available: the same of `available_time`.
        early: rows that could be known before they happened, which no source should yield.
        falls: rows whose `event_time` is before that of the row before them, of the same entity.
        largest_fall: ns by which one falls, at most.
        delay_median: ns from event to availability, half of the rows within.
        delay_max: the most.
        ties: rows with the available time of the row before them, of the same entity.
        step_median: ns between rows of an entity, half of them within.
    """

    first_event: int
    last_event: int
    first_available: int
    last_available: int
    early: int
    falls: int
    largest_fall: int
    delay_median: int
    delay_max: int
    ties: int
    step_median: int | None


def measure_times(events: pl.DataFrame) -> Times:
    """Of a table in canonical order with at least one row."""
    event, known = pl.col("event_time"), pl.col("available_time")
    same = pl.col("entity") == pl.col("entity").shift(1)
    fall = pl.when(same).then(event.shift(1) - event)
    step = pl.when(same).then(known - known.shift(1))
    found = events.select(
        first_event=event.min(),
        last_event=event.max(),
        first_available=known.min(),
        last_available=known.max(),
        early=(known < event).sum(),
        falls=(fall > 0).sum(),
        largest_fall=pl.max_horizontal(fall.max(), pl.lit(0)),
        delay_median=(known - event).median().cast(pl.Int64),
        delay_max=(known - event).max(),
        ties=(step == 0).sum(),
        step_median=step.median().cast(pl.Int64),
    ).row(0, named=True)
    return Times(**{name: None if value is None else int(value) for name, value in found.items()})  # type: ignore[arg-type]


def largest_gaps(events: pl.DataFrame, zone: str, most: int = 3) -> tuple[list[Gap], list[Gap]]:
    """The longest stretches without a row: within a day of `zone`, and over the end of one; longest first."""
    known = pl.col("available_time")
    day = pl.from_epoch("available_time", "ns").dt.replace_time_zone("UTC").dt.convert_time_zone(zone).dt.date()
    found = (
        events.lazy()
        .select("entity", known, day=day)
        .with_columns(start=known.shift(1), same=pl.col("entity") == pl.col("entity").shift(1))
        .with_columns(within=pl.col("day") == pl.col("day").shift(1))
        .filter(pl.col("same") & (known > pl.col("start")))
        .with_columns(length=known - pl.col("start"))
    )
    parts = [found.filter(rule).top_k(most, by="length") for rule in (pl.col("within"), ~pl.col("within"))]
    rows = [part.sort("length", "start", descending=[True, False]) for part in pl.collect_all(parts)]
    within, over = (
        [Gap(*row) for row in part.select("entity", "start", "available_time", "within").iter_rows()] for part in rows
    )
    return within, over


def count_repeated(events: pl.DataFrame) -> int:
    """Rows that are equal to an earlier one in everything but `seq` and deeper levels of the book."""
    deeper = {name for level in range(2, book_levels(events.columns) + 1) for name in level_columns(level)}
    told = [name for name in events.columns if name != "seq" and name not in deeper]
    return events.height - events.select(told).n_unique()
