"""Gradient boosting beside the others: it learns what is there, it invents no class, it repeats itself."""

from __future__ import annotations

import numpy as np
import pytest

from quantattn.evaluate import aggregate_probabilities, boosted_probabilities, boosting_is_installed
from quantattn.evaluate.baselines import LOGISTIC, Logistic
from quantattn.evaluate.boosting import PENALTIES
from quantattn.evaluate.metrics import IGNORE

pytest.importorskip("sklearn", reason="scikit-learn is not here (pip install 'quantattn[compare]')")


def drawn(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Two features, of which the sign of the first is the class; one in ten is missing."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(rows, 2))
    y = (x[:, 0] > 0).astype(np.int64)
    x[random.random((rows, 2)) < 0.1] = np.nan
    return x, y


def test_it_learns_a_rule_and_nothing_from_noise() -> None:
    assert boosting_is_installed()
    (x, y), (x_test, y_test) = drawn(300, 0), drawn(300, 1)
    prob = boosted_probabilities(x, y, *drawn(200, 3), x_test, 2)
    assert np.allclose(prob.sum(axis=1), 1)
    assert np.mean(prob.argmax(axis=1) == y_test) > 0.9
    noise = boosted_probabilities(x, np.random.default_rng(2).permutation(y), *drawn(200, 3), x_test, 2)
    assert abs(np.mean(noise.argmax(axis=1) == y_test) - 0.5) < 0.15
    np.testing.assert_array_equal(prob, boosted_probabilities(x, y, *drawn(200, 3), x_test, 2))


def test_validation_rows_hold_both_back_where_there_is_nothing_to_find() -> None:
    random = np.random.default_rng(0)
    x, y = random.normal(size=(60, 40)), np.repeat([0, 1], 30)
    x_valid, y_valid = random.normal(size=(200, 40)), random.integers(0, 2, 200)
    x_test, y_test = random.normal(size=(400, 40)), random.integers(0, 2, 400)
    held = aggregate_probabilities(x, y, x_valid, y_valid, x_test, 2)
    free = aggregate_probabilities(x, y, x_valid[:0], y_valid[:0], x_test, 2)
    assert set(held) == set(free) == {"logistic regression", "gradient boosting"}
    for name in held:
        losses = [-np.log(prob[np.arange(400), y_test]).mean() for prob in (held[name], free[name])]
        assert losses[0] < losses[1], name
        assert losses[0] == pytest.approx(np.log(2), abs=0.05), name


def test_with_many_rows_no_penalty_but_the_smallest_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    x, y = random.normal(size=(60, 40)), np.repeat([0, 1], 30)
    x_valid, y_valid = random.normal(size=(200, 40)), random.integers(0, 2, 200)
    small = Logistic.fit(x, y, 2, PENALTIES[0]).predict(x_valid)
    chosen = aggregate_probabilities(x, y, x_valid, y_valid, x_valid, 2)[LOGISTIC]
    assert not np.array_equal(chosen, small), "the rows are few and nothing is to be found: a larger one is better"
    monkeypatch.setattr("quantattn.evaluate.boosting.FEW_ROWS", 60)
    np.testing.assert_array_equal(aggregate_probabilities(x, y, x_valid, y_valid, x_valid, 2)[LOGISTIC], small)


def test_a_class_without_training_rows_keeps_its_smoothed_share() -> None:
    x, y = drawn(60, 0)
    prob = boosted_probabilities(x, np.where(np.arange(60) < 10, IGNORE, y), x[:0], y[:0], x, 3)
    assert np.allclose(prob[:, 2], 1 / 53), "(0 + 1) / (50 rows + 3 classes)"
    assert np.allclose(prob.sum(axis=1), 1)


def test_what_it_cannot_be_fitted_on_is_refused() -> None:
    x, y = drawn(20, 0)
    with pytest.raises(ValueError, match="got only class 1"):
        boosted_probabilities(x, np.ones(20, np.int64), x, y, x, 2)
    with pytest.raises(ValueError, match="infinite in row 3"):
        boosted_probabilities(np.where(np.arange(20)[:, None] == 3, np.inf, x), y, x, y, x, 2)
