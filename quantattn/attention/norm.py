"""RMS normalisation of a residual stream, from the addition of a branch before it to the projection behind it.

It stands in this room because its kernel is written in Triton, which only `attention/kernels` may import. What a
compiler makes of it keeps the normalised rows for the gradient of the projection's weight.

Dimensions: T rows, C model width, N outputs of the projection.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from quantattn.attention.device import on_its_device
from quantattn.attention.linear import batch_invariant_linear_op
from quantattn.attention.operators import differentiate, operator


def add_norm_linear(
    x: Tensor,
    branch: Tensor | None,
    gain: Tensor,
    eps: float,
    weight: Tensor,
    *,
    keep_parts: bool = False,
    batch_invariant: bool = False,
) -> tuple[Tensor, Tensor]:
    """The sum s = x + branch and y = (s / √(mean(s²) + ε) · gain) Wᵀ, a row's mean over its C entries.

    For backward it keeps s and a number a row: the normalised rows are computed again where the gradient passes.

    Args:
        x: (T, C), the stream.
        branch: (T, C), of any dtype, or None for 0; the sum is rounded to x's dtype.
        gain: (C,).
        eps: ε.
        weight: (N, C) W; its dtype is that of the product. All else is float32 inside, or float64.
        keep_parts: keep x and branch in place of s. A bfloat16 branch is half a float32 sum, where x is kept anyway.
        batch_invariant: whether a row of y has the same bits among any rows, see `batch_invariant_linear`.

    Returns:
        s (T, C) in x's dtype and y (T, N) in W's.

    Raises:
        ValueError: shapes that do not fit together.
    """
    _check(x, branch, gain)
    if weight.dim() != 2 or weight.shape[1] != x.shape[1]:
        raise ValueError(f"weight must be (N, {x.shape[1]}), got {tuple(weight.shape)}")
    total, y, _ = add_norm_linear_op(x, branch, gain, weight, eps, keep_parts, batch_invariant)
    return x if branch is None else total, y


def add_norm(x: Tensor, branch: Tensor | None, gain: Tensor, eps: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The sum and its normalised rows in `dtype`, which `add_norm_linear` multiplies."""
    _check(x, branch, gain)
    total, normed, _ = add_norm_op(x, branch, gain, eps, dtype)
    return x if branch is None else total, normed


def by_kernel(x: Tensor) -> bool:
    """Whether parts of an encoder between its products run in kernels of ours on the device of x, in its dtype."""
    return x.is_cuda and x.dtype != torch.float64


def _check(x: Tensor, branch: Tensor | None, gain: Tensor) -> None:
    if x.dim() != 2 or gain.shape != x.shape[1:] or (branch is not None and branch.shape != x.shape):
        got = ", ".join(str(tuple(t.shape)) for t in (x, branch, gain) if t is not None)
        raise ValueError(f"x, a branch and gain must be (T, C), (T, C) and (C,), got {got}")


