"""Arithmetic on the offsets of a pack, in tensor operations only, so that nothing waits for the device."""

from __future__ import annotations

import torch
from torch import Tensor


def starts_of_rows(cu_seqlens: Tensor, n_tokens: int) -> Tensor:
    """(T,) int64: the first row of the sequence that each packed row belongs to.

    Sequences of length zero own no row.
    """
    rows = torch.arange(n_tokens, device=cu_seqlens.device)
    sequence = torch.searchsorted(cu_seqlens[1:].long(), rows, right=True)
    return cu_seqlens.long()[sequence]


def offsets_of_decisions(positions: Tensor, cu_seqlens: Tensor) -> Tensor:
    """(N + 1,) int32: `offsets[n]:offsets[n + 1]` are the decisions in sequence n; positions (Q,) are ascending."""
    return torch.searchsorted(positions, cu_seqlens.long()).to(cu_seqlens.dtype)
