"""Labels that come with the data."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import polars as pl

from quantattn.data.market.sessions import Sessions
from quantattn.data.protocol.findings import Fitted
from quantattn.data.protocol.labels.reasons import LABEL_REASON
from quantattn.data.protocol.labels.threshold import CLASS_NAMES

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True)
class ShippedLabel:
    """The label of FI-2010 as it was published (Ntakaris et al. 2018): 1 up, 2 stationary, 3 down, in column label_K.

    Attributes:
        horizon: K, events ahead: 10, 20, 30, 50 or 100.
    """

    horizon: int = 10

    def __post_init__(self) -> None:
        if self.horizon not in (10, 20, 30, 50, 100):
            raise ValueError(f"FI-2010 has labels for 10, 20, 30, 50 and 100 events ahead, got {self.horizon!r}")

    @property
    def name(self) -> str:
        """Says whose label and how far it looks."""
        return f"FI-2010's own label over {self.horizon} events"

    @property
    def class_names(self) -> tuple[str, ...]:
        """down, flat, up."""
        return CLASS_NAMES[3]

    def measure(self, events: pl.DataFrame, sessions: Sessions | None = None) -> pl.DataFrame:
        """Add the interval that a label looks at: to the event `horizon` rows on, or to the last of its `file`.

        Raises:
            ValueError: the table has no such label.
        """
        missing = [name for name in (f"label_{self.horizon}", "file") if name not in events.columns]
        if missing:
            raise ValueError(
                f"the table has no column {missing[0]!r}; this label is of the files of FI-2010 (data=fi2010)"
            )
        time = events["available_time"].to_numpy()
        begins = np.flatnonzero(np.diff(events["file"].to_numpy().astype(np.int64))) + 1
        end = np.zeros(len(time), np.int64)
        for first, last in pairwise([0, *begins.tolist(), len(time)]):
            row = np.arange(first, last)
            end[row] = np.maximum(time[np.minimum(row + self.horizon, last - 1)], time[row] + 1)
        return events.with_columns(
            label_start=pl.Series(time),
            label_end=pl.Series(end),
            label_reason=pl.lit(None, LABEL_REASON),
        )

    def finish(self, measured: pl.DataFrame, train: Int64Array) -> tuple[pl.DataFrame, Fitted]:
        """Add `label`: 0 down, 1 flat, 2 up. Nothing is fitted."""
        label = (3 - pl.col(f"label_{self.horizon}")).cast(pl.Int8).alias("label")
        return measured.with_columns(label), Fitted("shipped label", None, 0)