def _wide(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _shapes(
    x: Tensor, branch: Tensor | None, gain: Tensor, eps: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    total = x.new_empty(0 if branch is None else x.shape)
    return total, x.new_empty(x.shape, dtype=dtype), x.new_empty(x.shape[0], dtype=_wide(x))


@operator(
    "add_norm",
    "(Tensor x, Tensor? branch, Tensor gain, float eps, ScalarType dtype) -> (Tensor, Tensor, Tensor)",
    _shapes,
)
@on_its_device
def add_norm_op(
    x: Tensor, branch: Tensor | None, gain: Tensor, eps: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Sum (T, C), empty without a branch; its normalised rows in `dtype`; and what they were multiplied by, (T,)."""
    return _add_norm(x, branch, gain, eps, dtype)


def _add_norm(
    x: Tensor, branch: Tensor | None, gain: Tensor, eps: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    total, normed, scale = _shapes(x, branch, gain, eps, dtype)
    if by_kernel(x):
        from quantattn.attention.kernels import norm

        norm.launch_add_norm(x, branch, gain, None if branch is None else total, normed, scale, eps)
        return total, normed, scale
    s = _summed(x, branch)
    scale = torch.rsqrt(s.to(_wide(x)).square().mean(1) + eps)
    normed = s * scale[:, None] * gain.to(scale.dtype)
    return total if branch is None else s, normed.to(dtype), scale


def _summed(x: Tensor, branch: Tensor | None) -> Tensor:
    return x if branch is None else (x.to(_wide(x)) + branch.to(_wide(x))).to(x.dtype)


def _backward_shapes(
    dnormed: Tensor, dtotal: Tensor | None, x: Tensor, branch: Tensor | None, gain: Tensor, scale: Tensor,
    dtype: torch.dtype | None, wants_normed: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    dbranch = x.new_empty(0 if dtype is None else x.shape, dtype=dtype or x.dtype)
    normed = dnormed.new_empty(dnormed.shape if wants_normed else 0)
    return x.new_empty(x.shape), dbranch, gain.new_empty(gain.shape), normed


@operator(
    "add_norm_backward",
    "(Tensor dnormed, Tensor? dtotal, Tensor x, Tensor? branch, Tensor gain, Tensor scale, ScalarType? dtype, "
    "bool wants_normed) -> (Tensor, Tensor, Tensor, Tensor)",
    _backward_shapes,
)
@on_its_device
def add_norm_backward_op(
    dnormed: Tensor, dtotal: Tensor | None, x: Tensor, branch: Tensor | None, gain: Tensor, scale: Tensor,
    dtype: torch.dtype | None, wants_normed: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of x, of a branch of `dtype` and of the gain; and the normalised rows again, if they are wanted.

    What is normalised is x + branch, or x alone, which is then the sum. Without a dtype there was no branch.
    """
    dx, dbranch, dgain, normed = _backward_shapes(dnormed, dtotal, x, branch, gain, scale, dtype, wants_normed)
    if by_kernel(x):
        from quantattn.attention.kernels import norm

        wanted = dx, None if dtype is None else dbranch, normed if wants_normed else None
        dgain.copy_(norm.launch_add_norm_backward(dnormed, dtotal, x, branch, gain, scale, *wanted))
        return dx, dbranch, dgain, normed
    unit = _summed(x, branch) * scale[:, None]
    along = dnormed * gain.to(scale.dtype)
    dsum = (along - unit * (along * unit).mean(1, keepdim=True)) * scale[:, None]
    dsum = dsum if dtotal is None else dsum + dtotal
    dbranch = dbranch if dtype is None else dsum.to(dtype, copy=True)
    normed = (unit * gain.to(scale.dtype)).to(dnormed.dtype) if wants_normed else normed
    return dsum.to(x.dtype), dbranch, (dnormed * unit).sum(0).to(gain.dtype), normed


def _linear_shapes(
    x: Tensor, branch: Tensor | None, gain: Tensor, weight: Tensor, *__: Any
) -> tuple[Tensor, Tensor, Tensor]:
    total, _, scale = _shapes(x, branch, gain, 0.0, weight.dtype)
    return total, weight.new_empty(x.shape[0], weight.shape[0]), scale


@operator(
    "add_norm_linear",
    "(Tensor x, Tensor? branch, Tensor gain, Tensor weight, float eps, bool keep_parts, bool batch_invariant) "
    "-> (Tensor, Tensor, Tensor)",
    _linear_shapes,
)
@on_its_device
def add_norm_linear_op(
    x: Tensor, branch: Tensor | None, gain: Tensor, weight: Tensor, eps: float, keep_parts: bool, batch_invariant: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """As `add_norm_op`, with the product of the rows in their place."""
    total, normed, scale = _add_norm(x, branch, gain, eps, weight.dtype)
    return total, batch_invariant_linear_op(normed, weight, None) if batch_invariant else normed @ weight.t(), scale


def _save(
    ctx: Any,
    x: Tensor,
    branch: Tensor | None,
    gain: Tensor,
    output: tuple[Tensor, ...],
    keep_parts: bool,
    *more: Tensor,
) -> None:
    total, _, scale = output
    ctx.mark_non_differentiable(scale)
    ctx.branch = None if branch is None else branch.dtype
    kept = (x, branch) if keep_parts or branch is None else (total, None)
    ctx.save_for_backward(*kept, gain, scale, *more)


def _save_norm(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, branch, gain, *_ = inputs
    _save(ctx, x, branch, gain, output, False)


def _save_linear(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, branch, gain, weight, _, keep_parts, _ = inputs
    _save(ctx, x, branch, gain, output, keep_parts, weight)


def _through_norm(ctx: Any, parts: tuple[Any, ...], dtotal: Tensor, dnormed: Tensor, wants: bool) -> tuple[Any, ...]:
    """Gradients of x, branch and gain, and the normalised rows."""
    dtype = ctx.branch
    dx, dbranch, dgain, normed = add_norm_backward_op(dnormed, None if dtype is None else dtotal, *parts, dtype, wants)
    return dx, None if dtype is None else dbranch, dgain, normed


def _differentiate_norm(ctx: Any, dtotal: Tensor, dnormed: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    return *_through_norm(ctx, ctx.saved_tensors, dtotal, dnormed, False)[:3], None, None


def _differentiate_linear(ctx: Any, dtotal: Tensor, dy: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    *parts, weight = ctx.saved_tensors
    wants = ctx.needs_input_grad[3]
    *gradients, normed = _through_norm(ctx, tuple(parts), dtotal, dy @ weight, wants)
    return *gradients, dy.t() @ normed if wants else None, None, None, None


def _once(*_: Any) -> tuple[Tensor | None, ...]:
    raise RuntimeError("normalisation on a GPU has first derivatives only; in float64, or on a CPU, it has more")


differentiate(add_norm_op, _differentiate_norm, _save_norm)
differentiate(add_norm_linear_op, _differentiate_linear, _save_linear)
differentiate(add_norm_backward_op, _once)
