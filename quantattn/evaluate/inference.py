"""How sure of the mean of a series in time: Newey–West, and the tests that are such a mean.

An information coefficient, a difference of losses (Diebold, Mariano 1995) or a return a period is a series whose
neighbours share news and overlapping outcomes. Its mean is tested against zero with the variance of Newey and West.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy  # whose parts are imported where they are used first
from numpy.typing import ArrayLike, NDArray

from quantattn.evaluate.significance import Interval

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class MeanTest:
    """A mean with its test against zero.

    Attributes:
        value: the mean.
        t: value/√(Var/n) with the Newey–West variance, as statsmodels prints it.
        p: two-sided, by Student's t with `df` degrees of freedom; None where there is no test.
        low: of the interval, None where there is none.
        high: of the interval.
        n: times.
        lag: of the variance.
        df: equivalent degrees of freedom of the variance.
    """

    value: float
    t: float | None
    p: float | None
    low: float | None
    high: float | None
    n: int
    lag: int
    df: float


def lag_of(n: int, horizon: int = 1) -> int:
    """Lags for n times whose outcomes span `horizon` steps: ⌊4(n/100)^(2/9)⌋, but at least 3(horizon − 1).

    Outcomes that overlap make a series correlated up to lag horizon − 1. The Bartlett weights at that lag would leave a
    third of its variance out; at three times the lag, a ninth. With n or more lags there is no test: the times do not
    hold three outcomes one after the other.
    """
    return max(min(n - 1, math.floor(4 * math.pow(n / 100, 2 / 9))), 3 * (horizon - 1))


def newey_west(values: ArrayLike, lag: int) -> float:
    """Long-run variance γ₀ + 2 Σ_{l=1…L} (1 − l/(L + 1)) γ_l of a series (n,), with γ_l = Σ (x_t − x̄)(x_{t−l} − x̄)/n.

    Newey, West (1987). Divided by n it is the squared standard error that statsmodels gives for a regression on a
    constant with `cov_type="HAC"`.

    Raises:
        ValueError: an empty series, a value that is not finite, or a lag outside 0 … n − 1.
    """
    x = np.asarray(values, np.float64)
    if x.ndim != 1 or x.size == 0 or not np.isfinite(x).all():
        raise ValueError(f"expected a non-empty series of finite values, got shape {x.shape}")
    if not 0 <= lag < x.size:
        raise ValueError(f"lag must lie in 0 … {x.size - 1} for {x.size} values, got {lag}")
    d = x - x.mean()
    total = float(d @ d)
    for step in range(1, lag + 1):
        total += 2 * (1 - step / (lag + 1)) * float(d[step:] @ d[:-step])
    return max(total / x.size, 0.0)


def mean_test(values: ArrayLike, lag: int, level: float = 0.95) -> MeanTest:
    """Test the mean of a series against zero.

    The Newey–West variance is itself uncertain, and too small on average because the mean is estimated: with the
    normal distribution a test at 5 % rejects twice as often at n = 50. Here the variance is divided by its mean on
    white noise of the same length, and t is compared with Student's distribution whose degrees of freedom give the
    variance's own spread there. At lag 0 this is exactly Student's t-test; for the idea see Sun (2014, "Let's fix it",
    Journal of Econometrics 178).

    Args:
        values: (n,) finite.
        lag: see `lag_of`.
        level: coverage of the interval.

    Returns:
        The test; without t, p and interval for fewer than three values, n lags or more, or a variance of zero.

    Raises:
        ValueError: see `newey_west`.
    """
    x = np.asarray(values, np.float64)
    if 0 < x.size <= lag:
        return MeanTest(float(x.mean()), None, None, None, None, x.size, lag, 0.0)
    variance = newey_west(x, lag)
    mean, shrink, df = float(x.mean()), *_white_noise(x.size, lag)
    if x.size < 3 or variance <= 1e-28 * float(np.square(x).mean()) or variance == 0 or not shrink > 0:
        return MeanTest(mean, None, None, None, None, x.size, lag, df)
    error = math.sqrt(variance / x.size)
    fair = error / math.sqrt(shrink)
    p = float(2 * scipy.stats.t.sf(abs(mean) / fair, df))
    half = float(scipy.stats.t.ppf((1 + level) / 2, df)) * fair
    return MeanTest(mean, mean / error, p, mean - half, mean + half, x.size, lag, df)


def lowest_interval_of(test: MeanTest, among: int, level: float = 0.95) -> Interval:
    """Interval of a mean that was taken because it is the lowest of `among`: a difference from the best baseline.

    Luck helped to choose it, so in truth it is higher than it looks. The low end is the test's; the high end leaves
    out (1 − level)/2/among and so holds for all of them at once, whichever is taken (Bonferroni).
    """
    if test.low is None or test.high is None:
        return Interval(test.value)
    error = (test.high - test.value) / scipy.stats.t.ppf((1 + level) / 2, test.df)
    return Interval(
        test.value, test.low, test.value + float(error * scipy.stats.t.isf((1 - level) / 2 / among, test.df))
    )


def _white_noise(n: int, lag: int) -> tuple[float, float]:
    """Mean of the Newey–West variance on white noise of variance 1, and its equivalent degrees of freedom.

    The variance is a quadratic form x'Ax with A = MWM/n, M = I − 11'/n and W the matrix of weights. Its mean is tr A
    and its variance 2 tr A², those of a multiple of χ² with (tr A)²/tr A² degrees of freedom.
    """
    weights = 1 - np.arange(lag + 1) / (lag + 1)
    ones = np.convolve(np.ones(n), np.r_[weights[:0:-1], weights])[lag : lag + n]  # W1
    overlap = n - np.arange(lag + 1)
    square = n + 2 * float((weights[1:] ** 2) @ overlap[1:])  # tr W²
    total = float(ones.sum()) / n
    trace = 1 - total / n
    trace_square = (square - 2 * float(ones @ ones) / n + total**2) / n**2
    return trace, trace**2 / trace_square if trace_square > 0 else 0.0


def diebold_mariano(loss: ArrayLike, other: ArrayLike, time: ArrayLike, *, horizon: int = 1) -> MeanTest:
    """Whether two methods' losses differ on the same decisions: the mean of loss − other, below zero when better.

    Diebold, Mariano (1995). Losses at one time are averaged first, so that entities that share news count as one; the
    means are then a series for `mean_test`. Times count alike.

    Args:
        loss: (Q,) finite losses of a method.
        other: (Q,) finite losses of another on the same decisions.
        time: (Q,) of the decisions.
        horizon: steps from one time to the next that an outcome spans.

    Raises:
        ValueError: lengths that differ, no decision, or a loss that is not finite.
    """
    one, two, when = np.asarray(loss, np.float64), np.asarray(other, np.float64), np.asarray(time)
    if not one.shape == two.shape == when.shape or one.ndim != 1:
        raise ValueError(f"losses and time must be (Q,), got {one.shape}, {two.shape} and {when.shape}")
    _, at = np.unique(when, return_inverse=True)
    count = np.bincount(at)
    series = np.bincount(at, one - two) / count
    return mean_test(series, lag_of(series.size, horizon))
