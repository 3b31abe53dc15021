"""Depth of Binance as CSV: snapshots of the book and changes chained by their update ids, rebuilt into a book.

The format, its units and what it cannot tell: docs/sources/binance.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from quantattn.data.schema import UPDATE
from quantattn.data.sources.crypto.binance_stream import Chain
from quantattn.data.sources.crypto.build import LevelSource, LevelStage, build
from quantattn.data.sources.crypto.clocks import Carried, Clocks
from quantattn.data.sources.crypto.csv_rows import (
    BROKEN,
    Field,
    choices,
    decimals,
    first_fields,
    listed,
    names,
    read_csv,
    times,
    wholes,
)
from quantattn.data.sources.crypto.feed import Account, Reading, files_under
from quantattn.data.sources.crypto.messages import MILLI

ENDINGS = (".csv", ".csv.gz", ".csv.xz", ".csv.zst", ".zip")
_COLUMNS = ("symbol", "timestamp", "first_update_id", "last_update_id", "side", "update_type", "price", "qty", "pu")
_MESSAGE = ("entity", "available_time", "first_update_id", "last_update_id", "pu", "update_type")
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

    The files carry the venue's clock alone, so `available_time` is `event_time`. The table of one file is
    made in pieces, that of several is sorted first: see `build`.

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

    def parts(account: Account) -> Iterator[pl.DataFrame]:
        breaks = Carried()
        for file in files:
            yield from _read(file, account, breaks)

    return build(parts, _DepthStage, account, merged=len(files) > 1)


def _read(file: Path, account: Account, breaks: Carried) -> Iterator[pl.DataFrame]:
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
    clocks = Clocks(file, account)
    for made in read_csv(file, layout, account, header=True):
        rows = made.rename({"symbol": "entity", "timestamp": "exchange_time", "qty": "size"}).with_columns(
            received=pl.lit(None, pl.Int64), trade_id=pl.lit(None, pl.String), kind=pl.lit(UPDATE, pl.UInt8)
        )
        yield breaks.with_columns(clocks.set(rows), broken=BROKEN)
    clocks.close()


class _DepthStage(LevelStage):
    """Depth chained by its ids: without what a snapshot covers, and with the breaks of the chain."""

    def __init__(self, account: Account) -> None:
        super().__init__(account, by_message=_MESSAGE)
        self._chains: dict[str, Chain] = {}
        self._covered = 0

    def messages(self, rows: pl.DataFrame, run: pl.Series) -> pl.DataFrame:
        """Rows of whole messages, chained."""
        first = (run != run.shift(1)).fill_null(True)
        begins = rows.with_columns(broken=pl.col("broken").any().over(run)).filter(first)
        covered, breaks = self._follow(begins)
        at = (first.cast(pl.Int64).cum_sum() - 1).to_numpy()
        self._covered += int(covered.sum())
        kept = pl.Series(~covered[at])
        chained = rows.with_columns(
            side=pl.col("side").cast(pl.Int8),
            broken=pl.Series(breaks[at]) & first,
            clears=first & (pl.col("update_type") == _SNAPSHOT),
        )
        return super().messages(chained.filter(kept), run.filter(kept))

    def close(self) -> None:
        """Note what was covered too."""
        if self._covered:
            self.account.notes.append(f"{self._covered:,} messages were left out: the snapshot before covers them")
        super().close()

    def _follow(self, begins: pl.DataFrame) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Which messages an earlier snapshot covers, and before which ones messages are lacking."""
        covered, breaks = np.zeros(begins.height, np.bool_), begins["broken"].to_numpy(writable=True)
        columns = ("entity", "first_update_id", "last_update_id", "pu", "update_type")
        for n, (symbol, first, last, previous, kind) in enumerate(begins.select(columns).iter_rows()):
            chain = self._chains.setdefault(symbol, Chain())
            if kind == _SNAPSHOT:
                chain.last, chain.opened, chain.fresh = last, True, True
            elif chain.opened and last <= chain.last:
                covered[n] = True
            else:
                breaks[n] |= not chain.follows(first, previous if previous >= 0 else None)
                chain.last, chain.fresh = last, False
                chain.opened &= not breaks[n]
        return covered, breaks
