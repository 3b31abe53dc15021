"""What every label can do: be measured on a table of events, and be finished with what the training rows tell."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt
import polars as pl

from quantattn.data.market.sessions import Sessions
from quantattn.data.protocol.findings import Fitted

Int64Array = npt.NDArray[np.int64]


class Label(Protocol):
    """What is predicted of a decision. A new label is one class with these members, and one file in conf/labels."""

    @property
    def name(self) -> str:
        """What is measured and how far it looks, for reports."""

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes in order of their codes; () when the label is a value."""

    def measure(self, events: pl.DataFrame, sessions: Sessions | None = None) -> pl.DataFrame:
        """Add what was measured for every event, with `label_start`, `label_end` and `label_reason`.

        The interval (`label_start`, `label_end`] holds everything that the label looks at after the decision; it does
        not leave the session. Both are null where there is no label, and `label_reason`, of `REASONS`, says why. The
        measure of a row is a function of the events until its `label_end` alone.
        """

    def finish(self, measured: pl.DataFrame, train: Int64Array) -> tuple[pl.DataFrame, Fitted]:
        """Add `label`: Int8 codes of `class_names`, or Float64 values; and a record of what was fitted for it.

        Args:
            measured: rows of what `measure` returned, all with a label.
            train: numbers of the training rows, the only ones that may be fitted on.

        Returns:
            A value label also has `history` (Float64): the same quantity as it was last known at the decision.
        """
