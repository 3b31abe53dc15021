"""What a book event lets one know at its own instant: the inputs of the baselines, from the past alone.

Every window is counted in events of one entity and one session and ends with the event itself; where the session has
fewer events, the window has those that there are. Sums run over integers, so that no order of summation matters.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import polars as pl

from quantattn.data.market.book import usable_book
from quantattn.data.market.sessions import Sessions
from quantattn.data.schema import EXECUTE, Instrument

WINDOWS: tuple[int, ...] = (1, 10, 100)
"""Events in each window of `FEATURES`."""


def feature_names(windows: Sequence[int] = WINDOWS) -> tuple[str, ...]:
    """Columns that `book_features` makes for a model, in order."""
    over_windows = (f"{name}_{k}" for name in ("ofi", "trade_flow", "return", "log_span") for k in windows)
    return ("spread_ticks", "imbalance", *over_windows)


FEATURES: tuple[str, ...] = feature_names()
"""The inputs of the linear baseline; no null and no NaN in them."""


def book_features(
    events: pl.LazyFrame,
    instruments: Sequence[Instrument],
    *,
    sessions: Sessions | None = None,
    windows: Sequence[int] = WINDOWS,
) -> pl.LazyFrame:
    """Add past-only columns to book events in canonical order.

    With b, a the best prices and q their sizes after event n, and k each of `windows`:

    - `mid2` Int64: b + a, the mid in half price units; null where the book is crossed, locked or one-sided.
    - `spread_ticks` Float64: (a − b) / tick of the last usable book; 0 before there was one.
    - `imbalance` Float64: (q_b − q_a) / (q_b + q_a); 0 where the book is not usable or empty.
    - `ofi_k` Int64: order-flow imbalance, the sum over the window of
      1{b_n ≥ b_{n−1}} q_{b,n} − 1{b_n ≤ b_{n−1}} q_{b,n−1} − 1{a_n ≤ a_{n−1}} q_{a,n} + 1{a_n ≥ a_{n−1}} q_{a,n−1}
      (Cont, Kukanov, Stoikov 2014, eq. 4), 0 where this book or the one before is not usable or
      lacks a size.
    - `trade_flow_k` Int64: shares bought less shares sold by aggressors in visible executions. A resting sell that is
      executed was bought, so the sign is that of −side; hidden executions are unsigned and left out.
    - `return_k` Float64: how far the mid moved over the last k events, in half ticks; an unusable book keeps
      the last mid.
    - `log_span_k` Float64: log(1 + nanoseconds) that the last k events took; k = 1 is the time since the last event.

    Args:
        events: the table.
        instruments: the tick of every entity.
        sessions: windows begin anew at every open. None: an entity's table is one session.
        windows: numbers of events, each at least 1.

    Raises:
        ValueError: a window below 1.
    """
    if not windows or min(windows) < 1:
        raise ValueError(f"windows count events and must be at least 1, got {tuple(windows)}")
    ticks = {instrument.entity: instrument.tick for instrument in instruments}
    ask, bid = pl.col("ask_price_1"), pl.col("bid_price_1")
    by = ("entity", "_session")
    own = events.with_columns(
        _session=_session(sessions),
        _tick=pl.col("entity").replace_strict(ticks, return_dtype=pl.Int64),
        mid2=pl.when(usable_book()).then(ask + bid),
        imbalance=_imbalance(),
        _trade=pl.when(pl.col("kind") == EXECUTE).then(-pl.col("side").cast(pl.Int64) * pl.col("size")).otherwise(0),
    ).with_columns(
        _ofi=_order_flow().over(by),
        _mid2=pl.col("mid2").forward_fill().over(by),
        _spread=pl.when(pl.col("mid2").is_not_null()).then(ask - bid).forward_fill().over(by),
    )
    time = pl.col("available_time")
    columns = [(pl.col("_spread").fill_null(0) / pl.col("_tick")).alias("spread_ticks")]
    for k in windows:
        columns += [
            _window_sum("_ofi", k).over(by).alias(f"ofi_{k}"),
            _window_sum("_trade", k).over(by).alias(f"trade_flow_{k}"),
            ((pl.col("_mid2") - _before("_mid2", k).over(by)).fill_null(0) / pl.col("_tick")).alias(f"return_{k}"),
            (1 + time - _before("available_time", k).over(by)).log().alias(f"log_span_{k}"),
        ]
    return own.with_columns(columns).drop("_session", "_tick", "_trade", "_ofi", "_mid2", "_spread")


def persistence(labelled: pl.DataFrame) -> pl.Series:
    """The last label whose interval was over before each event: what a model that learns nothing would say.

    An interval that ends at the very instant of the event may hold events that come later in the order of that
    instant, so only intervals that ended strictly earlier count.

    Args:
        labelled: events in canonical order with `entity`, `available_time`, `label_end` and `label`.

    Returns:
        `persistence`, of the dtype of `label`; null as long as the entity has no label that ended.
    """
    time, last = labelled["available_time"].to_numpy(), labelled["label_end"].fill_null(0).to_numpy()
    known = labelled["label"].is_not_null().to_numpy()
    source = np.full(len(time), -1, np.int64)
    entity = labelled["entity"].rle_id().to_numpy()
    edges = np.searchsorted(entity, np.arange(int(entity[-1]) + 2)) if len(entity) else np.zeros(1, np.int64)
    for first, end in pairwise(edges.tolist()):
        if (np.diff(time[first:end]) < 0).any():
            raise ValueError(f"persistence needs events in order of time; those of {labelled['entity'][first]} are not")
        rows = first + np.flatnonzero(known[first:end])
        rows = rows[np.argsort(last[rows], kind="stable")]
        place = np.searchsorted(last[rows], time[first:end], side="left") - 1
        source[first:end] = np.where(place >= 0, rows[np.maximum(place, 0)] if len(rows) else -1, -1)
    return labelled["label"].gather(pl.Series(source).replace(-1, None)).alias("persistence")


def _session(sessions: Sessions | None) -> pl.Expr:
    if sessions is None:
        return pl.lit(0)
    return pl.lit(pl.Series(sessions.open)).search_sorted(pl.col("available_time"), side="right")


def _imbalance() -> pl.Expr:
    ask, bid = pl.col("ask_size_1"), pl.col("bid_size_1")
    return pl.when(usable_book() & (bid + ask > 0)).then((bid - ask) / (bid + ask)).otherwise(0.0)


def _order_flow() -> pl.Expr:
    bid, ask, bid_size, ask_size = (pl.col(f"{n}_1") for n in ("bid_price", "ask_price", "bid_size", "ask_size"))
    flow = (
        pl.when(bid >= bid.shift(1)).then(bid_size).otherwise(0)
        - pl.when(bid <= bid.shift(1)).then(bid_size.shift(1)).otherwise(0)
        - pl.when(ask <= ask.shift(1)).then(ask_size).otherwise(0)
        + pl.when(ask >= ask.shift(1)).then(ask_size.shift(1)).otherwise(0)
    )
    both = pl.col("mid2").is_not_null() & pl.col("mid2").shift(1).is_not_null()
    return pl.when(both).then(flow).otherwise(0).fill_null(0)


def _window_sum(name: str, k: int) -> pl.Expr:
    total = pl.col(name).cum_sum()
    return total - total.shift(k).fill_null(0)


def _before(name: str, k: int) -> pl.Expr:
    """The value k events earlier, or the first of the session."""
    first = pl.col(name).drop_nulls().first()
    return pl.col(name).shift(k).fill_null(first)
