"""Root-mean-square normalisation."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class RMSNorm(nn.Module):
    """y = x / √(mean(x²) + ε) · weight over the last dimension (Zhang, Sennrich 2019, arXiv 1910.07467)."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise x (…, size); the result has x's dtype."""
        return functional.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), self.eps)
