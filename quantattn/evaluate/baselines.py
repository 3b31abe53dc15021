"""What a model has to beat: cheap forecasts fitted on training rows and applied to test rows.

Every classifier returns (Q, C) probabilities, every regression (Q,) values, so that they stand in one table with the
model. Frequencies are smoothed by the rule of succession, (n_c + 1)/(n + C): no class is ever declared impossible.

Dimensions: Q decisions, C classes, F features.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import scipy  # whose parts are imported where they are used first
from numpy.typing import ArrayLike, NDArray

from quantattn.evaluate.metrics import IGNORE, finite

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MAJORITY, PERSISTENCE, IMBALANCE, LOGISTIC = "majority class", "persistence", "last imbalance", "logistic regression"
MEAN, HISTORY, RECALIBRATED = "training mean", "history", "recalibrated history"


def labelled_rows(y: ArrayLike, n_classes: int) -> tuple[Ints, NDArray[np.bool_]]:
    """The labels that are there, and where (Q,); ValueError when there is none or one is no class."""
    labels = np.asarray(y)
    kept = labels != IGNORE
    if labels.ndim != 1 or labels.dtype.kind not in "iu" or not kept.any():
        raise ValueError(f"training labels must be (Q,) integer classes with at least one label, got {labels.shape}")
    found = labels[kept].astype(np.int64)
    if found.min() < 0 or found.max() >= n_classes:
        raise ValueError(f"training labels must lie in 0 … {n_classes - 1}, got {found.min()} … {found.max()}")
    return found, kept


def class_frequencies(labels: Ints, n_classes: int) -> Floats:
    """(C,) smoothed shares of the classes."""
    counts = np.bincount(labels, minlength=n_classes).astype(np.float64)
    frequencies: Floats = (counts + 1) / (counts.sum() + n_classes)
    return frequencies


@dataclass(frozen=True)
class Majority:
    """The training frequencies of the classes, whatever the decision."""

    prob: Floats  # (C,)

    @classmethod
    def fit(cls, y: ArrayLike, n_classes: int) -> Majority:
        """Count the training labels; rows labelled `IGNORE` are left out."""
        return cls(class_frequencies(labelled_rows(y, n_classes)[0], n_classes))

    def predict(self, n: int) -> Floats:
        """(n, C) probabilities, every row the same."""
        return np.tile(self.prob, (n, 1))


@dataclass(frozen=True)
class Lookup:
    """Training frequencies of the classes in each of S states; state S stands for "not known".

    A state's frequencies are shrunk towards the overall ones by one pseudo-decision, so a state that was never seen
    predicts the overall frequencies.
    """

    table: Floats  # (S + 1, C)

    @classmethod
    def fit(cls, state: Ints, y: ArrayLike, n_states: int, n_classes: int) -> Lookup:
        """Count labels by state, on training rows."""
        labels, kept = labelled_rows(y, n_classes)
        if state.shape != kept.shape:
            raise ValueError(f"the baseline's input has shape {state.shape} but the training labels {kept.shape}")
        overall = class_frequencies(labels, n_classes)
        cells = np.bincount(state[kept] * n_classes + labels, minlength=(n_states + 1) * n_classes)
        counts = cells.reshape(n_states + 1, n_classes).astype(np.float64)
        return cls((counts + overall) / (counts.sum(axis=1, keepdims=True) + 1))

    def predict(self, state: Ints) -> Floats:
        """(Q, C) probabilities of the states."""
        return self.table[state]


@dataclass(frozen=True)
class Persistence:
    """The last known label goes on, with the probabilities of the training transition table."""

    lookup: Lookup

    @staticmethod
    def _states(last: ArrayLike, n_classes: int) -> Ints:
        values = np.asarray(last, dtype=np.float64)
        known = np.isfinite(values) & (values >= 0)
        if (values[known] >= n_classes).any() or (values[known] % 1 != 0).any():
            raise ValueError(f"last labels must be classes in 0 … {n_classes - 1}, negative or NaN when not known")
        return np.where(known, np.where(known, values, 0), n_classes).astype(np.int64)

    @classmethod
    def fit(cls, last: ArrayLike, y: ArrayLike, n_classes: int) -> Persistence:
        """Count transitions from the last label that had ended by the decision to the decision's own.

        Args:
            last: (Q,) that last label; negative or NaN when there was none.
            y: (Q,) training labels.
            n_classes: C.
        """
        return cls(Lookup.fit(cls._states(last, n_classes), y, n_classes, n_classes))

    def predict(self, last: ArrayLike) -> Floats:
        """(Q, C) rows of the transition table."""
        n_classes = self.lookup.table.shape[1]
        return self.lookup.predict(self._states(last, n_classes))


@dataclass(frozen=True)
class LastImbalance:
    """The queue imbalance at the decision, in bins of equal training mass, with each bin's training frequencies."""

    edges: Floats  # (bins − 1,) ascending, no duplicates
    lookup: Lookup

    def _states(self, imbalance: ArrayLike) -> Ints:
        values = np.asarray(imbalance, dtype=np.float64)
        known = np.isfinite(values)
        bins = np.searchsorted(self.edges, np.where(known, values, 0.0), side="right")
        return np.where(known, bins, self.edges.size + 1).astype(np.int64)

    @classmethod
    def fit(cls, imbalance: ArrayLike, y: ArrayLike, n_classes: int, n_bins: int = 10) -> LastImbalance:
        """Cut at training quantiles and count labels in each bin; a value that is not finite is "not known"."""
        values = np.asarray(imbalance, dtype=np.float64)
        known = values[np.isfinite(values)]
        cuts = np.quantile(known, np.arange(1, n_bins) / n_bins) if known.size else np.empty(0)
        unfitted = cls(np.unique(cuts), Lookup(np.empty((0, n_classes))))
        return cls(unfitted.edges, Lookup.fit(unfitted._states(values), y, unfitted.edges.size + 1, n_classes))

    def predict(self, imbalance: ArrayLike) -> Floats:
        """(Q, C) probabilities of the bins."""
        return self.lookup.predict(self._states(imbalance))


