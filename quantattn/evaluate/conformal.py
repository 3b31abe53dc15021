"""Intervals and sets that should hold the outcome a stated share of the time, and whether they did.

Split conformal prediction (Vovk et al. 2005; Lei et al. 2018): how far off the score was on an earlier part of the
table says how wide to be on the later part. Coverage is guaranteed when the two parts are exchangeable; markets are
not, so it is measured.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from quantattn.evaluate.panel import Bools, Floats, Panel
from quantattn.evaluate.significance import Interval, bootstrap_interval


@dataclass(frozen=True)
class Coverage:
    """How often the outcome was inside.

    Attributes:
        stated: the share that was asked for.
        found: the share that came true on the later part, with its block-bootstrap interval.
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
    return _measured(data, late, off[late] <= radius, 2 * radius, stated, int(early.sum()), seed)


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
    return _measured(data, late, off[late] <= radius, size, stated, int(early.sum()), seed)


def _measured(
    data: Panel, late: Bools, inside: Bools, size: float, stated: float, calibrated: int, seed: int
) -> Coverage:
    values: Floats = inside.astype(np.float64)
    found = bootstrap_interval(values, data.blocks(data.at[late]), seed=seed)
    return Coverage(stated, found, size, calibrated, int(late.sum()))
