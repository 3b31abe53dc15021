"""What trades and bars let one know at their own instant: the inputs of the baselines where there is no book."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from quantattn.data.market.features import SQUARE_UNIT, SQUARES_IN_ONE, WINDOWS
from quantattn.data.market.sessions import Sessions


def price_feature_names(windows: Sequence[int] = WINDOWS) -> tuple[str, ...]:
    """Columns that `price_features` makes, in order."""
    return tuple(f"{name}_{k}" for name in ("log_return", "volatility", "volume_sum", "log_span") for k in windows)


def price_features(
    events: pl.LazyFrame, *, sessions: Sessions | None = None, windows: Sequence[int] = WINDOWS
) -> pl.LazyFrame:
    """Past-only features of trades (`price`, `size`) or bars (`close`, `volume`) in canonical order.

    With p the price after event n and k each of `windows`, which end with the event, leave no session, and have the
    events that there are where there are fewer:

    - `log_return_k` Float64: log(p_n / p_{n−k}); 0 where a price is not above 0.
    - `volatility_k` Float64: realised volatility over the last k events, as in `book_features`.
    - `volume_sum_k` Float64: log(1 + what was traded in the last k events); 0 where it is not known.
    - `log_span_k` Float64: log(1 + nanoseconds) that the last k events took.

    Returns:
        These columns alone, no null and no NaN in them.

    Raises:
        ValueError: a window below 1.
    """
    if not windows or min(windows) < 1:
        raise ValueError(f"windows count events and must be at least 1, got {tuple(windows)}")
    bars = "close" in events.collect_schema()
    price, traded = (pl.col("close"), pl.col("volume")) if bars else (pl.col("price"), pl.col("size"))
    time, by = pl.col("available_time"), ("entity", "_session")
    session = pl.lit(0)
    if sessions is not None:
        session = pl.lit(pl.Series(sessions.open)).search_sorted(time, side="right")
    made = events.with_columns(_session=session, _log=pl.when(price > 0).then(price.log()), _traded=traded.fill_null(0))
    # Squares are summed as whole numbers, so that no order of summation matters.
    square = (pl.col("_log").diff().pow(2) * SQUARES_IN_ONE).clip(upper_bound=2.0**62 / max(windows)).round()
    made = made.with_columns(_square=square.fill_null(0.0).cast(pl.Int64).over(by))
    columns: dict[str, pl.Expr] = {}
    for k in windows:
        columns |= {
            f"log_return_{k}": (pl.col("_log") - _before("_log", k).over(by)).fill_null(0.0),
            f"volatility_{k}": (_window_sum("_square", k).over(by) * SQUARE_UNIT).sqrt(),
            f"volume_sum_{k}": (1 + _window_sum("_traded", k).over(by)).log(),
            f"log_span_{k}": (1 + time - _before("available_time", k).over(by)).log(),
        }
    return made.select(columns[name].alias(name) for name in price_feature_names(windows))


def _window_sum(name: str, k: int) -> pl.Expr:
    total = pl.col(name).cum_sum()
    return total - total.shift(k).fill_null(0)


def _before(name: str, k: int) -> pl.Expr:
    """The value k events earlier, or the first of the session."""
    return pl.when(pl.int_range(pl.len()) >= k).then(pl.col(name).shift(k)).otherwise(pl.col(name).first())