@dataclass(frozen=True)
class Logistic:
    """Multinomial logistic regression on standardised features: softmax(((x − mean)/scale) · W + b).

    Fitted by L-BFGS on Σ −ln p(true class) + penalty/2 · ‖W‖² over training rows; intercepts are not penalised.
    A missing feature (NaN) stands at its training mean. Classes without a training row share their smoothed
    frequency, and the fitted ones the rest.
    """

    mean: Floats  # (F,)
    scale: Floats  # (F,)
    weights: Floats  # (F, C fitted)
    intercept: Floats  # (C fitted,)
    present: Ints  # (C fitted,) classes with training rows
    frequencies: Floats  # (C,)

    @classmethod
    def fit(cls, features: ArrayLike, y: ArrayLike, n_classes: int, penalty: float = 1.0) -> Logistic:
        """Fit on training rows.

        Args:
            features: (Q, F), finite or NaN for missing.
            y: (Q,) training labels.
            n_classes: C.
            penalty: L2 penalty, the inverse of scikit-learn's C.

        Raises:
            ValueError: an infinite feature, shapes that disagree, or training rows of one class only.
            RuntimeError: L-BFGS stopped far from the optimum.
        """
        labels, kept = labelled_rows(y, n_classes)
        x = require_features(features, kept.size)[kept]
        present, target = np.unique(labels, return_inverse=True)
        if present.size < 2:
            raise ValueError(f"logistic regression needs two classes in the training rows, got only class {present[0]}")
        known = ~np.isnan(x)
        seen = np.maximum(known.sum(axis=0), 1)
        mean = np.where(known, x, 0).sum(axis=0) / seen
        scale = np.sqrt(np.where(known, (x - mean) ** 2, 0).sum(axis=0) / seen)
        scale = np.where(scale > 1e-12 * np.maximum(np.abs(mean), 1e-300), scale, 1.0)
        z = np.where(known, (x - mean) / scale, 0.0)
        weights, intercept = _fit_softmax(z, target, present.size, penalty)
        return cls(mean, scale, weights, intercept, present, class_frequencies(labels, n_classes))

    def predict(self, features: ArrayLike) -> Floats:
        """(Q, C) probabilities."""
        x = require_features(features, None)
        if x.shape[1] != self.mean.size:
            raise ValueError(f"features have {x.shape[1]} columns, the regression was fitted on {self.mean.size}")
        z = np.where(np.isnan(x), 0.0, (x - self.mean) / self.scale)
        prob = np.tile(self.frequencies, (x.shape[0], 1))
        prob[:, self.present] = self.frequencies[self.present].sum() * _softmax(z @ self.weights + self.intercept)
        if self.present.size == self.frequencies.size:
            prob /= prob.sum(axis=1, keepdims=True)
        return prob


def require_features(features: ArrayLike, n_rows: int | None) -> Floats:
    """Features (Q, F) as float64; ValueError for another shape or an infinite value."""
    x = np.asarray(features, dtype=np.float64)
    if x.ndim != 2 or x.shape[1] == 0 or (n_rows is not None and x.shape[0] != n_rows):
        raise ValueError(f"features must be (Q, F) with one row a decision, got {x.shape} for {n_rows} decisions")
    if np.isinf(x).any():
        row, column = np.argwhere(np.isinf(x))[0]
        raise ValueError(f"feature column {column} is infinite in row {row}; expected finite values or NaN")
    return x


def _softmax(logits: Floats) -> Floats:
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    prob: Floats = weights / weights.sum(axis=1, keepdims=True)
    return prob


