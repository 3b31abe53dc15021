"""Figures of merit against scikit-learn and scipy, and against cases worked by hand."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import spearmanr
from sklearn import metrics as sk

from quantattn.evaluate import IGNORE, classification_metrics, confusion_matrix, regression_metrics, reliability
from quantattn.evaluate.calibration import equal_mass_bins

CLOSE = 1e-12


def draw(seed: int, n_classes: int, n: int = 400, absent: tuple[int, ...] = ()) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    present = [c for c in range(n_classes) if c not in absent]
    y = rng.choice(present, size=n)
    logits = rng.normal(size=(n, n_classes))
    logits[np.arange(n), y] += 1
    prob = np.exp(logits)
    return y, prob / prob.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("n_classes", [2, 3, 7])
@pytest.mark.parametrize("seed", range(5))
def test_agrees_with_scikit_learn(seed: int, n_classes: int) -> None:
    y, prob = draw(seed, n_classes, absent=(1,) if seed == 4 and n_classes > 2 else ())
    predicted, labels = prob.argmax(axis=1), list(range(n_classes))
    ours = classification_metrics(y, prob)
    theirs = {
        "accuracy": sk.accuracy_score(y, predicted),
        "macro_f1": sk.f1_score(y, predicted, average="macro", zero_division=0),
        "mcc": sk.matthews_corrcoef(y, predicted),
        "log_loss": sk.log_loss(y, prob, labels=labels),
        "brier": sk.brier_score_loss(y, prob, labels=labels, scale_by_half=False)
        if n_classes > 2
        else 2 * sk.brier_score_loss(y, prob[:, 1]),
    }
    for name, value in theirs.items():
        assert ours[name] == pytest.approx(value, abs=CLOSE), name
    # Classes that occur only in predictions have no recall; scikit-learn warns about them, so it is given the recalls.
    recalls = sk.recall_score(y, predicted, average=None, labels=sorted(set(y.tolist())))
    assert ours["balanced_accuracy"] == pytest.approx(recalls.mean(), abs=CLOSE)
    assert confusion_matrix(y, prob).tolist() == sk.confusion_matrix(y, predicted, labels=labels).tolist()


def test_one_true_class_is_defined() -> None:
    _, prob = draw(0, 3)
    y = np.full(len(prob), 2)
    found = classification_metrics(y, prob)
    assert found["mcc"] == 0
    assert found["balanced_accuracy"] == found["accuracy"] == (prob.argmax(axis=1) == 2).mean()


def test_worked_example() -> None:
    y = np.array([0, 1])
    prob = np.array([[0.75, 0.25], [0.5, 0.5]])
    found = classification_metrics(y, prob)
    assert found["log_loss"] == pytest.approx(-(np.log(0.75) + np.log(0.5)) / 2, abs=CLOSE)
    assert found["brier"] == pytest.approx((2 * 0.25**2 + 2 * 0.5**2) / 2, abs=CLOSE)
    assert found["accuracy"] == 0.5  # a tie goes to the lower class
    assert found["macro_f1"] == pytest.approx((2 / 3 + 0) / 2, abs=CLOSE)
    assert found["ece"] == pytest.approx((0.25 + 0.5) / 2, abs=CLOSE)  # two bins: |0.75 − 1| and |0.5 − 0|


def test_perfect_and_impossible_forecasts() -> None:
    y = np.array([0, 1, 2, 1])
    perfect = classification_metrics(y, np.eye(3)[y])
    assert [perfect[k] for k in ("log_loss", "brier", "ece")] == [0, 0, 0]
    assert [perfect[k] for k in ("macro_f1", "mcc", "balanced_accuracy", "accuracy")] == [1, 1, 1, 1]
    wrong = classification_metrics(y, np.eye(3)[(y + 1) % 3])
    assert wrong["log_loss"] == pytest.approx(-np.log(np.finfo(np.float64).eps))
    assert wrong["brier"] == 2


def test_rows_without_a_label_change_nothing() -> None:
    y, prob = draw(1, 3)
    more = np.concatenate([y, np.full(50, IGNORE)])
    padded = np.concatenate([prob, np.full((50, 3), np.nan)])
    assert classification_metrics(more, padded) == classification_metrics(y, prob)


def test_order_of_rows_changes_nothing() -> None:
    y, prob = draw(2, 3)
    prob = prob.round(1) + 1e-9  # many ties of confidence
    prob /= prob.sum(axis=1, keepdims=True)
    shuffle = np.random.default_rng(0).permutation(y.size)
    assert classification_metrics(y[shuffle], prob[shuffle]) == pytest.approx(
        classification_metrics(y, prob), abs=CLOSE
    )


def test_bins_have_equal_mass_and_keep_ties_together() -> None:
    values = np.random.default_rng(0).permutation(300).astype(float)
    assert np.bincount(equal_mass_bins(values, 15)).tolist() == [20] * 15
    assert set(equal_mass_bins(np.full(100, 0.4), 15)) == {0}


def test_reliability_and_ece_are_one_calculation() -> None:
    y, prob = draw(3, 3, n=5000)
    assert reliability(y, prob).ece == pytest.approx(classification_metrics(y, prob)["ece"], abs=CLOSE)
    calibrated = np.random.default_rng(0).random(200_000) / 2 + 0.5
    came_true = (np.random.default_rng(1).random(200_000) < calibrated).astype(np.int64)
    stated = np.column_stack([1 - calibrated, calibrated])
    assert reliability(came_true, stated).ece < 0.01
    assert reliability(1 - came_true, stated).ece > 0.4


@pytest.mark.parametrize(
    ("y", "prob", "sentence"),
    [
        ([], np.empty((0, 3)), "no decision has a label"),
        ([IGNORE, IGNORE], np.full((2, 3), 1 / 3), "no decision has a label: all 2 rows"),
        ([0, 0], np.ones((2, 1)), "at least two classes, got 1"),
        ([0, 3], np.full((2, 3), 1 / 3), r"y\[1\] is 3, expected a class in 0 … 2"),
        ([IGNORE, -1], np.full((2, 3), 1 / 3), r"y\[1\] is -1"),
        ([0, 1], [[0.5, 0.5], [np.nan, 1]], r"prob\[1\] is \[nan, 1.0\], expected probabilities"),
        ([0, 1], [[0.5, 0.5], [-0.5, 1.5]], r"prob\[1\]"),
        ([0, 1], [[0.5, 0.5], [0.9, 0.9]], r"prob\[1\] sums to 1.8, expected 1"),
        ([0, 1, 1], [[0.5, 0.5], [0.5, 0.5]], r"\(2, 2\) and \(3,\)"),
        ([0.0, 1.0], [[0.5, 0.5], [0.5, 0.5]], "integer classes"),
    ],
)
def test_bad_input_is_one_sentence(y: list[float], prob: np.ndarray, sentence: str) -> None:
    dtype = np.float64 if y and isinstance(y[0], float) else np.int64
    with pytest.raises(ValueError, match=sentence):
        classification_metrics(np.array(y, dtype=dtype), prob)


@pytest.mark.parametrize("seed", range(4))
def test_regression_agrees_with_scikit_learn_and_scipy(seed: int) -> None:
    rng = np.random.default_rng(seed)
    y = rng.normal(size=500).round(1 if seed % 2 else 9)  # ties in half of the cases
    predicted = (0.5 * y + rng.normal(size=500)).round(1 if seed % 2 else 9)
    found = regression_metrics(y, predicted, np.full(500, y.mean()))
    assert found["mse"] == pytest.approx(sk.mean_squared_error(y, predicted), abs=CLOSE)
    assert found["mae"] == pytest.approx(sk.mean_absolute_error(y, predicted), abs=CLOSE)
    assert found["r2"] == pytest.approx(sk.r2_score(y, predicted), abs=CLOSE)  # history = mean: the usual R²
    assert found["rank_ic"] == pytest.approx(spearmanr(y, predicted).statistic, abs=CLOSE)


def test_regression_theorems() -> None:
    rng = np.random.default_rng(0)
    y, predicted, history = rng.normal(size=(3, 300))
    assert regression_metrics(y, history, history)["r2"] == 0
    assert regression_metrics(y, y, history)["r2"] == 1
    rank = regression_metrics(y, predicted, history)["rank_ic"]
    assert regression_metrics(np.exp(y), predicted**3, history)["rank_ic"] == pytest.approx(rank, abs=CLOSE)
    assert regression_metrics(y, np.full(300, 0.1), history)["rank_ic"] == 0
    assert regression_metrics(y, predicted, y)["r2"] == -np.inf
    with pytest.raises(ValueError, match=r"predicted\[2\] is nan"):
        regression_metrics(y[:3], [1, 2, np.nan], history[:3])
    with pytest.raises(ValueError, match="non-empty"):
        regression_metrics([], [], [])
