"""The exact integers that numeric tokens are made of, for every kind of event table.

Everything is past-only: a row's values are a function of that row and of the row before it.
"""

from __future__ import annotations

from collections.abc import Collection

import polars as pl

from quantattn.data.market.book import usable_book

DAY = 86_400 * 10**9
MILLION = 10**6
FEATURE = "feature_"
"""What names of features begin with that a data set ships instead of prices."""


def raw_fields(tick: pl.Expr, zone: str = "UTC", columns: Collection[str] | None = None) -> dict[str, pl.Expr]:
    """The integers (Int64, null where unknown) of a table with these columns, in order; None: of one with a book.

    Of a table with a book (`ask_price_1`):
    size: of the event, in its own unit. price: distance of the event's price from the mid **before** the event, in
    half ticks. mid_move: of the mid with this event, in half ticks. spread: after the event, in ticks. ask_size,
    bid_size: at the best level, after. imbalance: (bid − ask)/(bid + ask) of those, in thousandths, rounded down.

    Of bars (`close`), whose prices change their scale over the years and so are compared with each other, in
    millionths, rounded down: return: from the close before to this close. open_gap: from the close before to this
    open. above: from the close to the high. below: from the low to the close. volume: in its own unit.

    Of trades (`price`): size: in its own unit. move: from the price before to this price, in ticks.

    Of a table of features (`feature_1`, …): they themselves, Float64, and nothing else.

    Of the others: gap: ns since the entity's last event. clock: what a clock in the time zone `zone` shows, in ns since
    midnight. The first event of an entity has nothing that looks at the one before; a crossed, locked or one-sided
    book has no mid, spread and imbalance. The frame must be in canonical order.
    """
    time = pl.col("available_time")
    if columns is not None and "feature_1" in columns:
        return {name: pl.col(name).cast(pl.Float64) for name in columns if name.startswith(FEATURE)}
    if columns is None or "ask_price_1" in columns:
        own = _of_book(tick)
    elif "close" in columns:
        own = _of_bars()
    else:
        own = {"size": pl.col("size"), "move": (pl.col("price") - _before(pl.col("price"))) // tick}
    return own | {"gap": time - _before(time), "clock": wall_clock(time, zone)}


def wall_clock(time: pl.Expr, zone: str) -> pl.Expr:
    """What a clock in the time zone shows at a time in ns UTC: Int64 ns since midnight."""
    if zone == "UTC":
        return time % DAY
    local = pl.from_epoch(time, time_unit="ns").dt.replace_time_zone("UTC").dt.convert_time_zone(zone)
    return local.dt.replace_time_zone(None).to_physical() % DAY


def _before(value: pl.Expr) -> pl.Expr:
    """The value at the entity's event before, null at its first."""
    return pl.when(pl.col("entity") == pl.col("entity").shift(1)).then(value.shift(1))


def _of_book(tick: pl.Expr) -> dict[str, pl.Expr]:
    mid2 = pl.when(usable_book()).then(pl.col("ask_price_1") + pl.col("bid_price_1"))
    ask, bid = pl.col("ask_size_1"), pl.col("bid_size_1")
    return {
        "size": pl.col("size"),
        "price": (2 * pl.col("price") - _before(mid2)) // tick,
        "mid_move": (mid2 - _before(mid2)) // tick,
        "spread": pl.when(usable_book()).then((pl.col("ask_price_1") - pl.col("bid_price_1")) // tick),
        "ask_size": ask,
        "bid_size": bid,
        "imbalance": pl.when(usable_book() & (ask + bid > 0)).then((bid - ask) * 1000 // (bid + ask)),
    }


def _of_bars() -> dict[str, pl.Expr]:
    close, before = pl.col("close"), _before(pl.col("close"))
    return {
        "return": _millionths(close - before, before),
        "open_gap": _millionths(pl.col("open") - before, before),
        "above": _millionths(pl.col("high") - close, close),
        "below": _millionths(close - pl.col("low"), close),
        "volume": pl.col("volume"),
    }


def _millionths(part: pl.Expr, whole: pl.Expr) -> pl.Expr:
    """The quotient in millionths, rounded down, in 128 bits; null where the whole is not above 0."""
    share = part.cast(pl.Int128) * MILLION // whole
    return pl.when(whole > 0).then(share.cast(pl.Int64, strict=False))
