"""The two products of attention, taken over visible pairs only.

Both are bilinear and each is made of the other's gradients, so that a value at an invisible place, NaN and inf
included, is absent from the result and from every derivative of it: 0 · NaN is never computed.

Dimensions: M queries, N keys, D head size; any leading batch dimensions.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from quantattn.attention.mask import Mask


def seen_scores(q: Tensor, k: Tensor, seen: Tensor) -> Tensor:
    """q_i · k_j where query i sees key j, 0 elsewhere; differentiable any number of times.

    Args:
        q: (…, M, D).
        k: (…, N, D), same leading dimensions.
        seen: (…, M, N) bool, broadcastable.
    """
    return cast(Tensor, _Scores.apply(q, k, seen))  # type: ignore[no-untyped-call]


def seen_sum(weights: Tensor, values: Tensor, seen: Tensor) -> Tensor:
    """Σ_j weights_ij · values_j over the keys j that query i sees; differentiable any number of times.

    A value that is not finite makes the sums of the queries that see it NaN, and no others.

    Args:
        weights: (…, M, N), exactly 0 where `seen` is false.
        values: (…, N, D), same leading dimensions.
        seen: (…, M, N) bool, broadcastable.
    """
    return cast(Tensor, _Sum.apply(weights, values, seen))  # type: ignore[no-untyped-call]


def product_of_seen(weights: Tensor, values: Tensor, seen: Tensor | None) -> Tensor:
    """`weights @ values` without the products of invisible pairs; no autograd of its own.

    Args:
        weights: (…, M, N), exactly 0 (or anything, for an invisible pair with a finite value) where not seen.
        values: (…, N, D).
        seen: (…, M, N) bool, broadcastable; None when every query sees every key.
    """
    if seen is None or all_finite(values):
        return weights @ values
    finite = torch.isfinite(values)
    total = weights @ values.where(finite, 0)
    spoiled = (seen.to(values.dtype).expand(weights.shape) @ (~finite).to(values.dtype)) > 0
    return total.masked_fill(spoiled, torch.nan)


def all_finite(*tensors: Tensor) -> bool:
    """Whether no element is NaN or infinite: one pass for the extremes, through which NaN propagates, and no mask."""
    return all(x.numel() == 0 or bool(torch.stack(torch.aminmax(x)).isfinite().all()) for x in tensors)


def as_given(device: torch.device) -> torch.autocast:
    """Products in the dtype of their factors, also inside somebody's autocast, which would round float32 to 16 bits."""
    return torch.autocast(device.type, enabled=False)


def visible_block(
    mask: Mask, queries: tuple[int, int], keys: tuple[int, int], n_q: int, n_k: int, device: torch.device
) -> Tensor | None:
    """The block `mask.visible(n_q, n_k)[queries, keys]` without forming the rest; None when all of it is visible."""
    if mask.of_block(queries, keys, n_q, n_k) == 2:
        return None
    shift = n_k - n_q
    beside = torch.arange(*queries, device=device)[:, None] + shift
    relative = torch.arange(*keys, device=device)[None, :] - beside
    seen = torch.ones_like(relative, dtype=torch.bool)
    if mask.left is not None:
        seen &= relative >= -mask.left
    if mask.right is not None:
        seen &= relative <= mask.right
    if mask.prefix:
        seen |= torch.arange(*keys, device=device)[None, :] < mask.prefix
    return mask.under_rule(seen, queries, keys, n_q, n_k)


def bias_of_sequence(bias: Tensor, n: int, n_q: int, n_k: int) -> Tensor:
    """The bias of sequence n, (1 or H, 1 or Nq, 1 or Nk), of one that broadcasts to (N, H, longest Nq, longest Nk)."""
    bias = bias.reshape((1,) * (4 - bias.dim()) + tuple(bias.shape))
    bias = bias[n if bias.shape[0] > 1 else 0]
    bias = bias[:, :n_q] if bias.shape[1] > 1 else bias
    return bias[:, :, :n_k] if bias.shape[2] > 1 else bias


class _Scores(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, seen: Tensor) -> Tensor:
        ctx.save_for_backward(q, k, seen)
        with as_given(q.device):
            return (q @ k.mT).where(seen, 0)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        q, k, seen = ctx.saved_tensors
        grad = grads[0].where(seen, 0)
        dq = seen_sum(grad, k, seen) if ctx.needs_input_grad[0] else None
        dk = seen_sum(grad.mT, q, seen.mT) if ctx.needs_input_grad[1] else None
        return dq, dk, None


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weights: Tensor, values: Tensor, seen: Tensor) -> Tensor:
        ctx.save_for_backward(weights, values, seen)
        with as_given(values.device):
            return product_of_seen(weights, values, seen)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        weights, values, seen = ctx.saved_tensors
        dw = seen_scores(grads[0], values, seen) if ctx.needs_input_grad[0] else None
        dv = seen_sum(weights.mT, grads[0], seen.mT) if ctx.needs_input_grad[1] else None
        return dw, dv, None
