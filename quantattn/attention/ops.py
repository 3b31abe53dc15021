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

from quantattn.attention.device import on_its_device
from quantattn.attention.dropout import threshold
from quantattn.attention.extras import Extras
from quantattn.attention.mask import Mask
from quantattn.attention.operators import differentiate, operator
from quantattn.attention.rules import rule_named
from quantattn.attention.seen import as_given
from quantattn.attention.state import lse_dtype

_PROBLEM = "Tensor? cu_q, Tensor? cu_k, Tensor? bias, float scale, int? left, int? right"
_MORE = (
    "int prefix=0, float softcap=0.0, float dropout=0.0, Tensor? scales=None, Tensor? alibi=None, Tensor? sinks=None, "
    "Tensor? segments=None, Tensor? segments_k=None, Tensor? seed=None, str rule=''"
)
_MORE_COUNT = 10
_ORDER = "bool ordered=False"
"""Of the forward alone: whether a query's order of sums depends on its own keys and on nothing else."""
_HOPPER = "bool hopper=False, bool repeats=True"
"""Whether the kernels for sm_90 run, which take plain scores alone (`choose.py`)."""


def arguments(mask: Mask, extras: Extras) -> tuple[Any, ...]:
    """What the operators take beside the bounds of the mask, in the order of their schema."""
    e = extras
    tensors = (e.scales, e.alibi, e.sinks, e.segments, e.segments_k, e.seed if e.dropout else None)
    return min(mask.prefix, 1 << 30), e.softcap or 0.0, e.dropout, *tensors, mask.rule or ""


def _extras(more: tuple[Any, ...]) -> Extras:
    _, softcap, dropout, scales, alibi, sinks, segments, segments_k, seed, _ = more
    return Extras(softcap or None, scales, alibi, sinks, segments, segments_k, dropout, seed)


def check_values(q_rows: int, k_rows: int, cu_q: Tensor, cu_k: Tensor, bias: Tensor | None) -> None:
    """Raise ValueError unless the offsets describe these rows and a bias is as long as the longest sequence.

    Called where a computation begins and not where it is asked for, because a traced graph has no values to read.
    Offsets on a device are believed: the host would have to wait for them; wrong ones read what is not theirs, or wait
    for ever. It does wait when a bias has one entry a
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


def _hopper_kernels(device: torch.device) -> Any:
    from quantattn.attention.kernels.hopper import launch

    if _kernels().capability(device) != 90:  # a graph that was traced elsewhere
        raise ValueError(
            f"this graph was made for a GPU of compute capability 9.0 and runs on {device}: trace it there"
        )
    return launch


def _problem(
    device: torch.device, cu_q: Tensor | None, cu_k: Tensor | None, bias: Tensor | None, scale: float, *rest: Any,
    ordered: bool = False,
) -> Any:  # fmt: skip
    left, right, *more = rest
    prefix, softcap, dropout, scales, alibi, sinks, segments, segments_k, seed, rule = more
    keep = threshold(dropout) / 2**32
    return _kernels().Problem(
        scale, left, right, cu_q, cu_k, bias, prefix, scales, softcap, alibi, sinks, segments, segments_k, seed, keep,
        ordered, rule_named(rule).checked_kernel(device) if rule else None,
    )  # fmt: skip


def _forward_shapes(q: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
    b, n, h, d = q.shape
    return q.new_empty(b, n, h, d), q.new_empty(b, h, n, dtype=torch.float32)


@operator(
    "attention",
    f"(Tensor q, Tensor k, Tensor v, {_PROBLEM}, {_MORE}, {_ORDER}, {_HOPPER}) -> (Tensor, Tensor)",
    _forward_shapes,
)
@on_its_device
def attention_op(
    q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor | None, cu_k: Tensor | None, bias: Tensor | None,
    scale: float, left: int | None, right: int | None, prefix: int = 0, softcap: float = 0.0, dropout: float = 0.0,
    scales: Tensor | None = None, alibi: Tensor | None = None, sinks: Tensor | None = None,
    segments: Tensor | None = None, segments_k: Tensor | None = None, seed: Tensor | None = None, rule: str = "",
    ordered: bool = False, hopper: bool = False, repeats: bool = True,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Out = softmax(scores) v over the visible keys of each sequence, and its lse; `repeats`: so that gradients do."""
    if cu_q is not None and cu_k is not None:
        check_values(q.shape[1], k.shape[1], cu_q, cu_k, bias)
    more = (prefix, softcap, dropout, scales, alibi, sinks, segments, segments_k, seed, rule)
    out, lse = _forward_shapes(q)
    problem = _problem(q.device, cu_q, cu_k, bias, scale, left, right, *more, ordered=ordered)
    (_hopper_kernels(q.device) if hopper else _kernels()).launch_forward(q, k, v, out, lse, problem)
    return out, lse


