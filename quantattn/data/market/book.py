"""The state of the book after an event: whether it can be used, and when trading was halted."""

from __future__ import annotations

import polars as pl

from quantattn.data.schema import HALT, Frame

BOOK_FLAGS: tuple[str, ...] = ("crossed", "locked", "one_sided")


def book_flags(events: Frame) -> Frame:
    """Add three Booleans: `crossed` (bid > ask), `locked` (bid = ask), `one_sided` (no bid or no ask).

    Such rows stay in the table; features and labels take no price from them.
    """
    ask, bid = pl.col("ask_price_1"), pl.col("bid_price_1")
    return events.with_columns(
        (bid > ask).fill_null(False).alias("crossed"),
        (bid == ask).fill_null(False).alias("locked"),
        (bid.is_null() | ask.is_null()).alias("one_sided"),
    )


def usable_book() -> pl.Expr:
    """Whether both sides stand and the ask is above the bid, so that the book has a mid."""
    return (pl.col("ask_price_1") > pl.col("bid_price_1")).fill_null(False)


def count_flags(events: pl.LazyFrame) -> dict[str, int]:
    """Rows with each flag, and rows during a halt when the table knows of halts."""
    halted = [pl.col("halted").sum()] if "halted" in events.collect_schema() else []
    counted = book_flags(events).select(*(pl.col(name).sum() for name in BOOK_FLAGS), *halted).collect()
    return {name: int(counted[name][0] or 0) for name in counted.columns}


def halt_intervals(events: pl.DataFrame) -> pl.DataFrame:
    """Every halt: `entity`, `start` and `end` in ns UTC.

    Args:
        events: in canonical order, with `halted`.

    Returns:
        `start` is the time of the first event during the halt, `end` that of the first after it, null when the
        entity's table ends, or its next day begins, before trading resumes.
    """
    runs = (
        events.lazy()
        .with_columns(_run=pl.struct("entity", "halted").rle_id())
        .group_by("_run", maintain_order=True)
        .agg(pl.col("entity", "halted", "available_time").first(), pl.col("kind").first())
        .with_columns(
            resumed=(pl.col("entity").shift(-1) == pl.col("entity")) & (pl.col("kind").shift(-1) == HALT),
            next=pl.col("available_time").shift(-1),
        )
        .filter("halted")
    )
    return runs.select(
        "entity",
        pl.col("available_time").alias("start"),
        pl.when("resumed").then("next").alias("end"),
    ).collect()
