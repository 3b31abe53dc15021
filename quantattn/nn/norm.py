"""Root-mean-square normalisation."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from quantattn.attention import add_norm, add_norm_linear, by_kernel
from quantattn.nn.invariant import Linear, as_product


class RMSNorm(nn.Module):
    """y = x / √(mean(x²) + ε) · weight over the last dimension (Zhang, Sennrich 2019, arXiv 1910.07467)."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise x (…, size); the result has x's dtype."""
        return functional.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), self.eps)

    def added(self, x: Tensor, branch: Tensor | None, linear: Linear) -> tuple[Tensor, Tensor]:
        """The stream x + branch (T, size), and its normalised rows as `linear` takes them."""
        if by_kernel(x):
            return add_norm(x, branch, self.weight, self.eps, as_product(linear.weight).dtype)
        total = x if branch is None else x + branch
        return total, self(total)

    def project(
        self, x: Tensor, branch: Tensor | None, linear: Linear, keep_parts: bool = False
    ) -> tuple[Tensor, Tensor]:
        """The stream x + branch (T, size), and `linear`, which has no bias, of its normalised rows.

        On a GPU these are not kept for backward; and the stream as its parts, if somebody keeps x anyway.
        """
        if by_kernel(x):
            return add_norm_linear(
                x, branch, self.weight, self.eps, as_product(linear.weight),
                keep_parts=keep_parts, batch_invariant=linear.batch_invariant,
            )  # fmt: skip
        total, normed = self.added(x, branch, linear)
        return total, linear(normed)
