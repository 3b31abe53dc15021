"""Is a Sharpe ratio more than luck, and more than the best of many tries? Bailey and López de Prado's two figures.

All ratios are per period, not annualised; kurtosis is raw, 3 for a normal distribution.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy  # whose parts are imported where they are used first
from numpy.typing import ArrayLike


@dataclass(frozen=True)
class Sharpe:
    """The Sharpe ratio of n returns a period, with what its sampling error depends on.

    Attributes:
        ratio: mean/standard deviation (divisor n − 1); 0 when all returns are zero.
        n: returns.
        skewness: third standardised moment.
        kurtosis: fourth standardised moment, raw.
    """

    ratio: float
    n: int
    skewness: float
    kurtosis: float


def sharpe_ratio(returns: ArrayLike) -> Sharpe:
    """The Sharpe ratio of returns a period (n,), n > 1.

    Raises:
        ValueError: fewer than two returns, one that is not finite, or returns that do not vary.
    """
    r = np.asarray(returns, np.float64)
    if r.ndim != 1 or r.size < 2 or not np.isfinite(r).all():
        raise ValueError(f"a Sharpe ratio needs two finite returns or more, got shape {r.shape}")
    if np.ptp(r) == 0:
        raise ValueError(f"all {r.size} returns are {r[0]:.6g}: a Sharpe ratio needs returns that vary")
    z = r - r.mean()
    spread = math.sqrt(float(z @ z) / r.size)
    u = z / spread
    return Sharpe(float(r.mean() / r.std(ddof=1)), r.size, float((u**3).mean()), float((u**4).mean()))


def probabilistic_sharpe(found: Sharpe, benchmark: float = 0.0) -> float:
    """Probability that the true ratio is above `benchmark`, Φ((SR − SR*)√(n − 1)/√(1 − γ₃SR + (γ₄ − 1)/4·SR²)).

    Bailey, López de Prado (2012, "The Sharpe ratio efficient frontier"). One minus it is a one-sided p-value.
    """
    sr = found.ratio
    spread = 1 - found.skewness * sr + (found.kurtosis - 1) / 4 * sr**2  # ≥ 0, as γ₄ ≥ 1 + γ₃²
    if spread <= 0:
        return float(sr > benchmark)
    return float(scipy.stats.norm.cdf((sr - benchmark) * math.sqrt(found.n - 1) / math.sqrt(spread)))


def expected_best(trials: int, variance: float) -> float:
    """What the best of `trials` worthless strategies is expected to show, √V·((1 − γ)Φ⁻¹(1 − 1/N) + γΦ⁻¹(1 − 1/(Ne))).

    Args:
        trials: N ≥ 1, how many were tried.
        variance: V, of the trials' ratios.

    Raises:
        ValueError: no trial, or a variance that is negative or not finite.
    """
    if trials < 1 or not (variance >= 0 and math.isfinite(variance)):
        raise ValueError(f"expected one trial or more and a finite variance ≥ 0, got {trials} and {variance}")
    if trials == 1:
        return 0.0
    upper = scipy.stats.norm.isf(1 / trials)
    return float(
        math.sqrt(variance)
        * ((1 - np.euler_gamma) * upper + np.euler_gamma * scipy.stats.norm.isf(1 / (trials * math.e)))
    )


def deflated_sharpe(found: Sharpe, trials: int, variance: float | None = None) -> float:
    """Probability that the true ratio is above zero, given that the strategy is the best of `trials`.

    Bailey, López de Prado (2014, "The deflated Sharpe ratio"): the probabilistic ratio against `expected_best`.

    Args:
        found: the best strategy's ratio.
        trials: how many strategies were tried, this one included.
        variance: of the ratios of the trials; None takes 1/(n − 1), that of worthless strategies with normal returns.
    """
    spread = 1 / (found.n - 1) if variance is None else variance
    return probabilistic_sharpe(found, expected_best(trials, spread))
