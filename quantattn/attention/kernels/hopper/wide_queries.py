"""Backward of wide heads for sm_90, second half: dq, with one writer.

A program takes 128 queries of a head, 64 a warpgroup, and walks over the blocks of keys that they see, from the last
to the first, as the forward does. A warpgroup starts the product for the scores of a block behind its sum of the block
before, takes their exponentials while the product for dp runs, and leaves the tensor cores to the other while it does
arithmetic. A *loader* warp fills a ring of k and one buffer of v by TMA.

In blocks that the mask cuts, entries of keys that are not finite are replaced by 0: the lse of queries that see such a
key is NaN, and so is their dq.
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

from quantattn.attention.kernels.hopper.arithmetic import exp2, hidden_zero, meet, to_16_bits
from quantattn.attention.kernels.hopper.compat import reshaped
from quantattn.attention.kernels.hopper.cutting import HALF
from quantattn.attention.kernels.hopper.tasks import Work, hides, is_cut, sees, tile_of
from quantattn.attention.kernels.hopper.tiles import load_rows, make_barriers, store_rows
from quantattn.attention.kernels.hopper.walk import ceil_div
from quantattn.attention.kernels.primitives import LOG2E

QUERIES = gl.constexpr(128)
"""Queries of a program."""


class Sizes(NamedTuple):
    """Compile-time facts of one program, by the names that `tasks.py` knows.

    Attributes:
        d: columns of a buffer.
        n: keys a block.
        stages: buffers of k.
        packed: whether rows have offsets.
        left, right: whether the mask has that bound.
        bounded: whether it has either.
    """

    d: Any
    n: Any
    stages: Any
    packed: Any
    left: Any
    right: Any
    bounded: Any


class Buffers(NamedTuple):
    """Shared memory: q and do by warpgroups, k, v."""

    q: Any
    do: Any
    k: Any
    v: Any


class Signals(NamedTuple):
    """Barriers: what is full was written, what is empty was read. Those of full k are twice as many: keys that are to
    be cleared first arrive at the second half."""

    q_full: Any
    k_full: Any
    k_empty: Any
    v_full: Any
    v_empty: Any


@gluon.jit
def loader(
    q_src, k_src, v_src, do_src, finite_ptr, buffers, signals, t, work, s: gl.constexpr
):  # fmt: skip
    """One warp: q and do, then block after block of k and v."""
    STAGES: gl.constexpr = s.stages
    TILE: gl.constexpr = 64 * s.d * 2
    p = t.place
    kv_head = t.head // work.group
    mbarrier.expect(signals.q_full, 4 * TILE)
    for half in gl.static_range(2):
        row = p.first + half * HALF
        load_rows(q_src, p, p.q_start, p.n_q, row, t.head, signals.q_full, buffers.q.index(half), s.packed)
        load_rows(do_src, p, p.q_start, p.n_q, row, t.head, signals.q_full, buffers.do.index(half), s.packed)
    used = 0  # bit i: parity of the inspections of stage i
    for step in range(t.blocks):
        stage = step % STAGES
        parity = (step // STAGES) & 1
        row = t.low + (t.blocks - 1 - step) * HALF
        to = stage
        odd = False
        if s.bounded:
            odd = is_cut(t, row, work, QUERIES, s) & (gl.load(finite_ptr + row // HALF) == 0)
            to = stage + odd * STAGES
        k_full = signals.k_full.index(to)
        mbarrier.wait(signals.k_empty.index(stage), parity ^ 1)
        mbarrier.expect(k_full, TILE)
        load_rows(k_src, p, p.k_start, p.n_k, row, kv_head, k_full, buffers.k.index(stage), s.packed)
        mbarrier.wait(signals.v_empty, (step & 1) ^ 1)
        mbarrier.expect(signals.v_full, TILE)
        load_rows(v_src, p, p.k_start, p.n_k, row, kv_head, signals.v_full, buffers.v.index(0), s.packed)
        if s.bounded:
            if odd:
                mbarrier.wait(k_full, (used >> stage) & 1)
                used = used ^ (1 << stage)
                clear_entries(buffers.k.index(stage), s)
                fence_async_shared()
                mbarrier.arrive(signals.k_full.index(stage), count=1)


@gluon.jit
def clear_entries(k, s: gl.constexpr):
    """One warp: entries of keys that are not finite become 0, read as lines of 128 bytes."""
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [1, 1], [1, 0])
    CHUNKS: gl.constexpr = s.d // 4
    INFINITE: gl.constexpr = 0x7F80 if k.dtype == gl.bfloat16 else 0x7C00
    lines = reshaped(k, [CHUNKS, 4, HALF], gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
    for i in range(CHUNKS):
        x = lines.index(i).load(LAYOUT)
        bad = (x.to(gl.int16, bitcast=True) & 0x7FFF).to(gl.int32) >= INFINITE
        lines.index(i).store(gl.where(bad, gl.zeros_like(x), x))


@gluon.jit
def weigh(
    x, lse, delta, buffers, signals, step, t, row, column, work, unit,
    group: gl.constexpr, S: gl.constexpr, s: gl.constexpr,
):  # fmt: skip
    """Finished scores of a block to its ds in 16 bits."""
    zeros = gl.zeros([HALF, HALF], gl.float32, layout=S)
    zero = hidden_zero(step)
    mbarrier.wait(signals.v_full, step & 1)
    do = buffers.do.index(group + zero)
    dp = warpgroup_mma(do, buffers.v.index(zero).permute((1, 0)), zeros, use_acc=False, is_async=True)
    x = exp2(x * unit - lse[:, None])
    dp = warpgroup_mma_wait(0, deps=[dp])
    mbarrier.arrive(signals.v_empty, count=1)
    x = x * (dp - delta[:, None])
    if hides(t, row, column, work, s):
        x = gl.where(sees(t, row, column, work, S, s), x, 0.0)
    return to_16_bits(x, buffers.k.dtype)


@gluon.jit
def gather_dq(
    dq_dst, lse_ptr, delta_ptr, buffers, signals, t, work, scale, group: gl.constexpr, s: gl.constexpr
):  # fmt: skip
    """One warpgroup: dq of 64 queries; the pointers are at the numbers of the sequence's first row."""
    S: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16])
    SUM: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, s.d, 16])
    OPERAND: gl.constexpr = gl.DotOperandLayout(0, SUM, 2)
    STAGES: gl.constexpr = s.stages
    D: gl.constexpr = s.d
    p = t.place
    q = buffers.q.index(group)
    row = p.first + group * HALF
    query = row + gl.arange(0, HALF, layout=gl.SliceLayout(1, S))
    lse = gl.load(lse_ptr + query, mask=query < p.n_q, other=float("inf"))
    delta = gl.load(delta_ptr + query, mask=query < p.n_q, other=0.0)
    unit = scale * LOG2E
    zeros = gl.zeros([HALF, HALF], gl.float32, layout=S)
    dq = gl.zeros([HALF, D], gl.float32, layout=SUM)
    mbarrier.wait(signals.q_full, 0)
    if t.blocks > 0:
        column = t.low + (t.blocks - 1) * HALF
        mbarrier.wait(signals.k_full.index(0), 0)
        x = warpgroup_mma(q, buffers.k.index(0).permute((1, 0)), zeros, use_acc=False, is_async=True)
        x = warpgroup_mma_wait(0, deps=[x])
        for step in range(t.blocks - 1):
            ds = weigh(x, lse, delta, buffers, signals, step, t, row, column, work, unit, group, S, s)
            ds = gl.convert_layout(ds, OPERAND)
            column -= HALF
            stage = step % STAGES
            after = (step + 1) % STAGES
            dq = warpgroup_mma(ds, buffers.k.index(stage), dq, is_async=True)
            mbarrier.wait(signals.k_full.index(after), ((step + 1) // STAGES) & 1)
            q = buffers.q.index(group + hidden_zero(step))
            x = warpgroup_mma(q, buffers.k.index(after).permute((1, 0)), zeros, use_acc=False, is_async=True)
            x, dq, ds = warpgroup_mma_wait(0, deps=[x, dq, ds])
            mbarrier.arrive(signals.k_empty.index(stage), count=1)
        last = t.blocks - 1
        ds = weigh(x, lse, delta, buffers, signals, last, t, row, column, work, unit, group, S, s)
        ds = gl.convert_layout(ds, OPERAND)
        dq = warpgroup_mma(ds, buffers.k.index(last % STAGES), dq, is_async=True)
        dq, ds = warpgroup_mma_wait(0, deps=[dq, ds])
    q = buffers.q.index(group)
    q.store(to_16_bits(dq * scale, q.dtype))
    fence_async_shared()
    meet(10 + group, 128)
    if row < p.n_q:
        store_rows(dq_dst, p, p.q_start, p.n_q, row, t.head, q, s.packed)
    tma.store_wait(0)


@gluon.jit(
    do_not_specialize=[
        "n_sequences", "n_q", "n_k", "heads", "group", "per_head", "tiles_k", "tiles_q", "left", "right",
    ]
)  # fmt: skip
def _attention_bwd_queries(
    q_src, k_src, v_src, do_src, dq_dst, lse_ptr, delta_ptr, finite_ptr, cu_q_ptr, cu_k_ptr, scale,
    n_sequences, n_q, n_k, heads, group, per_head, tiles_k, tiles_q, left, right,
    SIZES: gl.constexpr, REGISTERS: gl.constexpr, SPARE: gl.constexpr,
):  # fmt: skip
    """One program a tile of 128 queries of a head, which in a pack may own no row."""
    s: gl.constexpr = SIZES
    D: gl.constexpr = s.d
    STAGES: gl.constexpr = s.stages
    TWICE: gl.constexpr = 2 * s.stages
    dtype: gl.constexpr = q_src.dtype
    ROWS: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    work = Work(cu_q_ptr, cu_k_ptr, n_sequences, n_q, n_k, heads, group, per_head, 0, None, left, right)
    t = tile_of(gl.program_id(0), 0, work, QUERIES, s)
    p = t.place
    slot = p.sequence * ceil_div(p.n_q, HALF)
    key_slot = p.sequence * ceil_div(p.n_k, HALF)
    if s.packed:
        slot = p.q_start // HALF + p.sequence
        key_slot = p.k_start // HALF + p.sequence
    numbers = (t.head * tiles_q + slot).to(gl.int64) * HALF
    own = finite_ptr
    if s.bounded:
        own = finite_ptr + (t.head // group) * tiles_k + key_slot
    buffers = Buffers(
        gl.allocate_shared_memory(dtype, [2, HALF, D], ROWS),
        gl.allocate_shared_memory(dtype, [2, HALF, D], ROWS),
        gl.allocate_shared_memory(dtype, [STAGES, HALF, D], ROWS),
        gl.allocate_shared_memory(dtype, [1, HALF, D], ROWS),
    )
    signals = Signals(
        make_barriers(1, 1).index(0), make_barriers(TWICE, 1), make_barriers(STAGES, 2),
        make_barriers(1, 1).index(0), make_barriers(1, 2).index(0),
    )  # fmt: skip
    gl.warp_specialize(
        [
            (gather_dq, (dq_dst, lse_ptr + numbers, delta_ptr + numbers, buffers, signals, t, work, scale, 0, SIZES)),
            (gather_dq, (dq_dst, lse_ptr + numbers, delta_ptr + numbers, buffers, signals, t, work, scale, 1, SIZES)),
            (loader, (q_src, k_src, v_src, do_src, own, buffers, signals, t, work, SIZES)),
        ],
        [4, 1], [REGISTERS, SPARE],
    )  # fmt: skip
