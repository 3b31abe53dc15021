"""Low-rank adapters: W + (α / r) B A in place of W, A and B trained alone (Hu et al. 2021, arXiv 2106.09685).

They are torch's own parametrisations of the weights, so everything that reads a weight reads the sum, and merging keeps
the very tensor that was computed with.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.utils import parametrize

from quantattn.nn.model import Model


class LowRank(nn.Module):
    """W ↦ W + (α / r) B A; B begins at zero, so that it begins as W to the bit.

    Args:
        weight: the matrix (N, K) that it is for.
        rank: r, rows of A and columns of B.
        alpha: α.
    """

    def __init__(self, weight: Tensor, rank: int, alpha: float) -> None:
        super().__init__()
        rows, columns = weight.shape
        self.scale = alpha / rank
        self.down = nn.Parameter(weight.new_empty(rank, columns))
        self.up = nn.Parameter(weight.new_zeros(rows, rank))
        nn.init.normal_(self.down, std=columns**-0.5)

    def forward(self, weight: Tensor) -> Tensor:
        """(N, K) → (N, K)."""
        return weight + self.scale * (self.up @ self.down)


def add_adapters(model: Model, rank: int, alpha: float) -> int:
    """Adapt every matrix of the encoder's blocks, and leave nothing of the encoder to train but the adapters.

    Returns:
        How many scalars the adapters have.

    Raises:
        ValueError: a rank that is not from 1 to the smaller side of every matrix, or an α that is not positive.
    """
    matrices = [module for module in model.encoder.blocks.modules() if isinstance(module, nn.Linear)]
    most = min(min(module.weight.shape) for module in matrices)
    if not 1 <= rank <= most:
        raise ValueError(f"the rank of adapters must lie in 1 … {most}, the smallest side of a matrix; got {rank}")
    if not 0 < alpha < float("inf"):
        raise ValueError(f"alpha of adapters must be positive, got {alpha}")
    model.encoder.requires_grad_(False)
    added = 0
    for module in matrices:
        adapter = LowRank(module.weight, rank, alpha)
        parametrize.register_parametrization(module, "weight", adapter)
        added += sum(parameter.numel() for parameter in adapter.parameters())
    return added


def merge_adapters(model: nn.Module) -> None:
    """Make every adapted matrix the sum that was computed with, to the bit; the model is then as any other."""
    for module in list(model.modules()):
        if parametrize.is_parametrized(module, "weight"):
            parametrize.remove_parametrizations(module, "weight", leave_parametrized=True)
            module.weight.requires_grad_(True)


def adapters_of(model: nn.Module) -> dict[str, Tensor]:
    """Name → parameter of every adapter."""
    adapters = {id(p) for m in model.modules() if isinstance(m, LowRank) for p in m.parameters()}
    return {name: p for name, p in model.named_parameters() if id(p) in adapters}
