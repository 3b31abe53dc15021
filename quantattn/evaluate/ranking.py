"""Does a score order entities by what comes after? Information coefficients in time, by age, entity, hour and regime.

IC_t is the Pearson correlation, across entities at time t, of score and outcome; the rank IC is Spearman's (average
ranks on ties). Times with fewer than two entities, or at which either is constant, have none: they are counted.

Dimensions: Q rows, T times.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quantattn.evaluate.inference import MeanTest, lag_of, mean_test
from quantattn.evaluate.panel import Bools, Floats, Ints, Panel, centred_within, correlation_within, ranks_within
from quantattn.evaluate.significance import DAY, Interval, interval, resample

REPLICATES = 1000


@dataclass(frozen=True)
class Ranking:
    """Information coefficients of one score.

    Attributes:
        at: (n,) positions in the panel's times that have a rank IC.
        rank_ic: (n,) Spearman's.
        ic: (n,) Pearson's at the same times.
        skipped: times with rows and no coefficient.
        test: of the mean rank IC.
        pearson: of the mean IC.
        icir: mean/standard deviation (divisor n − 1) of the rank IC; None for fewer than two times or no variation.
    """

    at: Ints
    rank_ic: Floats
    ic: Floats
    skipped: int
    test: MeanTest
    pearson: MeanTest
    icir: float | None


def both(data: Panel, score: ArrayLike) -> tuple[Panel, Floats]:
    """The rows that have a score and an outcome, and the scores of those."""
    s = np.asarray(score, np.float64)
    if s.shape != data.at.shape:
        raise ValueError(f"score has shape {s.shape} but the panel {data.at.shape}")
    kept = np.isfinite(s) & np.isfinite(data.outcome)
    return data.take(kept), s[kept]


def coefficients(data: Panel, score: ArrayLike) -> tuple[Floats, Floats]:
    """(T,) IC and (T,) rank IC of a score (Q,), NaN at times that have none; other rows are left out."""
    rows, s = both(data, score)
    n = rows.times.size
    ranked = [ranks_within(rows.at, values) for values in (s, rows.outcome)]
    return correlation_within(rows.at, n, s, rows.outcome), correlation_within(rows.at, n, *ranked)


def judge_ranking(data: Panel, score: ArrayLike, level: float = 0.95) -> Ranking:
    """Information coefficients of a score (Q,), NaN where there is none.

    Raises:
        ValueError: shapes that differ, or no time at which two entities have different scores and outcomes.
    """
    return summary(data, *coefficients(data, score), level)


def summary(data: Panel, ic: Floats, rank_ic: Floats, level: float = 0.95) -> Ranking:
    """The same from the `coefficients` of a score."""
    at = np.flatnonzero(np.isfinite(rank_ic) & np.isfinite(ic))
    if at.size == 0:
        raise ValueError(
            "no time has two entities whose scores and outcomes differ, so there is no information coefficient; "
            "scores of one entity, or at times that no two entities share, are judged by kind=value or kind=class"
        )
    found = rank_ic[at]
    lag = lag_of(at.size, data.horizon)
    spread = float(found.std(ddof=1)) if at.size > 1 else 0.0
    return Ranking(
        at=at,
        rank_ic=found,
        ic=ic[at],
        skipped=int(np.unique(data.at).size - at.size),
        test=mean_test(found, lag, level),
        pearson=mean_test(ic[at], lag, level),
        icir=float(found.mean()) / spread if spread > 0 else None,
    )


def by_age(data: Panel, score: ArrayLike, ages: Sequence[int], level: float = 0.95) -> dict[int, MeanTest]:
    """Rank IC of a score that is `age` steps old: the score of each entity at time t − age with its outcome at t.

    Ages without any coefficient are left out.
    """
    s = np.asarray(score, np.float64)
    n = data.times.size
    key = data.entity * n + data.at
    order = np.argsort(key)
    found = {}
    for age in ages:
        wanted = key - age
        place = np.minimum(np.searchsorted(key[order], wanted), order.size - 1)
        there = (key[order][place] == wanted) & (data.at >= age)
        old = np.where(there, s[order[place]], np.nan)
        _, rank_ic = coefficients(data, old)
        series = rank_ic[np.isfinite(rank_ic)]
        if series.size:
            found[age] = mean_test(series, lag_of(series.size, data.horizon), level)
    return found


def by_group(rank_ic: Floats, group: ArrayLike, horizon: int = 1, level: float = 0.95) -> dict[str, MeanTest]:
    """Mean of `rank_ic` (T,) at the times of each group; `group` (T,) names a time's group, None or "" for none."""
    names = np.asarray(["" if name is None else str(name) for name in np.asarray(group).tolist()])
    if names.shape != rank_ic.shape:
        raise ValueError(f"group has shape {names.shape} but there are {rank_ic.size} times")
    found = {}
    for name in sorted(set(names.tolist()) - {""}):
        series = rank_ic[(names == name) & np.isfinite(rank_ic)]
        if series.size:
            found[name] = mean_test(series, lag_of(series.size, horizon), level)
    return found


