"""Realised volatility over a future horizon, a value."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import polars as pl

from quantattn.data.market.sessions import Sessions
from quantattn.data.protocol.findings import Fitted
from quantattn.data.protocol.labels.prices import require_positive
from quantattn.data.protocol.labels.reasons import any_within, first_reason
from quantattn.data.protocol.labels.stretch import (
    Measured,
    Stretch,
    Unit,
    look_ahead,
    look_back,
    over_sessions,
    require_horizon,
)

Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

VARIANCE_UNIT = 1e-18
"""Squared returns are rounded to whole multiples of this, so that their sums are exact whatever the order."""
WILD = 3.0
"""A log return beyond this, a factor of twenty, is no return."""
MOST = 9.0
"""The largest sum of squared returns that is believed, and that fits int64."""


@dataclass(frozen=True)
class RealisedVolatility:
    """The square root of the sum of squared returns within the horizon, or its logarithm.

    With r_j = log(m_j / m_{j−1}) between events that follow one another,

        RV_t = sqrt(Σ r_j² over j in (t, t + horizon])        (Andersen, Bollerslev, Diebold, Labys 2003)

    over every event, unannualised; the bounce of prices between bid and ask is part of it where prices are trades'.

    Attributes:
        horizon: in `unit`.
        unit: "events" or "seconds".
        log: predict log RV, which has no value where prices stood still ("no move").
    """

    horizon: int = 100
    unit: Unit = "events"
    log: bool = True

    def __post_init__(self) -> None:
        require_horizon(self.horizon, self.unit)
        if not isinstance(self.log, bool):
            raise ValueError(f"log must be true or false, got {self.log!r}")

    @property
    def name(self) -> str:
        """Says what and how far: "log realised volatility over 100 events"."""
        return f"{'log ' if self.log else ''}realised volatility over {self.horizon} {self.unit}"

    @property
    def class_names(self) -> tuple[str, ...]:
        """None: a value."""
        return ()

    def measure(self, events: pl.DataFrame, sessions: Sessions | None = None) -> pl.DataFrame:
        """Add `variance` and `past_variance` (Int64, in units of 10⁻¹⁸), with interval and reason.

        `past_variance` is the sum over the horizon that ends with the decision; where the stretch is too short for it,
        the decision has no label ("no data").
        """
        require_positive(events)
        columns = {"variance": np.int64, "past_variance": np.int64}
        return over_sessions(events, sessions, columns, partial(_measure, label=self))

    def finish(self, measured: pl.DataFrame, train: Int64Array) -> tuple[pl.DataFrame, Fitted]:
        """Turn variances into volatilities, `label` and `history`; nothing is fitted."""
        values = {"label": self._value("variance"), "history": self._value("past_variance")}
        return measured.with_columns(**values), Fitted("volatility", None, 0)

    def _value(self, name: str) -> pl.Expr:
        volatility = (pl.col(name) * VARIANCE_UNIT).sqrt()
        return volatility.log() if self.log else volatility


def squared_returns(mid: Int64Array) -> tuple[Int64Array, BoolArray]:
    """(R,) squared log returns of each price on the one before, in units of `VARIANCE_UNIT`, and which are no returns.

    A price of 0 is a missing one: there and after it the square is 0. A price that is more than twentyfold the one
    before, or less than a twentieth of it, is no return but a stub quote or an error; its square is 0 too.
    """
    squares, wild = np.zeros(len(mid), np.int64), np.zeros(len(mid), np.bool_)
    known = np.flatnonzero((mid[1:] > 0) & (mid[:-1] > 0)) + 1
    before = mid[known - 1]
    returns = np.log1p((mid[known] - before) / before)
    wild[known] = np.abs(returns) > WILD
    squares[known] = np.where(wild[known], 0, np.rint(returns * returns / VARIANCE_UNIT)).astype(np.int64)
    return squares, wild


def _measure(stretch: Stretch, label: RealisedVolatility) -> Measured:
    prices, row = stretch.prices, stretch.row
    ahead = look_ahead(stretch, label.horizon, label.unit)
    past, short = look_back(stretch, label.horizon, label.unit)
    short |= past < 0  # the first move needs a price before it
    past = np.maximum(past, 0)
    squares, wild = squared_returns(np.where(prices.crossed, 0, prices.mid))
    total, rough = np.cumsum(squares), np.cumsum(squares * VARIANCE_UNIT)
    # The running total may go round int64; the difference of two of its values is right as long as it fits itself.
    variance, before = total[ahead.last] - total, total - total[past]
    unfit = (rough[ahead.last] - rough > MOST) | (rough - rough[past] > MOST)
    still = (variance == 0) | (before == 0)
    reason = first_reason(
        len(row),
        {
            "session end": ahead.ended,
            "halt": any_within(prices.halted, past - 1, ahead.last),
            "crossed book": any_within(prices.crossed, past - 1, ahead.last),
            "no data": any_within(prices.missing, past - 1, ahead.last)
            | any_within(wild, past, ahead.last)
            | short
            | unfit
            | ahead.unknown,
            "no move": still & label.log,
        },
    )
    return {"variance": variance, "past_variance": before}, ahead.end, reason
