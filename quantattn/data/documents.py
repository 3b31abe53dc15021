"""Documents that were cut into windows, judged as one decision each: windows of one filing are no independent ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from quantattn.data.pack import SequenceSet


@dataclass(frozen=True)
class Pieces:
    """Q decisions of D documents; of other sequences every decision is one by itself.

    Attributes:
        of: (Q,) int64, the document of each decision.
        first: (D,) int64, the first decision of each.
        tokens: (Q,) how many tokens each decision sees.
    """

    of: Any
    first: Any
    tokens: Any

    @staticmethod
    def among(sequences: SequenceSet) -> Pieces:
        """Those of a sequence set whose documents, if it has any, are named by its entities."""
        decisions = len(sequences.decisions)
        if sequences.layout != "document":
            return Pieces.each(decisions)
        names = np.asarray(sequences.table.entities)[sequences.table.entity_of(sequences.decisions.row)]
        of = np.cumsum(np.append(True, names[1:] != names[:-1])[:decisions]) - 1
        return Pieces(of, np.unique(of, return_index=True)[1], np.asarray(sequences.contexts, np.float64))

    @staticmethod
    def each(decisions: int) -> Pieces:
        """So many decisions, each by itself."""
        return Pieces(np.arange(decisions), np.arange(decisions), np.ones(decisions))

    def __len__(self) -> int:
        """D."""
        return len(self.first)

    @property
    def cut(self) -> bool:
        """Whether a document has several pieces."""
        return len(self.first) < len(self.of)

    def one(self, values: Any) -> Any:
        """(D,) of (Q,) values that are the same for all pieces of a document."""
        return np.asarray(values)[self.first]

    def mean(self, values: Any) -> Any:
        """(D,) mean over the pieces of a document, weighed by their tokens, as `score.py` says it of a filing."""
        if not self.cut:
            return np.asarray(values)
        weighed = np.bincount(self.of, self.tokens * np.asarray(values, np.float64))
        return weighed / np.bincount(self.of, self.tokens)
