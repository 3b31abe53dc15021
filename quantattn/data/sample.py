"""Writing book events as LOBSTER files: how `data/sample` was made, and the inverse of `scan_lobster`."""

from __future__ import annotations

import gzip
from pathlib import Path

import polars as pl

from quantattn.data.market.sessions import midnight
from quantattn.data.schema import CROSS, MARKER, book_levels, level_columns
from quantattn.data.sources.lobster import EXCHANGE_ZONE
from quantattn.data.synthetic import SyntheticMarket

OPEN_MS, CLOSE_MS = 34_200_000, 57_600_000  # what LOBSTER's file names promise: 9:30 to 16:00, ms after midnight
EMPTY_PRICE = 9_999_999_999
SAMPLE = SyntheticMarket(entities=("SAMPLE",), events_per_entity=8_192, events_per_session=4_096, seed=7)
"""The market of `data/sample`."""


def write_lobster(events: pl.DataFrame, folder: Path) -> tuple[Path, ...]:
    """Write a message and an order-book file (.csv.gz) for every entity and day at the exchange.

    `scan_lobster(folder)` gives the events back, but for three things that LOBSTER has no words for: a marker becomes a
    cross (type 6), which is unsigned, `seq` counts from 0, and event and available time are one. The bytes are a
    function of the events.

    Args:
        events: book events in canonical order, prices in units of 10⁻⁴.
        folder: made when it does not exist.

    Returns:
        The files, message before book, day by day.

    Raises:
        ValueError: an event without a price, such as a halt; what LOBSTER writes then says more than the event does.
    """
    priceless = events["price"].is_null().arg_true()
    if priceless.len():
        raise ValueError(
            f"event {priceless[0]} has no price (kind {events['kind'][priceless[0]]}) and cannot be written"
        )
    folder.mkdir(parents=True, exist_ok=True)
    levels = book_levels(events.columns)
    local = pl.from_epoch("event_time", time_unit="ns").dt.replace_time_zone("UTC").dt.convert_time_zone(EXCHANGE_ZONE)
    written = []
    for (entity, date), day in events.group_by("entity", local.dt.date().alias("date"), maintain_order=True):
        stem = f"{entity}_{date}_{OPEN_MS}_{CLOSE_MS}"
        tables = {"message": _messages(day, midnight(date, EXCHANGE_ZONE)), "orderbook": _books(day, levels)}
        for role, table in tables.items():
            path = folder / f"{stem}_{role}_{levels}.csv.gz"
            path.write_bytes(gzip.compress(table.write_csv(include_header=False).encode(), mtime=0))
            written.append(path)
    return tuple(written)


def _messages(day: pl.DataFrame, start: int) -> pl.DataFrame:
    since = pl.col("event_time") - start
    seconds, rest = since // 10**9, since % 10**9
    return day.select(
        pl.format("{}.{}", seconds, rest.cast(pl.String).str.zfill(9)).alias("time"),
        pl.col("kind").replace(MARKER, CROSS),
        "order_id",
        "size",
        "price",
        pl.when(pl.col("kind") == MARKER).then(0).otherwise("side").alias("side"),
    )


def _books(day: pl.DataFrame, levels: int) -> pl.DataFrame:
    columns = [name for level in range(1, levels + 1) for name in level_columns(level)]
    empty = {"ask_price": EMPTY_PRICE, "bid_price": -EMPTY_PRICE, "ask_size": 0, "bid_size": 0}
    return day.select(pl.col(name).fill_null(empty[name.rpartition("_")[0]]) for name in columns)
