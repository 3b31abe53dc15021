"""Figures of merit, each computed from sums that add over rows.

Every figure is a function of a short vector of sums (a confusion matrix, summed losses, summed powers), so the value
on all rows, the value on a block of rows and two thousand bootstrap values come from the same formula: add the
vectors, apply the formula to the last axis.

Dimensions: Q decisions, C classes, K blocks. Losses are in nats per decision.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy  # whose parts are imported where they are used first
from numpy.typing import ArrayLike, NDArray

from quantattn.evaluate.calibration import ECE_BINS, equal_mass_bins

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

IGNORE = -100
"""Class of a decision that has no label; such rows are left out of every figure."""

SMALLEST_PROBABILITY = float(np.finfo(np.float64).eps)
"""Probabilities are clipped here before the logarithm: a class declared impossible costs 36 nats, not infinity."""


@dataclass(frozen=True)
class Metric:
    """A figure's name in tables, which direction is good, and whether a bootstrap gives it an interval."""

    name: str
    title: str
    lower_is_better: bool
    resampled: bool = True


CLASSIFICATION = (
    Metric("log_loss", "Log loss (nats)", True),
    Metric("macro_f1", "Macro-F1", False),
    Metric("mcc", "MCC", False),
    Metric("balanced_accuracy", "Balanced accuracy", False),
    Metric("accuracy", "Accuracy", False),
    Metric("brier", "Brier score", True),
    # A sum of absolute values: resampling adds noise to each and moves the figure upwards, so it has no interval.
    Metric("ece", "Calibration error", True, resampled=False),
)

REGRESSION = (
    Metric("mse", "Mean squared error", True),
    Metric("mae", "Mean absolute error", True),
    Metric("r2", "R² against history", False),
    Metric("rank_ic", "Rank correlation", False),
)


@dataclass(frozen=True)
class Classified:
    """Labelled decisions with their probabilities, checked.

    Attributes:
        y: (Q,) int64 classes in 0 … C − 1.
        prob: (Q, C) float64, rows sum to one.
        kept: (Q_all,) bool, the rows of the input that carry a label.
    """

    y: Ints
    prob: Floats
    kept: NDArray[np.bool_]

    @property
    def n_classes(self) -> int:
        """C."""
        return int(self.prob.shape[1])


def classified(y: ArrayLike, prob: ArrayLike, name: str = "prob") -> Classified:
    """Check labels and probabilities, and leave out decisions labelled `IGNORE`.

    Args:
        y: (Q,) integer classes, `IGNORE` for a decision without a label.
        prob: (Q, C) probabilities, any float dtype; rows must sum to one within 1e-3 and are divided by their sum.
        name: what to call `prob` in an error.

    Raises:
        ValueError: shapes disagree, fewer than two classes, no labelled row, a class outside 0 … C − 1,
            a probability that is NaN or outside [0, 1], or a row that does not sum to one.
    """
    labels, p = np.asarray(y), np.asarray(prob, dtype=np.float64)
    if p.ndim != 2 or labels.ndim != 1 or p.shape[0] != labels.shape[0]:
        raise ValueError(f"{name} must be (Q, C) beside y (Q,), got {p.shape} and {labels.shape}")
    if p.shape[1] < 2:
        raise ValueError(f"{name} must have at least two classes, got {p.shape[1]}")
    if labels.dtype.kind not in "iu":
        raise ValueError(f"y must hold integer classes ({IGNORE} for none), got dtype {labels.dtype}")
    kept = labels != IGNORE
    labels, p = labels[kept].astype(np.int64), p[kept]
    rows = np.flatnonzero(kept)
    if labels.size == 0:
        raise ValueError(f"no decision has a label: all {kept.size} rows of y are {IGNORE} or y is empty")
    if (bad := np.flatnonzero((labels < 0) | (labels >= p.shape[1]))).size:
        raise ValueError(f"y[{rows[bad[0]]}] is {labels[bad[0]]}, expected a class in 0 … {p.shape[1] - 1} or {IGNORE}")
    if (bad := np.flatnonzero(~((p >= 0) & (p <= 1 + 1e-3)).all(axis=1))).size:
        raise ValueError(f"{name}[{rows[bad[0]]}] is {p[bad[0]].tolist()}, expected probabilities in [0, 1]")
    total = p.sum(axis=1, keepdims=True)
    if (bad := np.flatnonzero(np.abs(total[:, 0] - 1) > 1e-3)).size:
        raise ValueError(f"{name}[{rows[bad[0]]}] sums to {total[bad[0], 0]:.6g}, expected 1")
    return Classified(labels, p / total, kept)


