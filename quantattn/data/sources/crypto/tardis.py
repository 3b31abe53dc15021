"""Tardis CSV files: trades, incremental_book_L2, book_snapshot_N and quotes, as one table.

The format, its units and what it cannot tell: docs/sources/tardis.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import polars as pl

from quantattn.data.schema import EXECUTE, UPDATE, level_columns
from quantattn.data.sources.crypto.build import LevelSource, LevelStage, ShownStage, Stage, TradeStage, build
from quantattn.data.sources.crypto.clocks import Carried, Clocks, Order
from quantattn.data.sources.crypto.csv_rows import (
    BROKEN,
    Field,
    choices,
    decimals,
    first_fields,
    listed,
    names,
    read_csv,
    text,
    times,
)
from quantattn.data.sources.crypto.feed import Account, BadLine, Reading, files_under
from quantattn.data.sources.crypto.messages import MICRO

ENDINGS = (".csv", ".csv.gz", ".csv.xz", ".csv.zst", ".csv.zip")
_HEAD = ("exchange", "symbol", "timestamp", "local_timestamp")
_TRADES = (*_HEAD, "id", "side", "price", "amount")
_CHANGES = (*_HEAD, "is_snapshot", "side", "price", "amount")
_QUOTES = (*_HEAD, "ask_amount", "ask_price", "bid_price", "bid_amount")
_KEYS = ("entity", "line", "exchange_time", "event_time", "available_time")
_MESSAGE = ("entity", "available_time", "exchange_time", "kind")
"""Rows of one message; trades are cut further, see `LevelStage`."""
_LEVEL = re.compile(r"(asks|bids)\[(\d{1,4})\]\.(price|amount)")
Kind = Literal["trades", "changes", "quotes", "snapshots"]


@dataclass(frozen=True)
class _File:
    path: Path
    kind: Kind
    columns: tuple[str, ...]
    levels: int


def scan_tardis(
    path: str | Path,
    levels: int | None = None,
    *,
    price_exponent: int = -10,
    size_exponent: int = -8,
    tick: str | None = None,
    on_gap: Literal["forget", "keep"] = "forget",
    on_bad: Literal["refuse", "quarantine"] = "refuse",
    set_aside: str | Path | None = None,
) -> LevelSource:
    """Tardis CSV files as book events (schema `BookEvents`), trades among them, or as `Trades` when there is no book.

    What a file is, its header says. Entities are named EXCHANGE:SYMBOL. A table of one instrument and
    one kind of file is made in pieces, others are sorted first: see `build`.

    Args:
        path: one file, plain or compressed, or a folder: trades beside one kind of book.
        levels: of the book to keep; None keeps all that snapshots have, and ten of a rebuilt book.
        price_exponent: a price p of the table is p · 10^price_exponent; a file with more digits is refused.
        size_exponent: the same for amounts.
        tick: smallest price step as decimal text ("0.5"); None takes the greatest step that divides all prices.
        on_gap: after a line that was left out: "forget" shows no book until the next snapshot, "keep" goes on.
        on_bad: "refuse" raises at the first bad line; "quarantine" leaves lines out, counts them under their reason and
            writes them to `set_aside`.
        set_aside: CSV file for what is left out; needed with "quarantine".

    Raises:
        ValueError: one sentence that names the file, the line, what was found and what was expected.
        RuntimeError: numba is not installed (extra `book`) and a book has to be rebuilt.
    """
    files = [_recognised(file) for file in files_under(Path(path), "a Tardis CSV file", ENDINGS)]
    books = {file.kind: file for file in files if file.kind != "trades"}
    if len(books) > 1:
        shown = " and ".join(sorted(file.path.name for file in books.values()))
        raise ValueError(f"{path} holds books of {len(books)} kinds ({shown}); expected one kind beside trades")
    whole = [file.levels for file in files if file.levels]
    if levels is not None and whole and levels > min(whole):
        raise ValueError(f"{path} has snapshots of {min(whole)} levels, but levels={levels} was asked for")
    depth = min(whole) if whole and levels is None else 10 if levels is None else levels
    reading = Reading(depth, price_exponent, size_exponent, tick, on_gap, on_bad, set_aside)

    def parts(account: Account) -> Iterator[pl.DataFrame]:
        makes: dict[Kind, Callable[[_File, Account], Iterator[pl.DataFrame]]] = {
            "trades": _trades,
            "changes": partial(_changes, breaks=Carried()),
        }
        for some in (books.keys(), ("trades",)):  # a book first where receipts are equal
            order = Order()
            for file in (each for each in files if each.kind in some):
                for rows in makes.get(file.kind, _shipped)(file, account):
                    yield order.check(rows, file.path)

    stage: Callable[[Account], Stage] = partial(LevelStage, by_message=_MESSAGE)
    if whole or not books:
        stage = ShownStage if whole else TradeStage
    return build(parts, stage, Account(reading), merged=len({file.kind for file in files}) > 1)


def _recognised(path: Path) -> _File:
    header = tuple(first_fields(path))
    known: dict[tuple[str, ...], Kind] = {_TRADES: "trades", _CHANGES: "changes", _QUOTES: "quotes"}
    if header in known:
        return _File(path, known[header], header, int(known[header] == "quotes"))
    found = [match.groups() for name in header[4:] if (match := _LEVEL.fullmatch(name))]
    count = len(header[4:]) // 4
    full = {(s, str(n), what) for n in range(count) for s in ("asks", "bids") for what in ("price", "amount")}
    if header[:4] == _HEAD and count and len(header) == 4 + 4 * count and set(found) == full:
        return _File(path, "snapshots", header, count)
    raise ValueError(
        f"{path.name}, line 1: found columns {listed(header)}, expected the header of Tardis trades, "
        "incremental_book_L2, quotes or book_snapshot_N"
    )


def _common() -> dict[str, Field | None]:
    return {"exchange": names(), "symbol": names(), "timestamp": times(MICRO), "local_timestamp": times(MICRO)}


def _trades(file: _File, account: Account) -> Iterator[pl.DataFrame]:
    reading = account.reading
    layout = _common() | {
        "id": text(optional=True),
        "side": choices({"buy": -1, "sell": 1, "unknown": 0}),
        "price": decimals(reading.price_exponent),
        "amount": decimals(reading.size_exponent),
    }
    for rows in _read(file, layout, account):
        yield rows.select(
            *_KEYS,
            kind=pl.lit(EXECUTE, pl.UInt8),
            side=pl.col("side").cast(pl.Int8),
            price="price",
            size="amount",
            trade_id="id",
            broken=False,
            clears=False,
        )


def _shipped(file: _File, account: Account) -> Iterator[pl.DataFrame]:
    """Snapshots and quotes: one row each."""
    reading = account.reading
    levels = {name: _column(name) for name in file.columns[4:]}
    layout: dict[str, Field | None] = _common()
    for name, made in levels.items():
        exponent = reading.price_exponent if "_price_" in made else reading.size_exponent
        kept = int(made.rpartition("_")[2]) <= reading.levels
        layout[name] = decimals(exponent, optional=True) if kept else None
    depth = range(1, reading.levels + 1)
    pairs = [pair for level in depth for pair in (level_columns(level)[:2], level_columns(level)[2:])]
    # A level without a size or without a price is empty.
    stands = {price: pl.col(price).is_not_null() & (pl.col(size) > 0) for price, size in pairs}
    renamed = {name: made for name, made in levels.items() if layout[name] is not None}
    for rows in _read(file, layout, account):
        yield _in_order(file, rows.rename(renamed), account).select(
            *_KEYS,
            kind=pl.lit(UPDATE, pl.UInt8),
            side=pl.lit(0, pl.Int8),
            price=pl.lit(None, pl.Int64),
            size=pl.lit(0, pl.Int64),
            trade_id=pl.lit(None, pl.String),
            **{price: pl.when(stands[price]).then(price) for price, _ in pairs},
            **{size: pl.when(stands[price]).then(size).otherwise(0) for price, size in pairs},
        )


def _in_order(file: _File, rows: pl.DataFrame, account: Account) -> pl.DataFrame:
    """Leave out rows in which the prices of a side do not follow one another."""
    wrong = pl.lit(False)
    for level in range(1, account.reading.levels):
        ask, bid = (pl.col(f"{side}_price_{level}") for side in ("ask", "bid"))
        after, below = (pl.col(f"{side}_price_{level + 1}") for side in ("ask", "bid"))
        wrong |= ((after <= ask) | (below >= bid)).fill_null(False)
    for line in rows.filter(wrong)["line"]:
        error = BadLine("levels out of order", "found prices of levels out of order, expected the best level first")
        account.bad(file.path, line, error, "")
    return rows.filter(~wrong)


def _column(name: str) -> str:
    """Tardis counts levels from 0, and the table from 1; quotes are level 1."""
    if (match := _LEVEL.fullmatch(name)) is None:
        side, what = name.split("_")
        return f"{side}_{'size' if what == 'amount' else 'price'}_1"
    side, level, what = match.groups()
    return f"{side[:-1]}_{'size' if what == 'amount' else 'price'}_{int(level) + 1}"


def _changes(file: _File, account: Account, breaks: Carried) -> Iterator[pl.DataFrame]:
    reading = account.reading
    layout = _common() | {
        "is_snapshot": choices({"true": True, "false": False}),
        "side": choices({"bid": 1, "ask": -1}),
        "price": decimals(reading.price_exponent),
        "amount": decimals(reading.size_exponent),
    }
    snapshot, carried = pl.col("is_snapshot"), Carried()
    # A snapshot that follows changes begins the book anew.
    begins = snapshot & ~snapshot.shift(1, fill_value=False).over("entity")
    for rows in _read(file, layout, account):
        yield breaks.with_columns(carried.with_columns(rows, clears=begins), broken=BROKEN).select(
            *_KEYS,
            kind=pl.lit(UPDATE, pl.UInt8),
            side=pl.col("side").cast(pl.Int8),
            price="price",
            size="amount",
            trade_id=pl.lit(None, pl.String),
            broken="broken",
            clears="clears",
        )


def _read(file: _File, layout: dict[str, Field | None], account: Account) -> Iterator[pl.DataFrame]:
    clocks = Clocks(file.path, account)
    for made in read_csv(file.path, layout, account, header=True):
        yield clocks.set(
            made.with_columns(
                entity=pl.concat_str("exchange", pl.lit(":"), "symbol"),
                exchange_time="timestamp",
                received="local_timestamp",
            )
        )
    clocks.close()
