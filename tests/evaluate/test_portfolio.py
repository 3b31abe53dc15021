"""Portfolios by hand, Sharpe ratios of the papers, and that nothing knows the future."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from quantattn.evaluate.panel import as_panel
from quantattn.evaluate.past import past_probabilities, past_scores, past_values, past_volatility
from quantattn.evaluate.portfolio import capacity, drawdown, extremes, long_short
from quantattn.evaluate.ranking import turbulence
from quantattn.evaluate.sharpe import Sharpe, deflated_sharpe, expected_best, probabilistic_sharpe, sharpe_ratio
from tests.evaluate.score_tables import made


def test_two_periods_by_hand() -> None:
    """Four entities in halves. At 0 buy c and d, ½ each, sell a and b; at 1 a and c are bought, b and d sold.

    Gross 0: ½(0.1 + 0.3) − ½(0.2 − 0.1) = 0.15. Worth then: a −0.6, b −0.45, c 0.55, d 0.65, traded to a 0.5, b −0.5,
    c 0.5, d −0.5: 1.1 + 0.05 + 0.05 + 1.15 = 2.35. Gross 1: ½(0.1 + 0 − 0.2 − 0) = −0.05; worth a 0.55, b −0.6, c 0.5,
    d −0.5 is closed: 2.15. Opening traded 2.
    """
    data, _ = as_panel([0] * 4 + [1] * 4, list("abcdabcd"), [0.2, -0.1, 0.1, 0.3, 0.1, 0.2, 0, 0])
    book = long_short(data, np.array([1.0, 2, 3, 4, 9, 1, 8, 2]), quantiles=2, cost_bps=20)
    assert book.weights.tolist() == [-0.5, -0.5, 0.5, 0.5, 0.5, -0.5, 0.5, -0.5]
    assert book.gross == pytest.approx([0.15, -0.05], abs=1e-15)
    assert book.traded == pytest.approx([2, 2.35 + 2.15], abs=1e-15)
    assert book.net == pytest.approx([0.15 - 0.004, -0.05 - 0.009], abs=1e-15)
    assert book.turnover == pytest.approx(6.5 / 2 / 4)
    assert book.break_even_bps == pytest.approx(0.1 / 6.5 * 1e4)
    assert book.by_entity == pytest.approx([(-0.1 + 0.05) / 2, (0.05 - 0.1) / 2, 0.025, 0.075], abs=1e-15)
    assert (book.flat, book.missing) == (0, 0)
    even = replace(book, cost_bps=book.break_even_bps)
    assert even.net.sum() == pytest.approx(0, abs=1e-15)


def test_who_leaves_is_sold_and_who_has_no_outcome_is_kept() -> None:
    """d leaves after time 0; b's outcome at 1 is missing and nobody knew: it is held and earns nothing."""
    data, _ = as_panel([0, 0, 1, 1, 1], list("adabc"), [0, 0.5, 0, np.nan, -0.1])
    book = long_short(data, np.array([1.0, 2, 2, 1, 0]), quantiles=2, cost_bps=0)
    assert book.weights.tolist() == [-1, 1, 1, 0, -1]
    assert book.traded == pytest.approx([2, 2 + 1 + 1.5 + 1 + 0.9], abs=1e-15)
    other = long_short(data, np.array([1.0, 2, 2, 0, 1]), quantiles=2, cost_bps=0)
    assert (other.weights.tolist(), other.missing) == ([-1, 1, 1, -1, 0], 1)
    assert other.gross[1] == 0


def test_outcomes_that_overlap_are_held_one_after_the_other() -> None:
    data, score = made(0, times=11, horizon=3)
    book = long_short(data, score)
    assert book.times.tolist() == data.times[::3].tolist()
    assert (book.weights[data.at % 3 != 0] == 0).all()
    unfinished = replace(data, outcome=np.where(data.at > 5, np.nan, data.outcome))
    assert long_short(unfinished, score).gross.tolist() == book.gross[:2].tolist()


def test_equal_scores_are_treated_alike() -> None:
    at = np.zeros(9, np.int64)
    low, high = extremes(at, np.repeat([-1.0, 0, 1], 3), 5)
    assert (low.tolist(), high.tolist()) == ([True] * 3 + [False] * 6, [False] * 6 + [True] * 3)
    low, high = extremes(at, np.r_[np.zeros(8), 1], 5)
    assert (low.any(), high.sum()) == (False, 1)
    data, _ = as_panel(at, list("abcdefghi"), np.ones(9))
    book = long_short(data, np.r_[np.zeros(8), 1])
    assert (book.flat, book.break_even_bps, book.traded.tolist()) == (1, None, [0])


