"""Backward of wide heads for sm_90, first half: dk and dv, with one writer each.

The sums of dq, dk and dv of a head of 256 do not fit beside each other, so there is one kernel for dk and dv and one
for dq (`wide_queries.py`): seven products a block instead of five, and no sum in global memory. A program takes 64
keys. Of its two warpgroups one has the values and one the keys, two products each: the first computes the weights Pᵀ,
[keys, queries], and adds Pᵀ do to dv; the second takes them over in float32, computes dSᵀ and adds dSᵀ q to dk. Either
takes the left operand of its sum from registers, starts its next product behind it, and leaves the tensor cores to
the other while it does arithmetic. A *loader* warp fills a ring of q and do by TMA.

Queries that are not finite are hidden as in `backward.py`. The second warpgroup notes whether keys are all finite,
which the kernel for dq asks in blocks that the mask cuts.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from quantattn.attention.kernels.arguments import Place
from quantattn.attention.kernels.hopper.arithmetic import exp2, meet, to_16_bits
from quantattn.attention.kernels.hopper.backward import AS_HELD
from quantattn.attention.kernels.hopper.compat import reshaped
from quantattn.attention.kernels.hopper.cutting import HALF, hide, is_cut, load_queries
from quantattn.attention.kernels.hopper.notes import read_field
from quantattn.attention.kernels.hopper.tiles import load_rows, make_barriers, store_rows
from quantattn.attention.kernels.hopper.walk import blocks_that_see, ceil_div
from quantattn.attention.kernels.primitives import LOG2E, locate


class Sizes(NamedTuple):
    """Compile-time facts of one program.

    Attributes:
        d: columns of a buffer.
        stages: buffers of q, and of do.
        weights: tiles of weights that wait for the second warpgroup.
        packed: whether rows have offsets.
    """

    d: Any
    stages: Any
    weights: Any
    packed: Any


class Buffers(NamedTuple):
    """Shared memory: k, v, rings of q, do, the numbers of their rows and how far right of them the first key is, and
    weights."""

    k: Any
    v: Any
    q: Any
    do: Any
    lse: Any
    delta: Any
    beside: Any
    weights: Any


class Signals(NamedTuple):
    """Barriers: what is full was written, what is empty was read. Those of q and do are twice as many: rows that are to
    be inspected first arrive at the second half."""

    kv_full: Any
    q_full: Any
    q_empty: Any
    do_full: Any
    do_empty: Any
    weights_full: Any
    weights_empty: Any


class Walk(NamedTuple):
    """Blocks of 64 queries that see some of the keys: `count` from block `low` on, of `group` heads from `head` on,
    the last block first; `slot` is the sequence's first block in the workspaces of a head."""

    low: Any
    count: Any
    group: Any
    head: Any
    slot: Any


@gluon.jit
def loader(
    q_src, k_src, v_src, do_src, lse_src, delta_src, buffers, signals, p, kv_head, walk, tiles_q, left, right,
    s: gl.constexpr,
):  # fmt: skip
    """One warp: k and v, then q, do and the numbers of their rows, 64 rows a stage."""
    TILE: gl.constexpr = 64 * s.d * 2
    mbarrier.expect(signals.kv_full, 2 * TILE)
    load_rows(k_src, p, p.k_start, p.n_k, p.first, kv_head, signals.kv_full, buffers.k, s.packed)
    load_rows(v_src, p, p.k_start, p.n_k, p.first, kv_head, signals.kv_full, buffers.v, s.packed)
    used = 0  # bit i: parity of the inspections of stage i
    at = walk.count
    head = walk.head
    for step in range(walk.count * walk.group):
        at -= 1
        row = (walk.low + at) * HALF
        first = (head * tiles_q + walk.slot) * HALF + row
        used = load_queries(
            q_src, do_src, lse_src, delta_src, buffers, signals, p, head, row, first, step, used, left, right, HALF, s
        )
        head = gl.where(at == 0, head + 1, head)
        at = gl.where(at == 0, walk.count, at)


