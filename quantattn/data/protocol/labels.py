"""Labels from the mid price, each with the interval that it looks at, or with the reason why there is none.

All comparisons are made on integers. The mid is kept in half price units, bid + ask, so that it needs no fraction; a
relative move l is kept as a fraction of two int64, and l > θ is decided exactly.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Literal

import numpy as np
import numpy.typing as npt
import polars as pl

from quantattn.data.market.sessions import SECOND, Sessions

Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

REASONS: tuple[str, ...] = ("session end", "halt", "crossed book", "no data", "no move")
"""Why a decision has no label. When several hold, the first of them in this order is given.

"no move" is given by `Threshold.classify` with two classes alone.
"""

LABEL_REASON = pl.Enum(REASONS)
MOVE_COLUMNS: tuple[str, ...] = ("move_num", "move_den", "label_start", "label_end", "label_reason")


@dataclass(frozen=True)
class MidMove:
    """What a label compares: the mid of a decision with the mids of the horizon that follows it.

    With m_t the mid after event t, and n the number of events in the horizon (t, t + horizon]:

        method 0   l = (m_{t+n} − m_t) / m_t                               the move to the end of the horizon
        method 1   l = (mean(m_{t+1} … m_{t+n}) − m_t) / m_t               the default
        method 2   l = (mean(m_{t+1} … m_{t+n}) − mean(m_{t−p+1} … m_t)) / mean(m_{t−p+1} … m_t)

    In events n = p = horizon; in seconds n counts the events later than t and not more than `horizon` seconds after
    it (none: the mid stays m_t), p those of a stretch of the same length that ends with t. Method 2 overlaps
    with the past and so builds momentum in (Lee 2024, arXiv 2409.14157): read it beside the persistence baseline.

    Attributes:
        horizon: number of events, or of whole seconds.
        unit: "events" or "seconds".
        method: 0, 1 or 2.
    """

    horizon: int = 100
    unit: Literal["events", "seconds"] = "events"
    method: Literal[0, 1, 2] = 1

    def __post_init__(self) -> None:
        if self.horizon < 1:
            raise ValueError(f"horizon must be at least 1 {self.unit}, got {self.horizon}")
        if self.unit not in ("events", "seconds"):
            raise ValueError(f"unit must be 'events' or 'seconds', got {self.unit!r}")
        if self.method not in (0, 1, 2):
            raise ValueError(f"method must be 0, 1 or 2, got {self.method!r}")

    @property
    def name(self) -> str:
        """Says method, horizon and unit, for reports: "mid move 1 over 100 events"."""
        return f"mid move {self.method} over {self.horizon} {self.unit}"


def mid_moves(frame: pl.DataFrame, move: MidMove, sessions: Sessions | None = None) -> pl.DataFrame:
    """Measure the move that follows every event.

    Args:
        frame: events in canonical order with `entity`, `available_time`, `ask_price_1`, `bid_price_1` and, when there
            can be halts, `halted`.
        move: what to measure.
        sessions: no interval leaves a session of this exchange. None: an entity's whole table is one session.

    Returns:
        `frame` with five more columns. The relative move is `move_num` / `move_den` (Int64, null when there is none,
        `move_den` > 0). The interval is (`label_start`, `label_end`], ns UTC, open at `label_start`, the time of the
        decision, because what is known then is no part of the label; both are null when there is no label, and
        `label_reason` (an Enum of `REASONS`) then says why. An interval may not contain the end of a session, an
        event during a halt, or a crossed, locked or one-sided book, nor may the decision itself or, for method 2, the
        past events that it averages. An event outside every session is given "session end".

    Raises:
        ValueError: events out of order, a mid that is not above zero, or sums that leave int64.
    """
    size = frame.height
    columns = {name: np.zeros(size, np.int64) for name in ("move_num", "move_den", "label_start", "label_end")}
    reason = np.full(size, -1, np.int8)
    time = frame["available_time"].to_numpy()
    entity = frame["entity"].rle_id().to_numpy()
    backwards = np.flatnonzero((np.diff(time) < 0) & (entity[1:] == entity[:-1]))
    if backwards.size:
        raise ValueError(f"labels need events in order of time, but available_time falls at row {backwards[0] + 1}")
    mids = _Mids.of(frame)
    session = np.zeros(size, np.int64) if sessions is None else sessions.locate(time)
    for first, last in _runs(entity, session):
        if session[first] < 0:
            reason[first:last] = REASONS.index("session end")
            continue
        close = None if sessions is None else int(sessions.close[session[first]])
        found = _measure(mids.part(first, last), time[first:last], close, move)
        for name, values in zip(columns, found[:4], strict=True):
            columns[name][first:last] = values
        reason[first:last] = found[4]
    has = pl.Series("has", reason < 0)
    return frame.with_columns(
        *(pl.when(has).then(pl.Series(name, values)).alias(name) for name, values in columns.items()),
        pl.Series(REASONS, dtype=LABEL_REASON).gather(pl.Series(reason).replace(-1, None)).alias("label_reason"),
    )


@dataclass(frozen=True)
class Threshold:
    """θ, which parts a move from no move: up if l > θ, down if l < −θ; both compared exactly.

    Attributes:
        theta: θ ≥ 0, a rational number.
        rule: how it was found: "fixed", "mean", "quantile 1/3", "spread".
        fitted_rows: training rows that it was fitted on; 0 when fixed.
        fitted_until: no row that it was fitted on looks at or beyond this time (ns UTC); None when fixed.
    """

    theta: Fraction
    rule: str = "fixed"
    fitted_rows: int = 0
    fitted_until: int | None = None

    def __post_init__(self) -> None:
        if self.theta < 0:
            raise ValueError(f"the threshold of a move must be at least 0, got {float(self.theta)}")

    @staticmethod
    def fixed(theta: float | str | Fraction) -> Threshold:
        """A given θ; "1/50000" and "2e-5" are exact, a float is taken at its exact binary value."""
        return Threshold(Fraction(theta))

    @staticmethod
    def fit(
        moves: pl.DataFrame,
        rows: Int64Array,
        rule: Literal["mean", "quantile", "spread"] = "mean",
        quantile: float = 1 / 3,
    ) -> Threshold:
        """Fit θ on training rows.

        Args:
            moves: what `mid_moves` returned.
            rows: row numbers of the training part; those without a move are passed over.
            rule: "mean": half the mean of |l|. "quantile": the given quantile of |l|, the smallest value that at
                least this share of the rows does not exceed (1/3 makes three classes about equal). "spread": the
                mean of (ask − bid) / mid at the decisions (Berti, Kasneci 2025, arXiv 2502.15757).
            quantile: in [0, 1], for the rule of that name.

        Raises:
            ValueError: no training row has a move, or a setting is not one of these.
        """
        train = moves[rows].filter(pl.col("move_num").is_not_null())
        if not train.height:
            raise ValueError(f"none of the {len(rows)} training rows has a move to fit a threshold on")
        num, den = np.abs(train["move_num"].to_numpy()), train["move_den"].to_numpy()
        sizes = num / den
        name: str = rule
        if rule == "mean":
            theta = Fraction(math.fsum(sizes) / train.height / 2)
        elif rule == "quantile":
            if not 0 <= quantile <= 1:
                raise ValueError(f"quantile must lie in [0, 1], got {quantile}")
            row = np.argsort(sizes, kind="stable")[max(math.ceil(quantile * train.height) - 1, 0)]
            theta = Fraction(int(num[row]), int(den[row]))  # exactly this move, so that its equals do not exceed it
            name = f"quantile {Fraction(quantile).limit_denominator(1000)}"
        elif rule == "spread":
            ask, bid = train["ask_price_1"].to_numpy(), train["bid_price_1"].to_numpy()
            theta = Fraction(math.fsum(2 * (ask - bid) / (ask + bid)) / train.height)
        else:
            raise ValueError(f"rule must be 'mean', 'quantile' or 'spread', got {rule!r}")
        return Threshold(theta, name, train.height, int(train["label_end"].to_numpy().max()) + 1)

    def classify(self, moves: pl.DataFrame, classes: Literal[2, 3] = 3) -> pl.DataFrame:
        """Add `label` (Int8): with 3 classes 0 down, 1 flat, 2 up; with 2 classes 0 down, 1 up, and none when flat."""
        if classes not in CLASS_NAMES:
            raise ValueError(f"classes must be 2 or 3, got {classes!r}")
        num, den = moves["move_num"], moves["move_den"]
        beyond = _exceeds(num.abs().fill_null(0).to_numpy(), den.fill_null(1).to_numpy(), self.theta)
        way = pl.Series("way", np.where(beyond, np.sign(num.fill_null(0).to_numpy()), 0).astype(np.int8))
        label = way + 1 if classes == 3 else (way + 1) // 2
        known = num.is_not_null() & ((way != 0) | (classes == 3))
        flat = num.is_not_null() & ~known
        return moves.with_columns(
            pl.when(known).then(label).cast(pl.Int8).alias("label"),
            *(pl.when(~flat).then(pl.col(name)).alias(name) for name in ("label_start", "label_end")),
            pl.when(flat).then(pl.lit("no move", LABEL_REASON)).otherwise("label_reason").alias("label_reason"),
        )

    def to_json(self) -> str:
        """Text from which `from_json` makes an equal threshold."""
        plain = {
            "theta": str(self.theta),
            "rule": self.rule,
            "fitted_rows": self.fitted_rows,
            "fitted_until": self.fitted_until,
        }
        return json.dumps(plain, sort_keys=True)

    @staticmethod
    def from_json(text: str) -> Threshold:
        """The threshold that `to_json` wrote."""
        plain = json.loads(text)
        return Threshold(Fraction(plain["theta"]), plain["rule"], plain["fitted_rows"], plain["fitted_until"])


CLASS_NAMES: dict[int, tuple[str, ...]] = {2: ("down", "up"), 3: ("down", "flat", "up")}
"""Number of classes → what each is called, by code."""


def _exceeds(num: Int64Array, den: Int64Array, theta: Fraction) -> BoolArray:
    """Whether num / den > theta, for num ≥ 0 and den > 0: floats decide, and where they are too close, integers do."""
    if theta == 0:
        positive: BoolArray = num > 0
        return positive
    value, bound = num / den, float(theta)
    beyond = value > bound
    for i in np.flatnonzero(np.abs(value - bound) <= 1e-14 * bound):
        beyond[i] = int(num[i]) * theta.denominator > theta.numerator * int(den[i])
    return beyond


@dataclass(frozen=True)
class _Mids:
    """mid = bid + ask, and where it cannot be used and why."""

    mid: Int64Array
    halted: BoolArray
    crossed: BoolArray
    missing: BoolArray

    @staticmethod
    def of(frame: pl.DataFrame) -> _Mids:
        ask, bid = frame["ask_price_1"], frame["bid_price_1"]
        worthless = ((ask > bid) & (ask + bid <= 0)).arg_true()
        if len(worthless):
            row = int(worthless[0])
            raise ValueError(f"a relative move needs mids above zero, but row {row} has bid {bid[row]}, ask {ask[row]}")
        halted = frame["halted"] if "halted" in frame.columns else pl.Series([False]).new_from_index(0, frame.height)
        return _Mids(
            mid=(ask + bid).fill_null(0).to_numpy(),
            halted=halted.fill_null(False).to_numpy(),
            crossed=(bid >= ask).fill_null(False).to_numpy(),
            missing=(ask.is_null() | bid.is_null()).to_numpy(),
        )

    def part(self, first: int, last: int) -> _Mids:
        here = slice(first, last)
        return _Mids(self.mid[here], self.halted[here], self.crossed[here], self.missing[here])


def _measure(
    mids: _Mids, time: Int64Array, close: int | None, move: MidMove
) -> tuple[Int64Array, Int64Array, Int64Array, Int64Array, npt.NDArray[np.int8]]:
    """Numerators, denominators, interval starts, interval ends and reason codes (−1: none) of one session."""
    size = len(time)
    row = np.arange(size, dtype=np.int64)
    if move.unit == "events":
        # Rows (past, row] and (row, ahead] are averaged; `ahead` past the last row means that the session ends first.
        past, ahead = row - move.horizon, row + move.horizon
        ended, unknown = ahead >= size, np.zeros(size, np.bool_)
        end = time[np.minimum(ahead, size - 1)]
    else:
        # The same rows, found by time; `past` −2 means that the stretch begins before the session's first event.
        span = move.horizon * SECOND
        past = np.searchsorted(time, time - span, side="right") - 1
        past = np.where(time - span < time[0], -2, past)
        ahead = np.maximum(np.searchsorted(time, time + span, side="right") - 1, row)
        end = time + span
        ended = end > (time[-1] if close is None else close)
        unknown = end > time[-1]
    ahead = np.minimum(ahead, size - 1)
    first = row - 1 if move.method != 2 else past
    short = first < -1
    first = np.maximum(first, -1)
    reason = np.full(size, -1, np.int8)
    for code, hit in reversed(
        (
            ("session end", ended),
            ("halt", _any_within(mids.halted, first, ahead)),
            ("crossed book", _any_within(mids.crossed, first, ahead)),
            ("no data", _any_within(mids.missing, first, ahead) | short | unknown),
        )
    ):
        reason[hit] = REASONS.index(code)
    total = np.concatenate(([0], np.cumsum(mids.mid)))
    here, n = mids.mid, np.maximum(ahead - row, 1)
    following = np.where(ahead > row, total[ahead + 1] - total[row + 1], here)
    if move.method == 0:
        num, den = mids.mid[ahead] - here, here
    elif move.method == 1:
        _must_fit(int(here.max()), int(n.max()), 1)
        num, den = following - n * here, n * here
    else:
        last, p = total[row + 1] - total[first + 1], row - first
        _must_fit(int(here.max()), int(n.max()), int(p.max()))
        num, den = p * following - n * last, n * last
    return num, den, time, end, reason


def _must_fit(mid: int, n: int, p: int) -> None:
    if mid * n * p >= 2**62:
        raise ValueError(
            f"{p} events before and {n} after with a mid of {mid} half units leave int64; shorten the horizon"
        )


def _any_within(flag: BoolArray, after: Int64Array, to: Int64Array) -> BoolArray:
    """Whether the flag is set on any row of (after, to]."""
    count = np.concatenate(([0], np.cumsum(flag)))
    within: BoolArray = count[to + 1] > count[after + 1]
    return within


def _runs(*keys: Int64Array) -> list[tuple[int, int]]:
    """Half-open ranges of rows over which every key is constant."""
    size = len(keys[0])
    change = np.zeros(max(size - 1, 0), np.bool_)
    for key in keys:
        change |= key[1:] != key[:-1]
    edges = [0, *(np.flatnonzero(change) + 1).tolist(), size]
    return [(first, last) for first, last in pairwise(edges) if last > first]