def _fit_softmax(z: Floats, target: Ints, n_classes: int, penalty: float) -> tuple[Floats, Floats]:
    """Weights (F, C) and intercepts (C,) of penalised multinomial regression of `target` (Q,) on `z` (Q, F)."""
    n, f = z.shape
    rows = np.arange(n)
    counts = np.bincount(target, minlength=n_classes)

    def objective(flat: Floats) -> tuple[float, Floats]:
        weights, intercept = flat[: f * n_classes].reshape(f, n_classes), flat[f * n_classes :]
        prob = _softmax(z @ weights + intercept)
        loss = -np.log(np.maximum(prob[rows, target], 1e-300)).sum() + penalty / 2 * (weights**2).sum()
        prob[rows, target] -= 1
        gradient = np.concatenate([(z.T @ prob + penalty * weights).ravel(), prob.sum(axis=0)])
        return float(loss) / n, gradient / n

    start = np.concatenate([np.zeros(f * n_classes), np.log(counts / n)])
    options = {"maxiter": 2000, "maxfun": 5000, "gtol": 1e-8, "ftol": 1e-14}
    found = scipy.optimize.minimize(objective, start, jac=True, method="L-BFGS-B", options=options)
    steepest = float(np.abs(found.jac).max())
    if not steepest < 1e-4:
        raise RuntimeError(
            f"logistic regression stopped at gradient {steepest:.1e} per row, expected < 1e-4: {found.message}"
        )
    solution: Floats = found.x
    return solution[: f * n_classes].reshape(f, n_classes), solution[f * n_classes :]


def baseline_probabilities(
    train: Mapping[str, ArrayLike], y_train: ArrayLike, test: Mapping[str, ArrayLike], n_classes: int
) -> dict[str, Floats]:
    """Every classification baseline that the inputs allow, fitted on `train` and applied to `test`.

    Args:
        train: "persistence" (Q,), "imbalance" (Q,), "features" (Q, F) of training rows; any may lack. Another
            array says how many rows there are and nothing else.
        y_train: (Q,) training labels, `IGNORE` for none.
        test: the same arrays of test rows. At least one array is needed, to know how many rows there are.
        n_classes: C.

    Returns:
        name → (Q_test, C) probabilities, in the order of closing tables.
    """
    if set(train) != set(test) or not test:
        raise ValueError(
            f"train has the inputs {sorted(train)} but test {sorted(test)}; expected the same, at least one"
        )
    n_test = len(np.asarray(next(iter(test.values()))))
    found = {MAJORITY: Majority.fit(y_train, n_classes).predict(n_test)}
    if "persistence" in test:
        last = Persistence.fit(train["persistence"], y_train, n_classes)
        found[PERSISTENCE] = last.predict(test["persistence"])
    if "imbalance" in test:
        imbalance = LastImbalance.fit(train["imbalance"], y_train, n_classes)
        found[IMBALANCE] = imbalance.predict(test["imbalance"])
    if "features" in test:
        found[LOGISTIC] = Logistic.fit(train["features"], y_train, n_classes).predict(test["features"])
    return found


@dataclass(frozen=True)
class Recalibrated:
    """The history value after ordinary least squares on training rows: slope · history + intercept."""

    slope: float
    intercept: float

    @classmethod
    def fit(cls, history: ArrayLike, y: ArrayLike) -> Recalibrated:
        """Fit on training rows with an outcome (NaN is none); a constant history gives slope 0 and the mean of y."""
        h, outcome = finite(history, "history"), np.asarray(y, dtype=np.float64)
        if h.shape != outcome.shape:
            raise ValueError(f"history and y must have one length, got {h.shape} and {outcome.shape}")
        kept = ~np.isnan(outcome)
        h, target = h[kept], finite(outcome[kept], "y")
        centred = h - h.mean()
        spread = float(centred @ centred)
        flat = spread <= 1e-24 * h.size * max(float(np.abs(h).max()), 1e-300) ** 2
        slope = 0.0 if flat else float(centred @ target) / spread
        return cls(slope, float(target.mean()) - slope * float(h.mean()))

    def predict(self, history: ArrayLike) -> Floats:
        """(Q,) values."""
        return self.slope * finite(history, "history") + self.intercept


def baseline_values(history_train: ArrayLike, y_train: ArrayLike, history_test: ArrayLike) -> dict[str, Floats]:
    """The regression baselines on test rows: the history value itself, recalibrated on training rows, and their mean.

    Without the mean, which knows no history, a model that says nothing else would beat a line fitted to noise.
    """
    now = finite(history_test, "history")
    return {
        HISTORY: now,
        RECALIBRATED: Recalibrated.fit(history_train, y_train).predict(now),
        MEAN: np.full(now.size, np.nanmean(np.asarray(y_train, np.float64))),
    }