@gluon.jit
def weigh(x, buffers, signals, step, unit, left, right, S: gl.constexpr, s: gl.constexpr):
    """Finished scores to weights, which the other warpgroup gets in float32; they are returned in 16 bits."""
    stage = step % s.stages
    lse = buffers.lse.index(stage).load(gl.SliceLayout(0, S))
    beside = read_field(buffers.beside, stage, 4)
    mbarrier.arrive(signals.q_empty.index(stage), count=1)
    x = exp2(x * unit - lse[None, :])
    if left is not None or right is not None:
        if is_cut(beside, HALF, left, right, HALF):
            x = hide(x, beside, HALF, left, right, S)
    slot = step % s.weights
    mbarrier.wait(signals.weights_empty.index(slot), ((step // s.weights) & 1) ^ 1)
    reshaped(buffers.weights.index(slot), [HALF, HALF], AS_HELD).store(x)
    mbarrier.arrive(signals.weights_full.index(slot), count=1)
    return to_16_bits(x, buffers.k.dtype)


@gluon.jit
def gather_dv(dv_dst, buffers, signals, p, kv_head, steps, unit, left, right, s: gl.constexpr):
    """One warpgroup: the weights of step after step, and dv."""
    S: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16])
    SUM: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, s.d, 16])
    OPERAND: gl.constexpr = gl.DotOperandLayout(0, SUM, 2)
    STAGES: gl.constexpr = s.stages
    D: gl.constexpr = s.d
    zeros = gl.zeros([HALF, HALF], gl.float32, layout=S)
    dv = gl.zeros([HALF, D], gl.float32, layout=SUM)
    mbarrier.wait(signals.kv_full, 0)
    if steps > 0:
        mbarrier.wait(signals.q_full.index(0), 0)
        x = warpgroup_mma(buffers.k, buffers.q.index(0).permute((1, 0)), zeros, use_acc=False, is_async=True)
        x = warpgroup_mma_wait(0, deps=[x])
        for step in range(steps - 1):
            weights = gl.convert_layout(weigh(x, buffers, signals, step, unit, left, right, S, s), OPERAND)
            stage = step % STAGES
            after = (step + 1) % STAGES
            mbarrier.wait(signals.do_full.index(stage), (step // STAGES) & 1)
            dv = warpgroup_mma(weights, buffers.do.index(stage), dv, is_async=True)
            mbarrier.wait(signals.q_full.index(after), ((step + 1) // STAGES) & 1)
            x = warpgroup_mma(buffers.k, buffers.q.index(after).permute((1, 0)), zeros, use_acc=False, is_async=True)
            x, dv, weights = warpgroup_mma_wait(0, deps=[x, dv, weights])
            mbarrier.arrive(signals.do_empty.index(stage), count=1)
        last = steps - 1
        weights = gl.convert_layout(weigh(x, buffers, signals, last, unit, left, right, S, s), OPERAND)
        mbarrier.wait(signals.do_full.index(last % STAGES), (last // STAGES) & 1)
        dv = warpgroup_mma(weights, buffers.do.index(last % STAGES), dv, is_async=True)
        dv, weights = warpgroup_mma_wait(0, deps=[dv, weights])
    store_sum(dv, dv_dst, buffers.k, p, kv_head, 0, s)


@gluon.jit
def bend(x, buffers, signals, step, left, right, S: gl.constexpr, s: gl.constexpr):
    """Finished dpᵀ to dsᵀ in 16 bits."""
    stage = step % s.stages
    delta = buffers.delta.index(stage).load(gl.SliceLayout(0, S))
    mbarrier.arrive(signals.do_empty.index(stage), count=1)
    x = x - delta[None, :]
    slot = step % s.weights
    mbarrier.wait(signals.weights_full.index(slot), (step // s.weights) & 1)
    x = reshaped(buffers.weights.index(slot), [HALF, HALF], AS_HELD).load(S) * x
    mbarrier.arrive(signals.weights_empty.index(slot), count=1)
    mbarrier.wait(signals.q_full.index(stage), (step // s.stages) & 1)
    if left is not None or right is not None:
        beside = read_field(buffers.beside, stage, 4)
        if is_cut(beside, HALF, left, right, HALF):
            x = hide(x, beside, HALF, left, right, S)
    return to_16_bits(x, buffers.k.dtype)


@gluon.jit
def gather_dk(
    dk_dst, finite_ptr, buffers, signals, p, kv_head, steps, scale, left, right, s: gl.constexpr
):  # fmt: skip
    """The other: dk."""
    S: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16])
    SUM: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, s.d, 16])
    OPERAND: gl.constexpr = gl.DotOperandLayout(0, SUM, 2)
    STAGES: gl.constexpr = s.stages
    D: gl.constexpr = s.d
    zeros = gl.zeros([HALF, HALF], gl.float32, layout=S)
    dk = gl.zeros([HALF, D], gl.float32, layout=SUM)
    mbarrier.wait(signals.kv_full, 0)
    if left is not None or right is not None:
        gl.store(finite_ptr, is_finite(buffers.k, s))
    if steps > 0:
        mbarrier.wait(signals.do_full.index(0), 0)
        x = warpgroup_mma(buffers.v, buffers.do.index(0).permute((1, 0)), zeros, use_acc=False, is_async=True)
        x = warpgroup_mma_wait(0, deps=[x])
        for step in range(steps - 1):
            ds = gl.convert_layout(bend(x, buffers, signals, step, left, right, S, s), OPERAND)
            stage = step % STAGES
            after = (step + 1) % STAGES
            dk = warpgroup_mma(ds, buffers.q.index(stage), dk, is_async=True)
            mbarrier.wait(signals.do_full.index(after), ((step + 1) // STAGES) & 1)
            x = warpgroup_mma(buffers.v, buffers.do.index(after).permute((1, 0)), zeros, use_acc=False, is_async=True)
            x, dk, ds = warpgroup_mma_wait(0, deps=[x, dk, ds])
            mbarrier.arrive(signals.q_empty.index(stage), count=1)
        last = steps - 1
        ds = gl.convert_layout(bend(x, buffers, signals, last, left, right, S, s), OPERAND)
        dk = warpgroup_mma(ds, buffers.q.index(last % STAGES), dk, is_async=True)
        dk, ds = warpgroup_mma_wait(0, deps=[dk, ds])
    store_sum(dk * scale, dk_dst, buffers.v, p, kv_head, 1, s)


@gluon.jit
def is_finite(k, s: gl.constexpr):
    """A warpgroup: 1 if all of its keys are finite, else 0."""
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    CHUNKS: gl.constexpr = s.d // 16
    INFINITE: gl.constexpr = 0x7F80 if k.dtype == gl.bfloat16 else 0x7C00
    keys = reshaped(k, [CHUNKS, 16, HALF], gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
    worst = gl.zeros([16, HALF], gl.int16, layout=LAYOUT)
    for i in gl.static_range(CHUNKS):
        worst = gl.maximum(worst, keys.index(i).load(LAYOUT).to(gl.int16, bitcast=True) & 0x7FFF)
    return (gl.max(gl.max(worst.to(gl.int32), 1), 0) < INFINITE).to(gl.int32)


@gluon.jit
def store_sum(x, dst, buffer, p, kv_head, group: gl.constexpr, s: gl.constexpr):
    """A warpgroup: its result by way of the memory of what it alone was multiplying by."""
    buffer.store(to_16_bits(x, buffer.dtype))
    fence_async_shared()
    meet(10 + group, 128)
    if p.first < p.n_k:
        store_rows(dst, p, p.k_start, p.n_k, p.first, kv_head, buffer, s.packed)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["n_sequences", "n_q", "n_k", "group", "tiles_k", "tiles_q", "left", "right"])
def _attention_bwd_keys(
    q_src, k_src, v_src, do_src, dk_dst, dv_dst, lse_src, delta_src, finite_ptr, cu_q_ptr, cu_k_ptr, scale,
    n_sequences, n_q, n_k, group, tiles_k, tiles_q, left, right,
    SIZES: gl.constexpr, REGISTERS: gl.constexpr, SPARE: gl.constexpr,
):  # fmt: skip
    """Program (tile, head of keys): dk and dv of 64 keys. Under a bound, finite[head, tile] says whether they are."""
    s: gl.constexpr = SIZES
    D: gl.constexpr = s.d
    STAGES: gl.constexpr = s.stages
    TWICE: gl.constexpr = 2 * s.stages
    WAIT: gl.constexpr = s.weights
    dtype: gl.constexpr = q_src.dtype
    ROWS: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    FLAT: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=32, rank=2)
    ONE: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    tile = gl.program_id(0)
    kv_head = gl.program_id(1)
    batch, sequence, first, k_start, n_k, q_start, n_q = locate(tile, cu_k_ptr, cu_q_ptr, n_sequences, n_k, n_q, HALF)
    p = Place(batch, sequence, first, q_start, n_q, k_start, n_k)
    slot = sequence * ceil_div(n_q, HALF)
    if s.packed:
        slot = q_start // HALF + sequence
    low, count = blocks_that_see(p, left, right, HALF, HALF)
    walk = Walk(low, count, group, kv_head * group, slot)
    buffers = Buffers(
        gl.allocate_shared_memory(dtype, [HALF, D], ROWS),
        gl.allocate_shared_memory(dtype, [HALF, D], ROWS),
        gl.allocate_shared_memory(dtype, [STAGES, HALF, D], ROWS),
        gl.allocate_shared_memory(dtype, [STAGES, HALF, D], ROWS),
        gl.allocate_shared_memory(gl.float32, [STAGES, HALF], lse_src.layout),
        gl.allocate_shared_memory(gl.float32, [STAGES, HALF], delta_src.layout),
        gl.allocate_shared_memory(gl.int32, [STAGES, 1], ONE),
        gl.allocate_shared_memory(gl.float32, [WAIT, HALF, HALF], FLAT),
    )
    signals = Signals(
        make_barriers(1, 1).index(0), make_barriers(TWICE, 1), make_barriers(STAGES, 2), make_barriers(TWICE, 1),
        make_barriers(STAGES, 2), make_barriers(WAIT, 1), make_barriers(WAIT, 1),
    )  # fmt: skip
    steps = walk.count * walk.group
    own = finite_ptr
    if left is not None or right is not None:
        own = finite_ptr + kv_head * tiles_k + tile
    gl.warp_specialize(
        [
            (gather_dv, (dv_dst, buffers, signals, p, kv_head, steps, scale * LOG2E, left, right, SIZES)),
            (gather_dk, (dk_dst, own, buffers, signals, p, kv_head, steps, scale, left, right, SIZES)),
            (loader, (q_src, k_src, v_src, do_src, lse_src, delta_src, buffers, signals, p, kv_head, walk, tiles_q,
                      left, right, SIZES)),
        ],
        [4, 1], [REGISTERS, SPARE],
    )  # fmt: skip
