"""Quotes as book events: what each of them changed, and the best bid and ask after it."""

from __future__ import annotations

import polars as pl

from quantattn.data.schema import CANONICAL_ORDER, UPDATE, level_columns

QUOTE = ("bid", "ask", "bid_size", "ask_size")


def quote_events(quotes: pl.LazyFrame, kept: tuple[str, ...] = ()) -> pl.LazyFrame:
    """Schema `BookEvents`, with `complete`, of quotes in canonical order.

    A quote becomes one event for each side that it changed, the bid first, and the event of the bid alone where it
    repeats the one before it. Until its last event the book is that of the quote before, as no state between the two
    ever stood. `seq` is doubled, so that both events have one.

    Args:
        quotes: `entity`, `event_time`, `available_time`, `seq`, and Int64 `bid`, `ask`, `bid_size`, `ask_size`. A
            price that is null says that there is no such side; a size that is null beside a price that it is not told.
        kept: names of more columns to keep.
    """
    new = (pl.col("entity") != pl.col("entity").shift(1)).fill_null(True)
    made = quotes.with_columns(
        *(pl.when(~new).then(pl.col(name).shift(1)).alias(f"_{name}") for name in QUOTE),
        pl.when(~new).then(pl.lit(True)).fill_null(False).alias("_old"),
    )
    moved = {
        side: pl.col(side).ne_missing(pl.col(f"_{side}")) | pl.col(f"{side}_size").ne_missing(pl.col(f"_{side}_size"))
        for side in ("bid", "ask")
    }
    made = made.with_columns(
        pl.when(moved["bid"] & moved["ask"])
        .then(pl.lit(pl.Series([[1, -1]], dtype=pl.List(pl.Int8))))
        .when(moved["ask"])
        .then(pl.lit(pl.Series([[-1]], dtype=pl.List(pl.Int8))))
        .otherwise(pl.lit(pl.Series([[1]], dtype=pl.List(pl.Int8))))
        .alias("side"),
        _both=moved["bid"] & moved["ask"],
    ).explode("side", empty_as_null=True)
    first = pl.col("_both") & (pl.col("side") == 1)
    bought = pl.col("side") == 1

    def side_of(bid: str, ask: str) -> pl.Expr:
        return pl.when(bought).then(pl.col(bid)).otherwise(pl.col(ask))

    def shown(name: str) -> pl.Expr:
        return pl.when(first).then(pl.col(f"_{name}")).otherwise(pl.col(name))

    ask, ask_size, bid, bid_size = level_columns(1)
    own = side_of("bid", "ask")
    return made.select(
        *(pl.col(name) for name in CANONICAL_ORDER[:2]),
        (2 * pl.col("seq") + (pl.col("_both") & ~bought)).alias("seq"),
        "event_time",
        pl.lit(UPDATE, pl.UInt8).alias("kind"),
        "side",
        # Where a side is gone, its last price shows nothing any more.
        pl.coalesce(own, side_of("_bid", "_ask")).alias("price"),
        pl.when(own.is_not_null()).then(side_of("bid_size", "ask_size")).fill_null(0).alias("size"),
        pl.lit(0, pl.Int64).alias("order_id"),
        shown("ask").alias(ask),
        pl.when(shown("ask").is_null()).then(0).otherwise(shown("ask_size")).alias(ask_size),
        shown("bid").alias(bid),
        pl.when(shown("bid").is_null()).then(0).otherwise(shown("bid_size")).alias(bid_size),
        (~first).alias("complete"),
        *kept,
    )


def national_best(quotes: pl.LazyFrame, exchanges: list[str], day: pl.Expr) -> pl.LazyFrame:
    """Quotes of single exchanges → the best bid and ask over all of them after each quote.

    What an exchange shows stands until its next quote of the same instrument and `day`. The size at the best price is
    summed over the exchanges that show it.

    Args:
        quotes: as for `quote_events`, with `exchange`, in canonical order.
        exchanges: all that are in it.
        day: when to forget what every exchange showed.
    """
    frame = quotes.with_columns(_day=day)
    columns: dict[str, pl.Expr] = {}
    for n, exchange in enumerate(exchanges):
        here = pl.col("exchange") == exchange
        for side in ("bid", "ask"):
            # −1 says that there is no price, so that it is carried on like one.
            price = pl.when(here).then(pl.col(side).fill_null(-1)).forward_fill().over("entity", "_day")
            size = pl.when(here).then(pl.col(f"{side}_size").fill_null(0)).forward_fill().over("entity", "_day")
            columns |= {f"_{side}{n}": pl.when(price >= 0).then(price), f"_{side}_size{n}": size}
    frame = frame.with_columns(**columns)
    every = range(len(exchanges))
    frame = frame.with_columns(
        bid=pl.max_horizontal(f"_bid{n}" for n in every), ask=pl.min_horizontal(f"_ask{n}" for n in every)
    )
    return frame.with_columns(
        pl.when(pl.col(side).is_not_null())
        .then(
            pl.sum_horizontal(
                pl.when(pl.col(f"_{side}{n}") == pl.col(side)).then(pl.col(f"_{side}_size{n}")).otherwise(0)
                for n in every
            )
        )
        .alias(f"{side}_size")
        for side in ("bid", "ask")
    ).drop("_day", *columns)
