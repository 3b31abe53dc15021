"""Bitstamp's order log: what happened to every order, one a line, and the book rebuilt from it.

The format, its units and what it cannot tell: docs/sources/bitstamp.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import polars as pl

from quantattn.data.market.rebuild import Tally, rebuild_book
from quantattn.data.schema import CANCEL, DELETE, EXECUTE, NEW
from quantattn.data.sources.crypto.build import instruments, sort_rows
from quantattn.data.sources.crypto.clocks import Clocks, Order
from quantattn.data.sources.crypto.csv_rows import (
    Field,
    choices,
    decimals,
    first_fields,
    listed,
    read_csv,
    times,
    wholes,
)
from quantattn.data.sources.crypto.feed import Account, Reading, files_under
from quantattn.data.sources.crypto.messages import MILLI
from quantattn.data.sources.decimals import greatest_step
from quantattn.data.sources.source import Source

ENDINGS = (".csv", ".csv.gz", ".csv.xz", ".csv.zst", ".zip")
SIZE_EXPONENT = -8
_COLUMNS = ("id", "timestamp", "exchange.timestamp", "price", "volume", "action", "direction")
_CREATED, _CHANGED, _DELETED = range(3)


@dataclass(frozen=True)
class OrderLogSource(Source):
    """A source of book events from a log of orders.

    Attributes:
        tally: what did not go with the book that was rebuilt.
    """

    tally: Tally


def scan_bitstamp(
    path: str | Path,
    levels: int = 10,
    *,
    entity: str = "BTCUSD",
    price_exponent: int = -8,
    tick: str | None = None,
    on_bad: Literal["refuse", "quarantine"] = "refuse",
    set_aside: str | Path | None = None,
) -> OrderLogSource:
    """An order log as book events (schema `BookEvents`).

    `available_time` is the receipt. The file's exchange stamp is the whole second in which an order was made, and no
    later line of that order has another, so it is the `event_time` of new orders alone; for all that happens to them
    later it is the receipt. A trade lessens two orders, a line each: the one of the order that rested is an execution,
    that of the order that came a cancellation. Lines of an order that is already gone, the same line twice among
    them, are left out and counted, whatever `on_bad` says. The file is read in pieces; its table is in memory.

    Args:
        path: one file, plain or compressed, or a folder of them in the order of their names.
        levels: of the book to keep.
        entity: name of the pair; no line says it.
        price_exponent: a price p of the table is p · 10^price_exponent; a file with more digits is refused. Volumes
            are whole numbers of 10^-8.
        tick: smallest price step as decimal text ("0.01"); None takes the greatest step that divides all prices.
        on_bad: "refuse" raises at the first bad line; "quarantine" leaves lines out, counts them under their reason and
            writes them to `set_aside`.
        set_aside: CSV file for what is left out; needed with "quarantine".

    Raises:
        ValueError: one sentence that names the file, the line, what was found and what was expected.
        RuntimeError: numba is not installed (extra `book`).
    """
    account = Account(Reading(levels, price_exponent, SIZE_EXPONENT, tick, "forget", on_bad, set_aside))
    files, order = files_under(Path(path), "an order log of Bitstamp", ENDINGS), Order()
    read = sort_rows(order.check(rows, file) for file in files for rows in _read(file, account))
    rows = _messages(_without_the_gone(read, account)).with_columns(entity=pl.lit(entity))
    made = rebuild_book(rows, levels, zone=None)
    unseen = {name: count for name, count in vars(made.tally).items() if count}
    if unseen:
        listed = ", ".join(f"{name} {count:,}" for name, count in unseen.items())
        account.notes.append(f"not as the rebuilt book stood: {listed}")
    account.notes.append("no line shows the orders that stood before the log began; its first book is empty")
    frame = _takers(made.frame)
    step = greatest_step([frame["price"]], 10**-price_exponent)
    found = instruments({entity: step}, account)
    return OrderLogSource(frame.lazy(), found, account.report(frame.height), made.tally)


def _read(file: Path, account: Account) -> Iterator[pl.DataFrame]:
    header = tuple(first_fields(file))
    if header != _COLUMNS:
        raise ValueError(f"{file.name}, line 1: found columns {listed(header)}, expected {', '.join(_COLUMNS)}")
    layout: dict[str, Field | None] = {
        "id": wholes(),
        "timestamp": times(MILLI),
        "exchange.timestamp": times(MILLI),
        "price": decimals(account.reading.price_exponent),
        "volume": wholes(),
        "action": choices({"created": _CREATED, "changed": _CHANGED, "deleted": _DELETED}),
        "direction": choices({"bid": 1, "ask": -1}),
    }
    clocks = Clocks(file, account)
    for made in read_csv(file, layout, account, header=True):
        rows = made.rename({"timestamp": "received"}).with_columns(
            entity=pl.lit("all"),
            made=pl.col("exchange.timestamp"),
            exchange_time=pl.when(pl.col("action") == _CREATED).then("exchange.timestamp").otherwise("received"),
            file=pl.lit(file.name),
        )
        yield clocks.set(rows)
    clocks.close()


def _without_the_gone(rows: pl.DataFrame, account: Account) -> pl.DataFrame:
    """Leave out what is told of an order after its deletion, and a second creation."""
    deleted = (pl.col("action") == _DELETED).cast(pl.Int32)
    before = rows.with_columns(
        gone=(deleted.cum_sum() - deleted).over("id") > 0,
        again=(pl.col("action") == _CREATED) & (pl.int_range(pl.len()).over("id") > 0),
        twice=pl.struct("id", "made", "available_time", "price", "volume", "action", "direction")
        .is_first_distinct()
        .not_(),
    )
    bad = pl.col("gone") | pl.col("again") | pl.col("twice")
    for file, line, number, twice in before.filter(bad).select("file", "line", "id", "twice").iter_rows():
        reason = "the same line twice" if twice else "order already gone or made"
        account.left_out.append((file, line, reason, f"order {number}"))
    return before.filter(~bad)


def _messages(rows: pl.DataFrame) -> pl.DataFrame:
    """What each line does to its order: how much it takes away, or that it stands."""
    left, action = pl.col("volume"), pl.col("action")
    before = left.shift(1).over("id")
    # An order that is first seen when it changes stood before the log began, and is known from there on.
    stands = (action == _CREATED) | ((action == _CHANGED) & (before.is_null() | (left > before)))
    emptied = (action == _DELETED) & (left == 0)
    return rows.select(
        "entity",
        "event_time",
        "available_time",
        "seq",
        kind=pl.when(stands)
        .then(NEW)
        .when((action == _DELETED) & (left > 0))
        .then(DELETE)
        .when(emptied | (left < before))
        .then(EXECUTE)
        .otherwise(CANCEL)
        .cast(pl.UInt8),
        side=pl.col("direction").cast(pl.Int8),
        price="price",
        size=pl.when(stands)
        .then(left)
        .when((action == _DELETED) & (left > 0))
        .then(left)
        .otherwise(before.fill_null(0) - left),
        order_id="id",
        exchange_time="made",
    )


def _takers(frame: pl.DataFrame) -> pl.DataFrame:
    """Let executions of the order that last arrived across the spread be cancellations: it took, and did not rest."""
    ask, bid = pl.col("ask_price_1").shift(1), pl.col("bid_price_1").shift(1)
    buys, price = pl.col("side") > 0, pl.col("price")
    crosses = pl.when(buys).then(price >= ask).otherwise(price <= bid).fill_null(False)
    arrival = pl.when((pl.col("kind") == NEW) & crosses).then("order_id").forward_fill().over("entity")
    took = (pl.col("kind") == EXECUTE) & (arrival == pl.col("order_id"))
    return frame.with_columns(kind=pl.when(took.fill_null(False)).then(CANCEL).otherwise("kind").cast(pl.UInt8))
