"""The online-softmax algebra (filled in by the state's own commit)."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Attended(NamedTuple):
    """Result of attention: out in the layout and dtype of q, lse (natural log) in float32 (float64 for float64)."""

    out: Tensor
    lse: Tensor


class AttentionState:
    """Placeholder."""
