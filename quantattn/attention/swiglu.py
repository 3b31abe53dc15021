"""SwiGLU and the projection behind it (Shazeer 2020, arXiv 2002.05202).

It stands in this room because its kernel is written in Triton, which only `attention/kernels` may import. What a
compiler makes of it keeps the product of gate and value beside the two.

Dimensions: T rows, F inner width, N outputs of the projection.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from quantattn.attention.device import on_its_device
from quantattn.attention.linear import batch_invariant_linear_op
from quantattn.attention.norm import by_kernel
from quantattn.attention.operators import differentiate, operator


def swiglu_linear(x: Tensor, weight: Tensor, *, batch_invariant: bool = False) -> Tensor:
    """The map (silu(a) · b) Wᵀ with (a, b) the halves of x's rows and silu(a) = a / (1 + e⁻ᵃ).

    For backward it keeps x: the product is computed again where the gradient passes.

    Args:
        x: (T, 2 F).
        weight: (N, F) W, of x's dtype. What is not a matrix product is float32 inside, or float64.
        batch_invariant: whether a row has the same bits among any rows, see `batch_invariant_linear`.

    Returns:
        (T, N), of the same dtype.

    Raises:
        ValueError: shapes that do not fit together.
    """
    if x.dim() != 2 or weight.dim() != 2 or x.shape[1] != 2 * weight.shape[1]:
        raise ValueError(f"x and weight must be (T, 2 F) and (N, F), got {tuple(x.shape)} and {tuple(weight.shape)}")
    return swiglu_linear_op(x, weight, batch_invariant)  # type: ignore[no-any-return]


def _inner_shape(x: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], x.shape[1] // 2)


@operator("swiglu", "(Tensor x) -> Tensor", _inner_shape)
@on_its_device
def swiglu_op(x: Tensor) -> Tensor:
    """Silu of the first half of each row times the second, (T, F) of (T, 2 F)."""
    return _inner(x)


def _inner(x: Tensor) -> Tensor:
    if by_kernel(x):
        from quantattn.attention.kernels import swiglu

        out = _inner_shape(x)
        swiglu.launch_swiglu(x.contiguous(), out)
        return out
    gate, value = _halves(x)
    return (functional.silu(gate) * value).to(x.dtype)


def _backward_shapes(dout: Tensor, x: Tensor, wants_out: bool) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(dout.shape if wants_out else 0)


@operator("swiglu_backward", "(Tensor dout, Tensor x, bool wants_out) -> (Tensor, Tensor)", _backward_shapes)
@on_its_device
def swiglu_backward_op(dout: Tensor, x: Tensor, wants_out: bool) -> tuple[Tensor, Tensor]:
    """The gradient of x (T, 2 F), and the result (T, F) again, if it is wanted."""
    dx, out = _backward_shapes(dout, x, wants_out)
    if by_kernel(x):
        from quantattn.attention.kernels import swiglu

        swiglu.launch_swiglu_backward(dout.contiguous(), x.contiguous(), dx, out if wants_out else None)
        return dx, out
    gate, value = _halves(x)
    share, silu = torch.sigmoid(gate), functional.silu(gate)
    dgate = dout * value * (share + silu * (1 - share))
    return torch.cat([dgate, dout * silu], 1).to(x.dtype), (silu * value).to(x.dtype) if wants_out else out


def _product_shape(x: Tensor, weight: Tensor, *_: Any) -> Tensor:
    return x.new_empty(x.shape[0], weight.shape[0])


@operator("swiglu_linear", "(Tensor x, Tensor weight, bool batch_invariant) -> Tensor", _product_shape)
@on_its_device
def swiglu_linear_op(x: Tensor, weight: Tensor, batch_invariant: bool) -> Tensor:
    """`swiglu_linear`, its arguments checked."""
    inner = _inner(x)
    product: Tensor = batch_invariant_linear_op(inner, weight, None) if batch_invariant else inner @ weight.t()
    return product


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:2])


def _differentiate(ctx: Any, dout: Tensor) -> tuple[Tensor]:
    return (swiglu_backward_op(dout, *ctx.saved_tensors, False)[0],)


def _differentiate_linear(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    x, weight = ctx.saved_tensors
    wants = ctx.needs_input_grad[1]
    dx, inner = swiglu_backward_op(dy @ weight, x, wants)
    return dx, dy.t() @ inner if wants else None, None


def _once(*_: Any) -> tuple[Tensor | None, ...]:
    raise RuntimeError("SwiGLU on a GPU has first derivatives only; in float64, or on a CPU, it has more")


differentiate(swiglu_op, _differentiate, _save)
differentiate(swiglu_linear_op, _differentiate_linear, _save)
differentiate(swiglu_backward_op, _once)


def _halves(x: Tensor) -> tuple[Tensor, Tensor]:
    gate, value = (x if x.dtype == torch.float64 else x.float()).chunk(2, dim=1)
    return gate, value
