"""Controls: data in which nothing can be found."""

from __future__ import annotations

from dataclasses import replace

import torch

from quantattn.data.pack import SequenceSet
from quantattn.data.prepared import Prepared


def shuffle_labels(prepared: Prepared, seed: int) -> Prepared:
    """The same data with the targets of each part permuted among its decisions; there is no Bayes bound then."""
    generator = torch.Generator().manual_seed(seed)

    def permuted(part: SequenceSet) -> SequenceSet:
        order = torch.randperm(len(part.decisions), generator=generator).numpy()
        targets = {name: values[order] for name, values in part.decisions.targets.items()}
        return replace(part, decisions=replace(part.decisions, targets=targets))

    return replace(
        prepared,
        train=permuted(prepared.train),
        valid=permuted(prepared.valid),
        test=permuted(prepared.test),
        bayes=None,
    )
