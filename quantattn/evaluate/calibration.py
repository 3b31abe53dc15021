"""Do stated probabilities come true? Bins of equal mass and the reliability curve."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

ECE_BINS = 15
"""Bins of equal mass in the expected calibration error."""


def equal_mass_bins(values: NDArray[np.float64], n_bins: int) -> NDArray[np.int64]:
    """(Q,) bin of each value, 0 … n_bins − 1, each holding Q/n_bins values when none tie.

    A value goes by the number of smaller ones: bin = ⌊n_bins · #{smaller}/Q⌋. Equal values therefore share a bin,
    and the order of the rows does not matter.
    """
    smaller = np.searchsorted(np.sort(values), values, side="left")
    return (smaller * n_bins // max(values.size, 1)).astype(np.int64)


@dataclass(frozen=True)
class Reliability:
    """Stated and observed frequency of the predicted class, one entry a bin that holds decisions.

    Attributes:
        confidence: (B,) mean stated probability of the predicted class.
        accuracy: (B,) share of decisions on which the predicted class was the true one.
        count: (B,) decisions.
    """

    confidence: NDArray[np.float64]
    accuracy: NDArray[np.float64]
    count: NDArray[np.int64]

    @property
    def ece(self) -> float:
        """Expected calibration error, Σ count·|confidence − accuracy| / Σ count."""
        return float((self.count * np.abs(self.confidence - self.accuracy)).sum() / self.count.sum())


def reliability(y: NDArray[np.int64], prob: NDArray[np.float64], n_bins: int = ECE_BINS) -> Reliability:
    """Reliability of the predicted class in bins of equal mass.

    Args:
        y: (Q,) classes in 0 … C − 1, at least one.
        prob: (Q, C) probabilities.
        n_bins: bins before the empty ones are dropped (ties can empty a bin).
    """
    predicted = prob.argmax(axis=1)
    confidence = prob[np.arange(y.size), predicted]
    bins = equal_mass_bins(confidence, n_bins)
    count = np.bincount(bins, minlength=n_bins)
    full = count > 0
    stated = np.bincount(bins, weights=confidence, minlength=n_bins)[full] / count[full]
    observed = np.bincount(bins, weights=(predicted == y).astype(np.float64), minlength=n_bins)[full] / count[full]
    return Reliability(stated, observed, count[full].astype(np.int64))