@pytest.mark.parametrize("digits", [9, 1])
def test_turning_the_score_turns_the_portfolio(digits: int) -> None:
    data, score = made(1)
    score = score.round(digits)
    book, turned = long_short(data, score), long_short(data, -score)
    assert turned.weights == pytest.approx(-book.weights, abs=1e-15)
    assert turned.gross == pytest.approx(-book.gross, abs=1e-15)
    assert np.bincount(data.at, book.weights) == pytest.approx(np.zeros(60), abs=1e-12)  # as much short as long
    assert book.by_entity.sum() == pytest.approx(book.gross.mean(), abs=1e-15)


def test_alphalens_finds_the_same_long_short_and_turnover() -> None:
    pd = pytest.importorskip("pandas", reason="pandas is not installed")
    performance = pytest.importorskip("alphalens.performance", reason="alphalens-reloaded is not installed")
    data, score = made(2, skill=0.2)
    index = pd.MultiIndex.from_arrays(
        [pd.to_datetime(data.times[data.at]), np.asarray(data.names)[data.entity]], names=["date", "asset"]
    )
    bucket = pd.Series(score, index=index).groupby("date").transform(lambda s: pd.qcut(s, 5, labels=False)) + 1
    frame = pd.DataFrame({"1D": data.outcome, "factor_quantile": bucket.astype(int)}, index=index)
    means, _ = performance.mean_return_by_quantile(frame, by_date=True, demeaned=False)
    spread, _ = performance.compute_mean_returns_spread(means, 5, 1)
    book = long_short(data, score)
    # Since 0.5 alphalens states the spread at half a unit a side, a gross of one; ours is top minus bottom.
    assert book.gross / 2 == pytest.approx(spread["1D"].to_numpy(), abs=1e-10)
    still = long_short(replace(data, outcome=np.zeros_like(data.outcome)), score)
    theirs = [performance.quantile_turnover(frame["factor_quantile"], q).dropna().to_numpy() for q in (1, 5)]
    assert still.traded[1:-1] / 4 == pytest.approx(np.mean(theirs, axis=0)[:-1], abs=1e-10)


def test_changing_the_future_changes_nothing_earlier() -> None:
    data, score = made(3, times=50, horizon=2)
    for now in (5, 20, 38):
        rng = np.random.default_rng(now)
        later = np.where(data.at > now, rng.normal(size=score.size), score)
        changed = replace(data, outcome=np.where(data.known > now, rng.normal(size=score.size), data.outcome))
        until = data.at <= now
        for one, other in (
            (long_short(data, score).weights, long_short(changed, later).weights),
            *zip(past_values(data).values(), past_values(changed).values(), strict=True),
            *zip(past_scores(data).values(), past_scores(changed).values(), strict=True),
            (past_volatility(data), past_volatility(changed)),
        ):
            assert one[until].tobytes() == other[until].tobytes()
        assert turbulence(data)[: now + 1] == turbulence(changed)[: now + 1]
        classes, others = (replace(d, outcome=(d.outcome > 0).astype(float)) for d in (data, changed))
        for one, other in zip(*(past_probabilities(d, 2).values() for d in (classes, others)), strict=True):
            assert one[until].tobytes() == other[until].tobytes()
        # The control: an outcome known by now reaches what is said now.
        seen = replace(data, outcome=np.where(data.known <= now, data.outcome + 1, data.outcome))
        assert (past_values(seen)["history"][data.at == now] != past_values(data)["history"][data.at == now]).all()


def test_baselines_by_hand() -> None:
    """Outcomes two steps long: at time 2 the outcome from time 0 is known, and no other."""
    data, _ = as_panel([0, 0, 1, 2, 2, 3, 3], list("ababcac"), [1.0, 4, 2, 8, 5, np.nan, 9], horizon=2)
    found = past_values(data)
    # Rows in order: (0, a) (0, b) (1, a) (2, b) (2, c) (3, a) (3, c); known at 2: a's 1 and b's 4; at 3: a's 2.
    assert found["history"].tolist() == [0, 0, 0, 4, 2.5, 1.5, 7 / 3]
    assert found["persistence"].tolist() == [0, 0, 0, 4, 2.5, 2, 7 / 3]
    assert past_volatility(data)[5] == pytest.approx(math.sqrt(0.5))
    assert np.isnan(past_volatility(data)[[0, 1, 2, 3, 4, 6]]).all()
    classes, _ = as_panel([0, 1, 2, 3], list("aaaa"), [1.0, 0, 0, 1])
    prob = past_probabilities(classes, 2)
    assert prob["majority class"][:, 1].tolist() == [1 / 2, 2 / 3, 2 / 4, 2 / 5]
    assert prob["history"][:, 1].tolist() == [1 / 2, (1 + 2 / 3) / 2, (1 + 2 / 4) / 3, (1 + 2 / 5) / 4]
    # Before time 3: nothing → 1, 1 → 0, 0 → 0; so after 0 came 0 once, and the majority says 2/5.
    assert prob["persistence"][3, 1] == (0 + 2 / 5) / 2


