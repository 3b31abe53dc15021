"""Which events may be looked at by what is fitted: a vocabulary, bins, scales."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from quantattn.data.protocol.splits.intervals import Intervals, Split

Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


def events_to_fit_on(time: Int64Array, trained: BoolArray, rows: Intervals, split: Split) -> BoolArray:
    """Events of entities that are trained on, until the last training decision, outside every held-out stretch.

    A held-out stretch goes from the first decision of the validation part, or of a test block, to the end of the last
    label in it. Where the split is `per_entity`, time is shared and entities alone are held out.

    Args:
        time: (E,) when each event became available, ns UTC.
        trained: (E,) whether training has a decision of its entity.
        rows: the decisions.
        split: of those rows.

    Returns:
        (E,) mask.
    """
    allowed: BoolArray = trained & (time <= rows.as_of[split.train].max())
    if split.per_entity:
        return allowed
    for block in (split.valid, *split.test_blocks):
        if len(block):
            allowed = allowed & ((time < rows.as_of[block].min()) | (time > rows.end[block].max()))
    return allowed
