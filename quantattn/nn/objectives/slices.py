"""Slices of the sequences of a batch as a batch of their own, for objectives that compare embeddings of slices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from quantattn.batch import PackedBatch, Vectors


def slices_of(batch: PackedBatch, starts: Sequence[int], stops: Sequence[int]) -> PackedBatch:
    """The rows start … stop − 1 of the pack for each pair, laid end to end, with a decision at the last row of each.

    Slices may overlap, must not be empty and have no targets; decision k is of slice k.
    """
    device = batch.time.device
    lengths = torch.tensor([stop - start for start, stop in zip(starts, stops, strict=True)], dtype=torch.int64)
    ends = lengths.cumsum(0)
    rows = torch.cat([torch.arange(a, b) for a, b in zip(starts, stops, strict=True)] or [ends]).to(device)
    offsets = torch.cat([ends.new_zeros(1), ends])
    vectors = {name: _carried(each, starts, stops, offsets) for name, each in batch.vectors.items()}
    return replace(
        batch,
        fields={name: column[rows] for name, column in batch.fields.items()},
        time=batch.time[rows],
        cu_seqlens=offsets.int().to(device),
        max_seqlen=int(lengths.max()) if len(lengths) else 0,
        positions=(ends - 1).to(device),
        keys=torch.arange(len(lengths), device=device),
        targets={},
        vectors=vectors,
    )


def _carried(carried: Vectors, starts: Sequence[int], stops: Sequence[int], offsets: Tensor) -> Vectors:
    parts = [carried.between(start, stop) for start, stop in zip(starts, stops, strict=True)]
    moved = [part.rows + int(offset) for part, offset in zip(parts, offsets.tolist(), strict=False)]
    if not parts:
        return Vectors(carried.rows[:0], carried.values[:0])
    return Vectors(torch.cat(moved), torch.cat([part.values for part in parts]))