def _shapes_of_more(
    q: Tensor, bias: Tensor | None, scales: Tensor | None, sinks: Tensor | None, wants_dbias: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """dbias, dscales, dsinks without data; an operator returns tensors, so what there is not is an empty one."""
    dbias = q.new_empty(0) if bias is None or not wants_dbias else bias.new_empty(bias.shape)
    dscales, dsinks = (q.new_empty(0) if x is None else x.new_empty(x.shape) for x in (scales, sinks))
    return dbias, dscales, dsinks


def _backward_shapes(
    do: Tensor, dlse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor,
    cu_q: Tensor | None, cu_k: Tensor | None, bias: Tensor | None,
    scale: float, left: int | None, right: int | None, prefix: int = 0, softcap: float = 0.0, dropout: float = 0.0,
    scales: Tensor | None = None, alibi: Tensor | None = None, sinks: Tensor | None = None,
    segments: Tensor | None = None, segments_k: Tensor | None = None, seed: Tensor | None = None, rule: str = "",
    wants_dbias: bool = False, hopper: bool = False, repeats: bool = True,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    return *(x.new_empty(x.shape) for x in (q, k, v)), *_shapes_of_more(q, bias, scales, sinks, wants_dbias)  # type: ignore[return-value]


@operator(
    "attention_backward",
    f"(Tensor do, Tensor? dlse, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, {_PROBLEM}, {_MORE}, "
    f"bool wants_dbias=False, {_HOPPER}) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    _backward_shapes,
)
@on_its_device
def attention_backward_op(
    do: Tensor, dlse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor,
    cu_q: Tensor | None, cu_k: Tensor | None, bias: Tensor | None,
    scale: float, left: int | None, right: int | None, prefix: int = 0, softcap: float = 0.0, dropout: float = 0.0,
    scales: Tensor | None = None, alibi: Tensor | None = None, sinks: Tensor | None = None,
    segments: Tensor | None = None, segments_k: Tensor | None = None, seed: Tensor | None = None, rule: str = "",
    wants_dbias: bool = False, hopper: bool = False, repeats: bool = True,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """dq, dk, dv, dbias, dscales, dsinks, empty where there is nothing; scores are computed again, none is stored."""
    launch = _kernels()
    more = (prefix, softcap, dropout, scales, alibi, sinks, segments, segments_k, seed, rule)
    problem = _problem(q.device, cu_q, cu_k, bias, scale, left, right, *more)
    results = _backward_shapes(do, dlse, q, k, v, out, lse, cu_q, cu_k, bias, scale, left, right, *more, wants_dbias)
    dq, dk, dv, dbias, dscales, dsinks = results
    out, lse = out.contiguous(), lse.contiguous()
    if hopper and _hopper_kernels(q.device).has_backward(q, problem):
        _hopper_kernels(q.device).launch_backward(
            do, dlse, q, k, v, out, lse, dq, dk, dv, problem, deterministic=repeats
        )
        return dq, dk, dv, dbias, dscales, dsinks
    delta = torch.empty_like(lse)
    along = None if scales is None else torch.zeros_like(lse)
    launch.launch_dq(do, dlse, q, k, v, out, lse, delta, dq, problem, along=along)
    launch.launch_dkdv(do, q, k, v, lse, delta, dk, dv, problem)
    if bias is not None and wants_dbias:
        dbias.copy_(launch.launch_dbias(do, q, k, v, lse, delta, problem, _longest(q, k, cu_q, cu_k)))
    if scales is not None and along is not None:
        dscales.copy_(along.sum((0, 2)))
    if sinks is not None:  # ∂lse/∂sink is the sink's weight, ∂out/∂sink is minus that weight times out
        weight = torch.exp(sinks[:, None] - lse).where(lse != -torch.inf, 0)
        dsinks.copy_(-(weight * delta).where(weight != 0, 0).sum((0, 2)))
    return dq, dk, dv, dbias, dscales, dsinks


def _longest(q: Tensor, k: Tensor, cu_q: Tensor | None, cu_k: Tensor | None) -> tuple[int, int]:
    """Queries and keys of the longest sequences. The host waits for offsets that are on a device."""
    if cu_q is None or cu_k is None:
        return q.shape[1], k.shape[1]
    return (int(cu_q.diff().max()), int(cu_k.diff().max())) if cu_q.shape[0] > 1 else (0, 0)


_BIAS = 5
"""Place of the bias among the inputs of either operator."""


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, cu_q, cu_k, bias, scale, left, right, *more, _, hopper, repeats = inputs
    ctx.save_for_backward(q, k, v, cu_q, cu_k, bias, *more[3:-1], *output)
    ctx.numbers, ctx.rule, ctx.kernels = (scale, left, right, *more[:3]), more[-1], (hopper, repeats)
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, do: Tensor | None, dlse: Tensor | None) -> tuple[Tensor | None, ...]:
    q, k, v, cu_q, cu_k, bias, *tensors, out, lse = ctx.saved_tensors
    if do is None and dlse is None:
        return (None,) * (9 + _MORE_COUNT + 3)
    do = torch.zeros_like(out) if do is None else do
    wants_dbias = bias is not None and ctx.needs_input_grad[_BIAS]
    dq, dk, dv, dbias, dscales, dsinks = attention_backward_op(
        do, dlse, q, k, v, out, lse, cu_q, cu_k, bias, *ctx.numbers, *tensors, ctx.rule, wants_dbias, *ctx.kernels
    )
    scales, _, sinks, *_ = tensors
    more = (None, None, None, dscales if scales is not None else None, None, dsinks if sinks is not None else None)
    return dq, dk, dv, None, None, dbias if wants_dbias else None, *(None,) * 3, *more, *(None,) * 7


differentiate(attention_op, _differentiate, _save)
differentiate(attention_backward_op)


_PACK = (
    "Tensor cu_q, Tensor cu_k, Tensor? bias, float scale, int? left, int? right, str backend, int block_q, int block_k"
)


def _plain(backend: str) -> Any:
    from quantattn.attention import sdpa, tiled

    return {"sdpa": sdpa, "tiled": tiled}[backend]


def _tiling(
    cu_q: Tensor, cu_k: Tensor, scale: float, left: int | None, right: int | None, prefix: int,
    block_q: int, block_k: int, rule: str, ordered: bool = False,
) -> Any:  # fmt: skip
    from quantattn.attention.tiling import Tiling

    unbounded = left is None and right is None
    mask = Mask(window=None if unbounded else (left, right), prefix=prefix, rule=rule or None)
    return Tiling(tuple(cu_q.tolist()), tuple(cu_k.tolist()), mask, scale, block_q, block_k, ordered)


def _packed_shapes(q: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
    return q.new_empty(q.shape), q.new_empty(q.shape[:2], dtype=lse_dtype(q.dtype))


@operator(
    "packed_attention",
    f"(Tensor q, Tensor k, Tensor v, {_PACK}, {_MORE}, {_ORDER}) -> (Tensor, Tensor)",
    _packed_shapes,
)
def packed_attention_op(
    q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, bias: Tensor | None,
    scale: float, left: int | None, right: int | None, backend: str, block_q: int, block_k: int,
    prefix: int = 0, softcap: float = 0.0, dropout: float = 0.0,
    scales: Tensor | None = None, alibi: Tensor | None = None, sinks: Tensor | None = None,
    segments: Tensor | None = None, segments_k: Tensor | None = None, seed: Tensor | None = None, rule: str = "",
    ordered: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Out = softmax(scores) v over the visible keys of each sequence, and its lse, on any device."""
    check_values(q.shape[0], k.shape[0], cu_q, cu_k, bias)
    tiling = _tiling(cu_q, cu_k, scale, left, right, prefix, block_q, block_k, rule, ordered)
    extras = _extras((prefix, softcap, dropout, scales, alibi, sinks, segments, segments_k, seed, rule))
    with as_given(q.device):
        out, lse = _plain(backend).forward(q, k, v, bias, tiling, extras)
    return out, lse


def _packed_backward_shapes(
    do: Tensor, dlse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, wants_dbias: bool,
    cu_q: Tensor, cu_k: Tensor, bias: Tensor | None, *rest: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    more = rest[6:]
    scales, sinks = (more[i] if len(more) > i else None for i in (3, 5))
    return *(x.new_empty(x.shape) for x in (q, k, v)), *_shapes_of_more(q, bias, scales, sinks, wants_dbias)  # type: ignore[return-value]


@operator(
    "packed_attention_backward",
    "(Tensor do, Tensor? dlse, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, bool wants_dbias, "
    f"{_PACK}, {_MORE}) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    _packed_backward_shapes,
)
def packed_attention_backward_op(
    do: Tensor, dlse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, wants_dbias: bool,
    cu_q: Tensor, cu_k: Tensor, bias: Tensor | None,
    scale: float, left: int | None, right: int | None, backend: str, block_q: int, block_k: int,
    prefix: int = 0, softcap: float = 0.0, dropout: float = 0.0,
    scales: Tensor | None = None, alibi: Tensor | None = None, sinks: Tensor | None = None,
    segments: Tensor | None = None, segments_k: Tensor | None = None, seed: Tensor | None = None, rule: str = "",
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """dq, dk, dv, dbias when it is wanted, dscales, dsinks, empty where there is nothing."""
    tiling = _tiling(cu_q, cu_k, scale, left, right, prefix, block_q, block_k, rule)
    extras = _extras((prefix, softcap, dropout, scales, alibi, sinks, segments, segments_k, seed, rule))
    with as_given(q.device):
        results = _plain(backend).backward(q, k, v, bias, out, lse, do, dlse, tiling, wants_dbias, extras)
    return tuple(q.new_empty(0) if x is None else x for x in results)  # type: ignore[return-value]


def _save_packed(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, cu_q, cu_k, bias, *numbers, rule, _ = inputs
    ctx.save_for_backward(q, k, v, cu_q, cu_k, bias, *numbers[9:], *output)
    ctx.numbers, ctx.rule = numbers[:9], rule
    ctx.set_materialize_grads(False)


def _differentiate_packed(ctx: Any, do: Tensor | None, dlse: Tensor | None) -> tuple[Tensor | None, ...]:
    q, k, v, cu_q, cu_k, bias, *tensors, out, lse = ctx.saved_tensors
    if do is None and dlse is None:
        return (None,) * (12 + _MORE_COUNT + 1)
    do = torch.zeros_like(out) if do is None else do
    wants_dbias = bias is not None and ctx.needs_input_grad[_BIAS]
    dq, dk, dv, dbias, dscales, dsinks = packed_attention_backward_op(
        do, dlse, q, k, v, out, lse, wants_dbias, cu_q, cu_k, bias, *ctx.numbers, *tensors, ctx.rule
    )
    scales, _, sinks, *_ = tensors
    more = (None, None, None, dscales if scales is not None else None, None, dsinks if sinks is not None else None)
    return dq, dk, dv, None, None, dbias if wants_dbias else None, *(None,) * 6, *more, *(None,) * 5


differentiate(packed_attention_op, _differentiate_packed, _save_packed)
differentiate(packed_attention_backward_op)
