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

from quantattn.evaluate.panel import Bools, Panel
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
