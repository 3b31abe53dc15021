"""What a few tokens of a table carry beside their fields: one vector a row, kept apart since most rows have none."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class TokenVectors:
    """The vectors of K rows of a token table, such as the embeddings of the filings among its events.

    Attributes:
        rows: (K,) int64, strictly rising.
        values: (K, E) float32.
    """

    rows: Ints
    values: Floats

    def __post_init__(self) -> None:
        if self.values.ndim != 2 or len(self.values) != len(self.rows) or bool((np.diff(self.rows) <= 0).any()):
            raise ValueError(
                f"vectors must be (K, E) of K rising rows, got {self.values.shape} of {len(self.rows)} rows"
            )

    def of_rows(self, kept: npt.NDArray[np.bool_]) -> TokenVectors:
        """Those of the rows of the table that are kept, under their new numbers."""
        own = kept[self.rows]
        return TokenVectors((np.cumsum(kept) - 1)[self.rows[own]], self.values[own])

    def laid(self, start: Ints, stop: Ints, offsets: Ints) -> tuple[Ints, Floats]:
        """Rows and vectors where sequence s, the rows start[s] … stop[s] − 1, is laid from offsets[s] on."""
        first, last = np.searchsorted(self.rows, start), np.searchsorted(self.rows, stop)
        found = last - first
        place = np.arange(found.sum()) + np.repeat(first - (np.cumsum(found) - found), found)
        return self.rows[place] + np.repeat(offsets - start, found), np.asarray(self.values[place], np.float32)
