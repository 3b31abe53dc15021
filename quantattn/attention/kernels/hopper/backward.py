"""Backward kernels for sm_90: one pass over the tiles, five products each, with an ordered sum of dq.

A program takes one tile of 128 keys of a head after the other and walks over the blocks of queries that see them. Two
warpgroups of 64 keys each multiply; scores stand transposed, [keys, queries], so that dv takes its weights from
registers. A *planner* warp draws the next tile and notes where it lies, a *loader* warp fills a ring of q and do by
TMA, and *writer* warps add tiles of dq, which comes from both warpgroups, to float32 sums in global memory. The product
for dq is started in the next step, behind that for sᵀ: a warpgroup need not meet the other, whose ds it reads, and the
tensor cores have work while it takes the exponentials.

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

from quantattn.attention.kernels.hopper.arithmetic import draw, exp2, hidden_zero, meet, to_16_bits
from quantattn.attention.kernels.hopper.compat import reshaped, tma_add, tma_finish, tma_store
from quantattn.attention.kernels.hopper.cutting import HALF, clear_keys, hide, is_cut, load_queries
from quantattn.attention.kernels.hopper.notes import read_field
from quantattn.attention.kernels.hopper.tiles import load_rows, make_barriers, store_rows
from quantattn.attention.kernels.hopper.walk import (
    FIELDS,
    KEYS,
    Launch,
    advance,
    find_work,
    pass_turn,
    read_first,
    read_place,
    read_steps,
    read_walk,
    turn_of,
    wait_for_turn,
    write_note,
)
from quantattn.attention.kernels.primitives import LOG2E

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
        early: dpᵀ is started beside sᵀ; else when dq of the step before has left its registers.
        packed: whether rows have offsets.
        ordered: whether the sums of dq have an order.
        parts: tiles of 64 queries a step, 128 / d: what makes two tiles of 64 × 64 of dq, by columns or by rows.
        block: queries a step, 64 · parts.
    """

    d: Any
    stages: Any
    defer: Any
    hold: Any
    early: Any
    packed: Any
    ordered: Any
    parts: Any
    block: Any


class Buffers(NamedTuple):
    """Shared memory: k and v by halves, rings of q, do, the numbers of their rows and how far right of them the first
    key is, dS of two steps, dq."""

    k: Any
    v: Any
    q: Any
    do: Any
    lse: Any
    delta: Any
    beside: Any
    ds: Any
    dq: Any


class Signals(NamedTuple):
    """Barriers: what is full was written, what is empty was read. Those of q and do are twice as many: rows that are to
    be inspected first arrive at the second half."""

    kv_full: Any
    kv_empty: Any
    q_full: Any
    q_empty: Any
    do_full: Any
    do_empty: Any
    ds_full: Any
    dq_full: Any
    dq_empty: Any
    asked: Any
    note_full: Any
    note_empty: Any


@gluon.jit
def planner(tickets_ptr, notes, signals, of, left, right, s: gl.constexpr):
    """One warp: draws a tile when the loader has started its last loads, and notes it beside the one at work."""
    total = of.tiles_k * of.strips
    turn = 0
    number = 0
    while number < total:
        mbarrier.wait(signals.asked, (turn & 1) ^ 1)
        number = draw(tickets_ptr)
        place, kv_head, walk = find_work(gl.minimum(number, total - 1), of, left, right, s)
        if s.packed:
            while (place.first >= place.n_k) & (number < total):
                number = draw(tickets_ptr)
                place, kv_head, walk = find_work(gl.minimum(number, total - 1), of, left, right, s)
        n_k = gl.where(number < total, place.n_k, 0)
        mbarrier.wait(signals.note_empty.index(turn & 1), ((turn >> 1) & 1) ^ 1)
        write_note(notes, (turn & 1) * FIELDS, place, n_k, kv_head, walk)
        mbarrier.arrive(signals.note_full.index(turn & 1), count=1)
        turn += 1


