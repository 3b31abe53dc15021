"""Baselines on a row of numbers a decision: logistic regression and gradient boosting, which win most contests.

Both are stopped by the validation rows, as the encoder is: the penalty of the regression and the number of trees are
those with the lowest log loss there. Everything else is fixed beforehand. The numbers are aggregates of a history, or
what the book and its last events let one know. scikit-learn is an extra (`compare`), used here alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quantattn.evaluate.baselines import LOGISTIC, Logistic, class_frequencies, labelled_rows, require_features
from quantattn.evaluate.metrics import IGNORE

Floats = NDArray[np.float64]

BOOSTING = "gradient boosting"
NOT_INSTALLED = (
    "Gradient boosting is not in the table: scikit-learn is not installed here (pip install 'quantattn[compare]')."
)
PENALTIES = (1.0, 10.0, 100.0, 1000.0)
TREES = 100
TREE_SETTINGS: dict[str, Any] = {
    "max_iter": TREES, "learning_rate": 0.05, "max_leaf_nodes": 15, "min_samples_leaf": 5, "l2_regularization": 1.0,
    "early_stopping": False,
}  # fmt: skip
"""Of gradient boosting, for classes and for numbers; how many of the trees are kept, the validation rows say."""

FEW_ROWS = 20_000
"""Training rows from which on no penalty but the smallest is tried, and boosting gets all threads."""


def boosting_is_installed() -> bool:
    """Whether scikit-learn is there."""
    return find_spec("sklearn") is not None


def aggregate_probabilities(
    train: ArrayLike,
    y_train: ArrayLike,
    valid: ArrayLike,
    y_valid: ArrayLike,
    test: ArrayLike,
    n_classes: int,
    *,
    seed: int = 0,
) -> dict[str, Floats]:
    """Name → (Q_test, C) probabilities of both baselines; without scikit-learn of the regression alone.

    Args:
        train: (Q_train, F) features, finite or NaN for missing.
        y_train: (Q_train,) classes, `IGNORE` for none.
        valid: (Q_valid, F); without a row the smallest penalty and all trees are taken. From `FEW_ROWS` training rows
            on the smallest penalty is taken whatever they say: against so many rows the others weigh next to nothing.
        y_valid: (Q_valid,).
        test: (Q_test, F).
        n_classes: C.
        seed: of the boosting's bins.

    Raises:
        ValueError: shapes that disagree, an infinite feature, or training rows of one class alone.
    """
    penalties = PENALTIES if len(np.asarray(train)) < FEW_ROWS else PENALTIES[:1]
    fits = [Logistic.fit(train, y_train, n_classes, penalty) for penalty in penalties]
    best = _best((fit.predict(valid) for fit in fits), y_valid)
    found = {LOGISTIC: fits[0 if best is None else best].predict(test)}
    if boosting_is_installed():
        found[BOOSTING] = boosted_probabilities(train, y_train, valid, y_valid, test, n_classes, seed=seed)
    return found


def boosted_probabilities(
    train: ArrayLike,
    y_train: ArrayLike,
    valid: ArrayLike,
    y_valid: ArrayLike,
    test: ArrayLike,
    n_classes: int,
    *,
    seed: int = 0,
) -> Floats:
    """(Q_test, C) probabilities of histogram gradient boosting; arguments as for `aggregate_probabilities`.

    At most `TREES` trees a class, of at most 15 leaves with 5 rows each, learning rate 0.05; a missing feature goes to
    the side where it served training better. Classes without a training row share their smoothed frequency, and the
    fitted ones the rest.

    Raises:
        ModuleNotFoundError: scikit-learn is not installed.
    """
    from sklearn.ensemble import HistGradientBoostingClassifier
    from threadpoolctl import threadpool_limits

    labels, kept = labelled_rows(y_train, n_classes)
    present = np.unique(labels)
    if present.size < 2:
        raise ValueError(f"gradient boosting needs two classes in the training rows, got only class {present[0]}")
    model = HistGradientBoostingClassifier(**TREE_SETTINGS, random_state=seed)
    x_train = require_features(train, kept.size)[kept]
    frequencies = class_frequencies(labels, n_classes)

    def whole(shares: Floats) -> Floats:
        prob = np.tile(frequencies, (len(shares), 1))
        prob[:, present] = frequencies[present].sum() * shares
        found: Floats = prob / prob.sum(axis=1, keepdims=True)
        return found

    x_valid, x_test = require_features(valid, None), require_features(test, None)
    # With few rows the threads of OpenMP do little but wait for each other, for a minute on a busy machine.
    with threadpool_limits(limits=1 if len(x_train) < FEW_ROWS else None):
        model.fit(x_train, labels)
        stages = (whole(shares) for shares in model.staged_predict_proba(x_valid)) if len(x_valid) else ()
        best = _best(stages, y_valid)
        trees = TREES if best is None else best + 1
        return whole(next(islice(model.staged_predict_proba(x_test), trees - 1, None)))


def _best(probabilities: Iterable[Floats], y: ArrayLike) -> int | None:
    """Number of the (Q, C) probabilities with the lowest log loss; None without a labelled row."""
    labels = np.asarray(y)
    rows = np.flatnonzero(labels != IGNORE)
    if not rows.size:
        return None
    losses = [-np.log(np.maximum(prob[rows, labels[rows]], 1e-300)).mean() for prob in probabilities]
    return int(np.argmin(losses))
