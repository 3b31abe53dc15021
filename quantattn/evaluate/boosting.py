"""Gradient boosting on aggregates: the baseline that wins most contests on bank transactions.

scikit-learn is an extra (`compare`), used here alone. Settings are fixed beforehand and not tuned.
"""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quantattn.evaluate.baselines import class_frequencies, labelled_rows, require_features

Floats = NDArray[np.float64]

BOOSTING = "gradient boosting"
NOT_INSTALLED = (
    "Gradient boosting is not in the table: scikit-learn is not installed here (pip install 'quantattn[compare]')."
)


def boosting_is_installed() -> bool:
    """Whether scikit-learn is there."""
    return find_spec("sklearn") is not None


def boosted_probabilities(
    train: ArrayLike, y_train: ArrayLike, test: ArrayLike, n_classes: int, *, seed: int = 0
) -> Floats:
    """(Q_test, C) probabilities of histogram gradient boosting fitted on training rows.

    100 trees a class of at most 15 leaves with 5 rows each, learning rate 0.05; a missing feature (NaN) goes to the
    side where it served training better. Classes without a training row share their smoothed frequency, and the fitted
    ones the rest.

    Args:
        train: (Q_train, F) features, finite or NaN.
        y_train: (Q_train,) classes, `IGNORE` for none.
        test: (Q_test, F).
        n_classes: C.
        seed: of the bins.

    Raises:
        ValueError: shapes that disagree, an infinite feature, or training rows of one class alone.
        ModuleNotFoundError: scikit-learn is not installed.
    """
    from sklearn.ensemble import HistGradientBoostingClassifier

    labels, kept = labelled_rows(y_train, n_classes)
    present = np.unique(labels)
    if present.size < 2:
        raise ValueError(f"gradient boosting needs two classes in the training rows, got only class {present[0]}")
    model = HistGradientBoostingClassifier(
        max_iter=100,
        learning_rate=0.05,
        max_leaf_nodes=15,
        min_samples_leaf=5,
        l2_regularization=1.0,
        early_stopping=False,
        random_state=seed,
    )
    model.fit(require_features(train, kept.size)[kept], labels)
    frequencies = class_frequencies(labels, n_classes)
    prob = np.tile(frequencies, (len(np.asarray(test)), 1))
    prob[:, present] = frequencies[present].sum() * model.predict_proba(require_features(test, None))
    shares: Floats = prob / prob.sum(axis=1, keepdims=True)
    return shares
