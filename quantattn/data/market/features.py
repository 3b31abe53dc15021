"""What a book event lets one know at its own instant: the inputs of the baselines, from the past alone.

Every window is counted in events of one entity and one session and ends with the event itself; where the session has
fewer events, the window has those that there are. Sums run over integers, so that no order of summation matters.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import polars as pl

from quantattn.data.lookup import once_a_run
from quantattn.data.market.book import usable_book
from quantattn.data.market.sessions import Sessions
from quantattn.data.schema import EXECUTE, Instrument, level_columns

WINDOWS: tuple[int, ...] = (1, 10, 100)
"""Events in each window of `FEATURES`."""
SQUARE_UNIT = 1e-18
"""Squared log returns are rounded to whole multiples of this before they are summed."""
SQUARES_IN_ONE = 1 / SQUARE_UNIT
"""To multiply by: a column divided by a number has other last bits in polars 2.1 when it has few rows a thread, and a
product has the same ones in every table."""


def feature_names(windows: Sequence[int] = WINDOWS, levels: int = 1) -> tuple[str, ...]:
    """Columns that `book_features` makes for a model, in order."""
    sums = ("ofi", "trade_flow", "return", "volatility", "log_span")
    deeper = [f"{name}_level_{m}" for m in range(2, levels + 1) for name in ("imbalance", "depth")]
    deeper += [f"ofi_{k}_level_{m}" for m in range(2, levels + 1) for k in windows]
    return (
        "spread_ticks",
        "imbalance",
        "microprice",
        "depth",
        *(f"{name}_{k}" for name in sums for k in windows),
        *deeper,
    )


FEATURES: tuple[str, ...] = feature_names()
"""The inputs of the linear baseline; no null and no NaN in them."""


def book_features(
    events: pl.LazyFrame,
    instruments: Sequence[Instrument],
    *,
    sessions: Sessions | None = None,
    windows: Sequence[int] = WINDOWS,
    levels: int = 1,
) -> pl.LazyFrame:
    """Add past-only columns to book events in canonical order.

    With b, a the best prices and q their sizes after event n, and k each of `windows`:

    - `mid2` Int64: b + a, the mid in half price units; null where the book is crossed, locked or one-sided.
    - `spread_ticks` Float64: (a − b) / tick of the last usable book; 0 before there was one.
    - `imbalance` Float64: queue imbalance (q_b − q_a) / (q_b + q_a); 0 where the book is not usable or empty.
    - `microprice` Float64: how far the weighted mid (q_b · a + q_a · b) / (q_b + q_a) lies above the mid, in half
      ticks, which is imbalance · (a − b) / tick; 0 where there is no imbalance. It is the first approximation to the
      micro-price of Stoikov (2018, Quantitative Finance 18(12)).
    - `depth` Int64: q_b + q_a, 0 for a size that is not known.
    - `ofi_k` Int64: order-flow imbalance, the sum over the window of
      1{b_n ≥ b_{n−1}} q_{b,n} − 1{b_n ≤ b_{n−1}} q_{b,n−1} − 1{a_n ≤ a_{n−1}} q_{a,n} + 1{a_n ≥ a_{n−1}} q_{a,n−1}
      (Cont, Kukanov, Stoikov 2014, eq. 4), 0 where this book or the one before is not usable or
      lacks a size.
    - `trade_flow_k` Int64: shares bought less shares sold by aggressors in visible executions. A resting sell that is
      executed was bought, so the sign is that of −side; hidden executions are unsigned and left out.
    - `return_k` Float64: how far the mid moved over the last k events, in half ticks; an unusable book keeps
      the last mid.
    - `volatility_k` Float64: realised volatility over the last k events, sqrt(Σ log(m_n / m_{n−1})²) (Andersen,
      Bollerslev, Diebold, Labys 2003). The squares are summed as whole multiples of 10⁻¹⁸, each capped so that no
      window leaves int64: at a move by a fifth with one event, for windows of 100.
    - `log_span_k` Float64: log(1 + nanoseconds) that the last k events took; k = 1 is the time since the last event.
    - `imbalance_level_m`, `depth_level_m`, `ofi_k_level_m` for m = 2 … `levels`: the same of level m, with the prices
      and sizes of that level (multi-level order-flow imbalance: Xu, Gould, Howison 2018, arXiv 1907.06230); a flow is 0
      where the level is empty on either side, now or before.

    Args:
        events: the table.
        instruments: the tick of every entity.
        sessions: windows begin anew at every open. None: an entity's table is one session.
        windows: numbers of events, each at least 1.
        levels: of the book, at least 1; the table must have as many.

    Raises:
        ValueError: a window or a number of levels below 1.
    """
    if not windows or min(windows) < 1:
        raise ValueError(f"windows count events and must be at least 1, got {tuple(windows)}")
    if levels < 1:
        raise ValueError(f"levels count from the best and must be at least 1, got {levels}")
    ticks = {instrument.entity: instrument.tick for instrument in instruments}
    depths = range(1, levels + 1)
    made = _where_runs_begin(events, sessions).with_columns(
        _tick=once_a_run(pl.col("entity"), ticks),
        mid2=pl.when(usable_book()).then(pl.col("ask_price_1") + pl.col("bid_price_1")),
        _trade=pl.when(pl.col("kind") == EXECUTE).then(-pl.col("side").cast(pl.Int64) * pl.col("size")).otherwise(0),
        **{_at("imbalance", m): _imbalance(m) for m in depths},
        **{_at("depth", m): _sizes(m, fill=True)[0] + _sizes(m, fill=True)[1] for m in depths},
    )
    made = made.with_columns(
        _mid2=_last_known(pl.col("mid2")),
        _spread=_last_known(pl.when(usable_book()).then(pl.col("ask_price_1") - pl.col("bid_price_1"))).fill_null(0),
        _first_mid2=_first_known(pl.col("mid2")),
        **{f"_flow_{m}": _order_flow(m) for m in depths},
    ).with_columns(
        (pl.col("_spread") / pl.col("_tick")).alias("spread_ticks"),
        _square=_squared_return(max(windows)),
    )
    summed = ("_trade", "_square", *(f"_flow_{m}" for m in depths))
    made = made.with_columns(
        (pl.col("imbalance") * pl.col("spread_ticks")).alias("microprice"),
        **{f"_total{name}": pl.col(name).cum_sum() for name in summed},
    ).with_columns(
        _start_time=_at_start(pl.col("available_time")),
        **{f"_before{name}": _at_start(pl.col(f"_total{name}") - pl.col(name)) for name in summed},
    )
    columns = []
    for k in windows:
        columns += [_window_sum(f"_flow_{m}", k).alias(_at(f"ofi_{k}", m)) for m in depths]
        columns += [
            _window_sum("_trade", k).alias(f"trade_flow_{k}"),
            ((pl.col("_mid2") - _mid_before(k)).fill_null(0) / pl.col("_tick")).alias(f"return_{k}"),
            (_window_sum("_square", k) * SQUARE_UNIT).sqrt().alias(f"volatility_{k}"),
            (1 + pl.col("available_time") - _time_before(k)).log().alias(f"log_span_{k}"),
        ]
    kept = [*events.collect_schema(), "mid2"]
    kept += [name for name in feature_names(windows, levels) if name not in kept]
    return made.with_columns(columns).select(kept)


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


def _where_runs_begin(events: pl.LazyFrame, sessions: Sessions | None) -> pl.LazyFrame:
    """Add `_new`, whether an entity's session begins with the event, and `_place`, how many of it came before.

    The table is in canonical order, so a session of an entity is a run of rows, and a window that may not leave it
    needs no grouping: it is cut at `_place`.
    """
    row = pl.int_range(pl.len(), dtype=pl.Int64)
    runs = pl.col("entity").rle_id()
    changed = runs != runs.shift(1)
    if sessions is not None:
        changed |= pl.col("_session") != pl.col("_session").shift(1)
    return (
        events.with_columns(_session=_session(sessions))
        .with_columns(_new=changed.fill_null(True))
        .with_columns(_start=pl.when("_new").then(row).forward_fill())
        .with_columns(_place=row - pl.col("_start"))
    )


def _at(name: str, level: int) -> str:
    return name if level == 1 else f"{name}_level_{level}"


def _sizes(level: int, fill: bool = False) -> tuple[pl.Expr, pl.Expr]:
    """Ask and bid sizes of a level."""
    _, ask, _, bid = (pl.col(name) for name in level_columns(level))
    return (ask.fill_null(0), bid.fill_null(0)) if fill else (ask, bid)


def _imbalance(level: int) -> pl.Expr:
    ask, bid = _sizes(level)
    return pl.when(usable_book() & (bid + ask > 0)).then((bid - ask) / (bid + ask)).otherwise(0.0)


def _order_flow(level: int) -> pl.Expr:
    ask, ask_size, bid, bid_size = (pl.col(name) for name in level_columns(level))
    flow = (
        pl.when(bid >= bid.shift(1)).then(bid_size).otherwise(0)
        - pl.when(bid <= bid.shift(1)).then(bid_size.shift(1)).otherwise(0)
        - pl.when(ask <= ask.shift(1)).then(ask_size).otherwise(0)
        + pl.when(ask >= ask.shift(1)).then(ask_size.shift(1)).otherwise(0)
    )
    there = pl.col("mid2").is_not_null() & ask.is_not_null() & bid.is_not_null()
    return pl.when(there & there.shift(1) & ~pl.col("_new")).then(flow).otherwise(0).fill_null(0)


def _last_known(value: pl.Expr) -> pl.Expr:
    """The last value of the run that is not null, null before there was one."""
    row = pl.int_range(pl.len(), dtype=pl.Int64)
    known = pl.when(value.is_not_null()).then(row).forward_fill()
    return pl.when(known >= pl.col("_start")).then(value.forward_fill())


def _first_known(value: pl.Expr) -> pl.Expr:
    """The first value of the run that is not null, from there on; before, anything."""
    row = pl.int_range(pl.len(), dtype=pl.Int64)
    earlier = pl.when(value.is_not_null()).then(row).forward_fill().shift(1)
    first = value.is_not_null() & (earlier.is_null() | (earlier < pl.col("_start")))
    return pl.when(first).then(value).forward_fill()


def _squared_return(longest: int) -> pl.Expr:
    mid2 = pl.col("_mid2")
    change = pl.when(~pl.col("_new") & (mid2 > 0) & (mid2.shift(1) > 0)).then(mid2.log().diff())
    square = (change.pow(2) * SQUARES_IN_ONE).clip(upper_bound=2.0**62 / longest)
    return square.round().fill_null(0.0).cast(pl.Int64)


def _at_start(value: pl.Expr) -> pl.Expr:
    """The value at the first event of the run."""
    return pl.when("_new").then(value).forward_fill()


def _window_sum(name: str, k: int) -> pl.Expr:
    # The running total may go round int64; the difference of two of its values is right all the same.
    total = pl.col(f"_total{name}")
    return total - pl.when(pl.col("_place") >= k).then(total.shift(k)).otherwise(pl.col(f"_before{name}"))


def _mid_before(k: int) -> pl.Expr:
    return pl.when(pl.col("_place") >= k).then(pl.col("_mid2").shift(k)).fill_null(pl.col("_first_mid2"))


def _time_before(k: int) -> pl.Expr:
    return pl.when(pl.col("_place") >= k).then(pl.col("available_time").shift(k)).otherwise("_start_time")
