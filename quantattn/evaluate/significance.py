"""How sure: block-bootstrap intervals of figures, differences and ratios.

Decisions close in time share news and overlapping labels, so rows are not independent; blocks of them (days, entities,
stretches of time) nearly are. Blocks are drawn with replacement and every figure is recomputed from the blocks' sums:
a resample is a vector of K multinomial counts, two thousand of them a matrix product.

Dimensions: Q decisions, K blocks, R replicates, m sums.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import scipy  # whose parts are imported where they are used first
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
BlockKind = Literal["day", "entity", "time"]

DAY = 86_400_000_000_000
"""Nanoseconds of a day."""
FEWEST_DAYS = 10
FEWEST_ENTITIES = 30
REPLICATES = 2000


@dataclass(frozen=True)
class Blocks:
    """Which block each decision belongs to.

    Attributes:
        ids: (Q,) int64 in 0 … K − 1.
        kind: what a block is: a UTC day, an entity, or a stretch of time.
        count: K.
    """

    ids: Ints
    kind: BlockKind
    count: int

    def __post_init__(self) -> None:
        wrong = np.flatnonzero((self.ids < 0) | (self.ids >= self.count))
        if wrong.size:
            raise ValueError(
                f"blocks are numbered 0 … {self.count - 1}, but decision {wrong[0]} is in block {self.ids[wrong[0]]}"
            )

    def of(self, kept: NDArray[np.bool_]) -> Blocks:
        """The blocks of the rows where `kept`, renumbered without the ones that became empty."""
        names, ids = np.unique(self.ids[kept], return_inverse=True)
        return Blocks(ids.astype(np.int64), self.kind, int(names.size))


@dataclass(frozen=True)
class Interval:
    """A figure with its confidence interval; `low` and `high` are None where fewer than two blocks allow none."""

    value: float
    low: float | None = None
    high: float | None = None

    def excludes(self, value: float) -> bool:
        """Whether there is an interval and `value` lies outside it."""
        return self.low is not None and self.high is not None and not self.low <= value <= self.high

    def turned(self) -> Interval:
        """The figure with its sign turned."""
        return Interval(-self.value, None if self.high is None else -self.high, None if self.low is None else -self.low)


def choose_blocks(
    time: ArrayLike,
    entity: ArrayLike | None = None,
    *,
    kind: BlockKind | Literal["auto"] = "auto",
    stretches: int = 40,
) -> Blocks:
    """Blocks to resample: days when there are ten, else entities when there are thirty, else stretches of time.

    Args:
        time: (Q,) int64 ns UTC of each decision.
        entity: (Q,) names or numbers, needed for kind "entity".
        kind: "day" (UTC days), "entity", "time" (contiguous stretches with about equal numbers of decisions), or
            "auto" for the rule above.
        stretches: how many stretches of time at most; decisions with one time stamp stay together.

    Raises:
        ValueError: no decisions, lengths that differ, or kind "entity" without entities.
    """
    t = np.asarray(time, dtype=np.int64)
    if t.ndim != 1 or t.size == 0:
        raise ValueError(f"time must be a non-empty (Q,) array, got shape {t.shape}")
    if entity is not None and np.shape(entity) != t.shape:
        raise ValueError(f"entity has shape {np.shape(entity)} but time {t.shape}")
    days, day = np.unique(t // DAY, return_inverse=True)
    if kind == "day" or (kind == "auto" and days.size >= FEWEST_DAYS):
        return Blocks(day.astype(np.int64), "day", int(days.size))
    if kind == "entity" and entity is None:
        raise ValueError("blocks of kind 'entity' need the entity of each decision")
    if kind != "time" and entity is not None:
        names, which = np.unique(np.asarray(entity), return_inverse=True)
        if kind == "entity" or names.size >= FEWEST_ENTITIES:
            return Blocks(which.astype(np.int64), "entity", int(names.size))
    earlier = np.searchsorted(np.sort(t), t, side="left")
    found, stretch = np.unique(earlier * min(stretches, t.size) // t.size, return_inverse=True)
    return Blocks(stretch.astype(np.int64), "time", int(found.size))


def resample(sums: Floats, *, replicates: int = REPLICATES, seed: int = 0) -> Floats:
    """(R, m) totals of R resamples of K blocks, from the blocks' sums (K, m).

    The same K, R and seed draw the same blocks, so figures resampled in two calls are paired.
    """
    k, rng = sums.shape[0], np.random.default_rng(seed)
    step = max(1, 4_000_000 // max(k, 1))
    uniform = np.full(k, 1 / k)
    parts = []
    for first in range(0, replicates, step):
        draws = rng.multinomial(k, uniform, size=min(step, replicates - first))
        parts.append(draws.astype(np.float64) @ sums)
    return np.concatenate(parts)


def interval(value: float, draws: Floats, n_blocks: int, level: float = 0.95) -> Interval:
    """Percentile interval of bootstrap draws, widened for few blocks.

    The percentiles are those of Hesterberg (2015, "What teachers should know about the bootstrap", §4.3.1):
    Φ(−√(K/(K − 1))·t) with t Student's quantile at K − 1 degrees of freedom; without it, intervals from few blocks
    are too short. No interval with fewer than two blocks, or when a draw is not finite.
    """
    tail = _tail(n_blocks, level)
    if tail is None or not np.isfinite(draws).all() or not math.isfinite(value):
        return Interval(value)
    low, high = np.quantile(draws, [tail, 1 - tail])
    return Interval(value, float(low), float(high))


def lowest_interval(values: Floats, draws: Floats, lowest: int, n_blocks: int, level: float = 0.95) -> Interval:
    """Interval of one of M figures that was taken because it is the lowest, M skills against M baselines for instance.

    Luck helped to choose it, so in truth it is higher than it looks, and an interval that forgets this lies below the
    truth too often. The low end is that of `interval`. The high end holds for all M at once, whichever is taken: in
    units of their standard deviations it is as far from the figure as the largest of M draws, in the same tail (Romano,
    Wolf 2005, Econometrica 73; White 2000). With one figure it is that of `interval`.

    Args:
        values: (M,) figures.
        draws: (M, R) of each, from the same resamples.
        lowest: which of the M was taken.
        n_blocks: K.
        level: coverage.
    """
    found, tail = interval(float(values[lowest]), draws[lowest], n_blocks, level), _tail(n_blocks, level)
    if tail is None or found.high is None or not np.isfinite(draws).all():
        return Interval(found.value)
    spread = draws.std(axis=1, keepdims=True)
    away = np.divide(draws - values[:, None], spread, out=np.zeros_like(draws), where=spread > 0)
    high = found.value + float(spread[lowest, 0] * np.quantile(away.max(axis=0), 1 - tail))
    return Interval(found.value, found.low, max(found.high, high))


def _tail(n_blocks: int, level: float) -> float | None:
    """Share of draws beyond each end of an interval; None with fewer than two blocks."""
    if not 0 < level < 1:
        raise ValueError(f"level must lie between 0 and 1, got {level}")
    if n_blocks < 2:
        return None
    half = scipy.stats.t.ppf((1 + level) / 2, n_blocks - 1)
    return float(scipy.stats.norm.cdf(-math.sqrt(n_blocks / (n_blocks - 1)) * half))


def bootstrap_interval(
    values: ArrayLike, blocks: Blocks, *, level: float = 0.95, replicates: int = REPLICATES, seed: int = 0
) -> Interval:
    """The mean of per-decision values with its block-bootstrap interval.

    Pass losses for a loss, or the differences of two methods' losses for a paired comparison.

    Args:
        values: (Q,) finite values, one a decision.
        blocks: the block of each decision.
        level: coverage, 0.95 for a 95 % interval.
        replicates: resamples.
        seed: of the draws.

    Raises:
        ValueError: lengths differ, or a value is not finite.
    """
    array = np.asarray(values, dtype=np.float64)
    if array.shape != blocks.ids.shape or array.size == 0:
        raise ValueError(f"values must be (Q,) = {blocks.ids.shape} and not empty, got {array.shape}")
    if not np.isfinite(array).all():
        raise ValueError(f"values[{int(np.argmin(np.isfinite(array)))}] is not finite")
    blocks = blocks.of(np.ones(array.size, np.bool_))
    sums = np.column_stack(
        [np.bincount(blocks.ids, minlength=blocks.count), np.bincount(blocks.ids, array, minlength=blocks.count)]
    ).astype(np.float64)
    draws = resample(sums, replicates=replicates, seed=seed)
    return interval(float(array.mean()), draws[:, 1] / draws[:, 0], blocks.count, level)