def log_losses(data: Classified) -> Floats:
    """(Q,) −ln p(true class) of each decision, in nats."""
    true: Floats = data.prob[np.arange(data.y.size), data.y]
    losses: Floats = -np.log(np.clip(true, SMALLEST_PROBABILITY, 1))
    return losses


def classification_sums(data: Classified, ids: Ints, n_blocks: int) -> Floats:
    """(K, C² + 2 + 15) sums of each block, the input of `classification_figures`.

    In order: confusion matrix (true class by predicted class, row-major), summed log loss, summed Brier score,
    and for each of the 15 bins of equal mass the sum of confidence − correctness. The predicted class is the most
    probable one, the lowest when several tie. Bins are fixed on all rows and do not move with a resample.
    """
    c, rows = data.n_classes, np.arange(data.y.size)
    predicted = data.prob.argmax(axis=1)
    confidence = data.prob[rows, predicted]
    one_hot = np.zeros_like(data.prob)
    one_hot[rows, data.y] = 1
    confusion = np.bincount((ids * c + data.y) * c + predicted, minlength=n_blocks * c * c).reshape(n_blocks, c * c)
    loss = np.bincount(ids, weights=log_losses(data), minlength=n_blocks)
    brier = np.bincount(ids, weights=((data.prob - one_hot) ** 2).sum(axis=1), minlength=n_blocks)
    cell = ids * ECE_BINS + equal_mass_bins(confidence, ECE_BINS)
    excess = np.bincount(cell, weights=confidence - (predicted == data.y), minlength=n_blocks * ECE_BINS)
    return np.column_stack([confusion, loss, brier, excess.reshape(n_blocks, ECE_BINS)]).astype(np.float64)


def classification_figures(sums: Floats, n_classes: int) -> dict[str, Floats]:
    """Figures of vectors of sums (…, C² + 2 + 15), each of shape (…); see `classification_metrics` for meanings."""
    c = n_classes
    confusion = sums[..., : c * c].reshape(*sums.shape[:-1], c, c)
    true, predicted = confusion.sum(axis=-1), confusion.sum(axis=-2)
    hit = np.diagonal(confusion, axis1=-2, axis2=-1)
    n = true.sum(axis=-1)
    correct = hit.sum(axis=-1)
    present = true > 0
    seen = (true + predicted) > 0
    f1 = np.divide(2 * hit, true + predicted, out=np.zeros_like(hit), where=seen)
    recall = np.divide(hit, true, out=np.zeros_like(hit), where=present)
    # Matthews (1975), in Gorodkin's form for C classes; 0 when either margin is a single class.
    covariance = correct * n - (true * predicted).sum(axis=-1)
    spread = (n**2 - (true**2).sum(axis=-1)) * (n**2 - (predicted**2).sum(axis=-1))
    mcc = np.divide(covariance, np.sqrt(spread), out=np.zeros_like(covariance), where=spread > 0)
    return {
        "log_loss": sums[..., c * c] / n,
        "macro_f1": f1.sum(axis=-1) / seen.sum(axis=-1),
        "mcc": mcc,
        "balanced_accuracy": recall.sum(axis=-1) / present.sum(axis=-1),
        "accuracy": correct / n,
        "brier": sums[..., c * c + 1] / n,
        "ece": np.abs(sums[..., c * c + 2 :]).sum(axis=-1) / n,
    }


