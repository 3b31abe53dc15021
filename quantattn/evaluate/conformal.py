"""Intervals and sets that should hold the outcome a stated share of the time, and whether they did.

Split conformal prediction (Vovk et al. 2005; Lei et al. 2018): how far off the score was on an earlier part of the
table says how wide to be on the later part. Coverage is guaranteed when the two parts are exchangeable; markets are
not, so it is measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import scipy  # whose parts are imported where they are used first
from numpy.typing import ArrayLike

from quantattn.evaluate.metrics import IGNORE
from quantattn.evaluate.panel import Bools, Floats, Panel
from quantattn.evaluate.significance import Interval, interval, resample


@dataclass(frozen=True)
class Coverage:
    """How often the outcome was inside.

    Attributes:
        stated: the share that was asked for.
        found: the share that came true on the later part; the interval allows for both parts being samples, so that it
            holds `stated` 19 times in 20 when the two parts are alike.
        size: mean width of the intervals, or mean number of classes in the sets; infinite with too few earlier rows.
        calibrated: rows of the earlier part.
        tested: rows of the later part.
    """

    stated: float
    found: Interval
    size: float
    calibrated: int
    tested: int


def conformal_radius(scores: ArrayLike, stated: float) -> float:
    """The k-th smallest of n nonconformity scores, k = ⌈(n + 1)·stated⌉; infinite when k > n.

    Of n + 1 exchangeable scores, the last is at most this with probability `stated` or more.
    """
    if not 0 < stated < 1:
        raise ValueError(f"coverage must lie between 0 and 1, got {stated}")
    found = np.sort(np.asarray(scores, np.float64))
    k = math.ceil((found.size + 1) * stated - 1e-9)
    return math.inf if k > found.size else float(found[k - 1])


def halves(data: Panel) -> tuple[Bools, Bools]:
    """Rows (Q,) of the later half of the times, and earlier ones whose outcome was known before it began."""
    there = np.isfinite(data.outcome)
    split = data.times.size // 2
    return there & (data.known <= split) & (data.at < split), there & (data.at >= split)


def interval_coverage(data: Panel, forecast: ArrayLike, stated: float = 0.9, seed: int = 0) -> Coverage | None:
    """Coverage of forecast ± radius; `forecast` (Q,), in the outcome's units. None where a half has no rows."""
    f = np.asarray(forecast, np.float64)
    off = np.abs(data.outcome - f)
    early, late = (part & np.isfinite(f) for part in halves(data))
    if not early.any() or not late.any():
        return None
    radius = conformal_radius(off[early], stated)
    return _measured(data, early, late, off <= radius, 2 * radius, stated, seed)


def set_coverage(data: Panel, prob: ArrayLike, stated: float = 0.9, seed: int = 0) -> Coverage | None:
    """Coverage of the sets of classes with 1 − p ≤ radius; `prob` (Q, C). None where a half has no rows."""
    p = np.asarray(prob, np.float64)
    early, late = halves(data)
    if not early.any() or not late.any():
        return None
    true = np.where(np.isfinite(data.outcome), data.outcome, 0).astype(np.int64)
    off = 1 - p[np.arange(true.size), true]
    radius = conformal_radius(off[early], stated)
    size = float((1 - p[late] <= radius).sum(axis=1).mean())
    return _measured(data, early, late, off <= radius, size, stated, seed)


def _measured(data: Panel, early: Bools, late: Bools, inside: Bools, size: float, stated: float, seed: int) -> Coverage:
    """Blocks of both parts are resampled with the radius held: it moves the two shares alike, and cancels."""
    shares, drawn, counts = [], [], []
    for place, part in enumerate((early, late)):
        blocks = data.blocks(data.at[part])
        rows = np.bincount(blocks.ids, minlength=blocks.count)
        hits = np.bincount(blocks.ids, weights=inside[part], minlength=blocks.count)
        draws = resample(np.column_stack([rows, hits]).astype(np.float64), seed=2 * seed + place)
        shares.append(float(inside[part].mean()))
        drawn.append(draws[:, 1] / draws[:, 0])
        counts.append(blocks.count)
    moved = drawn[1] - (drawn[0] - shares[0])
    return Coverage(stated, interval(shares[1], moved, min(counts)), size, int(early.sum()), int(late.sum()))


