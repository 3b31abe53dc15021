"""Registered operators: schema, shapes without data, autograd. Kernels are imported inside the implementations.

`quantattn::attention` and `quantattn::attention_backward` are the kernels: dense q (B, N, H, D), k and v
(B, Nk, Hkv, D); a pack is B = 1 with offsets. They return out in the layout of q and lse (B, H, N) float32.

`quantattn::packed_attention` and its backward are what runs without kernels, `sdpa` and `tiled`: q (T, H, D), k and v
(Tk, Hkv, D), always with offsets, whose values the host reads. They return out (T, H, D) and lse (T, H).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from quantattn.attention.mask import Mask
from quantattn.attention.seen import as_given
from quantattn.attention.state import lse_dtype

_PROBLEM = "Tensor? cu_q, Tensor? cu_k, Tensor? bias, float scale, int? left, int? right"


def check_values(q_rows: int, k_rows: int, cu_q: Tensor, cu_k: Tensor, bias: Tensor | None) -> None:
    """Raise ValueError unless the offsets describe these rows and a bias is as long as the longest sequence.

    Called where a computation begins and not where it is asked for, because a traced graph has no values to read.
    Offsets on a device are believed: the host would have to wait for them. It does wait when a bias has one entry a
    place, for a short one would be read beyond its end.
    """
    for name, cu, rows in (("cu_seqlens", cu_q, q_rows), ("cu_seqlens_k", cu_k, k_rows)):
        if cu.device.type == "cpu" and (int(cu[0]) != 0 or int(cu[-1]) != rows or bool((cu.diff() < 0).any())):
            raise ValueError(f"{name} must rise from 0 to the {rows} rows it describes, got {cu.tolist()[:8]}")
    places = () if bias is None else tuple(bias.shape[-2:])
    if all(size == 1 for size in places):
        return
    longest = [int(cu.diff().max()) if cu.shape[0] > 1 else 0 for cu in (cu_q, cu_k)]
    if any(have not in (1, want) for have, want in zip(reversed(places), reversed(longest), strict=False)):
        raise ValueError(f"axes {places} of bias do not broadcast to the longest sequences (Nq, Nk) = {longest}")


def positive_scale(q: Tensor, scale: float) -> tuple[Tensor, float]:
    """(q', scale') with scale' > 0 and q'·scale' = q·scale to the bit.

    For implementations that mask a score, or take the maximum, before they multiply.
    """
    if scale > 0:
        return q, scale
    return (-q, -scale) if scale < 0 else (q * 0, 1.0)


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
    scale: float, left: int | None, right: int | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Out = softmax(q kᵀ · scale + bias) v over the visible keys of each sequence, and its lse."""
    launch = _kernels()
    if cu_q is not None and cu_k is not None:
        check_values(q.shape[1], k.shape[1], cu_q, cu_k, bias)
    out, lse = _forward_shapes(q, k, v, cu_q, cu_k, bias, scale, left, right)
    launch.launch_forward(q, k, v, out, lse, launch.Problem(scale, left, right, cu_q, cu_k, bias))
    return out, lse


