"""Why a decision has no label."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

Int64Array = npt.NDArray[np.int64]
Int8Array = npt.NDArray[np.int8]
BoolArray = npt.NDArray[np.bool_]

REASONS: tuple[str, ...] = ("session end", "halt", "crossed book", "no data", "no move")
"""Why a decision has no label. When several hold, the first of them in this order is given.

"no data": the table ends, or begins, within what the label looks at, or a price is missing there. "no move": prices
stood still where the label needs that they moved: see `Threshold.classify`, `TripleBarrier`, `RealisedVolatility`.
"""

LABEL_REASON = pl.Enum(REASONS)


def first_reason(size: int, hits: dict[str, BoolArray]) -> Int8Array:
    """(size,) number in `REASONS` of the first reason that holds, −1 where none does."""
    reason = np.full(size, -1, np.int8)
    for name in reversed(REASONS):
        if name in hits:
            reason[hits[name]] = REASONS.index(name)
    return reason


def any_within(flag: BoolArray, after: Int64Array, to: Int64Array) -> BoolArray:
    """Whether the flag is set on any row of (after, to]."""
    if not flag.any():
        return np.zeros(len(after), np.bool_)
    count = np.concatenate(([0], np.cumsum(flag)))
    within: BoolArray = count[to + 1] > count[after + 1]
    return within
