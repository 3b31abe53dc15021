"""Records of DBN that tell of a stretch of time: quotes as they stood at its end, and bars."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl
from numpy.typing import NDArray

from quantattn.data.sources.dbn_format import BARS, LAST, UNDEFINED_PRICE
from quantattn.data.sources.dbn_rows import REASONS, Account, Ints

PRICES = ("open", "high", "low", "close")
BAR_COLUMNS: Mapping[str, pl.DataType] = dict.fromkeys((*PRICES, "volume"), pl.Int64())
_KEPT = ("length", "rtype", "publisher_id", "instrument_id", "ts_recv", "sequence")
_QUOTED = tuple(f"{side}_{what}_00" for side in ("bid", "ask") for what in ("px", "sz"))
_MOST = np.uint64(2**63)


def as_changes(records: NDArray[np.void]) -> NDArray[np.void]:
    """Quotes at the end of stretches, (n,), as records of a feed of one level whose book changed on both sides.

    The end, `ts_recv`, is when the quote stood; `ts_event` is that of the last trade, which is no event of the book.
    """
    kinds = {name: records.dtype[name] for name in (*_KEPT, *_QUOTED)}
    own = {"ts_event": "u8", "price": "i8", "size": "u4", "action": "S1", "side": "S1", "flags": "u1"}
    made = np.zeros(len(records), [*kinds.items(), *own.items()])
    for name in kinds:
        made[name] = records[name]
    made["ts_event"], made["price"] = records["ts_recv"], UNDEFINED_PRICE
    made["action"], made["side"], made["flags"] = b"M", b"N", records["flags"] | LAST
    return made


def reasons_of_bars(records: NDArray[np.void], schema: str) -> NDArray[np.uint8]:
    """(n,) codes of `REASONS`: why each bar has to be set aside, 0 where it is sound."""
    prices = {name: records[name] for name in PRICES}
    known = {name: price != UNDEFINED_PRICE for name, price in prices.items()}
    apart = np.zeros(len(records), np.bool_)
    for low, high in (("low", "open"), ("low", "close"), ("open", "high"), ("close", "high"), ("low", "high")):
        apart |= known[low] & known[high] & (prices[low] > prices[high])
    found = np.zeros(len(records), np.uint8)
    # The last that holds is kept, so that a time that cannot be comes before all.
    for reason, broken in (
        ("impossible volume", records["volume"] >= _MOST),
        ("impossible prices", apart),
        ("no price", ~known["close"]),
        ("impossible time", records["ts_event"] >= _MOST - np.uint64(BARS[schema])),
    ):
        found[broken] = REASONS.index(reason)
    return found


def rows_of_bars(records: NDArray[np.void], name: Ints, schema: str, latest: int, account: Account) -> pl.DataFrame:
    """The rows of bars; known when their stretch is over, and not before those that came before them in the feed."""
    end = records["ts_event"].astype(np.int64) + BARS[schema]
    available = np.maximum(np.maximum.accumulate(end), latest) if len(end) else end
    if (falls := available > end).any():
        account.counts["end before a bar before them and count as available with that one"] += int(falls.sum())
    columns = {"name": name.astype(np.uint32), "event_time": end, "available_time": available}
    columns |= {each: records[each].astype(np.int64) for each in BAR_COLUMNS}
    return pl.DataFrame(columns).with_columns(
        *(pl.when(pl.col(each) != UNDEFINED_PRICE).then(pl.col(each)).alias(each) for each in PRICES),
        last=pl.lit(False),
    )
