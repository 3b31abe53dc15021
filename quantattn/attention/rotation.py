"""Rotary positions applied to queries and keys (Su et al. 2021, arXiv 2104.09864).

It stands in this room because its kernel is written in Triton, which only `attention/kernels` may import. What a
compiler makes of the gradient, three parts put together with conditions, took three times as long on an H200.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from quantattn.attention.device import on_its_device
from quantattn.attention.operators import differentiate, operator


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the pairs (x_i, x_{i + D/2}) of x by angles; the result has x's dtype.

    Args:
        x: (T, H, D), D even.
        cos: (T, 1, D) float32, the cosines twice.
        sin: (T, 1, D) float32, the sines, negative and then positive.
    """
    # A flip is a matter of indices, which a compiler fuses with the rest; halves put together are a copy to it.
    return torch.addcmul(x * cos, _swapped(x), sin).to(x.dtype)


def rotate_heads(qkv: Tensor, cos: Tensor, sin: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries and keys of every head, turned, and values as they are, each contiguous.

    Args:
        qkv: (T, H + 2 Hkv, D), as one product gives them.
        cos: (T, 1, D) float32, as for `rotate`.
        sin: likewise.
        heads: H.

    Returns:
        q (T, H, D), k and v (T, Hkv, D), in the dtype of qkv.

    Raises:
        ValueError: shapes that do not fit together.
    """
    total, d = qkv.shape[1:] if qkv.dim() == 3 else (0, 0)
    if total <= heads or (total - heads) % 2 or d % 2:
        raise ValueError(f"qkv must be (T, {heads} + 2 Hkv, D) with D even, got {tuple(qkv.shape)}")
    for name, table in (("cos", cos), ("sin", sin)):
        if table.shape != (qkv.shape[0], 1, d) or table.dtype != torch.float32:
            raise ValueError(f"{name} must be float32 (T, 1, {d}), got {table.dtype} {tuple(table.shape)}")
    return rotate_heads_op(qkv, cos, sin, heads)  # type: ignore[no-any-return]


def _parts(qkv: Tensor, cos: Tensor, sin: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    rows, total, d = qkv.shape
    kv_heads = (total - heads) // 2
    return qkv.new_empty(rows, heads, d), qkv.new_empty(rows, kv_heads, d), qkv.new_empty(rows, kv_heads, d)


def _whole(dq: Tensor, dk: Tensor, *_: Any) -> Tensor:
    return dq.new_empty(dq.shape[0], dq.shape[1] + 2 * dk.shape[1], dq.shape[2])


@operator("rotate_heads", "(Tensor qkv, Tensor cos, Tensor sin, int heads) -> (Tensor, Tensor, Tensor)", _parts)
@on_its_device
def rotate_heads_op(qkv: Tensor, cos: Tensor, sin: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """`rotate_heads`, its arguments checked."""
    kv_heads = (qkv.shape[1] - heads) // 2
    if _by_kernel(qkv):
        from quantattn.attention.kernels import rotation

        q, k, v = _parts(qkv, cos, sin, heads)
        rotation.launch_rotation(qkv.contiguous(), q, k, v, cos.contiguous(), sin.contiguous())
        return q, k, v
    q, k, v = torch.split(qkv, [heads, kv_heads, kv_heads], dim=1)
    return rotate(q, cos, sin), rotate(k, cos, sin), v.clone(memory_format=torch.contiguous_format)


@operator("rotate_heads_backward", "(Tensor dq, Tensor dk, Tensor dv, Tensor cos, Tensor sin) -> Tensor", _whole)
@on_its_device
def rotate_heads_backward_op(dq: Tensor, dk: Tensor, dv: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The gradient of qkv (T, H + 2 Hkv, D): a rotation by the negative angles, which is its transpose."""
    if _by_kernel(dq):
        from quantattn.attention.kernels import rotation

        dqkv: Tensor = _whole(dq, dk)
        dq, dk, dv, cos, sin = (x.contiguous() for x in (dq, dk, dv, cos, sin))
        rotation.launch_rotation(dqkv, dq, dk, dv, cos, sin, back=True)
        return dqkv
    back = _swapped(sin)
    return torch.cat([rotate(dq, cos, back), rotate(dk, cos, back), dv], dim=1)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs[1:3])


def _differentiate(ctx: Any, dq: Tensor, dk: Tensor, dv: Tensor) -> tuple[Tensor | None, ...]:
    return rotate_heads_backward_op(dq, dk, dv, *ctx.saved_tensors), None, None, None


differentiate(rotate_heads_op, _differentiate, _save)
differentiate(rotate_heads_backward_op)


def _swapped(x: Tensor) -> Tensor:
    """The halves of the last axis in the other order."""
    return x.view(*x.shape[:-1], 2, x.shape[-1] // 2).flip(-2).flatten(-2)


def _by_kernel(x: Tensor) -> bool:
    return x.is_cuda and x.dtype != torch.float64
