"""Baselines: counted by hand, compared with scikit-learn, and blind to test rows."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.preprocessing import StandardScaler

from quantattn.evaluate import IGNORE, baseline_probabilities, baseline_values, choose_blocks, regression_table
from quantattn.evaluate.baselines import LastImbalance, Logistic, Majority, Persistence, Recalibrated


def market(seed: int, n: int = 2000) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(n, 4)) * [1, 10, 0.01, 1] + [0, 5, 0, 1000]
    logits = np.column_stack([features[:, 0], np.zeros(n), -features[:, 0] + features[:, 1] / 10])
    prob = np.exp(logits)
    prob /= prob.sum(axis=1, keepdims=True)
    y = (rng.random((n, 1)) > prob.cumsum(axis=1)).sum(axis=1).clip(0, 2)
    inputs = {"features": features, "persistence": np.roll(y, 1).astype(float), "imbalance": np.tanh(features[:, 0])}
    return y, inputs


def test_majority_counts() -> None:
    found = Majority.fit([0, 0, 0, 1, IGNORE, IGNORE], 3).predict(2)
    assert found.tolist() == [[4 / 7, 2 / 7, 1 / 7]] * 2


def test_persistence_is_the_transition_table() -> None:
    last = [0, 0, 0, 1, np.nan, -100]
    y = [0, 0, 1, 1, 0, 1]
    overall = np.array([4 / 8, 4 / 8])  # three of each class, one pseudo-decision each
    fitted = Persistence.fit(last, y, 2)
    found = fitted.predict([0, 1, np.nan, -1])
    assert found[0] == pytest.approx((np.array([2, 1]) + overall) / 4)
    assert found[1] == pytest.approx((np.array([0, 1]) + overall) / 2)
    assert found[2] == pytest.approx((np.array([1, 1]) + overall) / 3)
    assert np.array_equal(found[2], found[3])
    with pytest.raises(ValueError, match="last labels must be classes in 0 … 1"):
        fitted.predict([2.0])
    with pytest.raises(ValueError, match="last labels"):
        fitted.predict([0.5])


def test_a_state_never_seen_predicts_the_overall_frequencies() -> None:
    found = Persistence.fit([0, 0], [0, 1], 3).predict([2, np.nan])
    assert found == pytest.approx(np.tile([2 / 5, 2 / 5, 1 / 5], (2, 1)))


def test_imbalance_bins_are_counted() -> None:
    imbalance = np.repeat([-0.9, 0.9], 50)
    y = np.repeat([0, 1], 50)
    y[:10] = 1
    fitted = LastImbalance.fit(imbalance, y, 2, n_bins=2)
    overall = np.array([41, 61]) / 102
    low, high, none = fitted.predict([-1.0, 1.0, np.nan])
    assert low == pytest.approx((np.array([40, 10]) + overall) / 51)
    assert high == pytest.approx((np.array([0, 50]) + overall) / 51)
    assert none == pytest.approx(overall)
    assert LastImbalance.fit(np.full(5, np.nan), np.zeros(5, dtype=int), 2).predict([0.3]).shape == (1, 2)


@pytest.mark.parametrize("penalty", [0.01, 1.0, 100.0])
def test_logistic_agrees_with_scikit_learn(penalty: float) -> None:
    y, inputs = market(0)
    x = inputs["features"]
    theirs = LogisticRegression(C=1 / penalty, tol=1e-10, max_iter=10_000)
    scaler = StandardScaler().fit(x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs.fit(scaler.transform(x), y)
    ours = Logistic.fit(x, y, 3, penalty=penalty)
    assert np.abs(ours.predict(x) - theirs.predict_proba(scaler.transform(x))).max() < 1e-5


def test_logistic_does_not_depend_on_units_and_ignores_constants() -> None:
    y, inputs = market(1)
    x = inputs["features"]
    plain = Logistic.fit(x, y, 3).predict(x)
    scaled = x * [1e6, 1e-6, 3, -2] + [5, 0, -7, 0]
    assert np.abs(Logistic.fit(scaled, y, 3).predict(scaled) - plain).max() < 1e-5
    constant = np.column_stack([x, np.full(len(x), 0.1)])
    assert np.abs(Logistic.fit(constant, y, 3).predict(constant) - plain).max() < 1e-5


def test_logistic_missing_values_stand_at_the_mean() -> None:
    y, inputs = market(2)
    fitted = Logistic.fit(inputs["features"], y, 3)
    missing = np.full((1, 4), np.nan)
    assert fitted.predict(missing) == pytest.approx(fitted.predict(fitted.mean[None]))
    holes = inputs["features"].copy()
    holes[::7, 1] = np.nan
    assert np.isfinite(Logistic.fit(holes, y, 3).predict(holes)).all()


def test_logistic_with_a_class_that_training_never_saw() -> None:
    y, inputs = market(3)
    kept = y != 1
    found = Logistic.fit(inputs["features"][kept], y[kept], 3).predict(inputs["features"])
    assert found.sum(axis=1) == pytest.approx(1)
    assert found[:, 1] == pytest.approx(1 / (kept.sum() + 3))


def test_logistic_refuses_what_it_cannot_fit() -> None:
    with pytest.raises(ValueError, match="two classes in the training rows, got only class 2"):
        Logistic.fit(np.ones((3, 1)), [2, 2, IGNORE], 3)
    with pytest.raises(ValueError, match="column 1 is infinite in row 0"):
        Logistic.fit([[0, np.inf], [0, 0]], [0, 1], 2)
    y, inputs = market(0)
    fitted = Logistic.fit(inputs["features"], y, 3)
    with pytest.raises(ValueError, match="features have 3 columns, the regression was fitted on 4"):
        fitted.predict(np.ones((1, 3)))


def test_all_baselines_see_training_rows_only() -> None:
    y, train = market(4)
    _, test = market(5, n=300)
    found = baseline_probabilities(train, y, test, 3)
    assert list(found) == ["majority class", "persistence", "last imbalance", "logistic regression"]
    for prob in found.values():
        assert prob.shape == (300, 3)
        assert prob.sum(axis=1) == pytest.approx(1)
        assert (prob > 0).all()
    # A test row's forecast does not depend on which other rows are tested.
    half = baseline_probabilities(train, y, {name: value[:150] for name, value in test.items()}, 3)
    for name, prob in half.items():
        assert np.array_equal(prob, found[name][:150]), name


def test_informative_baselines_win_and_permuted_labels_find_nothing() -> None:
    y, train = market(6)
    y_test, test = market(7)
    rows = np.arange(y_test.size)

    def losses(labels: np.ndarray) -> dict[str, float]:
        found = baseline_probabilities(train, labels, test, 3)
        return {name: float(-np.log(prob[rows, y_test]).mean()) for name, prob in found.items()}

    real, shuffled = losses(y), losses(np.random.default_rng(0).permutation(y))
    assert real["logistic regression"] < real["last imbalance"] < real["majority class"] - 0.02
    assert min(shuffled.values()) > real["majority class"] - 0.01


def test_inputs_of_train_and_test_must_match() -> None:
    y, train = market(8)
    with pytest.raises(ValueError, match="expected the same"):
        baseline_probabilities(train, y, {"features": train["features"]}, 3)
    with pytest.raises(ValueError, match="lie in 0 … 1, got 0 … 2"):
        baseline_probabilities(train, y, train, 2)
    with pytest.raises(ValueError, match="at least one label"):
        Majority.fit([IGNORE, IGNORE], 3)
    with pytest.raises(ValueError, match=r"shape \(2,\) but the training labels \(3,\)"):
        Persistence.fit([0, 1], [0, 1, 1], 2)


def test_recalibrated_history_is_least_squares() -> None:
    rng = np.random.default_rng(0)
    history = rng.normal(size=200) - 3
    y = 0.7 * history + 0.2 + rng.normal(size=200) * 0.1
    theirs = LinearRegression().fit(history[:, None], y)
    ours = Recalibrated.fit(history, y)
    assert (ours.slope, ours.intercept) == pytest.approx((theirs.coef_[0], theirs.intercept_), abs=1e-12)
    holes = np.insert(y, 7, np.nan)
    assert Recalibrated.fit(np.insert(history, 7, 99.0), holes) == ours
    with pytest.raises(ValueError, match="non-empty"):
        Recalibrated.fit([1.0], [np.nan])
    found = baseline_values(history, y, history[:5])
    assert np.array_equal(found["history"], history[:5])
    assert found["recalibrated history"] == pytest.approx(theirs.predict(history[:5, None]))
    flat = Recalibrated.fit(np.full(10, 0.1), np.arange(10.0))
    assert (flat.slope, flat.intercept) == (0, 4.5)


def test_the_mean_stands_among_the_baselines_of_values() -> None:
    found = baseline_values([1.0, 2.0, 3.0, 4.0], [2.0, np.nan, 3.0, 7.0], [5.0, 6.0])
    assert found["training mean"].tolist() == [4.0, 4.0]


def test_a_forecast_of_the_mean_alone_is_never_called_better() -> None:
    """Least squares on noise is in truth worse than a mean; a model that knows no more shall have nothing of it."""
    called = {True: 0, False: 0}
    for seed in range(50):
        rng = np.random.default_rng(seed)
        past, y, now, outcome = rng.normal(size=(4, 80))
        others = baseline_values(past, y, now)
        for whole in called:
            beside = others if whole else {name: v for name, v in others.items() if name != "training mean"}
            blocks = choose_blocks(np.arange(80))
            model = np.full(80, y.mean())
            table = regression_table(outcome, np.arange(80), blocks, model, beside, replicates=100)
            called[whole] += table.skill.excludes(0) and table.skill.value > 0
    assert called[True] == 0
    assert called[False] > 2, "more often than a 95 % interval may be wrong on one side"
