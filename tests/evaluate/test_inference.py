"""Newey–West, the test of a mean and Diebold–Mariano: statsmodels, scipy, cases by hand, and what a null gives."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from quantattn.evaluate.inference import (
    _white_noise,
    diebold_mariano,
    lag_of,
    lowest_interval_of,
    mean_test,
    newey_west,
)

CLOSE = 1e-10


@pytest.mark.parametrize(("n", "lag"), [(5, 0), (30, 3), (250, 4), (250, 60), (40, 39)])
def test_newey_west_is_that_of_statsmodels(n: int, lag: int) -> None:
    regression = pytest.importorskip("statsmodels.regression.linear_model", reason="statsmodels is not installed")
    x = np.random.default_rng(n + lag).normal(size=n).cumsum() / 3 + 0.2
    robust = {"maxlags": lag, "use_correction": False}
    theirs = regression.OLS(x, np.ones(n)).fit(cov_type="HAC", cov_kwds=robust)
    found = mean_test(x, lag)
    assert math.sqrt(newey_west(x, lag) / n) == pytest.approx(theirs.bse[0], abs=CLOSE)
    assert found.t == pytest.approx(theirs.tvalues[0], rel=CLOSE)
    assert found.value == pytest.approx(theirs.params[0], abs=CLOSE)


def test_newey_west_by_hand() -> None:
    """1, 2, 3, 6: mean 3, deviations −2, −1, 0, 3; γ₀ = 14/4, γ₁ = (2 + 0 + 0)/4, γ₂ = (0 − 3)/4."""
    assert newey_west([1, 2, 3, 6], 0) == 3.5
    assert newey_west([1, 2, 3, 6], 1) == pytest.approx(3.5 + 2 * 0.5 * 0.5, abs=1e-15)
    assert newey_west([1, 2, 3, 6], 2) == pytest.approx(3.5 + 2 * (2 / 3 * 0.5 - 1 / 3 * 0.75), abs=1e-15)


def test_lags_by_hand() -> None:
    assert [lag_of(n) for n in (1, 2, 100, 1000)] == [0, 1, 4, 6]  # 4·10^(2/9) = 6.67
    assert [lag_of(1000, horizon) for horizon in (1, 2, 3, 4, 20)] == [6, 6, 6, 9, 57]
    assert lag_of(10, 20) == 57


@pytest.mark.parametrize("n", [3, 10, 200])
def test_without_lags_it_is_students_test(n: int) -> None:
    x = np.random.default_rng(n).normal(size=n) + 0.3
    theirs = stats.ttest_1samp(x, 0)
    found = mean_test(x, 0)
    assert found.p == pytest.approx(theirs.pvalue, abs=CLOSE)
    assert found.df == pytest.approx(n - 1)
    interval = theirs.confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high), abs=CLOSE)


def test_the_high_end_of_the_lowest_of_four_is_that_of_a_test_at_a_quarter_of_the_level() -> None:
    x = np.random.default_rng(2).normal(size=40)
    found, strict = mean_test(x, 3), mean_test(x, 3, level=1 - 0.05 / 4)
    chosen = lowest_interval_of(found, 4)
    assert (chosen.value, chosen.low) == (found.value, found.low)
    assert chosen.high == pytest.approx(strict.high, abs=CLOSE)
    assert lowest_interval_of(found, 1).high == pytest.approx(found.high, abs=CLOSE)
    assert lowest_interval_of(mean_test([1.0, 1.0, 1.0], 0), 4).high is None


@pytest.mark.parametrize(("n", "lag"), [(6, 0), (6, 2), (9, 8), (30, 5)])
def test_the_moments_on_white_noise_are_those_of_the_matrix(n: int, lag: int) -> None:
    """The variance is x'Ax; its moments by forming A, which the code does not."""
    apart = np.abs(np.subtract.outer(np.arange(n), np.arange(n)))
    weights = np.maximum(1 - apart / (lag + 1), 0)
    centre = np.eye(n) - 1 / n
    a = centre @ weights @ centre / n
    x = np.random.default_rng(0).normal(size=n)
    assert x @ a @ x == pytest.approx(newey_west(x, lag), abs=1e-12)
    shrink, df = _white_noise(n, lag)
    assert shrink == pytest.approx(np.trace(a), abs=1e-12)
    assert df == pytest.approx(np.trace(a) ** 2 / np.trace(a @ a), rel=1e-9)


@pytest.mark.parametrize(("n", "horizon"), [(40, 1), (120, 5)])
def test_five_of_a_hundred_nulls_are_rejected(n: int, horizon: int) -> None:
    """Moving sums of noise, as overlapping outcomes are. The normal distribution is the control that rejects more."""
    rng = np.random.default_rng(1)
    trials, rejected, naive = 600, 0, 0
    for _ in range(trials):
        x = np.convolve(rng.normal(size=n + horizon - 1), np.ones(horizon), "valid")
        found = mean_test(x, lag_of(n, horizon))
        assert found.p is not None
        assert found.t is not None
        rejected += found.p < 0.05
        naive += 2 * stats.norm.sf(abs(found.t)) < 0.05
    low, high = stats.binom.interval(0.99, trials, 0.05)
    assert low <= rejected <= high
    assert naive > high


def test_diebold_mariano_averages_a_time_first() -> None:
    """Differences by time: 1, (2 + 4)/2 = 3, −1; mean 1, and at the lag of three times, 1, γ₀ = 8/3 and γ₁ = −4/3."""
    found = diebold_mariano([2, 2, 5, 0], [1, 0, 1, 1], [0, 1, 1, 2])
    assert (found.value, found.n, found.lag) == (1, 3, 1)
    assert found.t == pytest.approx(1 / math.sqrt((8 / 3 - 4 / 3) / 3), abs=1e-12)
    back = diebold_mariano([1, 0, 1, 1], [2, 2, 5, 0], [0, 1, 1, 2])
    assert (back.value, back.t, back.p) == (-1, pytest.approx(-found.t), pytest.approx(found.p))


def test_no_test_where_there_is_none() -> None:
    for series, lag in (([1.0], 0), ([1.0, 2.0], 0), ([0.3] * 7, 0), ([0.0] * 5, 0), ([1.0, 5, 2, 7], 4)):
        found = mean_test(series, lag)
        assert (found.t, found.p, found.low, found.high) == (None, None, None, None)
        assert found.value == pytest.approx(np.mean(series))
    with pytest.raises(ValueError, match=r"lag must lie in 0 … 2 for 3 values, got 3"):
        newey_west([1, 2, 4], 3)
    with pytest.raises(ValueError, match="finite"):
        newey_west([1, np.nan], 0)
    with pytest.raises(ValueError, match=r"got \(1,\), \(2,\) and \(1,\)"):
        diebold_mariano([1.0], [1.0, 2.0], [0])
