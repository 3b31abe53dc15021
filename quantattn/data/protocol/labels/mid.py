"""How far the price moves within a horizon: smoothed and fixed moves, in classes.

All comparisons are made on integers. A relative move l is kept as a fraction of two int64, and l > θ is decided
exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Literal

import numpy as np
import numpy.typing as npt
import polars as pl

from quantattn.data.compiled import pays
from quantattn.data.market.sessions import Sessions
from quantattn.data.protocol.findings import Fitted
from quantattn.data.protocol.labels.prices import require_positive
from quantattn.data.protocol.labels.reasons import any_within, first_reason
from quantattn.data.protocol.labels.stretch import (
    Ahead,
    Measured,
    Stretch,
    Unit,
    look_ahead,
    look_back,
    over_sessions,
    require_horizon,
)
from quantattn.data.protocol.labels.threshold import CLASS_NAMES, Threshold
from quantattn.data.protocol.whole import require_whole

Int64Array = npt.NDArray[np.int64]
Method = Literal[0, 1, 2, "tlob"]

MOVE_COLUMNS: tuple[str, ...] = ("move_num", "move_den", "label_start", "label_end", "label_reason")
RULES = ("fixed", "mean", "quantile", "spread")
"""How the threshold between flat and a move may be found."""


@dataclass(frozen=True)
class MidMove:
    """What a label compares: the mid of a decision with the mids of the horizon that follows it.

    With m_t the mid after event t, and n the number of events in the horizon (t, t + horizon]:

        method 0      l = (m_{t+n} − m_t) / m_t                               the move to the end of the horizon
        method 1      l = (mean(m_{t+1} … m_{t+n}) − m_t) / m_t               the default
        method 2      l = (mean(m_{t+1} … m_{t+n}) − mean(m_{t−p+1} … m_t)) / mean(m_{t−p+1} … m_t)
        method tlob   l = (mean(m_{t+n−k} … m_{t+n}) − mean(m_{t−k} … m_t)) / mean(m_{t−k} … m_t)

    In events n = p = horizon; in seconds n counts the events later than t and not more than `horizon` seconds after
    it (none: the mid stays m_t), p those of a stretch of the same length that ends with t. Method 2 overlaps
    with the past and so builds momentum in (Lee 2024, arXiv 2409.14157): read it beside the persistence baseline.
    Method tlob (Berti, Kasneci 2025, arXiv 2502.15757) frees the smoothing k from the horizon: k = 0 is method 0, and
    k = horizon − 1 is method 2.

    A table without a book has the price of each trade, or the close of each bar, in place of the mid.

    Attributes:
        horizon: number of events, or of whole seconds.
        unit: "events" or "seconds".
        method: 0, 1, 2 or "tlob".
        smoothing: k, events before the last one that are averaged, 0 ≤ k < horizon; for method tlob, which counts in
            events, and for no other.
    """

    horizon: int = 100
    unit: Unit = "events"
    method: Method = 1
    smoothing: int | None = None

    def __post_init__(self) -> None:
        require_horizon(self.horizon, self.unit)
        if self.method not in (0, 1, 2, "tlob"):
            raise ValueError(f"method must be 0, 1, 2 or 'tlob', got {self.method!r}")
        if (self.method == "tlob") != (self.smoothing is not None):
            raise ValueError(f"method tlob, and no other, must have a smoothing, got {self.method!r}, {self.smoothing}")
        if self.smoothing is not None:
            require_whole(0, smoothing=self.smoothing)
        if self.smoothing is not None and (self.unit != "events" or not 0 <= self.smoothing < self.horizon):
            raise ValueError(
                f"method tlob must have a horizon in events and 0 ≤ smoothing < horizon, got a smoothing of "
                f"{self.smoothing} with a horizon of {self.horizon} {self.unit}"
            )

    @property
    def name(self) -> str:
        """Says method, horizon and unit, for reports: "mid move 1 over 100 events"."""
        smoothed = "" if self.smoothing is None else f", means over {self.smoothing + 1}"
        return f"mid move {self.method} over {self.horizon} {self.unit}{smoothed}"


def mid_moves(frame: pl.DataFrame, move: MidMove, sessions: Sessions | None = None) -> pl.DataFrame:
    """Measure the move that follows every event.

    Args:
        frame: events in canonical order with `entity`, `available_time`; `ask_price_1` and `bid_price_1`, or `close`,
            or `price`; and, when there can be halts, `halted`.
        move: what to measure.
        sessions: no interval leaves a session of this exchange. None: an entity's whole table is one session.

    Returns:
        `frame` with five more columns. The relative move is `move_num` / `move_den` (Int64, null when there is none,
        `move_den` > 0). The interval is (`label_start`, `label_end`], ns UTC, open at `label_start`, the time of the
        decision, because what is known then is no part of the label; both are null when there is no label, and
        `label_reason` (an Enum of `REASONS`) then says why. An interval may not contain the end of a session, an
        event during a halt, or a crossed, locked or one-sided book, nor may the decision itself or the past events
        that methods 2 and tlob average. An event outside every session is given "session end".

    Raises:
        ValueError: events out of order, a mid that is not above zero, or sums that leave int64.
    """
    require_positive(frame)
    columns = {"move_num": np.int64, "move_den": np.int64}
    measure = _measure
    if move.unit == "events" and move.method in (0, 1) and pays(frame.height):
        measure = _walked
    reach = move.horizon + 1 if move.unit == "events" else None
    return over_sessions(frame, sessions, columns, partial(measure, move=move), reach)


@dataclass(frozen=True)
class MidLabel:
    """The class of the move that follows a decision.

    Attributes:
        horizon: how far the label looks, in `unit`.
        unit: "events" or "seconds".
        method: 0 the move to the end of the horizon, 1 to its mean, 2 from mean to mean, "tlob"; see `MidMove`.
        classes: 3 (down, flat, up), or 2 (down, up), where a decision followed by no move has no label.
        rule: how the threshold between flat and a move is found: "fixed", or fitted on training rows by "mean",
            "quantile" or "spread"; see `Threshold.fit`.
        theta: the threshold when fixed, a relative move; text such as "1/50000" is exact.
        quantile: for the rule of that name.
        smoothing: for method tlob, see `MidMove`.

    Raises:
        ValueError: a setting that is not one of these.
    """

    horizon: int = 100
    unit: Unit = "events"
    method: Method = 1
    classes: Literal[2, 3] = 3
    rule: Literal["fixed", "mean", "quantile", "spread"] = "mean"
    theta: float | str = 0
    quantile: float = 1 / 3
    smoothing: int | None = None

    def __post_init__(self) -> None:
        MidMove(self.horizon, self.unit, self.method, self.smoothing)
        if self.classes not in tuple(CLASS_NAMES):
            raise ValueError(f"classes must be 2 or 3, got {self.classes!r}")
        if self.rule not in RULES:
            raise ValueError(f"rule must be one of {', '.join(RULES)}, got {self.rule!r}")
        if not 0 <= self.quantile <= 1:
            raise ValueError(f"quantile must lie in [0, 1], got {self.quantile}")
        if self.rule == "fixed":
            Threshold.fixed(self.theta)

    @property
    def move(self) -> MidMove:
        """What is measured."""
        return MidMove(self.horizon, self.unit, self.method, self.smoothing)

    @property
    def name(self) -> str:
        """That of the move."""
        return self.move.name

    @property
    def class_names(self) -> tuple[str, ...]:
        """Down, flat, up; or down, up."""
        return CLASS_NAMES[self.classes]

    def measure(self, events: pl.DataFrame, sessions: Sessions | None = None) -> pl.DataFrame:
        """See `mid_moves`."""
        return mid_moves(events, self.move, sessions)

    def threshold(self, decisions: pl.DataFrame, train: Int64Array) -> Threshold:
        """The fixed threshold, or the one fitted on these rows of `decisions`."""
        if self.rule == "fixed":
            return Threshold.fixed(self.theta)
        return Threshold.fit(decisions, train, self.rule, self.quantile)

    def finish(self, measured: pl.DataFrame, train: Int64Array) -> tuple[pl.DataFrame, Fitted]:
        """Fit the threshold on the training rows and class every row by it."""
        threshold = self.threshold(measured, train)
        record = Fitted("label threshold", threshold.fitted_until, threshold.fitted_rows)
        return threshold.classify(measured, self.classes), record


def _measure(stretch: Stretch, move: MidMove) -> Measured:
    prices, row = stretch.prices, stretch.row
    ahead = look_ahead(stretch, move.horizon, move.unit)
    past, short = row - 1, np.zeros(len(row), np.bool_)
    if move.method == 2:
        past, short = look_back(stretch, move.horizon, move.unit)
    elif move.smoothing is not None:
        past, short = look_back(stretch, move.smoothing + 1, "events")
    reason = first_reason(
        len(row),
        {
            "session end": ahead.ended,
            "halt": any_within(prices.halted, past, ahead.last),
            "crossed book": any_within(prices.crossed, past, ahead.last),
            "no data": any_within(prices.missing, past, ahead.last) | short | ahead.unknown,
        },
    )
    num, den = _fraction(prices.mid, row, past, ahead, move)
    return {"move_num": num, "move_den": den}, ahead.end, reason


def _walked(stretch: Stretch, move: MidMove) -> Measured:
    """The same of a move in events that does not look back, by a compiled loop."""
    prices, size = stretch.prices, len(stretch)
    _must_fit(int(prices.mid.max()), max(min(move.horizon, size - 1), 1), 1)
    num, den, end = np.empty((3, size), np.int64)
    reason = np.empty(size, np.int8)
    walk = import_module("quantattn.data.protocol.labels.mid_walk").moves
    given = (stretch.time, prices.mid, prices.halted, prices.crossed, prices.missing)
    walk(*map(_read_only, given), move.horizon, move.method == 1, num, den, end, reason)
    return {"move_num": num, "move_den": den}, end, reason


def _read_only(column: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    """A view that cannot be written to: one type of array, so that a loop is compiled once."""
    own = column.view()
    own.flags.writeable = False
    return own


def _fraction(
    mid: Int64Array, row: Int64Array, past: Int64Array, ahead: Ahead, move: MidMove
) -> tuple[Int64Array, Int64Array]:
    """Numerator and denominator of the relative move of each row."""
    last = ahead.last
    if move.method == 0:
        return mid[last] - mid, mid
    total = np.cumsum(mid)
    if move.smoothing is not None:
        _must_fit(int(mid.max()), move.smoothing + 1, 1)
        before = total - _until(total, past)
        return total[last] - _until(total, np.maximum(last - move.smoothing, 0) - 1) - before, before
    following, n = total[last], last - row
    following -= total
    still = np.flatnonzero(n == 0)
    following[still], n[still] = mid[still], 1
    p = row - past
    _must_fit(int(mid.max()), int(n.max()), int(p.max()))
    if move.method == 1:
        n *= mid
        following -= n
        return following, n
    before = total - _until(total, past)
    return p * following - n * before, n * before


def _until(total: Int64Array, row: Int64Array) -> Int64Array:
    """The running total up to and including each row, 0 for row −1."""
    return np.where(row >= 0, total[row], 0)


def _must_fit(mid: int, n: int, p: int) -> None:
    if mid * n * p >= 2**62:
        raise ValueError(
            f"{p} events before and {n} after with a mid of {mid} half units leave int64; shorten the horizon"
        )
