"""Which rows of a table are training rows, and what objectives are fitted to."""

from __future__ import annotations

import torch
from torch import Tensor

from quantattn.data.pack import SequenceSet
from quantattn.data.prepared import Prepared
from quantattn.nn import TrainingRows


def rows_inside(cut: SequenceSet) -> Tensor:
    """(R,) bool: whether each row of the table lies in a sequence; a table holds rows of other parts too."""
    steps = torch.zeros(len(cut.table) + 1, dtype=torch.int64)
    steps.index_add_(0, torch.tensor(cut.start), torch.ones(len(cut), dtype=torch.int64))
    steps.index_add_(0, torch.tensor(cut.stop), -torch.ones(len(cut), dtype=torch.int64))
    return steps.cumsum(0)[:-1] > 0


def gaps_of(cut: SequenceSet) -> Tensor:
    """(G,) float64 seconds between events of one entity that follow on each other and lie in sequences."""
    inside = rows_inside(cut)
    follows = inside[1:] & inside[:-1]
    begins = torch.tensor(cut.table.offsets)[1:-1]
    follows[begins[(begins > 0) & (begins < len(inside))] - 1] = False
    return torch.tensor(cut.table.time).diff()[follows].double() / 1e9


def training_rows(prepared: Prepared) -> TrainingRows:
    """Targets and classes of training decisions, and the seconds between training events that follow on each other."""
    targets = {name: torch.tensor(values) for name, values in prepared.train.decisions.targets.items()}
    return TrainingRows(targets, prepared.classes, gaps_of(prepared.train))