def test_the_deflated_ratio_of_the_paper() -> None:
    """Bailey, López de Prado (2014), p. 10: 2.5 a year on 1,250 days, skewness −3, kurtosis 10, 100 trials, V = ½."""
    found = Sharpe(2.5 / math.sqrt(250), 1250, -3, 10)
    assert expected_best(100, 1 / 2 / 250) == pytest.approx(0.1132, abs=5e-5)
    assert deflated_sharpe(found, 100, 1 / 2 / 250) == pytest.approx(0.9004, abs=5e-5)
    assert deflated_sharpe(found, 46, 1 / 2 / 250) == pytest.approx(0.9505, abs=5e-4)
    assert deflated_sharpe(found, 1) == probabilistic_sharpe(found)
    assert expected_best(1, 0.3) == 0


def test_sharpe_by_hand() -> None:
    """1, 2, 6: mean 3, deviations −2, −1, 3: Σ² 14, Σ³ 18, Σ⁴ 98; the expected best of N is near that of N draws."""
    found = sharpe_ratio([1, 2, 6])
    assert found.ratio == pytest.approx(3 / math.sqrt(7))
    assert found.skewness == pytest.approx(6 / (14 / 3) ** 1.5)
    assert found.kurtosis == pytest.approx(98 / 3 / (14 / 3) ** 2)
    best = np.random.default_rng(0).normal(size=(20_000, 50)).max(axis=1).mean()
    assert expected_best(50, 4.0) == pytest.approx(2 * best, rel=0.02)
    with pytest.raises(ValueError, match="all 3 returns are 2"):
        sharpe_ratio([2, 2, 2])
    with pytest.raises(ValueError, match="two finite returns or more"):
        sharpe_ratio([1])
    with pytest.raises(ValueError, match="one trial or more"):
        expected_best(0, 1)


def test_drawdown_by_hand() -> None:
    found = drawdown([0.1, -0.2, -0.1, 0.5, -0.25, 0.1])
    assert (found.depth, found.peak, found.trough) == (pytest.approx(0.3), 0, 2)
    assert drawdown([0.1, 0.2]).depth == 0
    lost = drawdown([-1.0, -1.0, 5.0])
    assert (lost.depth, lost.peak, lost.trough) == (2, -1, 1)


def test_capacity_by_hand() -> None:
    """One period, two entities; opening trades 1 and 1, closing 1.1 and 1. Volatility 0.02, volumes 100 and 400."""
    data, _ = as_panel([0, 0], list("ab"), [0.0, 0.1])
    book = long_short(data, np.array([1.0, 2.0]), quantiles=2, cost_bps=0)
    found = capacity(book, [100.0, 400.0], [0.02, 0.02])
    impact = 0.02 * (2 / 10 + (1 + 1.1**1.5) / 20)
    assert found.impact == pytest.approx(impact, abs=1e-15)
    assert found.net == pytest.approx(0.1)
    assert found.most == pytest.approx((0.1 / impact) ** 2)
    assert found.at([0.0, found.most]) == pytest.approx([0.1, 0], abs=1e-15)
    assert capacity(book, [100.0, np.nan], [0.02, 0.02]).unpriced == 2
    assert capacity(book, [np.nan] * 2, [0.02] * 2).most is None


def test_bad_requests_are_one_sentence() -> None:
    data, score = made(0, times=4)
    for arguments, sentence in (
        ({"cost_bps": -1}, "cost_bps must be finite and not negative, got -1"),
        ({"quantiles": 1}, "two quantiles or more, got 1"),
    ):
        with pytest.raises(ValueError, match=sentence):
            long_short(data, score, **arguments)
    with pytest.raises(ValueError, match=r"score has shape \(1,\) but the panel \(80,\)"):
        long_short(data, [1.0])
    with pytest.raises(ValueError, match="none of the 80 scores"):
        long_short(replace(data, outcome=np.full(80, np.nan)), score)
