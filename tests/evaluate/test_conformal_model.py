"""Sets and intervals that a model keeps: they hold what the theorem promises, and less where it does not apply."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from scipy.stats import binomtest

from quantattn.evaluate import IGNORE
from quantattn.evaluate.conformal import Conformal

RNG = np.random.default_rng


def forecast(
    rng: np.random.Generator, n: int, kind: str, noise: float = 1.0
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Scores of n exchangeable rows, and what came; with more noise the same scores say less."""
    if kind == "value":
        value = rng.normal(size=n)
        return {"value": value}, value + noise * rng.standard_t(3, size=n)
    logits = rng.normal(size=(n, 4))
    prob = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    flat = np.exp(logits / noise) / np.exp(logits / noise).sum(1, keepdims=True)
    return {"prob": prob}, (flat.cumsum(1) > rng.random((n, 1))).argmax(1)


def held(kind: str, n: int, level: float, noise: float = 1.0, tries: int = 1500) -> int:
    """Of so many fresh calibrations on n rows, how many held the outcome of one row more."""
    rng, hits = RNG(7), 0
    for _ in range(tries):
        said, came = forecast(rng, n, kind)
        new, then = forecast(rng, 1, kind, noise)
        found = Conformal.fitted(said, came, level)
        if kind == "prob":
            hits += bool(found.sets(new["prob"])[0, then[0]])
        else:
            low, high = found.intervals(new["value"])
            hits += bool(low[0] <= then[0] <= high[0])
    return hits


@pytest.mark.parametrize("kind", ["value", "prob"])
@pytest.mark.parametrize(("n", "level"), [(10, 0.9), (30, 0.5)])
def test_one_exchangeable_row_more_is_held_as_often_as_the_theorem_says(kind: str, n: int, level: float) -> None:
    """P(held) = ⌈(n + 1)·level⌉/(n + 1) exactly, as no two rows are equally far off (Vovk et al. 2005)."""
    exact = math.ceil((n + 1) * level - 1e-9) / (n + 1)
    assert level <= exact < level + 1 / (n + 1)
    assert binomtest(held(kind, n, level), 1500, exact).pvalue > 1e-4


@pytest.mark.parametrize("kind", ["value", "prob"])
def test_rows_of_another_kind_are_held_less_often(kind: str) -> None:
    """The control: noisier outcomes than those that were calibrated on."""
    hits = held(kind, 30, 0.9, noise=4.0, tries=500)
    assert binomtest(hits, 500, 0.9, alternative="less").pvalue < 1e-6


def test_without_the_row_more_the_promise_would_be_broken() -> None:
    """The control of the quantile: the 9th of 10, instead of the 10th, holds 9 of 11."""
    rng, hits = RNG(3), 0
    for _ in range(4000):
        off = rng.random(11)
        hits += off[10] <= np.sort(off[:10])[math.ceil(10 * 0.9) - 1]
    assert binomtest(int(hits), 4000, 9 / 11).pvalue > 1e-4
    assert binomtest(int(hits), 4000, 0.9, alternative="less").pvalue < 1e-6


def test_worked_by_hand() -> None:
    value, came = np.zeros(9), np.array([1.0, -2, 3, -4, 5, -6, 7, -8, np.nan])
    found = Conformal.fitted({"value": value}, came, 0.75)
    assert found == Conformal(0.75, 7.0, 8, "value"), "the 7th of 8, ⌈9 · 0.75⌉"
    assert [ends.tolist() for ends in found.intervals([1.0])] == [[-6.0], [8.0]]
    seen = found.covered({"value": np.zeros(4)}, [7.0, -7.5, np.nan, 0.0])
    assert (seen.rows, seen.found.value, seen.size) == (3, 2 / 3, 14.0)
    assert seen.found.low == pytest.approx(0.0943, abs=1e-4)  # Clopper and Pearson's of 2 in 3
    assert seen.found.high == pytest.approx(0.9916, abs=1e-4)
    prob = np.array([[0.7, 0.2, 0.1], [0.5, 0.3, 0.2], [0.25, 0.25, 0.5], [0.4, 0.4, 0.2]])
    found = Conformal.fitted({"prob": prob}, [0, 1, 2, IGNORE], 0.7)
    assert found.radius == pytest.approx(0.7)  # of 0.3, 0.7, 0.5 the 3rd, ⌈4 · 0.7⌉
    assert found.sets(prob).tolist() == [
        [True, False, False],
        [True, True, False],
        [False, False, True],
        [True, True, False],
    ]


def test_it_is_kept_as_plain_values_and_read_without_trust() -> None:
    kept = Conformal(0.9, 0.25, 40, "prob")
    assert Conformal.from_dict(json.loads(json.dumps(kept.as_dict()))) == kept
    for wrong in (
        {},
        {**kept.as_dict(), "radius": "0.2"},
        {**kept.as_dict(), "score": "os"},
        {**kept.as_dict(), "rows": None},
    ):
        with pytest.raises(ValueError, match="conformal must hold level, radius, rows and score"):
            Conformal.from_dict(wrong)


def test_too_few_rows_promise_nothing() -> None:
    with pytest.raises(
        ValueError, match=r"conformal=0\.9 needs 9 validation rows with an outcome or more, there are 8"
    ):
        Conformal.fitted({"value": np.zeros(8)}, np.arange(8.0), 0.9)
    assert Conformal.fitted({"value": np.zeros(9)}, np.arange(9.0), 0.9).radius == 8
    with pytest.raises(ValueError, match="made of prob or value, the model gives embedding"):
        Conformal.fitted({"embedding": np.zeros((9, 2))}, np.arange(9.0), 0.9)
