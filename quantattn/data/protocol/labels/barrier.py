"""Triple barrier: which comes first, the profit, the stop or the end of the time (López de Prado 2018, ch. 3)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from quantattn.data.market.sessions import Sessions
from quantattn.data.protocol.findings import Fitted
from quantattn.data.protocol.labels.stretch import (
    Measured,
    Stretch,
    Unit,
    look_ahead,
    over_sessions,
    require_horizon,
)
from quantattn.data.protocol.labels.touch import first_touch
from quantattn.data.protocol.whole import require_whole

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True)
class TripleBarrier:
    """The side of the barrier that the price touches first.

    With m_t the price at the decision, in half price units, and

        σ_t² = mean over i = 0 … window − 1 of (m_{t−i} − m_{t−i−step})²

    a function of the past alone, the barriers stand at m_t + profit · σ_t and m_t − stop · σ_t, from the event after
    the decision to the vertical barrier at the end of the horizon. A barrier is touched at or beyond its price; on
    bars the high touches the profit and the low the stop, and a bar that touches both counts for the stop. σ is in
    price units, and (m_j − m_t)² ≥ profit² · σ_t² is decided on integers.

    The label ends with the touch. A decision that touches has a label even where its session ends within the horizon;
    with a horizon in seconds the calendar tells of that beforehand, and no such decision has one. Prefer seconds where
    the last minutes of a session matter: with events, those that do not touch there are dropped, and those that do
    are not.

    Attributes:
        horizon: of the vertical barrier, in `unit`.
        unit: "events" or "seconds".
        profit: multiple of σ, a number or text such as "3/2"; None for no upper barrier.
        stop: the same for the lower barrier.
        window: number of past moves that σ is made of.
        step: events over which each of them goes.
    """

    horizon: int = 100
    unit: Unit = "events"
    profit: float | str | None = 1
    stop: float | str | None = 1
    window: int = 100
    step: int = 10

    def __post_init__(self) -> None:
        require_horizon(self.horizon, self.unit)
        require_whole(window=self.window, step=self.step)
        if self.profit is None and self.stop is None:
            raise ValueError("one of profit and stop must be given, got neither")
        for name, multiple in (("profit", self.profit), ("stop", self.stop)):
            if multiple is not None and _rational(name, multiple) <= 0:
                raise ValueError(f"{name} must be a positive multiple of σ, or null for no barrier, got {multiple!r}")

    @property
    def name(self) -> str:
        """Says barriers and horizon: "triple barrier 1σ / 1σ over 100 events"."""
        return f"triple barrier {self.profit}σ / {self.stop}σ over {self.horizon} {self.unit}"

    @property
    def class_names(self) -> tuple[str, ...]:
        """The stop, the end of the time, the profit."""
        return ("stop", "vertical", "profit")

    def measure(self, events: pl.DataFrame, sessions: Sessions | None = None) -> pl.DataFrame:
        """Add `barrier` (Int8): −1 the stop, 0 the vertical barrier, 1 the profit; with interval and reason.

        "no data" is the reason of decisions with fewer than window + step − 1 events before them, "no move" that of
        decisions where σ is 0.
        """
        return over_sessions(events, sessions, {"barrier": np.int8}, partial(_measure, label=self))

    def finish(self, measured: pl.DataFrame, train: Int64Array) -> tuple[pl.DataFrame, Fitted]:
        """Class every row; nothing is fitted."""
        return measured.with_columns(label=pl.col("barrier") + 1), Fitted("barriers", None, 0)


def _measure(stretch: Stretch, label: TripleBarrier) -> Measured:
    prices = stretch.prices
    ahead = look_ahead(stretch, label.horizon, label.unit)
    squares = past_squares(prices.mid, label.window, label.step)
    past = stretch.row - label.window - label.step
    short = past < -1
    distance = {
        name: None if multiple is None else _distance(squares, label.window, _rational(name, multiple))
        for name, multiple in (("profit", label.profit), ("stop", label.stop))
    }
    up, down = distance["profit"], distance["stop"]
    touch = first_touch(
        stretch,
        ahead,
        np.maximum(past, -1),
        (prices.high, None if up is None else prices.mid + up),
        (prices.low, None if down is None else prices.mid - down),
        prices.rangeless,
        {"no data": short, "no move": squares == 0},
    )
    return {"barrier": touch.side}, touch.end, touch.reason


def past_squares(mid: Int64Array, window: int, step: int) -> npt.NDArray[Any]:
    """(R,) Σ of the squares of the last `window` moves over `step` events, 0 where the stretch is too short for it.

    int64, or Python's own integers where those would not fit (prices with ten decimals): exact in either case.
    """
    move = np.zeros(len(mid), np.int64)
    move[step:] = mid[step:] - mid[:-step]
    largest = int(np.abs(move).max()) if len(move) else 0
    squares: npt.NDArray[Any] = move.astype(object) if largest**2 * window >= 2**62 else move
    # The running total may go round int64; the difference of two of its values is right all the same.
    total = np.concatenate(([0], np.cumsum(squares * squares)))
    row = np.arange(len(mid))
    return np.where(row >= window + step - 1, total[row + 1] - total[np.maximum(row + 1 - window, 0)], 0)


def _distance(squares: npt.NDArray[Any], window: int, multiple: Fraction) -> Int64Array:
    """The least whole D, in half price units, with D² ≥ multiple² · squares / window; 2⁶² at most."""
    found, place = np.unique(squares, return_inverse=True)
    num, den = multiple.numerator**2, multiple.denominator**2 * window
    least = [math.isqrt(-(-int(each) * num // den) - 1) + 1 if each else 0 for each in found]
    return np.asarray([min(each, 2**62) for each in least], np.int64)[place]


def _rational(name: str, multiple: float | str) -> Fraction:
    """A decimal as it is written: 0.1 is a tenth."""
    try:
        return Fraction(str(multiple))
    except (ValueError, ZeroDivisionError) as error:
        raise ValueError(f"{name} must be a number, or text such as '3/2', got {multiple!r}") from error