@dataclass(frozen=True)
class Conformal:
    """How wide a model's sets or intervals are, found on rows that it was not trained on, to be kept with it.

    A class is in the set when its probability is 1 − radius or more; the interval is value ± radius.

    Attributes:
        level: share of outcomes that they should hold.
        radius: see `conformal_radius`.
        rows: that it was found on.
        score: "prob", of sets, or "value", of intervals.
    """

    level: float
    radius: float
    rows: int
    score: str

    @classmethod
    def fitted(cls, said: Mapping[str, ArrayLike], outcome: ArrayLike, level: float) -> Conformal:
        """Calibrated on rows with an outcome.

        Args:
            said: the model's scores of these rows: `prob` (Q, C) or `value` (Q,).
            outcome: (Q,) classes, `IGNORE` for none; or values, NaN for none.
            level: share.

        Raises:
            ValueError: scores that are neither, or too few rows for any set but that of everything.
        """
        score = next((name for name in ("prob", "value") if name in said), None)
        if score is None:
            raise ValueError(f"sets and intervals are made of prob or value, the model gives {', '.join(said)}")
        off = _off(score, np.asarray(said[score], np.float64), np.asarray(outcome))
        radius = conformal_radius(off, level)
        if not math.isfinite(radius):
            raise ValueError(too_few(level, off.size))
        return cls(level, radius, int(off.size), score)

    @classmethod
    def from_dict(cls, kept: Mapping[str, Any]) -> Conformal:
        """What `as_dict` gave, read without trust.

        Raises:
            ValueError: it does not hold what it should.
        """
        level, radius, rows, score = (kept.get(name) for name in ("level", "radius", "rows", "score"))
        numbers = all(isinstance(each, (int, float)) and not isinstance(each, bool) for each in (level, radius, rows))
        if not numbers or score not in ("prob", "value"):
            raise ValueError(
                f"conformal must hold level, radius, rows and score (prob or value), got {dict(kept)!r:.120}"
            )
        return cls(float(level or 0.0), float(radius or 0.0), int(rows or 0), score)

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    def sets(self, prob: ArrayLike) -> Bools:
        """(Q, C) whether each class is in the set of the row, of probabilities (Q, C)."""
        return np.asarray(1 - np.asarray(prob, np.float64) <= self.radius)

    def intervals(self, value: ArrayLike) -> tuple[Floats, Floats]:
        """(Q,) lower and upper ends, of values (Q,), in their unit."""
        centre = np.asarray(value, np.float64)
        return centre - self.radius, centre + self.radius

    def covered(self, said: Mapping[str, ArrayLike], outcome: ArrayLike, level: float = 0.95) -> Covered:
        """How often the outcome was inside, on rows that the radius does not know."""
        given = np.asarray(said[self.score], np.float64)
        hits = _off(self.score, given, np.asarray(outcome)) <= self.radius
        size = float(self.sets(given).sum(1).mean()) if self.score == "prob" else 2 * self.radius
        if not hits.size:
            return Covered(self.level, Interval(math.nan), size, 0)
        around = scipy.stats.binomtest(int(hits.sum()), hits.size).proportion_ci(level, method="exact")
        return Covered(self.level, Interval(float(hits.mean()), float(around.low), float(around.high)), size, hits.size)


@dataclass(frozen=True)
class Covered:
    """The share of outcomes inside, with the interval of Clopper and Pearson (1934), as if rows were independent.

    `size` is the mean number of classes of the sets, or the width of the intervals, over all rows; `rows` have an
    outcome.
    """

    stated: float
    found: Interval
    size: float
    rows: int


def _off(score: str, said: Floats, outcome: np.ndarray[Any, Any]) -> Floats:
    """Nonconformity of the rows with an outcome: 1 − probability of what came, or how far off the value was."""
    if score == "value":
        y = np.asarray(outcome, np.float64)
        return np.asarray(np.abs(y - said)[np.isfinite(y)])
    label = np.asarray(outcome, np.int64)
    kept = label != IGNORE
    return np.asarray(1 - said[np.flatnonzero(kept), label[kept]])


def too_few(level: float, rows: int) -> str:
    """The sentence on so few rows that only sets of everything hold the stated share: n < level/(1 − level)."""
    least = math.ceil(level / (1 - level) - 1e-9)
    return f"conformal={level} needs {least:,} validation rows with an outcome or more, there are {rows:,}"