@gluon.jit
def wait_for_note(notes, signals, turn, WARPS: gl.constexpr):
    """Where the note of the next tile is, and how many keys its sequence has; none mean that no tile is left."""
    mbarrier.wait(signals.note_full.index(turn & 1), (turn >> 1) & 1)
    return (turn & 1) * FIELDS, read_field(notes, (turn & 1) * FIELDS, WARPS)


@gluon.jit
def loader(
    q_src, k_src, v_src, do_src, lse_src, delta_src, buffers, notes, signals, tiles_q, left, right, s: gl.constexpr
):  # fmt: skip
    """One warp: k and v of a tile of keys, then q, do and the numbers of their rows, 64 rows a stage."""
    PARTS: gl.constexpr = s.parts
    TILE: gl.constexpr = 64 * s.d * 2
    tile = 0
    used = 0  # bit i: parity of the inspections of stage i
    turn = 0
    note, n_k = wait_for_note(notes, signals, turn, 1)
    while n_k > 0:
        p, kv_head = read_place(notes, note, 1)
        walk = read_walk(notes, note, 1)
        mbarrier.wait(signals.kv_empty, (turn & 1) ^ 1)
        mbarrier.expect(signals.kv_full, 4 * TILE)
        for half in gl.static_range(2):
            row = p.first + half * HALF
            load_rows(k_src, p, p.k_start, p.n_k, row, kv_head, signals.kv_full, buffers.k.index(half), s.packed)
            load_rows(v_src, p, p.k_start, p.n_k, row, kv_head, signals.kv_full, buffers.v.index(half), s.packed)
        at = walk.offset
        member = 0
        for _i in range(walk.steps):
            for part in gl.static_range(PARTS):
                row = ((walk.low + at) * PARTS + part) * HALF
                head = walk.head + member
                first = (head * tiles_q + walk.slot) * s.block + row
                used = load_queries(
                    q_src, do_src, lse_src, delta_src, buffers, signals, p, head, row, first, tile, used, left, right,
                    KEYS, s,
                )  # fmt: skip
                tile += 1
            at, member = advance(at, member, walk, left, right)
        mbarrier.arrive(signals.asked, count=1)
        mbarrier.arrive(signals.note_empty.index(turn & 1), count=1)
        turn += 1
        note, n_k = wait_for_note(notes, signals, turn, 1)


