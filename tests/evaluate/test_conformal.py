"""Conformal intervals and sets: the order statistic, coverage where it is guaranteed, and where it must fail."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from quantattn.evaluate.conformal import conformal_radius, halves, interval_coverage, set_coverage
from quantattn.evaluate.significance import bootstrap_interval
from tests.evaluate.score_tables import made


def test_the_radius_is_an_order_statistic() -> None:
    off = np.array([3.0, 1, 4, 2, 5, 9, 7, 8, 6])
    assert conformal_radius(off, 0.9) == 9  # k = ⌈10 · 0.9⌉ = 9 of nine
    assert conformal_radius(off, 0.5) == 5
    assert conformal_radius(off, 0.91) == math.inf
    assert conformal_radius(off[:0], 0.5) == math.inf
    with pytest.raises(ValueError, match="coverage must lie between 0 and 1, got 90"):
        conformal_radius(off, 90)


def test_what_was_not_known_at_the_split_calibrates_nothing() -> None:
    data, _ = made(0, times=11, entities=2, horizon=3)
    early, late = halves(data)
    assert sorted(set(data.at[early].tolist())) == [0, 1, 2]  # of 0 … 4, those known by time 5
    assert sorted(set(data.at[late].tolist())) == [5, 6, 7, 8, 9, 10]


def test_exchangeable_outcomes_are_covered_and_others_are_not() -> None:
    data, score = made(1, times=200, skill=0.0)
    found = interval_coverage(data, 0.001 * score)
    assert found is not None
    assert found.found.value == pytest.approx(0.9, abs=0.02)
    assert not found.found.excludes(0.9)
    wilder = replace(data, outcome=np.where(data.at >= 100, 3 * data.outcome, data.outcome))
    missed = interval_coverage(wilder, 0.001 * score)
    assert missed is not None
    assert missed.found.value < 0.5
    assert missed.found.excludes(0.9)
    assert missed.size == found.size  # the width is of the earlier half
    assert interval_coverage(data, np.where(data.at < 100, np.nan, score)) is None


def test_sets_of_classes() -> None:
    data, _ = made(2, times=200)
    rng = np.random.default_rng(0)
    prob = rng.dirichlet(np.ones(3), data.at.size)
    y = (rng.random((data.at.size, 1)) > prob.cumsum(axis=1)).sum(axis=1).clip(0, 2)
    found = set_coverage(replace(data, outcome=y.astype(float)), prob)
    assert found is not None
    assert not found.found.excludes(0.9)
    assert 1 < found.size < 3
    sure = set_coverage(replace(data, outcome=y.astype(float)), np.eye(3)[y])
    assert sure is not None
    assert (sure.found.value, sure.size) == (1, 1)


def test_what_was_stated_lies_in_the_interval_when_the_halves_are_alike() -> None:
    """The control is the later half alone, whose interval forgets that the width was found on a sample, too."""
    seeds, off, naive = 150, 0, 0
    for seed in range(seeds):
        data, score = made(seed, times=60, entities=10)
        found = interval_coverage(data, 0.001 * score, seed=seed)
        assert found is not None
        early, late = halves(data)
        away = np.abs(data.outcome - 0.001 * score)
        inside = away[late] <= conformal_radius(away[early], 0.9)
        assert found.found.value == inside.mean()
        off += found.found.excludes(0.9)
        naive += bootstrap_interval(inside, data.blocks(data.at[late]), replicates=500, seed=seed).excludes(0.9)
    assert off <= stats.binom.ppf(0.995, seeds, 0.05) < naive
