"""The mode in which a sequence's bits do not depend on its batch, and the operations that would break it.

A row's own operations give it other bits among other rows in two places. A library picks the order of a product's sums
by the number of rows. And a CPU computes a function such as the exponential of what is left after whole vectors with
other instructions than the vectors. Sums over a row, look-ups, products and sums of entries do not depend on the rows;
attention is cut at the ends of sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional

from quantattn.attention import batch_invariant_linear

_PIECE = 1 << 14
"""Entries that a CPU computes at a time: whole vectors of every dtype, and too few for torch to cut for its threads."""


@contextmanager
def batch_invariant(model: nn.Module, on: bool = True) -> Iterator[None]:
    """For the time of the block, a sequence's results have the same bits alone and in any batch, at any place.

    For the forward of encoders, models and heads of this package, on one device, with one build of torch and one
    setting of `torch.set_float32_matmul_precision`. Gradients are right but have no such promise; where
    `gradient_checkpointing` computes a forward again, the backward belongs into the block too. What `compile=true`
    would compile runs as it is written, since a compiler makes other programs for other shapes. Attention is asked for
    `deterministic="batch"`, so an encoder whose `attention_backend` does not offer that raises.

    Example:
        >>> with batch_invariant(encoder):
        ...     hidden = encoder(batch)
    """
    known = [module for module in model.modules() if hasattr(module, "batch_invariant")]
    # A compiler looks at what a module holds of its own, so nothing is set that is so already.
    switches = [module for module in known if bool(module.batch_invariant) != on]
    with ExitStack() as restored:
        if on and any(getattr(getattr(module, "config", None), "compile", False) for module in known):
            restored.enter_context(torch.compiler.set_stance("force_eager"))
        try:
            for module in switches:
                module.batch_invariant = on  # type: ignore[assignment]
            yield
        finally:
            for module in switches:
                module.batch_invariant = not on  # type: ignore[assignment]


class Linear(nn.Linear):
    """`nn.Linear` that knows the mode."""

    batch_invariant = False

    def forward(self, x: Tensor) -> Tensor:
        """(…, K) → (…, N)."""
        return linear(x, self.weight, self.bias, self.batch_invariant)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, batch_invariant: bool) -> Tensor:
    """The linear map x Wᵀ + b; x (…, K), weight (N, K), bias (N,)."""
    return batch_invariant_linear(x, weight, bias) if batch_invariant else functional.linear(x, weight, bias)


def as_product(weight: Tensor) -> Tensor:
    """The weight in the dtype in which `torch.autocast` would multiply it."""
    kind = weight.device.type
    return weight.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else weight


def elementwise(function: Callable[[Tensor], Tensor], x: Tensor, batch_invariant: bool) -> Tensor:
    """`function` of each entry of x, any shape; in the mode an entry's bits do not depend on its place."""
    if not batch_invariant or x.device.type != "cpu":  # a GPU runs the same instructions for every entry
        return function(x)
    flat = functional.pad(x.reshape(-1), (0, -x.numel() % _PIECE))
    found = torch.cat([function(piece) for piece in torch.split(flat, _PIECE)])
    return found[: x.numel()].view(x.shape)