@gluon.jit
def writer(
    sums_dst, counters_ptr, buffers, notes, signals, tiles_q, slots, left, right,
    stage: gl.constexpr, s: gl.constexpr,
):  # fmt: skip
    """One warp a stage of dq: its tiles to the sums of their block, each in its turn.

    A turn takes about as long as a step, from the look at the counter to the sum's arrival, so one warp alone would
    often be late.
    """
    STAGES: gl.constexpr = WRITERS
    LINES: gl.constexpr = buffers.dq.shape[1]
    full = signals.dq_full.index(stage)
    begun = 0  # steps of the tiles before
    turn = 0
    note, n_k = wait_for_note(notes, signals, turn, 1)
    while n_k > 0:
        place, _ = read_place(notes, note, 1)
        walk = read_walk(notes, note, 1)
        at = walk.offset
        member = 0
        ahead = (stage - begun) & (STAGES - 1)
        for _i in range(ahead):
            at, member = advance(at, member, walk, left, right)
        for step in range(begun + ahead, begun + walk.steps, STAGES):
            slot = (walk.head + member) * tiles_q + walk.slot + walk.low + at
            position = 1
            if s.ordered:
                if left is None and right is None:
                    slot = gl.where(at < walk.offset, slot + slots, slot)
                position = turn_of(at, place, walk, left, right, s)
                wait_for_turn(counters_ptr + slot, position)
            mbarrier.wait(full, (step // STAGES) & 1)
            for half in gl.static_range(2):
                corner = [(slot * 2 + half) * LINES, 0]
                if position == 0:
                    tma_store(sums_dst, corner, buffers.dq.index(stage * 2 + half))
                else:
                    tma_add(sums_dst, corner, buffers.dq.index(stage * 2 + half))
            tma.store_wait(0)
            mbarrier.arrive(signals.dq_empty.index(stage), count=1)
            if s.ordered:
                tma_finish()
                pass_turn(counters_ptr + slot)
            for _j in gl.static_range(STAGES):
                at, member = advance(at, member, walk, left, right)
        begun += walk.steps
        mbarrier.arrive(signals.note_empty.index(turn & 1), count=1)
        turn += 1
        note, n_k = wait_for_note(notes, signals, turn, 1)


@gluon.jit
def multiply_dq(buffers, signals, step, group: gl.constexpr, s: gl.constexpr):
    """A warpgroup: start its half of dq of a step, once both have stored their ds."""
    S: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16])
    COLUMN: gl.constexpr = group * 64 * (2 - s.parts)
    pair = (step & 1) * 2
    mbarrier.wait(signals.ds_full.index(pair + 1 - group), (step >> 1) & 1)
    zero = hidden_zero(step + 1)
    tile = pair * s.parts + group * 2 * (s.parts - 1)
    early = buffers.ds.index(tile).permute((1, 0))
    late = buffers.ds.index(tile + 1).permute((1, 0))
    zeros = gl.zeros([HALF, HALF], gl.float32, layout=S)
    dq = warpgroup_mma(early, buffers.k.index(zero).slice(COLUMN, HALF, dim=1), zeros, use_acc=False, is_async=True)
    return warpgroup_mma(late, buffers.k.index(1 + zero).slice(COLUMN, HALF, dim=1), dq, is_async=True)


