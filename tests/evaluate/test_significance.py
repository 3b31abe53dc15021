"""The bootstrap: what a resample is, what its intervals cover, and a control that fails."""

from __future__ import annotations

import numpy as np
import pytest

from quantattn.evaluate import Blocks, bootstrap_interval, choose_blocks
from quantattn.evaluate.metrics import classification_figures, classification_metrics, classification_sums, classified
from quantattn.evaluate.significance import DAY, Interval, interval, lowest_interval, resample


def test_a_resample_is_the_figure_of_the_rows_drawn() -> None:
    rng = np.random.default_rng(0)
    n, k = 300, 12
    y, prob, ids = rng.integers(0, 3, n), rng.dirichlet([1, 1, 1], n), rng.permutation(np.arange(n) % k)
    sums = classification_sums(classified(y, prob), ids, k)
    drawn = classification_figures(resample(sums, replicates=5, seed=3), 3)
    counts = np.random.default_rng(3).multinomial(k, np.full(k, 1 / k), size=5)
    for replicate, times in enumerate(counts):
        rows = np.repeat(np.arange(n), times[ids])
        expected = classification_metrics(y[rows], prob[rows])
        for name in ("log_loss", "macro_f1", "mcc", "balanced_accuracy", "accuracy", "brier"):
            assert drawn[name][replicate] == pytest.approx(expected[name], abs=1e-12)


def test_resamples_are_seeded_paired_and_linear() -> None:
    sums = np.random.default_rng(0).normal(size=(20, 4))
    assert np.array_equal(resample(sums, seed=1), resample(sums, seed=1))
    assert not np.array_equal(resample(sums, seed=1), resample(sums, seed=2))
    both = resample(np.hstack([sums, 2 * sums]), seed=1)
    assert np.allclose(both[:, 4:], 2 * both[:, :4], atol=1e-12)
    assert np.allclose(resample(sums[:, :1], seed=1), both[:, :1], atol=1e-12)


def simulate(seed: int, n_blocks: int = 25, rows: int = 30) -> tuple[np.ndarray, np.ndarray]:
    """Values of mean zero that share a shock within a block: intraclass correlation one half."""
    rng = np.random.default_rng(seed)
    shock = np.repeat(rng.normal(size=n_blocks), rows)
    return shock + rng.normal(size=shock.size), np.repeat(np.arange(n_blocks), rows)


def test_intervals_over_blocks_cover_and_intervals_over_rows_do_not() -> None:
    covered = naive = 0
    for seed in range(300):
        values, ids = simulate(seed)
        covered += not bootstrap_interval(values, Blocks(ids, "day", 25), replicates=400, seed=seed).excludes(0)
        if seed < 50:
            rows = Blocks(np.arange(values.size), "day", values.size)
            naive += not bootstrap_interval(values, rows, replicates=100, seed=seed).excludes(0)
    assert covered / 300 > 0.91 <= 0.985  # 95 %, with a standard error of 1.3 %
    assert naive / 50 < 0.6


def test_few_blocks_widen_the_interval() -> None:
    covered = 0
    for seed in range(300):
        values, ids = simulate(seed, n_blocks=6)
        covered += not bootstrap_interval(values, Blocks(ids, "day", 6), replicates=400, seed=seed).excludes(0)
    assert covered / 300 > 0.88  # plain percentiles of six blocks cover about 85 %


def test_order_of_rows_changes_nothing() -> None:
    values, ids = simulate(0)
    shuffle = np.random.default_rng(1).permutation(values.size)
    one = bootstrap_interval(values, Blocks(ids, "day", 25))
    other = bootstrap_interval(values[shuffle], Blocks(ids[shuffle], "day", 25))
    assert (one.value, one.low, one.high) == pytest.approx((other.value, other.low, other.high), abs=1e-12)


def test_no_interval_where_there_is_none() -> None:
    one = bootstrap_interval([1.0, 2.0], Blocks(np.zeros(2, dtype=np.int64), "time", 1))
    assert (one.value, one.low, one.high) == (1.5, None, None)
    assert not one.excludes(0)
    assert interval(1.0, np.array([1.0, np.nan]), 30).low is None
    with pytest.raises(ValueError, match="level must lie between 0 and 1, got 95"):
        interval(1.0, np.ones(5), 30, level=95)
    with pytest.raises(ValueError, match=r"values\[1\] is not finite"):
        bootstrap_interval([1.0, np.inf], Blocks(np.arange(2), "time", 2))


