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
from quantattn.data.market.feature_blocks import SQUARE_UNIT as SQUARE_UNIT
from quantattn.data.market.feature_blocks import SQUARES_IN_ONE as SQUARES_IN_ONE
from quantattn.data.market.feature_blocks import feature_columns
from quantattn.data.market.sessions import Sessions
from quantattn.data.schema import Instrument

WINDOWS: tuple[int, ...] = (1, 10, 100)
"""Events in each window of `FEATURES`."""


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


def feature_types(windows: Sequence[int] = WINDOWS, levels: int = 1) -> dict[str, pl.DataType]:
    """The same columns with their types: Int64 of what counts shares, Float64 of the others."""
    whole = ("depth", "ofi", "trade_flow")
    return {name: pl.Int64() if name.startswith(whole) else pl.Float64() for name in feature_names(windows, levels)}


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
    given = dict(events.collect_schema())
    added = {"mid2": pl.Int64(), **feature_types(windows, levels)}

    def computed(frame: pl.DataFrame) -> pl.DataFrame:
        columns = feature_columns(frame, ticks, sessions, windows, levels)
        mid2 = pl.when(usable_book()).then(pl.col("ask_price_1") + pl.col("bid_price_1"))
        columns["mid2"] = frame.select(mid2.alias("mid2")).to_series()
        return frame.drop(set(given) & set(added)).hstack([columns[name] for name in added]).select(*names)

    names = {**given, **added}
    return events.map_batches(computed, schema=pl.Schema(names))


def feature_table(
    events: pl.DataFrame, instruments: Sequence[Instrument], *, sessions: Sessions | None = None
) -> pl.DataFrame:
    """`FEATURES` of events in memory, as `book_features` has them, made on as many threads as polars has."""
    ticks = {instrument.entity: instrument.tick for instrument in instruments}
    columns = feature_columns(events, ticks, sessions, WINDOWS, 1, threads=True)
    return pl.DataFrame([columns[name] for name in FEATURES])


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