@gluon.jit
def hand_over(dq, buffers, signals, step, group: gl.constexpr):
    """A warpgroup: its half of dq of a step to the writer."""
    to = step % WRITERS
    mbarrier.wait(signals.dq_empty.index(to), ((step // WRITERS) & 1) ^ 1)
    reshaped(buffers.dq.index(to * 2 + group), [HALF, HALF], AS_HELD).store(dq)
    fence_async_shared()
    mbarrier.arrive(signals.dq_full.index(to), count=1)


@gluon.jit
def visit(
    dk, dv, k, v, buffers, signals, step, begun, inside, left, right, unit,
    group: gl.constexpr, s: gl.constexpr,
):  # fmt: skip
    """A step of a warpgroup: its 64 keys with s.block queries, and dq of the step before."""
    S: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16])
    SUM: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, s.d, 16])
    OPERAND: gl.constexpr = gl.DotOperandLayout(0, SUM, 2)
    PARTS: gl.constexpr = s.parts
    STAGES: gl.constexpr = s.stages
    zero = hidden_zero(step)
    if not s.hold:
        k = buffers.k.index(group + zero)
        v = buffers.v.index(group + zero)
    zeros = gl.zeros([HALF, HALF], gl.float32, layout=S)
    pair = (step & 1) * 2
    for part in gl.static_range(PARTS):
        tile = step * PARTS + part
        stage = tile % STAGES
        parity = (tile // STAGES) & 1
        q = buffers.q.index(stage)
        do = buffers.do.index(stage)
        mbarrier.wait(signals.q_full.index(stage), parity)
        x = warpgroup_mma(k, q.permute((1, 0)), zeros, use_acc=False, is_async=True)
        if part == 0:
            dq = multiply_dq(buffers, signals, step - 1, group, s)
        if s.early:
            mbarrier.wait(signals.do_full.index(stage), parity)
            dp = warpgroup_mma(v, do.permute((1, 0)), zeros, use_acc=False, is_async=True)
        # What a wait leaves in flight is what was started after: dq's two products and dp's.
        if s.defer:
            dk = warpgroup_mma_wait(1 + 2 * (part == 0) + s.early, deps=[dk])
            mbarrier.arrive(signals.q_empty.index((tile + STAGES - 1) % STAGES), count=1, pred=tile > 0)
        lse = buffers.lse.index(stage).load(gl.SliceLayout(0, S))
        x = warpgroup_mma_wait(2 * (part == 0) + s.early, deps=[x])
        p = exp2(x * unit - lse[None, :])
        beside = 0
        if left is not None or right is not None:
            beside = read_field(buffers.beside, stage, 4) + group * HALF
        cut = is_cut(beside, inside, left, right, HALF)
        if cut:
            p = hide(p, beside, inside, left, right, S)
        weights = gl.convert_layout(to_16_bits(p, q.dtype), OPERAND)
        if part == 0:
            dq, weights = warpgroup_mma_wait(s.early, deps=[dq, weights])
            if step > begun:
                hand_over(dq, buffers, signals, step - 1, group)
        if s.early:
            dp, weights = warpgroup_mma_wait(0, deps=[dp, weights])
            dv = warpgroup_mma(weights, do, dv, is_async=True)
        else:
            mbarrier.wait(signals.do_full.index(stage), parity)
            dp = warpgroup_mma(v, do.permute((1, 0)), zeros, use_acc=False, is_async=True)
            dv = warpgroup_mma(weights, do, dv, is_async=True)
            dp = warpgroup_mma_wait(1, deps=[dp])
        delta = buffers.delta.index(stage).load(gl.SliceLayout(0, S))  # not before: it takes 16 registers
        ds = p * (dp - delta[None, :])
        if left is not None or right is not None:
            if cut:
                ds = hide(ds, beside, inside, left, right, S)
        ds = to_16_bits(ds, q.dtype)
        own = buffers.ds.index(pair * PARTS + part * 2 + group)
        own.store(ds)
        fence_async_shared()
        if s.defer:
            meet(10 + group, 128)
        if part == PARTS - 1:
            mbarrier.arrive(signals.ds_full.index(pair + group), count=1)
        if s.defer:
            dk = warpgroup_mma(own, q, dk, is_async=True)
        else:
            dk = warpgroup_mma(gl.convert_layout(ds, OPERAND), q, dk, is_async=True)
        dv, weights = warpgroup_mma_wait(1, deps=[dv, weights])
        mbarrier.arrive(signals.do_empty.index(stage), count=1)
        if not s.defer:
            dk = warpgroup_mma_wait(0, deps=[dk])
            mbarrier.arrive(signals.q_empty.index(stage), count=1)
    return dk, dv


@gluon.jit
def gatherer(
    dk_dst, dv_dst, buffers, notes, signals, scale, left, right, group: gl.constexpr, s: gl.constexpr
):  # fmt: skip
    """One warpgroup: dk and dv of 64 keys of tile after tile."""
    D: gl.constexpr = s.d
    S: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16])
    SUM: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, s.d, 16])
    begun = 0  # steps of the tiles before
    turn = 0
    note, n_k = wait_for_note(notes, signals, turn, 4)
    while n_k > 0:
        inside = n_k - read_first(notes, note, 4) - group * HALF
        steps = read_steps(notes, note, 4)
        dk = gl.zeros([HALF, D], gl.float32, layout=SUM)
        dv = gl.zeros([HALF, D], gl.float32, layout=SUM)
        mbarrier.wait(signals.kv_full, turn & 1)
        k = buffers.k.index(group)
        v = buffers.v.index(group)
        if left is not None or right is not None:
            clear_keys(k, v, group, s)
        if s.hold:
            k = k.load(gl.DotOperandLayout(0, S, 2))
            v = v.load(gl.DotOperandLayout(0, S, 2))
        if s.defer:
            dk = warpgroup_mma_init(dk)
        for step in range(begun, begun + steps):
            dk, dv = visit(dk, dv, k, v, buffers, signals, step, begun, inside, left, right, scale * LOG2E, group, s)
        begun += steps
        dq = multiply_dq(buffers, signals, begun - 1, group, s)
        # That q is read is said in the next step, be it one of the next tile.
        dq, dk = warpgroup_mma_wait(0, deps=[dq, dk])
        if steps > 0:
            hand_over(dq, buffers, signals, begun - 1, group)
        place, kv_head = read_place(notes, note, 4)  # not before: the loop needs the registers
        store_gradients(dk * scale, dv, dk_dst, dv_dst, buffers, place, kv_head, place.first + group * HALF, group, s)
        mbarrier.arrive(signals.kv_empty, count=1)
        mbarrier.arrive(signals.note_empty.index(turn & 1), count=1)
        turn += 1
        note, n_k = wait_for_note(notes, signals, turn, 4)


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
    """Persistent: each program takes 128 keys of a head, dk and dv of them and what they add to dq, until none
    is left."""
    s: gl.constexpr = SIZES
    D: gl.constexpr = s.d
    STAGES: gl.constexpr = s.stages
    TWICE: gl.constexpr = 2 * s.stages
    DS: gl.constexpr = 4 * s.parts
    TILES: gl.constexpr = 2 * WRITERS
    LINES: gl.constexpr = HALF * HALF // LINE
    dtype: gl.constexpr = q_src.dtype
    ROWS: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    ONE: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    buffers = Buffers(
        gl.allocate_shared_memory(dtype, [2, HALF, D], ROWS),
        gl.allocate_shared_memory(dtype, [2, HALF, D], ROWS),
        gl.allocate_shared_memory(dtype, [STAGES, HALF, D], ROWS),
        gl.allocate_shared_memory(dtype, [STAGES, HALF, D], ROWS),
        gl.allocate_shared_memory(gl.float32, [STAGES, HALF], lse_src.layout),
        gl.allocate_shared_memory(gl.float32, [STAGES, HALF], delta_src.layout),
        gl.allocate_shared_memory(gl.int32, [STAGES, 1], ONE),
        gl.allocate_shared_memory(dtype, [DS, HALF, HALF], ROWS),
        gl.allocate_shared_memory(gl.float32, [TILES, LINES, LINE], sums_dst.layout),
    )
    notes = gl.allocate_shared_memory(gl.int32, [2 * FIELDS, 1], ONE)
    READERS: gl.constexpr = 3 + WRITERS
    signals = Signals(
        make_barriers(1, 1).index(0), make_barriers(1, 2).index(0), make_barriers(TWICE, 1), make_barriers(STAGES, 2),
        make_barriers(TWICE, 1), make_barriers(STAGES, 2), make_barriers(4, 1), make_barriers(WRITERS, 2),
        make_barriers(WRITERS, 1),
        make_barriers(1, 1).index(0), make_barriers(2, 1), make_barriers(2, READERS),
    )  # fmt: skip
    of = Launch(cu_q_ptr, cu_k_ptr, n_sequences, n_q, n_k, heads_k, group, tiles_k, strips, together)
    gl.warp_specialize(
        [
            (gatherer, (dk_dst, dv_dst, buffers, notes, signals, scale, left, right, 0, SIZES)),
            (gatherer, (dk_dst, dv_dst, buffers, notes, signals, scale, left, right, 1, SIZES)),
            (loader, (q_src, k_src, v_src, do_src, lse_src, delta_src, buffers, notes, signals, tiles_q,
                      left, right, SIZES)),
            (writer, (sums_dst, counters_ptr, buffers, notes, signals, tiles_q, slots, left, right, 0, SIZES)),
            (writer, (sums_dst, counters_ptr, buffers, notes, signals, tiles_q, slots, left, right, 1, SIZES)),
            (planner, (tickets_ptr, notes, signals, of, left, right, SIZES)),
        ],
        [4, 1, 1, 1, 1], [REGISTERS, SPARE, SPARE, SPARE, SPARE],
    )  # fmt: skip