def hours(times: Ints) -> list[str]:
    """(T,) UTC hour of each time, "14:00" for instance."""
    return [f"{hour:02d}:00" for hour in (times % DAY // (DAY // 24)).tolist()]


def turbulence(data: Panel) -> list[str | None]:
    """(T,) "calm" or "turbulent": whether outcomes last known at a time differed more than in half of those before.

    The spread of a time's outcomes is their standard deviation across entities. At time t the last spread that is
    known is compared with the median of all that were known earlier; None before there are ten.
    """
    rows = data.take(np.isfinite(data.outcome))
    n = data.times.size
    count = np.bincount(rows.at, minlength=n).astype(np.float64)
    centred = centred_within(rows.at, count, rows.outcome)
    spread = np.sqrt(np.bincount(rows.at, centred**2, minlength=n) / np.maximum(count, 1))
    known = np.full(n, -1)
    np.maximum.at(known, rows.at, rows.known)  # a time's spread is known when its last outcome is
    usable = np.flatnonzero((count > 1) & (known < n))
    usable = usable[np.argsort(known[usable], kind="stable")]
    found: list[str | None] = []
    seen: list[float] = []
    place = 0
    for now in range(n):
        while place < usable.size and known[usable[place]] <= now:
            seen.append(float(spread[usable[place]]))
            place += 1
        last = seen[-501:-1]  # the median of at most 500, so that long tables stay cheap
        found.append(None if len(last) < 10 else "turbulent" if seen[-1] > float(np.median(last)) else "calm")
    return found


def by_entity(data: Panel, score: ArrayLike, fewest: int = 10) -> dict[str, tuple[int, float]]:
    """Of each entity, rows with score and outcome, and their rank correlation over time; NaN below `fewest` rows."""
    rows, s = both(data, score)
    n = len(rows.names)
    count = np.bincount(rows.entity, minlength=n)
    ranked = [ranks_within(rows.entity, values) for values in (s, rows.outcome)]
    found = correlation_within(rows.entity, n, *ranked)
    return {
        name: (int(number), float(value) if number >= fewest else math.nan)
        for name, number, value in zip(rows.names, count, found, strict=True)
        if number
    }


def contributions(data: Panel, score: ArrayLike) -> Floats:
    """(E,) what each entity adds to the mean rank IC: Σ_t z_score·z_outcome/(n_t T), whose sum is the mean."""
    rows, s = both(data, score)
    n = rows.times.size
    count = np.bincount(rows.at, minlength=n).astype(np.float64)
    product: Floats = np.ones(rows.at.size)
    usable: Bools = count > 1
    for values in (s, rows.outcome):
        centred = centred_within(rows.at, count, ranks_within(rows.at, values))
        square = np.bincount(rows.at, centred**2, minlength=n)
        usable &= square > 0
        product = product * centred / np.sqrt(np.where(square > 0, square, 1))[rows.at]
    product = np.where(usable[rows.at], product, 0)
    return np.bincount(rows.entity, product, minlength=len(rows.names)) / max(int(usable.sum()), 1)


def resampled(
    data: Panel, score: ArrayLike, found: Ranking, *, level: float = 0.95, seed: int = 0
) -> dict[str, Interval]:
    """The mean rank IC, `found` of the score, with intervals from resampled blocks of time and resampled entities.

    "time": days, or stretches at least three horizons long where outcomes overlap. "entity": whole entities, the
    standardised ranks held fixed: wide when few names carry the figure.
    """
    blocks = data.blocks(found.at)
    sums = np.column_stack([np.bincount(blocks.ids), np.bincount(blocks.ids, found.rank_ic)]).astype(np.float64)
    drawn = resample(sums, replicates=REPLICATES, seed=seed)
    part = contributions(data, score)[:, None]
    part = part[np.bincount(data.entity, minlength=part.size) > 0]
    names = resample(part, replicates=REPLICATES, seed=seed)[:, 0]
    return {
        blocks.kind: interval(found.test.value, drawn[:, 1] / drawn[:, 0], blocks.count, level),
        "entity": interval(float(part.sum()), names, part.size, level),
    }


def quantile_returns(data: Panel, score: ArrayLike, quantiles: int = 5, level: float = 0.95) -> list[MeanTest | None]:
    """Mean outcome of each quantile of the score, lowest first: the mean over times of each time's mean."""
    rows, s = both(data, score)
    bucket, n = quantile_of(rows.at, s, quantiles), rows.times.size
    found: list[MeanTest | None] = []
    for place in range(quantiles):
        inside = bucket == place
        count = np.bincount(rows.at[inside], minlength=n)
        series = (np.bincount(rows.at[inside], rows.outcome[inside], minlength=n) / np.maximum(count, 1))[count > 0]
        found.append(mean_test(series, lag_of(series.size, rows.horizon), level) if series.size else None)
    return found


def quantile_of(at: Ints, score: Floats, quantiles: int) -> NDArray[np.int64]:
    """(Q,) quantile of each score among those of its time, 0 lowest: ⌊(rank − ½)·quantiles/n⌋ with average ranks.

    Equal scores share a quantile. Where n is a multiple of `quantiles` and nothing ties, these are pandas' `qcut`.
    """
    count = np.bincount(at)[at]
    twice = np.rint(2 * ranks_within(at, score)).astype(np.int64)  # ranks are halves; integers compare exactly
    return (twice - 1) * quantiles // (2 * count)
