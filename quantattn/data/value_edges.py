"""How an encoder reads numbers, from training rows alone: edges of bins of values, center and scale of vectors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from quantattn.data.pack import SequenceSet

MOST_ROWS = 2_000_000


def value_edges(
    train: SequenceSet, names: Sequence[str], n_bins: int, *, max_rows: int = MOST_ROWS
) -> dict[str, tuple[float, ...]]:
    """Field → at most n_bins + 1 rising edges: least, quantiles and largest of the values in the training sequences.

    Every row that lies in a sequence counts once, however many sequences it lies in; no other row of the table is read.
    Equal edges are one; missing values (NaN) count as none. A field of which training has no two values is left out.

    Args:
        train: the training part.
        names: float fields of its table.
        n_bins: the most bins of a field.
        max_rows: with more rows than this, every k-th of them is looked at.

    Raises:
        ValueError: n_bins below 1.
    """
    if n_bins < 1:
        raise ValueError(f"n_bins must be at least 1, got {n_bins}")
    inside = np.flatnonzero(_in_sequences(train))
    inside = inside[:: max(1, -(-len(inside) // max_rows))]
    found: dict[str, tuple[float, ...]] = {}
    for name in names:
        values = np.asarray(train.table.fields[name])[inside]
        ordered = np.sort(values[~np.isnan(values)])
        ranks = np.arange(n_bins + 1) * (len(ordered) - 1) // n_bins
        edges = np.unique(ordered[ranks]) if len(ordered) else ordered
        if len(edges) > 1:
            found[name] = tuple(float(edge) for edge in edges)
    return found


def vector_scales(train: SequenceSet) -> dict[str, tuple[tuple[float, float], ...]]:
    """Name of the vectors that tokens carry → mean and deviation of each of their numbers in the training sequences.

    A number that is the same in all of them has scale 1; vectors of which training has none have center 0 and scale 1.
    """
    inside = _in_sequences(train)
    found: dict[str, tuple[tuple[float, float], ...]] = {}
    for name, each in train.table.vectors.items():
        own = each.values[inside[each.rows]].astype(np.float64)
        center = own.mean(axis=0) if len(own) else np.zeros(own.shape[1])
        scale = own.std(axis=0) if len(own) else np.zeros(own.shape[1])
        # Rounding leaves a little deviation where there is none, which must not be blown up.
        scale[scale <= 1e-6 * np.abs(center)] = 1.0
        scale[scale == 0] = 1.0
        found[name] = tuple(zip(center.tolist(), scale.tolist(), strict=True))
    return found


def _in_sequences(train: SequenceSet) -> npt.NDArray[np.bool_]:
    """(R,) which rows of the table lie in a sequence."""
    rows = len(train.table)
    steps = np.bincount(train.start, minlength=rows + 1) - np.bincount(train.stop, minlength=rows + 1)
    return np.asarray(np.cumsum(steps)[:rows] > 0, np.bool_)
