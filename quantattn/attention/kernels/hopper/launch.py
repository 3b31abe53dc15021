"""From tensors to launches on sm_90. Shapes: q (B, N, H, D), k and v (B, Nk, Hkv, D), 16 bits, D ≤ 256."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import torch
from torch import Tensor
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from quantattn.attention.kernels.hopper import backward, tasks, wide_keys, wide_queries
from quantattn.attention.kernels.hopper.backward import _attention_bwd
from quantattn.attention.kernels.hopper.compat import descriptor_of
from quantattn.attention.kernels.hopper.configs import (
    BACKWARD,
    WIDE_BACKWARD,
    BackwardConfig,
    ForwardConfig,
    forward_config,
    padded_head,
)
from quantattn.attention.kernels.hopper.ends import _attention_bwd_finish, _attention_bwd_prepare
from quantattn.attention.kernels.hopper.forward import _attention_fwd
from quantattn.attention.kernels.hopper.tiles import describable, describe, swizzled
from quantattn.attention.kernels.hopper.wide_keys import _attention_bwd_keys
from quantattn.attention.kernels.hopper.wide_queries import _attention_bwd_queries
from quantattn.attention.kernels.launch import Problem, strides

_KEYS = 128
_HALF = 64
_LINE = backward.LINE.value
_L2 = 32 << 20
"""Bytes of the second-level cache that q and do of the heads in flight may fill."""
_TOGETHER = 4, 64
"""How many heads are in flight under a bound, at least and at most, where there are so many."""


@cache
def multiprocessors(device: torch.device) -> int:
    """How many programs run at a time."""
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def launch_forward(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, problem: Problem, config: ForwardConfig | None = None
) -> None:
    """Write out (B, N, H, D) and lse (B, H, N) float32, both contiguous and owned by the caller."""
    packed = problem.cu_q is not None
    if not q.numel():
        return
    if not k.numel():
        out.zero_()
        lse.fill_(-torch.inf)
        return
    columns = padded_head(q.shape[-1])
    bounds = problem.bounds()
    left, right = bounds.left is not None, bounds.right is not None
    bounded = left or right
    batch, heads = q.shape[0], q.shape[2]
    n_q, n_k = (x.shape[0] * x.shape[1] // max(problem.sequences(q), 1) for x in (q, k))
    c = config or forward_config(columns, n_q, n_k, bounds.left, bounds.right)
    per_head = problem.tiles(q, 64 * c.groups) // batch
    tiles = per_head * heads * batch
    programs = min(c.programs * multiprocessors(q.device), tiles)
    # Equal tiles come out even by themselves.
    dynamic = packed or bounded
    counter = torch.zeros(1, dtype=torch.int32, device=q.device) if dynamic else None
    sizes = tasks.Sizes(
        columns, c.block_n, c.stages, c.groups, packed, c.overlap, c.turns, c.two_loops, c.shares, dynamic,
        left, right, bounded, q_bytes=c.groups * 64 * columns * 2, kv_bytes=c.block_n * columns * 2,
    )  # fmt: skip
    _attention_fwd[(programs,)](
        describe(describable(q), 64, columns, packed=packed),
        describe(describable(k), c.block_n, columns, packed=packed),
        describe(describable(v), c.block_n, columns, packed=packed),
        describe(out, 64, columns, packed=packed),
        lse, problem.cu_q, problem.cu_k, counter, problem.scale,
        problem.sequences(q), q.shape[1], k.shape[1], heads, heads // k.shape[2], per_head, tiles,
        bounds.left or 0, bounds.right or 0,
        SIZES=sizes, **c.warps(bounded), num_warps=4,
    )  # fmt: skip


def has_backward(q: Tensor, problem: Problem) -> bool:
    """Whether `launch_backward` takes this: its workspace, whole blocks of every sequence, is not much larger than q;
    for D ≤ 128 the sums of dq are float32, and one block of them for 16 rows would take eight times their own.
    """
    if q.shape[-1] > max(BACKWARD):
        return True
    block = 2 * _HALF * _HALF // padded_head(q.shape[-1])
    return problem.tiles(q, block) * block <= 4 * q.shape[0] * q.shape[1]


def launch_backward(
    do: Tensor, dlse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor,
    dq: Tensor, dk: Tensor, dv: Tensor, problem: Problem, config: BackwardConfig | None = None, *,
    deterministic: bool = True,
) -> None:  # fmt: skip
    """Write dq, dk and dv, contiguous and owned by the caller; every element of them.

    Args:
        do: (B, N, H, D), of the dtype of q.
        dlse: (B, H, N) float32, or None for 0.
        q: (B, N, H, D) float16 or bfloat16, D ≤ 256.
        k: (B, Nk, Hkv, D).
        v: (B, Nk, Hkv, D).
        out: (B, N, H, D), contiguous.
        lse: (B, H, N) float32, contiguous.
        dq: like q.
        dk: like k.
        dv: like v.
        problem: without anything but scale > 0, bounds and offsets.
        config: the measured one when None; of D ≤ 128.
        deterministic: whether the sum of dq has an order, where no config says it; with D > 128 it always has.
    """
    d, width = q.shape[-1], padded_head(q.shape[-1])
    q, k, v, do = (describable(x) for x in (q, k, v, do))
    if q.numel() == 0 or k.numel() == 0:
        for x in (dq, dk, dv):
            x.zero_()
        return
    if width not in BACKWARD:  # nothing to choose, and each sum has one writer
        _launch_wide_backward(do, dlse, q, k, v, out, lse, dq, dk, dv, problem)
        return
    config = config or replace(BACKWARD[width], deterministic=deterministic)
    packed = problem.cu_q is not None
    heads, heads_k, block_m = q.shape[2], k.shape[2], 2 * _HALF * _HALF // width
    tiles_q, tiles_k = problem.tiles(q, block_m), problem.tiles(k, _KEYS)
    tiles_k //= q.shape[0]  # of one strip
    strips = heads_k * q.shape[0]
    slots = heads * tiles_q
    bounded = problem.left is not None or problem.right is not None
    goes_around = not bounded and (packed or k.shape[1] > _KEYS)
    sums = 2 if config.deterministic and goes_around else 1
    counters = sums if config.deterministic else 0
    rows = torch.empty((2, slots * block_m), dtype=torch.float32, device=q.device)
    # The first program in turn overwrites; without turns all of them add.
    make = torch.empty if config.deterministic else torch.zeros
    acc = make((sums * slots * block_m * width // _LINE, _LINE), dtype=torch.float32, device=q.device)
    counts = torch.empty(1 + counters * slots, dtype=torch.int32, device=q.device)
    sequences, scale = problem.sequences(q), problem.scale
    _attention_bwd_prepare[(tiles_q, heads)](
        q, do, out, lse, dlse, rows[0], rows[1], counts[1:], counts, problem.cu_q,
        sequences, q.shape[1], tiles_q, slots, strides(q), strides(do), strides(out), strides(lse),
        None if dlse is None else strides(dlse),
        D=d, BLOCK_D=width, BLOCK_M=block_m, COUNTERS=counters, num_warps=4,
    )  # fmt: skip
    together = 1
    if bounded:  # what runs at a time shares the cache; the longest walks of several strips are to come first
        n_q = q.shape[0] * q.shape[1] // max(sequences, 1)  # of a pack's sequences on average
        fit = _L2 // (max(n_q, 1) * width * 4 * (heads // heads_k))
        together = min(strips, max(_TOGETHER[0], min(_TOGETHER[1], fit)))
    sizes = backward.Sizes(
        width, config.stages, config.defer, config.hold, int(config.early), packed, config.deterministic,
        128 // width, block_m,
    )  # fmt: skip
    _attention_bwd[(min(tiles_k * strips, multiprocessors(q.device)),)](
        *(describe(x, _HALF, width, packed=packed) for x in (q, k, v, do, dk, dv)), _line(rows[0]), _line(rows[1]),
        _tile(acc), counts[1:], counts, problem.cu_q, problem.cu_k, scale, sequences, q.shape[1], k.shape[1], heads_k,
        heads // heads_k, tiles_k, tiles_q, strips, together, slots, problem.left, problem.right,
        SIZES=sizes, REGISTERS=config.registers, SPARE=config.spare, num_warps=4,
    )  # fmt: skip
    _attention_bwd_finish[(tiles_q, heads)](
        acc, counts[1:], dq, problem.cu_q, scale, sequences, q.shape[1], tiles_q, slots, strides(dq),
        D=d, BLOCK_D=width, BLOCK_M=block_m, COUNTERS=counters, num_warps=4,
    )  # fmt: skip


def _launch_wide_backward(
    do: Tensor, dlse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor,
    dq: Tensor, dk: Tensor, dv: Tensor, problem: Problem,
) -> None:  # fmt: skip
    """`launch_backward` of D > 128."""
    packed = problem.cu_q is not None
    width, heads, heads_k = padded_head(q.shape[-1]), q.shape[2], k.shape[2]
    tiles_q, tiles_k = problem.tiles(q, _HALF), problem.tiles(k, _HALF)
    slots = heads * tiles_q
    left, right = problem.left, problem.right
    bounded = left is not None or right is not None
    rows = torch.empty((2, slots * _HALF), dtype=torch.float32, device=q.device)
    finite = torch.empty(1 + bounded * heads_k * tiles_k, dtype=torch.int32, device=q.device)
    sequences, scale = problem.sequences(q), problem.scale
    _attention_bwd_prepare[(tiles_q, heads)](
        q, do, out, lse, dlse, rows[0], rows[1], finite, finite, problem.cu_q,
        sequences, q.shape[1], tiles_q, slots, strides(q), strides(do), strides(out), strides(lse),
        None if dlse is None else strides(dlse),
        D=q.shape[-1], BLOCK_D=width, BLOCK_M=_HALF, COUNTERS=0, num_warps=4,
    )  # fmt: skip
    c = WIDE_BACKWARD
    inputs = [describe(x, _HALF, width, packed=packed) for x in (q, k, v, do)]
    _attention_bwd_keys[(tiles_k, heads_k)](
        *inputs, *(describe(x, _HALF, width, packed=packed) for x in (dk, dv)), _line(rows[0]), _line(rows[1]),
        finite[1:], problem.cu_q, problem.cu_k, scale, sequences, q.shape[1], k.shape[1], heads // heads_k,
        tiles_k, tiles_q, left, right,
        SIZES=wide_keys.Sizes(width, c.stages, c.weights, packed), REGISTERS=c.registers, SPARE=c.spare, num_warps=4,
    )  # fmt: skip
    per_head = problem.tiles(q, 2 * _HALF) // q.shape[0]
    sizes = wide_queries.Sizes(width, _HALF, c.stages, packed, left is not None, right is not None, bounded)
    _attention_bwd_queries[(per_head * heads * q.shape[0],)](
        *inputs, describe(dq, _HALF, width, packed=packed), rows[0], rows[1], finite[1:], problem.cu_q, problem.cu_k,
        scale, sequences, q.shape[1], k.shape[1], heads, heads // heads_k, per_head, tiles_k, tiles_q,
        left or 0, right or 0, SIZES=sizes, REGISTERS=c.registers, SPARE=c.spare, num_warps=4,
    )  # fmt: skip


def _line(x: Tensor) -> TensorDescriptor:
    """Descriptor of a row of float32 in pieces of 64."""
    return descriptor_of(x, (list(x.shape), [1], [_HALF], swizzled(0, 32, 1)))


def _tile(x: Tensor) -> TensorDescriptor:
    """Descriptor of lines of float32 in tiles of 64 × 64 numbers."""
    return descriptor_of(x, (list(x.shape), [_LINE, 1], [_HALF * _HALF // _LINE, _LINE], swizzled(0, 32, 2)))