@attention_op.register_fake
def _forward_shapes(
    q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor | None, cu_k: Tensor | None, bias: Tensor | None,
    scale: float, left: int | None, right: int | None,
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
    scale: float, left: int | None, right: int | None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """dq, dk, dv from the gradients of out and of lse; scores are computed again, nothing N × N is stored."""
    launch = _kernels()
    dq, dk, dv = _backward_shapes(do, dlse, q, k, v, out, lse, cu_q, cu_k, bias, scale, left, right)
    problem = launch.Problem(scale, left, right, cu_q, cu_k, bias)
    launch.launch_backward(do, dlse, q, k, v, out.contiguous(), lse.contiguous(), dq, dk, dv, problem)
    return dq, dk, dv


@attention_backward_op.register_fake
def _backward_shapes(
    do: Tensor, dlse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor,
    cu_q: Tensor | None, cu_k: Tensor | None, bias: Tensor | None,
    scale: float, left: int | None, right: int | None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, cu_q, cu_k, bias, *numbers = inputs
    ctx.save_for_backward(q, k, v, cu_q, cu_k, bias, *output)
    ctx.numbers = numbers
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, do: Tensor | None, dlse: Tensor | None) -> tuple[Tensor | None, ...]:
    q, k, v, cu_q, cu_k, bias, out, lse = ctx.saved_tensors
    unused = (None,) * 6
    if do is None and dlse is None:
        return (None, None, None, *unused)
    do = torch.zeros_like(out) if do is None else do
    numbers = ctx.numbers
    dq, dk, dv = attention_backward_op(do, dlse, q, k, v, out, lse, cu_q, cu_k, bias, *numbers)
    return (dq, dk, dv, *unused)


attention_op.register_autograd(_differentiate, setup_context=_save)


_PACK = (
    "Tensor cu_q, Tensor cu_k, Tensor? bias, float scale, int? left, int? right, str backend, int block_q, int block_k"
)


def _plain(backend: str) -> Any:
    from quantattn.attention import sdpa, tiled

    return {"sdpa": sdpa, "tiled": tiled}[backend]


def _tiling(
    cu_q: Tensor, cu_k: Tensor, scale: float, left: int | None, right: int | None, block_q: int, block_k: int
) -> Any:
    from quantattn.attention.tiled import Tiling

    mask = Mask() if left is None and right is None else Mask(window=(left, right))
    return Tiling(tuple(cu_q.tolist()), tuple(cu_k.tolist()), mask, scale, block_q, block_k)


@torch.library.custom_op(
    "quantattn::packed_attention",
    mutates_args=(),
    schema=f"(Tensor q, Tensor k, Tensor v, {_PACK}) -> (Tensor, Tensor)",
)
def packed_attention_op(
    q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, bias: Tensor | None,
    scale: float, left: int | None, right: int | None, backend: str, block_q: int, block_k: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Out = softmax(q kᵀ · scale + bias) v over the visible keys of each sequence, and its lse, on any device."""
    check_values(q.shape[0], k.shape[0], cu_q, cu_k, bias)
    tiling = _tiling(cu_q, cu_k, scale, left, right, block_q, block_k)
    with as_given(q.device):
        out, lse = _plain(backend).forward(q, k, v, bias, tiling)
    return out, lse


@packed_attention_op.register_fake
def _packed_shapes(q: Tensor, k: Tensor, v: Tensor, *problem: Any) -> tuple[Tensor, Tensor]:
    return q.new_empty(q.shape), q.new_empty(q.shape[:2], dtype=lse_dtype(q.dtype))


@torch.library.custom_op(
    "quantattn::packed_attention_backward",
    mutates_args=(),
    schema="(Tensor do, Tensor? dlse, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, bool wants_dbias, "
    f"{_PACK}) -> (Tensor, Tensor, Tensor, Tensor)",
)
def packed_attention_backward_op(
    do: Tensor, dlse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, wants_dbias: bool,
    cu_q: Tensor, cu_k: Tensor, bias: Tensor | None,
    scale: float, left: int | None, right: int | None, backend: str, block_q: int, block_k: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """dq, dk, dv and, when it is wanted, dbias (else an empty tensor), from the gradients of out and of lse."""
    tiling = _tiling(cu_q, cu_k, scale, left, right, block_q, block_k)
    with as_given(q.device):
        dq, dk, dv, dbias = _plain(backend).backward(q, k, v, bias, out, lse, do, dlse, tiling, wants_dbias)
    return dq, dk, dv, q.new_empty(0) if dbias is None else dbias


@packed_attention_backward_op.register_fake
def _packed_backward_shapes(
    do: Tensor, dlse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, wants_dbias: bool,
    cu_q: Tensor, cu_k: Tensor, bias: Tensor | None, *problem: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    dbias = q.new_empty(0) if bias is None or not wants_dbias else bias.new_empty(bias.shape)
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape), dbias


def _differentiate_packed(ctx: Any, do: Tensor | None, dlse: Tensor | None) -> tuple[Tensor | None, ...]:
    q, k, v, cu_q, cu_k, bias, out, lse = ctx.saved_tensors
    if do is None and dlse is None:
        return (None,) * 12
    do = torch.zeros_like(out) if do is None else do
    wants_dbias = bias is not None and ctx.needs_input_grad[5]
    dq, dk, dv, dbias = packed_attention_backward_op(
        do, dlse, q, k, v, out, lse, wants_dbias, cu_q, cu_k, bias, *ctx.numbers
    )
    return dq, dk, dv, None, None, dbias if wants_dbias else None, *(None,) * 6


packed_attention_op.register_autograd(_differentiate_packed, setup_context=_save)
