"""Arithmetic on the offsets of a pack, in tensor operations only, so that nothing waits for the device."""

from __future__ import annotations

import torch
from torch import Tensor


def starts_of_rows(cu_seqlens: Tensor, n_tokens: int) -> Tensor:
    """(T,) int64: the first row of the sequence that each packed row belongs to.

    Sequences of length zero own no row.
    """
    rows = torch.arange(n_tokens, device=cu_seqlens.device)
    offsets = cu_seqlens.long()
    # All offsets are searched: the ends alone would be of size 1 for one sequence, which a compiler treats by itself.
    return offsets[torch.searchsorted(offsets, rows, right=True) - 1]


def offsets_of_decisions(positions: Tensor, cu_seqlens: Tensor) -> Tensor:
    """(N + 1,) int32: `offsets[n]:offsets[n + 1]` are the decisions in sequence n; positions (Q,) are ascending."""
    return torch.searchsorted(positions, cu_seqlens.long()).to(cu_seqlens.dtype)