def test_blocks_without_a_decision_are_not_drawn() -> None:
    values, ids = simulate(0)
    gaps = bootstrap_interval(values, Blocks(3 * ids, "day", 100))
    assert gaps == bootstrap_interval(values, Blocks(ids, "day", 25))
    assert gaps.low is not None
    with pytest.raises(ValueError, match=r"blocks are numbered 0 … 24, but decision 0 is in block -1"):
        Blocks(ids - 1, "day", 25)
    with pytest.raises(ValueError, match=r"blocks are numbered 0 … 23, but decision \d+ is in block 24"):
        Blocks(ids, "day", 24)


def test_blocks_are_days_else_entities_else_stretches() -> None:
    start = 1_700_000_000 * 10**9 // DAY * DAY
    many_days = start + np.arange(1000) * DAY // 50
    assert (choose_blocks(many_days).kind, choose_blocks(many_days).count) == ("day", 20)
    one_day = start + np.arange(1000) * 10**9
    entity = np.repeat([f"E{i}" for i in range(50)], 20)
    assert (choose_blocks(one_day, entity).kind, choose_blocks(one_day, entity).count) == ("entity", 50)
    few = np.repeat(["A", "B"], 500)
    assert (choose_blocks(one_day, few).kind, choose_blocks(one_day, few).count) == ("time", 40)
    assert choose_blocks(one_day, few, kind="entity").count == 2
    with pytest.raises(ValueError, match="need the entity"):
        choose_blocks(one_day, kind="entity")
    with pytest.raises(ValueError, match="non-empty"):
        choose_blocks([])


def test_stretches_are_contiguous_and_keep_simultaneous_decisions_together() -> None:
    rng = np.random.default_rng(0)
    time = np.sort(rng.integers(0, 300, size=1000)) * 10**9
    shuffle = rng.permutation(1000)
    ids = choose_blocks(time[shuffle], kind="time").ids
    in_order = ids[np.argsort(time[shuffle], kind="stable")]
    assert (np.diff(in_order) >= 0).all()
    for moment in np.unique(time):
        assert np.unique(ids[time[shuffle] == moment]).size == 1
    assert np.bincount(ids).min() > 0


def test_few_blocks_widen_the_percentiles_as_worked_out_by_hand() -> None:
    """Five blocks at 95 %: t of 4 degrees of freedom is 2.776445, times √(5/4) 3.104160; Φ(−3.104160) = 0.000954."""
    draws = np.linspace(0, 1, 1001)  # whose quantile q is q
    found = interval(0.5, draws, 5)
    assert found.low == pytest.approx(0.000954, abs=1e-6)
    assert found.high == pytest.approx(1 - 0.000954, abs=1e-6)
    many = interval(0.5, draws, 100_000)
    assert many.low == pytest.approx(0.025, abs=1e-5)


def test_one_figure_or_several_that_move_alike_have_the_usual_interval() -> None:
    draws = np.random.default_rng(0).normal(1, 2, size=(1, 500))
    usual = interval(0.9, draws[0], 12)
    assert lowest_interval(np.array([0.9]), draws, 0, 12) == usual
    alike = np.array([0.9, 3.0]), np.concatenate([draws, 3 + 0.1 * (draws - 0.9)])  # the same in other units
    found = lowest_interval(*alike, 0, 12)
    assert (found.low, found.high) == (usual.low, pytest.approx(usual.high, abs=1e-12))
    assert lowest_interval(np.array([0.9]), draws, 0, 1) == Interval(0.9)
    assert lowest_interval(np.array([0.9, 1.0]), np.array([[1.0, 2.0], [1.0, np.nan]]), 0, 12) == Interval(0.9)


def test_the_high_end_of_the_lowest_of_two_as_worked_out_by_hand() -> None:
    """Many blocks: 0.025 in a tail. The larger of two independent uniforms is below m with probability m²."""
    one, two = (grid.ravel() for grid in np.meshgrid(np.linspace(0, 1, 401), np.linspace(0, 1, 401)))
    found = lowest_interval(np.array([0.5, 0.5]), np.stack([one, two]), 1, 100_000)
    assert found.low == pytest.approx(0.025, abs=3e-3)
    assert found.high == pytest.approx(0.975**0.5, abs=3e-3)  # 0.987, not 0.975
    assert found.turned() == Interval(-0.5, -found.high, -found.low)


def test_the_lowest_of_several_is_covered_and_is_not_when_the_choice_is_forgotten() -> None:
    forgotten = covered = 0
    for seed in range(300):
        sums = np.random.default_rng(seed).normal(size=(25, 6)) / 25  # six means, all zero in truth
        values, draws = sums.sum(axis=0), resample(sums, replicates=400, seed=seed).T
        taken = int(values.argmin())
        forgotten += not interval(values[taken], draws[taken], 25).excludes(0)
        covered += not lowest_interval(values, draws, taken, 25).excludes(0)
    assert covered / 300 > 0.91
    assert forgotten / 300 < 0.9
