"""Registered operators: schema, shapes without data, autograd. Kernels are imported inside the implementations.

`quantattn::attention` and `quantattn::attention_backward` take the dense layout q (B, N, H, D), k and v
(B, Nk, Hkv, D); a pack is B = 1 with offsets. They return out in the layout of q and lse (B, H, N) float32.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_PROBLEM = "Tensor? cu_q, Tensor? cu_k, Tensor? bias, float scale, int? left, int? right, str precision"


def _kernels() -> Any:
    from quantattn.attention.kernels import launch

    return launch


@torch.library.custom_op(
    "quantattn::attention",
    mutates_args=(),
    schema=f"(Tensor q, Tensor k, Tensor v, {_PROBLEM}) -> (Tensor, Tensor)",
)
def attention_op(
    q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor | None, cu_k: Tensor | None, bias: Tensor | None,
    scale: float, left: int | None, right: int | None, precision: str,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Out = softmax(q kᵀ · scale + bias) v over the visible keys of each sequence, and its lse."""
    launch = _kernels()
    out, lse = _forward_shapes(q, k, v, cu_q, cu_k, bias, scale, left, right, precision)
    launch.launch_forward(q, k, v, out, lse, launch.Problem(scale, left, right, precision, cu_q, cu_k, bias))
    return out, lse


@attention_op.register_fake
def _forward_shapes(
    q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor | None, cu_k: Tensor | None, bias: Tensor | None,
    scale: float, left: int | None, right: int | None, precision: str,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    b, n, h, d = q.shape
    return q.new_empty(b, n, h, d), q.new_empty(b, h, n, dtype=torch.float32)


@torch.library.custom_op(
    "quantattn::attention_backward",
    mutates_args=(),
    schema=f"(Tensor do, Tensor? dlse, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, {_PROBLEM}) "
    "-> (Tensor, Tensor, Tensor)",
)
def attention_backward_op(
    do: Tensor, dlse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor,
    cu_q: Tensor | None, cu_k: Tensor | None, bias: Tensor | None,
    scale: float, left: int | None, right: int | None, precision: str,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """dq, dk, dv from the gradients of out and of lse; scores are computed again, nothing N × N is stored."""
    launch = _kernels()
    dq, dk, dv = _backward_shapes(do, dlse, q, k, v, out, lse, cu_q, cu_k, bias, scale, left, right, precision)
    problem = launch.Problem(scale, left, right, precision, cu_q, cu_k, bias)
    launch.launch_backward(do, dlse, q, k, v, out.contiguous(), lse.contiguous(), dq, dk, dv, problem)
    return dq, dk, dv


@attention_backward_op.register_fake
def _backward_shapes(
    do: Tensor, dlse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor,
    cu_q: Tensor | None, cu_k: Tensor | None, bias: Tensor | None,
    scale: float, left: int | None, right: int | None, precision: str,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, cu_q, cu_k, bias, *numbers = inputs
    ctx.save_for_backward(q, k, v, cu_q, cu_k, bias, *output)
    ctx.numbers = numbers
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, do: Tensor | None, dlse: Tensor | None) -> tuple[Tensor | None, ...]:
    q, k, v, cu_q, cu_k, bias, out, lse = ctx.saved_tensors
    unused = (None,) * 7
    if do is None and dlse is None:
        return (None, None, None, *unused)
    do = torch.zeros_like(out) if do is None else do
    numbers = ctx.numbers
    dq, dk, dv = attention_backward_op(do, dlse, q, k, v, out, lse, cu_q, cu_k, bias, *numbers)
    return (dq, dk, dv, *unused)


attention_op.register_autograd(_differentiate, setup_context=_save)