def classification_metrics(y: ArrayLike, prob: ArrayLike) -> dict[str, float]:
    """Figures of a classifier; decisions labelled `IGNORE` are left out.

    - `log_loss`: mean −ln p(true class), nats.
    - `macro_f1`: mean over the classes that occur, among labels or predictions, of 2TP/(2TP + FP + FN).
    - `mcc`: Matthews correlation (Gorodkin 2004 for C > 2); 0 when all labels or all predictions are one class.
    - `balanced_accuracy`: mean recall over the classes that occur among the labels.
    - `accuracy`: share of decisions whose most probable class is the true one.
    - `brier`: mean Σ_c (p_c − 1[y = c])² (Brier 1950), between 0 and 2.
    - `ece`: expected calibration error of the predicted class's probability, 15 bins of equal mass.

    Args and errors: see `classified`.
    """
    data = classified(y, prob)
    sums = classification_sums(data, np.zeros(data.y.size, dtype=np.int64), 1)[0]
    return {name: float(value) for name, value in classification_figures(sums, data.n_classes).items()}


def confusion_matrix(y: ArrayLike, prob: ArrayLike) -> Ints:
    """(C, C) counts, true class by predicted class."""
    data = classified(y, prob)
    c = data.n_classes
    counts = np.bincount(data.y * c + data.prob.argmax(axis=1), minlength=c * c)
    return counts.reshape(c, c).astype(np.int64)


def finite(values: ArrayLike, name: str) -> Floats:
    """`values` as (Q,) float64; raises ValueError when empty, not one-dimensional, or not finite."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or array.size == 0:
        raise ValueError(f"{name} must be a non-empty (Q,) array, got shape {array.shape}")
    if (bad := np.flatnonzero(~np.isfinite(array))).size:
        raise ValueError(f"{name}[{bad[0]}] is {array[bad[0]]}, expected finite values ({bad.size} are not)")
    return array


def regression_sums(y: Floats, predicted: Floats, history: Floats, ids: Ints, n_blocks: int) -> Floats:
    """(K, 9) sums of each block: n, squared error, absolute error, squared error of `history`, rank moments.

    The ranks (average ranks on ties, centred, scaled by Q) are those among all rows and do not move with a resample.
    """
    n = y.size
    a, b = ((scipy.stats.rankdata(x) - (n + 1) / 2) / n for x in (y, predicted))
    columns = [np.ones(n), (y - predicted) ** 2, np.abs(y - predicted), (y - history) ** 2]
    columns += [a, b, a * a, b * b, a * b]
    return np.column_stack([np.bincount(ids, weights=column, minlength=n_blocks) for column in columns])


def regression_figures(sums: Floats) -> dict[str, Floats]:
    """Figures of vectors of sums (…, 9), each of shape (…); see `regression_metrics` for meanings."""
    n, squared, absolute, history, a, b, aa, bb, ab = np.moveaxis(sums, -1, 0)
    spread = np.maximum(n * aa - a * a, 0) * np.maximum(n * bb - b * b, 0)
    tiny = (1e-12 * n * n) ** 2
    return {
        "mse": squared / n,
        "mae": absolute / n,
        "r2": 1 - np.divide(squared, history, out=np.full_like(squared, np.inf), where=history > 0),
        "rank_ic": np.divide(n * ab - a * b, np.sqrt(spread), out=np.zeros_like(ab), where=spread > tiny),
    }


def regression_metrics(y: ArrayLike, predicted: ArrayLike, history: ArrayLike) -> dict[str, float]:
    """Figures of a regression.

    - `mse`, `mae`: mean squared and absolute error, in the target's units.
    - `r2`: 1 − Σ(y − ŷ)²/Σ(y − h)², out of sample against the history baseline h (Campbell, Thompson 2008);
      −∞ when the baseline is perfect.
    - `rank_ic`: Spearman correlation of prediction and outcome over all rows; 0 when either is constant.

    Args:
        y: (Q,) finite outcomes.
        predicted: (Q,) finite predictions.
        history: (Q,) finite values of the history baseline.

    Raises:
        ValueError: empty, not finite, or of different lengths.
    """
    a, b, h = finite(y, "y"), finite(predicted, "predicted"), finite(history, "history")
    if not a.size == b.size == h.size:
        raise ValueError(f"y, predicted and history must have one length, got {a.size}, {b.size} and {h.size}")
    sums = regression_sums(a, b, h, np.zeros(a.size, dtype=np.int64), 1)[0]
    return {name: float(value) for name, value in regression_figures(sums).items()}
