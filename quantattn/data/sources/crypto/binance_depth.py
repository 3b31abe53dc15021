"""Depth of Binance as CSV: snapshots of the book and changes chained by their update ids, rebuilt into a book.

The format, its units and what it cannot tell: docs/sources/binance.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import polars as pl

from quantattn.data.schema import CLEAR, UPDATE
from quantattn.data.sources.crypto.binance_stream import Chain
from quantattn.data.sources.crypto.csv_rows import (
    Field,
    broken_after,
    choices,
    decimals,
    first_fields,
    listed,
    names,
    read_csv,
    times,
    wholes,
)
from quantattn.data.sources.crypto.feed import (
    Account,
    LevelSource,
    Reading,
    files_under,
    level_source,
    refuse_falls,
    set_clocks,
    sort_rows,
)
from quantattn.data.sources.crypto.messages import MILLI

ENDINGS = (".csv", ".csv.gz", ".csv.xz", ".zip")
_COLUMNS = ("symbol", "timestamp", "first_update_id", "last_update_id", "side", "update_type", "price", "qty", "pu")
_SNAPSHOT, _CHANGE = 1, 0
_PREVIOUS = Field(
    lambda text: text.set(~text.str.contains(r"^(-1|[0-9]{1,19})$"), None).cast(pl.Int64, strict=False),
    "a whole number below 2^63, or -1",
)
"""Last id of the message before, which futures give."""


def scan_binance_depth(
    path: str | Path,
    levels: int = 10,
    *,
    price_exponent: int = -8,
    size_exponent: int = -8,
    tick: str | None = None,
    on_gap: Literal["forget", "keep"] = "forget",
    on_bad: Literal["refuse", "quarantine"] = "refuse",
    set_aside: str | Path | None = None,
) -> LevelSource:
    """Depth snapshots and updates as book events (schema `BookEvents`).

    The files carry the venue's clock alone, so `available_time` is `event_time`. They are read in pieces; the table of
    their events is in memory.

    Args:
        path: one file, plain or compressed, or a folder of snapshot and update files, which are merged by time.
        levels: of the book to keep.
        price_exponent: a price p of the table is p · 10^price_exponent; a file with more digits is refused.
        size_exponent: the same for quantities.
        tick: smallest price step as decimal text ("0.1"); None takes the greatest step that divides all prices.
        on_gap: where updates are lacking: "forget" shows no book until the next snapshot, "keep" goes on.
        on_bad: "refuse" raises at the first bad line; "quarantine" leaves lines out, counts them under their reason,
            writes them to `set_aside`, and treats each as a gap.
        set_aside: CSV file for what is left out; needed with "quarantine".

    Raises:
        ValueError: one sentence that names the file, the line, what was found and what was expected.
        RuntimeError: numba is not installed (extra `book`).
    """
    account = Account(Reading(levels, price_exponent, size_exponent, tick, on_gap, on_bad, set_aside))
    files = files_under(Path(path), "depth of Binance", ENDINGS)
    rows = sort_rows([_read(file, account) for file in files])
    return level_source(_chained(rows, account), account)


def _read(file: Path, account: Account) -> pl.DataFrame:
    header = tuple(first_fields(file))
    if header != _COLUMNS:
        raise ValueError(f"{file.name}, line 1: found columns {listed(header)}, expected {', '.join(_COLUMNS)}")
    reading = account.reading
    layout: dict[str, Field | None] = {
        "symbol": names(),
        "timestamp": times(MILLI),
        "first_update_id": wholes(),
        "last_update_id": wholes(),
        "side": choices({"b": 1, "a": -1}),
        "update_type": choices({"snap": _SNAPSHOT, "set": _CHANGE}),
        "price": decimals(reading.price_exponent),
        "qty": decimals(reading.size_exponent),
        "pu": _PREVIOUS,
    }
    made, bad = read_csv(file, layout, account, header=True)
    rows = made.rename({"symbol": "entity", "timestamp": "exchange_time", "qty": "size"}).with_columns(
        received=pl.lit(None, pl.Int64),
        trade_id=pl.lit(None, pl.String),
    )
    rows, bad = refuse_falls(rows, bad, file, account)
    return set_clocks(broken_after(rows, bad), account, file.name)


def _chained(rows: pl.DataFrame, account: Account) -> pl.DataFrame:
    """Rows cut into messages, with a CLEAR before every snapshot, without what a snapshot covers."""
    ids = ["entity", "available_time", "first_update_id", "last_update_id", "pu", "update_type"]
    number = rows.select(pl.struct(ids).rle_id()).to_series()
    messages = (
        rows.with_columns(number=number)
        .group_by("number", maintain_order=True)
        .agg(pl.col(ids).first(), pl.col("broken").any())
    )
    covered, breaks = _follow(messages)
    if covered.any():
        account.notes.append(f"{int(covered.sum()):,} messages were left out: the snapshot before them covers them")
    at = number.to_numpy()
    made = rows.select(
        "entity",
        "event_time",
        "available_time",
        "seq",
        kind=pl.lit(UPDATE, pl.UInt8),
        side=pl.col("side").cast(pl.Int8),
        price="price",
        size="size",
        order_id="order_id",
        complete=(number != number.shift(-1)).fill_null(True),
        broken=pl.Series(breaks[at]) & (number != number.shift(1)).fill_null(True),
        exchange_time="exchange_time",
        trade_id="trade_id",
        _snapshot=pl.col("update_type") == _SNAPSHOT,
        _first=(number != number.shift(1)).fill_null(True),
        _place=2 * pl.int_range(pl.len(), dtype=pl.Int64) + 1,
    ).filter(pl.Series(~covered[at]))
    opens = made.filter(pl.col("_snapshot") & pl.col("_first")).with_columns(
        pl.col("_place") - 1,
        kind=pl.lit(CLEAR, pl.UInt8),
        side=pl.lit(0, pl.Int8),
        price=pl.lit(None, pl.Int64),
        size=pl.lit(0, pl.Int64),
        complete=pl.lit(False),
    )
    both = pl.concat([made, opens]).sort("_place")
    rank = np.argsort(np.argsort(both["seq"].to_numpy(), kind="stable"), kind="stable")
    return both.with_columns(seq=pl.Series(rank)).drop("_snapshot", "_first", "_place")


def _follow(messages: pl.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Which messages an earlier snapshot covers, and before which ones messages are lacking."""
    covered, breaks = np.zeros(messages.height, np.bool_), messages["broken"].to_numpy().copy()
    chains: dict[str, Chain] = {}
    columns = ("entity", "first_update_id", "last_update_id", "pu", "update_type")
    for n, (symbol, first, last, previous, kind) in enumerate(messages.select(columns).iter_rows()):
        chain = chains.setdefault(symbol, Chain())
        if kind == _SNAPSHOT:
            chain.last, chain.opened, chain.fresh = last, True, True
        elif chain.opened and last <= chain.last:
            covered[n] = True
        else:
            breaks[n] |= not chain.follows(first, previous if previous >= 0 else None)
            chain.last, chain.fresh = last, False
            chain.opened &= not breaks[n]
    return covered, breaks
