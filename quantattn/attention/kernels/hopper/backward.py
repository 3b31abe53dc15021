"""Backward kernels for sm_90: one pass over the tiles, five products each, with an ordered sum of dq.

A program owns 128 keys of one head and walks over the blocks of queries that see them. Two warpgroups of 64 keys each
multiply; scores stand transposed, [keys, queries], so that dv takes its weights from registers. A *loader* warp fills a
ring of q and do by TMA, and a *writer* warp adds tiles of dq, which comes from both warpgroups, to float32 sums in
global memory.

The order of the sums is that of `walk.py`.

**What is not finite.** 0 · NaN is NaN, so a weight of 0 does not hide a query from a key or a key from a query. In
blocks that the mask cuts, the loader replaces rows of q and do by 0 where lse or delta is not finite; their lse, NaN,
reaches the keys that they see. Keys that are not finite are replaced by 0 once, before the walk, and their values by
NaN, which reaches the queries that see them.

Sources: Dao 2023, "FlashAttention-2", algorithm 2; Shah et al. 2024, "FlashAttention-3", for the division of labour.
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
    warpgroup_mma_init,
    warpgroup_mma_wait,
)

from quantattn.attention.kernels.hopper.arithmetic import announce, exp2, meet, to_16_bits
from quantattn.attention.kernels.hopper.compat import reshaped, tma_add, tma_finish, tma_load, tma_store
from quantattn.attention.kernels.hopper.tiles import load_rows, make_barriers, store_rows
from quantattn.attention.kernels.hopper.walk import KEYS, advance, find_work, pass_turn, turn_of, wait_for_turn
from quantattn.attention.kernels.primitives import LOG2E

HALF = gl.constexpr(64)
"""Keys of a warpgroup, and queries of a tile of scores."""

_NUMBERS = [[0, 1], [8, 0]]  # four neighbours of a thread: two columns of two rows
_LANES = [[0, 2], [0, 4], [1, 0], [2, 0], [4, 0]]
_WARPS = [[16, 0], [32, 0]]
_OTHERS = [[0, 8], [0, 16], [0, 32]]  # of the thread's numbers
AS_HELD = gl.constexpr(gl.SharedLinearLayout([*_NUMBERS, *_LANES, *_WARPS, *_OTHERS]))
"""A float32 tile of 64 × 64 in the order in which a warpgroup holds it: 128 bits of a thread beside 128 bits of the
next, so that no two threads of a store meet in a bank. The sums of dq lie in this order in global memory too, each tile
in one piece; `ends.py` puts their numbers in rows."""

LINE = gl.constexpr(32)
"""Numbers of a line of such a tile."""

WRITERS = gl.constexpr(2)
"""Warps that add to dq, and as many tiles of it that may wait: a turn takes about as long as a step."""


class Sizes(NamedTuple):
    """Compile-time facts of one program.

    Attributes:
        d: columns of a buffer, D padded to 64 or 128.
        stages: buffers of q, and of do.
        defer: the product for dk stays in flight until the next step has started its own.
        hold: k and v are held in registers.
        packed: whether rows have offsets.
        ordered: whether the sums of dq have an order.
        parts: tiles of 64 queries a step, 128 / d: what makes two tiles of 64 × 64 of dq, by columns or by rows.
        block: queries a step, 64 · parts.
    """

    d: Any
    stages: Any
    defer: Any
    hold: Any
    packed: Any
    ordered: Any
    parts: Any
    block: Any


class Buffers(NamedTuple):
    """Shared memory: k and v by halves, rings of q, do and the numbers of their rows, dS of two steps, dq."""

    k: Any
    v: Any
    q: Any
    do: Any
    lse: Any
    delta: Any
    ds: Any
    dq: Any


class Signals(NamedTuple):
    """Barriers: what is full was written, what is empty was read. Those of q and do are twice as many: rows that are to
    be inspected first arrive at the second half."""

    kv_full: Any
    q_full: Any
    q_empty: Any
    do_full: Any
    do_empty: Any
    dq_full: Any
    dq_empty: Any


@gluon.jit
def is_cut(beside, inside, left, right, ROWS: gl.constexpr):
    """Whether some of 64 queries does not see some of ROWS keys; see `hide`."""
    cut = inside < ROWS
    if right is not None:
        cut = cut | (beside + (ROWS - 1) > right)
    if left is not None:
        cut = cut | (beside - (HALF - 1) < -left)
    return cut


@gluon.jit
def hide(x, beside, inside, left, right, LAYOUT: gl.constexpr):
    """X [64 keys, 64 queries] with 0 where the query does not see the key.

    Args:
        x: the tile.
        beside: how far right of the first query's own place the first key is.
        inside: keys of the sequence from the first on.
        left: bound of the mask.
        right: bound of the mask.
        LAYOUT: of x.
    """
    row = gl.arange(0, HALF, layout=gl.SliceLayout(1, LAYOUT))
    column = gl.arange(0, HALF, layout=gl.SliceLayout(0, LAYOUT))
    # A thread holds columns 8 i + 2 · lane + {0, 1}: compared like this, one side is an immediate and one is kept.
    lane = (column & 6)[None, :]
    rest = (column & 57)[None, :]
    seen = (row < inside)[:, None]
    if right is not None:
        seen = rest >= gl.where(row < inside, row + (beside - right), HALF)[:, None] - lane
    if left is not None:
        seen = seen & (rest <= (row + (beside + left))[:, None] - lane)
    return gl.where(seen, x, 0.0)


@gluon.jit
def clear_rows(buffers, stage, s: gl.constexpr):
    """One warp: rows of q and do whose lse is NaN become 0.

    It reads a buffer as lines of 128 bytes, whose order within a line does not matter here: line i holds 64 columns of
    row i mod 64.
    """
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [1, 1], [1, 0])
    LINES: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    CHUNKS: gl.constexpr = s.d // 4
    lse = buffers.lse.index(stage)
    x = lse.load(gl.BlockedLayout([2], [32], [1], [0]))
    if gl.max((x != x).to(gl.int32), 0) > 0:
        numbers = reshaped(lse, [HALF // 4, 4], gl.SwizzledSharedLayout(1, 1, 1, [0]))
        q = reshaped(buffers.q.index(stage), [CHUNKS, 4, HALF], LINES)
        do = reshaped(buffers.do.index(stage), [CHUNKS, 4, HALF], LINES)
        for i in range(CHUNKS):
            number = numbers.index(i % (HALF // 4)).load(gl.SliceLayout(1, LAYOUT))
            keep = (number == number)[:, None]
            y = q.index(i).load(LAYOUT)
            q.index(i).store(gl.where(keep, y, gl.zeros_like(y)))
            y = do.index(i).load(LAYOUT)
            do.index(i).store(gl.where(keep, y, gl.zeros_like(y)))


@gluon.jit
def clear_keys(k, v, group: gl.constexpr, s: gl.constexpr):
    """A warpgroup: entries of its keys that are not finite become 0, and the values of such keys NaN."""
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    LINES: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    CHUNKS: gl.constexpr = s.d // 16
    INFINITE: gl.constexpr = 0x7F80 if k.dtype == gl.bfloat16 else 0x7C00
    keys = reshaped(k, [CHUNKS, 16, HALF], LINES)
    worst = gl.zeros([16, HALF], gl.int16, layout=LAYOUT)
    for i in gl.static_range(CHUNKS):
        worst = gl.maximum(worst, keys.index(i).load(LAYOUT).to(gl.int16, bitcast=True) & 0x7FFF)
    if gl.max(gl.max(worst.to(gl.int32), 1), 0) >= INFINITE:
        values = reshaped(v, [CHUNKS, 16, HALF], LINES)
        for chunk in range(CHUNKS):
            x = keys.index(chunk).load(LAYOUT)
            bad = (x.to(gl.int16, bitcast=True) & 0x7FFF).to(gl.int32) >= INFINITE
            keys.index(chunk).store(gl.where(bad, gl.zeros_like(x), x))
            # The other line of a row may be finite: one NaN is enough for its product.
            odd = gl.max(bad.to(gl.int32), 1) > 0
            y = values.index(chunk).load(LAYOUT)
            values.index(chunk).store(gl.where(odd[:, None], float("nan"), y.to(gl.float32)).to(y.dtype))
        fence_async_shared()
        meet(10 + group, 128)


@gluon.jit
def loader(
    q_src, k_src, v_src, do_src, lse_src, delta_src, buffers, signals, place, kv_head, walk, tiles_q, left, right,
    s: gl.constexpr,
):  # fmt: skip
    """One warp: k and v once, then q, do and the numbers of their rows, 64 rows a stage."""
    p = place
    PARTS: gl.constexpr = s.parts
    STAGES: gl.constexpr = s.stages
    TILE: gl.constexpr = 64 * s.d * 2
    if walk.steps > 0:
        mbarrier.expect(signals.kv_full, 4 * TILE)
        for half in gl.static_range(2):
            row = p.first + half * HALF
            load_rows(k_src, p, p.k_start, p.n_k, row, kv_head, signals.kv_full, buffers.k.index(half), s.packed)
            load_rows(v_src, p, p.k_start, p.n_k, row, kv_head, signals.kv_full, buffers.v.index(half), s.packed)
    at = walk.offset
    member = 0
    used = 0  # bit i: parity of the inspections of stage i
    for step in range(walk.steps):
        for part in gl.static_range(PARTS):
            tile = step * PARTS + part
            stage = tile % STAGES
            parity = (tile // STAGES) & 1
            row = ((walk.low + at) * PARTS + part) * HALF
            head = walk.head + member
            number = (head * tiles_q + walk.slot) * s.block + row
            to = stage
            cut = False
            if left is not None or right is not None:
                cut = is_cut(p.first - row - (p.n_k - p.n_q), KEYS, left, right, KEYS)
                to = stage + cut * STAGES
            mbarrier.wait(signals.q_empty.index(stage), parity ^ 1)
            mbarrier.expect(signals.q_full.index(to), TILE + HALF * 4)
            load_rows(q_src, p, p.q_start, p.n_q, row, head, signals.q_full.index(to), buffers.q.index(stage), s.packed)
            tma_load(lse_src, [number], signals.q_full.index(to), buffers.lse.index(stage))
            mbarrier.wait(signals.do_empty.index(stage), parity ^ 1)
            mbarrier.expect(signals.do_full.index(to), TILE + HALF * 4)
            load_rows(
                do_src, p, p.q_start, p.n_q, row, head, signals.do_full.index(to), buffers.do.index(stage), s.packed
            )
            tma_load(delta_src, [number], signals.do_full.index(to), buffers.delta.index(stage))
            if left is not None or right is not None:
                if cut:
                    mbarrier.wait(signals.q_full.index(to), (used >> stage) & 1)
                    mbarrier.wait(signals.do_full.index(to), (used >> stage) & 1)
                    used = used ^ (1 << stage)
                    clear_rows(buffers, stage, s)
                    fence_async_shared()
                    mbarrier.arrive(signals.q_full.index(stage), count=1)
                    mbarrier.arrive(signals.do_full.index(stage), count=1)
        at, member = advance(at, member, walk, left, right)


@gluon.jit
def writer(
    sums_dst, counters_ptr, buffers, signals, place, walk, tiles_q, slots, left, right,
    stage: gl.constexpr, s: gl.constexpr,
):  # fmt: skip
    """One warp a stage of dq: its tiles to the sums of their block, each in its turn.

    A turn takes about as long as a step, from the look at the counter to the sum's arrival, so one warp alone would
    often be late.
    """
    STAGES: gl.constexpr = WRITERS
    LINES: gl.constexpr = buffers.dq.shape[1]
    at = walk.offset
    member = 0
    for _ in gl.static_range(stage):
        at, member = advance(at, member, walk, left, right)
    full = signals.dq_full.index(stage)
    for step in range(stage, walk.steps, STAGES):
        slot = (walk.head + member) * tiles_q + walk.slot + walk.low + at
        turn = 1
        if s.ordered:
            if left is None and right is None:
                slot = gl.where(at < walk.offset, slot + slots, slot)
            turn = turn_of(at, place, walk, left, right, s)
            wait_for_turn(counters_ptr + slot, turn)
        mbarrier.wait(full, (step // STAGES) & 1)
        for half in gl.static_range(2):
            corner = [(slot * 2 + half) * LINES, 0]
            if turn == 0:
                tma_store(sums_dst, corner, buffers.dq.index(stage * 2 + half))
            else:
                tma_add(sums_dst, corner, buffers.dq.index(stage * 2 + half))
        tma.store_wait(0)
        mbarrier.arrive(signals.dq_empty.index(stage), count=1)
        if s.ordered:
            tma_finish()
            pass_turn(counters_ptr + slot)
        for _ in gl.static_range(STAGES):
            at, member = advance(at, member, walk, left, right)


@gluon.jit
def visit(
    dk, dv, k, v, buffers, signals, step, beside, inside, left, right, unit, group: gl.constexpr, s: gl.constexpr
):
    """A step of a warpgroup: its 64 keys with s.block queries, and its tile of dq of those and all 128 keys."""
    S: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16])
    SUM: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, s.d, 16])
    OPERAND: gl.constexpr = gl.DotOperandLayout(0, SUM, 2)
    PARTS: gl.constexpr = s.parts
    STAGES: gl.constexpr = s.stages
    ONE: gl.constexpr = group * 2 * (s.parts - 1)
    COLUMN: gl.constexpr = group * 64 * (2 - s.parts)
    zeros = gl.zeros([HALF, HALF], gl.float32, layout=S)
    pair = (step % 2) * 2 * PARTS
    for part in gl.static_range(PARTS):
        tile = step * PARTS + part
        stage = tile % STAGES
        parity = (tile // STAGES) & 1
        q = buffers.q.index(stage)
        do = buffers.do.index(stage)
        mbarrier.wait(signals.q_full.index(stage), parity)
        x = warpgroup_mma(k, q.permute((1, 0)), zeros, use_acc=False, is_async=True)
        mbarrier.wait(signals.do_full.index(stage), parity)
        dp = warpgroup_mma(v, do.permute((1, 0)), zeros, use_acc=False, is_async=True)
        if s.defer:
            dk = warpgroup_mma_wait(2, deps=[dk])
            mbarrier.arrive(signals.q_empty.index((tile + STAGES - 1) % STAGES), count=1, pred=tile > 0)
        lse = buffers.lse.index(stage).load(gl.SliceLayout(0, S))
        x = warpgroup_mma_wait(1, deps=[x])
        p = exp2(x * unit - lse[None, :])
        cut = is_cut(beside - part * HALF, inside, left, right, HALF)
        if cut:
            p = hide(p, beside - part * HALF, inside, left, right, S)
        weights = gl.convert_layout(to_16_bits(p, q.dtype), OPERAND)
        dp, weights = warpgroup_mma_wait(0, deps=[dp, weights])
        dv = warpgroup_mma(weights, do, dv, is_async=True)
        delta = buffers.delta.index(stage).load(gl.SliceLayout(0, S))  # not before: it takes 16 registers
        ds = p * (dp - delta[None, :])
        if left is not None or right is not None:
            if cut:
                ds = hide(ds, beside - part * HALF, inside, left, right, S)
        ds = to_16_bits(ds, q.dtype)
        own = buffers.ds.index(pair + part * 2 + group)
        own.store(ds)
        if part == PARTS - 1:
            fence_async_shared()
            if PARTS == 1:
                meet(9, 256)
            elif group == 0:  # waits before it announces, so that no second announcement can come before a wait
                meet(12, 256)
                announce(13, 256)
            else:
                meet(13, 256)
            early = buffers.ds.index(pair + ONE).permute((1, 0))
            late = buffers.ds.index(pair + ONE + 1).permute((1, 0))
            dq = warpgroup_mma(
                early, buffers.k.index(0).slice(COLUMN, HALF, dim=1), zeros, use_acc=False, is_async=True
            )
            dq = warpgroup_mma(late, buffers.k.index(1).slice(COLUMN, HALF, dim=1), dq, is_async=True)
        elif s.defer or group == 1:
            fence_async_shared()
            if s.defer:
                meet(10 + group, 128)
            if group == 1:  # the other's rows of dq need this tile, and its own do not
                announce(12, 256)
        if s.defer:
            dk = warpgroup_mma(own, q, dk, use_acc=tile > 0, is_async=True)
        else:
            dk = warpgroup_mma(gl.convert_layout(ds, OPERAND), q, dk, is_async=True)
        if part == PARTS - 1:
            dv, weights, dq = warpgroup_mma_wait(1, deps=[dv, weights, dq])
        else:
            dv, weights = warpgroup_mma_wait(1, deps=[dv, weights])
        mbarrier.arrive(signals.do_empty.index(stage), count=1)
        if part == PARTS - 1:
            to = step % WRITERS
            mbarrier.wait(signals.dq_empty.index(to), ((step // WRITERS) & 1) ^ 1)
            reshaped(buffers.dq.index(to * 2 + group), [HALF, HALF], AS_HELD).store(dq)
            fence_async_shared()
            mbarrier.arrive(signals.dq_full.index(to), count=1)
        if not s.defer:
            dk = warpgroup_mma_wait(0, deps=[dk])
            mbarrier.arrive(signals.q_empty.index(stage), count=1)
    return dk, dv


@gluon.jit
def gatherer(
    dk_dst, dv_dst, buffers, signals, place, kv_head, walk, scale, left, right, group: gl.constexpr, s: gl.constexpr
):
    """One warpgroup: dk and dv of 64 keys."""
    D: gl.constexpr = s.d
    S: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16])
    SUM: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, s.d, 16])
    first = place.first + group * HALF
    inside = place.n_k - first
    dk = gl.zeros([HALF, D], gl.float32, layout=SUM)
    dv = gl.zeros([HALF, D], gl.float32, layout=SUM)
    if walk.steps > 0:
        mbarrier.wait(signals.kv_full, 0)
        k = buffers.k.index(group)
        v = buffers.v.index(group)
        if left is not None or right is not None:
            clear_keys(k, v, group, s)
        if s.hold:
            k = k.load(gl.DotOperandLayout(0, S, 2))
            v = v.load(gl.DotOperandLayout(0, S, 2))
        if s.defer:  # its first product does not read it
            dk = warpgroup_mma_init(dk)
        base = first - (place.n_k - place.n_q)
        at = walk.offset
        member = 0
        for step in range(walk.steps):
            beside = base - (walk.low + at) * s.block
            dk, dv = visit(dk, dv, k, v, buffers, signals, step, beside, inside, left, right, scale * LOG2E, group, s)
            at, member = advance(at, member, walk, left, right)
        if s.defer:
            dk = warpgroup_mma_wait(0, deps=[dk])
        store_gradients(dk * scale, dv, dk_dst, dv_dst, buffers, place, kv_head, first, group, s)
    else:
        store_gradients(dk, dv, dk_dst, dv_dst, buffers, place, kv_head, first, group, s)


@gluon.jit
def store_gradients(dk, dv, dk_dst, dv_dst, buffers, place, kv_head, first, group: gl.constexpr, s: gl.constexpr):
    """A warpgroup: its dk and dv by way of the memory of k and v, which nobody reads any more."""
    own = buffers.v.index(group)
    own.store(to_16_bits(dv, own.dtype))
    fence_async_shared()
    meet(10 + group, 128)
    store_rows(dv_dst, place, place.k_start, place.n_k, first, kv_head, own, s.packed)
    meet(9, 256)  # the other warpgroup may have been multiplying by these keys
    own = buffers.k.index(group)
    own.store(to_16_bits(dk, own.dtype))
    fence_async_shared()
    meet(10 + group, 128)
    store_rows(dk_dst, place, place.k_start, place.n_k, first, kv_head, own, s.packed)
    tma.store_wait(0)


@gluon.jit(
    do_not_specialize=[
        "n_sequences", "n_q", "n_k", "heads_k", "group", "tiles_k", "tiles_q", "strips", "together", "slots", "left",
        "right",
    ]
)  # fmt: skip
def _attention_bwd(
    q_src, k_src, v_src, do_src, dk_dst, dv_dst, lse_src, delta_src, sums_dst, counters_ptr, tickets_ptr,
    cu_q_ptr, cu_k_ptr, scale, n_sequences, n_q, n_k, heads_k, group, tiles_k, tiles_q, strips, together, slots,
    left, right, SIZES: gl.constexpr, REGISTERS: gl.constexpr, SPARE: gl.constexpr,
):  # fmt: skip
    """One program 128 keys of a key/value head: dk and dv of them, and what they add to dq."""
    s: gl.constexpr = SIZES
    D: gl.constexpr = s.d
    STAGES: gl.constexpr = s.stages
    TWICE: gl.constexpr = 2 * s.stages
    DS: gl.constexpr = 4 * s.parts
    TILES: gl.constexpr = 2 * WRITERS
    LINES: gl.constexpr = HALF * HALF // LINE
    dtype: gl.constexpr = q_src.dtype
    ROWS: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    buffers = Buffers(
        gl.allocate_shared_memory(dtype, [2, HALF, D], ROWS),
        gl.allocate_shared_memory(dtype, [2, HALF, D], ROWS),
        gl.allocate_shared_memory(dtype, [STAGES, HALF, D], ROWS),
        gl.allocate_shared_memory(dtype, [STAGES, HALF, D], ROWS),
        gl.allocate_shared_memory(gl.float32, [STAGES, HALF], lse_src.layout),
        gl.allocate_shared_memory(gl.float32, [STAGES, HALF], delta_src.layout),
        gl.allocate_shared_memory(dtype, [DS, HALF, HALF], ROWS),
        gl.allocate_shared_memory(gl.float32, [TILES, LINES, LINE], sums_dst.layout),
    )
    signals = Signals(
        make_barriers(1, 1).index(0), make_barriers(TWICE, 1), make_barriers(STAGES, 2), make_barriers(TWICE, 1),
        make_barriers(STAGES, 2), make_barriers(WRITERS, 2), make_barriers(WRITERS, 1),
    )  # fmt: skip
    number = gl.program_id(0)
    if s.ordered:
        number = gl.atomic_add(tickets_ptr, 1, sem="relaxed")
    place, kv_head, walk = find_work(
        number, cu_q_ptr, cu_k_ptr, n_sequences, n_q, n_k, heads_k, group, tiles_k, strips, together, left, right, s
    )
    gl.warp_specialize(
        [
            (gatherer, (dk_dst, dv_dst, buffers, signals, place, kv_head, walk, scale, left, right, 0, SIZES)),
            (gatherer, (dk_dst, dv_dst, buffers, signals, place, kv_head, walk, scale, left, right, 1, SIZES)),
            (loader, (q_src, k_src, v_src, do_src, lse_src, delta_src, buffers, signals, place, kv_head, walk,
                      tiles_q, left, right, SIZES)),
            (writer, (sums_dst, counters_ptr, buffers, signals, place, walk, tiles_q, slots, left, right,
                      0, SIZES)),
            (writer, (sums_dst, counters_ptr, buffers, signals, place, walk, tiles_q, slots, left, right,
                      1, SIZES)),
        ],
        [4, 1, 1, 1], [REGISTERS, SPARE, SPARE, SPARE],
    )  # fmt: skip
