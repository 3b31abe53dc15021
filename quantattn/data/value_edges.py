"""Edges of the bins in which an encoder may read the scaled values of tokens, from training rows alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

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
    rows = len(train.table)
    steps = np.bincount(train.start, minlength=rows + 1) - np.bincount(train.stop, minlength=rows + 1)
    inside = np.flatnonzero(np.cumsum(steps)[:rows] > 0)
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
