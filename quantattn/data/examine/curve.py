"""A table cut into stretches of equal time, for a drawing: prices, spreads and how many events there were."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

STRETCHES = 400
_MINUTE = 60 * 10**9


@dataclass(frozen=True)
class Curve:
    """B stretches of an entity's time; those without a row are left out.

    Attributes:
        entity: whose.
        width: of a stretch in ns.
        time: (B,) int64, where each begins, ns UTC.
        price: (B,) float64, the last mid, trade or close in it, in units of currency; NaN for none; None: no prices.
        low, high: (B,) the least and the greatest in it.
        spread: (B,) the mean spread in ticks; None without a book.
        rate: (B,) events a minute.
    """

    entity: str
    width: int
    time: NDArray[np.int64]
    price: NDArray[np.float64] | None
    low: NDArray[np.float64] | None
    high: NDArray[np.float64] | None
    spread: NDArray[np.float64] | None
    rate: NDArray[np.float64]


def cut_curve(events: pl.DataFrame, entity: str | None, price_exponent: int = 0, tick: int = 1) -> Curve:
    """Cut the rows of an entity, or of all together, by their available time.

    Args:
        events: with `available_time`, and the prices of one of the schemas, or none.
        entity: whose; None takes all rows and no prices.
        price_exponent: of the prices.
        tick: the declared step.
    """
    own = events if entity is None else events.filter(pl.col("entity") == entity)
    time = own["available_time"]
    first, last = int(time.min()), int(time.max())  # type: ignore[arg-type]
    width = (last - first) // STRETCHES + 1
    ask, bid = pl.col("ask_price_1"), pl.col("bid_price_1")
    book = entity is not None and {"ask_price_1", "bid_price_1"} <= set(own.columns)
    name = next((name for name in ("close", "price") if name in own.columns), None) if entity is not None else None
    usable = (ask > bid).fill_null(False)
    price = pl.when(usable).then((ask + bid) / 2) if book else pl.col(name) if name else pl.lit(None, pl.Int64)
    scaled = price.cast(pl.Float64) * 10.0**price_exponent
    spread = pl.when(usable).then((ask - bid) / tick) if book else pl.lit(None, pl.Float64)
    made = (
        own.lazy()
        .select(part=(pl.col("available_time") - first) // width, price=scaled, spread=spread)
        .group_by("part")
        .agg(
            price=pl.col("price").drop_nulls().last(),
            low=pl.col("price").min(),
            high=pl.col("price").max(),
            spread=pl.col("spread").mean(),
            rows=pl.len(),
        )
        .sort("part")
        .collect()
    )
    kept = {column: made[column].fill_null(float("nan")).to_numpy() for column in ("price", "low", "high", "spread")}
    priced = book or name is not None
    return Curve(
        entity=entity or "all entities",
        width=width,
        time=made["part"].to_numpy() * width + first,
        price=kept["price"] if priced else None,
        low=kept["low"] if priced else None,
        high=kept["high"] if priced else None,
        spread=kept["spread"] if book else None,
        rate=made["rows"].to_numpy() * (_MINUTE / width),
    )
