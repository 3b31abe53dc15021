"""Information coefficients against scipy and alphalens, cases by hand, and what cannot change them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from quantattn.evaluate.panel import as_panel, ranks_within
from quantattn.evaluate.ranking import (
    by_age,
    by_entity,
    by_group,
    coefficients,
    contributions,
    hours,
    judge_ranking,
    quantile_of,
    quantile_returns,
    resampled,
    turbulence,
)
from tests.evaluate.score_tables import DAY, START, made

CLOSE = 1e-10


def by_time(data, values):
    return [values[data.at == t] for t in range(data.times.size)]


@pytest.mark.parametrize("digits", [9, 1, 0])
def test_coefficients_are_those_of_scipy(digits: int) -> None:
    data, score = made(0, skill=0.2)
    score, data.outcome[:] = score.round(digits), (data.outcome * 100).round(digits)  # ties
    ic, rank_ic = coefficients(data, score)
    for t, (s, y) in enumerate(zip(by_time(data, score), by_time(data, data.outcome), strict=True)):
        assert ic[t] == pytest.approx(stats.pearsonr(s, y).statistic, abs=CLOSE)
        assert rank_ic[t] == pytest.approx(stats.spearmanr(s, y).statistic, abs=CLOSE)


def test_alphalens_finds_the_same() -> None:
    pd = pytest.importorskip("pandas", reason="pandas is not installed")
    performance = pytest.importorskip("alphalens.performance", reason="alphalens-reloaded is not installed")
    data, score = made(3, skill=0.3)
    names = np.asarray(data.names)[data.entity]
    index = pd.MultiIndex.from_arrays([pd.to_datetime(data.times[data.at]), names], names=["date", "asset"])
    bucket = quantile_of(data.at, score, 5) + 1
    frame = pd.DataFrame({"1D": data.outcome, "factor": score, "factor_quantile": bucket}, index=index)
    qcut = frame.groupby("date")["factor"].transform(lambda s: pd.qcut(s, 5, labels=False)).to_numpy()
    assert (qcut == bucket - 1).all()
    theirs = performance.factor_information_coefficient(frame)["1D"].to_numpy()
    assert coefficients(data, score)[1] == pytest.approx(theirs, abs=CLOSE)
    means, _ = performance.mean_return_by_quantile(frame, by_date=True, demeaned=False)
    ours = [test.value for test in quantile_returns(data, score, 5) if test is not None]
    assert ours == pytest.approx(means["1D"].groupby("factor_quantile").mean().to_numpy(), abs=CLOSE)


def test_worked_example() -> None:
    """Three entities at each of two times: ranks 1 2 3 beside 1 3 2 (ρ = 1 − 6·2/24 = ½), and beside 3 2 1 (ρ = −1)."""
    outcome = [0.1, 0.3, 0.2, 0.3, 0.2, 0.1]
    data, _ = as_panel([5, 5, 5, 9, 9, 9], list("abcabc"), outcome)
    found = judge_ranking(data, np.array([1.0, 2, 10, 1, 2, 10]))
    assert found.rank_ic == pytest.approx([0.5, -1], abs=1e-15)
    assert found.test.value == -0.25
    assert found.icir == pytest.approx(-0.25 / (1.5 / math.sqrt(2)), abs=1e-15)
    assert found.skipped == 0


def test_times_without_a_coefficient_are_counted() -> None:
    time = np.repeat([0, 1, 2, 3], [3, 3, 3, 1])
    outcome = [1, 2, 3, 1, 1, 1, 1, 2, np.nan, 5]
    data, _ = as_panel(time, list("abcabcabca"), outcome)
    found = judge_ranking(data, np.array([1.0, 2, 3, 1, 2, 3, 4, 4, 5, 1]))
    assert (found.at.tolist(), found.skipped) == ([0], 3)  # outcomes tie; scores tie; one entity
    with pytest.raises(ValueError, match="no time has two entities whose scores and outcomes differ"):
        judge_ranking(data, np.zeros(10))


def test_ranks_average_over_ties() -> None:
    group = np.array([1, 0, 1, 0, 1, 1])
    assert ranks_within(group, np.array([5.0, 2, 5, 1, 9, 5])).tolist() == [2, 2, 2, 1, 4, 2]
    rng = np.random.default_rng(0)
    many, values = rng.integers(0, 9, 500), rng.integers(0, 20, 500) / 2
    ranks = ranks_within(many, values)
    for g in range(9):
        assert ranks[many == g].tolist() == stats.rankdata(values[many == g]).tolist()


def test_equal_scores_share_a_quantile_by_hand() -> None:
    """Three each of −1, 0, 1 have average ranks 2, 5, 8 of nine: ⌊1.5·5/9⌋, ⌊4.5·5/9⌋, ⌊7.5·5/9⌋."""
    at = np.zeros(9, np.int64)
    assert quantile_of(at, np.repeat([-1.0, 0, 1], 3), 5).tolist() == [0] * 3 + [2] * 3 + [4] * 3
    assert quantile_of(at, np.zeros(9), 3).tolist() == [1] * 9


def test_order_of_rows_names_and_increasing_maps_change_nothing() -> None:
    data, score = made(1, skill=0.2)
    found = judge_ranking(data, score)
    shuffle = np.random.default_rng(0).permutation(score.size)
    other, order = as_panel(data.times[data.at][shuffle], data.entity[shuffle], data.outcome[shuffle])
    again = judge_ranking(other, score[shuffle][order])
    assert again.rank_ic.tolist() == found.rank_ic.tolist()
    assert judge_ranking(data, np.exp(score)).rank_ic.tolist() == found.rank_ic.tolist()
    assert judge_ranking(data, -score).rank_ic == pytest.approx(-found.rank_ic, abs=1e-15)


def test_age_shifts_the_score_of_each_entity() -> None:
    rng = np.random.default_rng(0)
    outcome = rng.normal(size=(30, 8))
    score = np.r_[outcome[3:], rng.normal(size=(3, 8))]  # knows what comes three steps later
    at, entity = (grid.ravel() for grid in np.indices(outcome.shape))
    keep = rng.random(at.size) > 0.1  # holes: an entity that is absent has no old score
    data, order = as_panel(at[keep], entity[keep], outcome.ravel()[keep])
    found = by_age(data, score.ravel()[keep][order], (0, 2, 3, 4, 40))
    assert found[3].value == pytest.approx(1, abs=1e-12)
    assert all(abs(found[age].value) < 0.4 for age in (0, 2, 4))
    assert 40 not in found
    assert found[0].value == judge_ranking(data, score.ravel()[keep][order]).test.value


def test_groups_share_out_the_times() -> None:
    data, score = made(2, times=40, skill=0.3)
    group = ["first" if t < 15 else "second" if t < 35 else None for t in range(40)]
    _, rank_ic = coefficients(data, score)
    found = by_group(rank_ic, group)
    assert found["first"].value == pytest.approx(rank_ic[:15].mean())
    assert (found["second"].n, set(found)) == (20, {"first", "second"})
    assert hours(np.array([START, START + DAY // 2 + 10**9])) == ["00:00", "12:00"]


def test_turbulence_is_told_from_what_was_known() -> None:
    data, _ = made(0, times=40)
    before = turbulence(data)
    data.outcome[data.at >= 25] *= 10
    found = turbulence(data)
    assert found[:11] == [None] * 11  # ten earlier spreads and the last one are known at time 11
    assert found[:26] == before[:26]  # the first large outcome is known one step later
    assert {"calm", "turbulent"} <= set(before)
    assert found[26:30] == ["turbulent"] * 4


def test_contributions_of_entities_add_up() -> None:
    data, score = made(4, skill=0.2)
    data.outcome[::7] = np.nan
    assert contributions(data, score).sum() == pytest.approx(judge_ranking(data, score).test.value, abs=1e-12)
    one, ones_score = made(5, entities=12)
    ones_score[one.entity == 3] = one.outcome[one.entity == 3] * 1e6  # one entity is known perfectly
    assert contributions(one, ones_score).argmax() == 3
    count, over_time = by_entity(one, ones_score)["E003"]
    assert (count, over_time) == (60, pytest.approx(1, abs=1e-12))
    assert math.isnan(by_entity(one, ones_score, fewest=61)["E003"][1])


def test_one_lucky_entity_widens_the_interval_over_entities() -> None:
    data, score = made(6, entities=12)
    score[data.entity == 3] = data.outcome[data.entity == 3] * 1e6
    found = resampled(data, score, judge_ranking(data, score))
    assert found["day"].excludes(0)
    assert not found["entity"].excludes(0)
    even, even_score = made(7, entities=40, skill=0.5)
    assert all(
        interval.excludes(0) for interval in resampled(even, even_score, judge_ranking(even, even_score)).values()
    )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"time": [1, 1], "entity": ["a", "a"], "outcome": [0, 0]}, "entity a stands twice at time 1, expected once"),
        ({"time": [1, 2], "entity": ["a", "a"], "outcome": [0, np.inf]}, r"outcome\[1\] is inf"),
        ({"time": [], "entity": [], "outcome": []}, "Q > 0"),
        ({"time": [1], "entity": ["a"], "outcome": [0], "horizon": 0}, "horizon must be 1 step or more, got 0"),
        (
            {"time": [5], "entity": ["a"], "outcome": [0], "end": [5]},
            "the outcome of entity a at 5 ends at 5, expected later",
        ),
    ],
)
def test_bad_panels_are_one_sentence(arguments, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        as_panel(**arguments)


def test_horizons_from_end_times() -> None:
    data, _ = as_panel([0, 10, 20, 30], list("aaaa"), [1, 2, 3, 4], end=[10, 25, 30, 31])
    assert data.known.tolist() == [1, 3, 3, 4]
    assert data.horizon == 2


def test_blocks_are_three_horizons_long_where_outcomes_overlap() -> None:
    data, _ = made(0, times=120, entities=2, horizon=5)
    blocks = data.blocks(np.arange(120))
    assert (blocks.kind, blocks.count, np.bincount(blocks.ids).tolist()) == ("time", 8, [15] * 8)
    apart, _ = made(0, times=120, entities=2)
    assert (apart.blocks(np.arange(120)).kind, apart.blocks(np.arange(120)).count) == ("day", 120)
    assert made(0, times=12, entities=2, horizon=5)[0].blocks(np.arange(12)).count == 2
