"""Forward for sm_90: one warp loads, two or three warpgroups of 64 queries each multiply and take the softmax.

The state of a row is the portable kernel's (m, l, u), and so is the arithmetic of a step; what differs is who waits for
whom. Keys and values go through a ring of `stages` buffers each. A *loader* warp fills them by TMA, tile after tile; it
draws the number of the next tile (from a counter, so that who is done first goes on first) and tells the others by a
note in shared memory. A warpgroup starts q·k of the next block before it takes the softmax of this one (`overlap`), or
takes turns at the tensor cores with its neighbours (`turns`).

Blocks of keys are visited from the last to the first: the mask and the end of the sequence cut the first ones visited
(and, with a left bound, the last ones), and a block between is multiplied without a compare. 0 · NaN is NaN, so where
the mask cuts a block, a value that is not finite reaches queries that do not see its key as well. A tile whose result
is not finite is attended to again, with care: of a cut block two *inspector* warps read the values first, put 0 for
what is not finite, and note its key; a query that sees it gets NaN, and no other.

Sources: Shah et al. 2024, "FlashAttention-3", for the overlap and the turns; Dao 2023 for the order of the loop.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from quantattn.attention.kernels.hopper import configs
from quantattn.attention.kernels.hopper.arithmetic import announce, exp2, meet, pin, to_16_bits
from quantattn.attention.kernels.hopper.loading import Buffers, Signals, inspector, loader, taint
from quantattn.attention.kernels.hopper.tasks import FIELDS, Work, hide, hides, read_note
from quantattn.attention.kernels.hopper.tiles import make_barriers, store_rows
from quantattn.attention.kernels.primitives import LN2

LOADS, INSPECTS = gl.constexpr(configs.LOADS), gl.constexpr(configs.INSPECTS)

FLOOR = gl.constexpr(-3e38)
"""Running maximum of a row that has seen nothing, so that −inf − m is −inf."""


@gluon.jit
def take_turn(group: gl.constexpr, s: gl.constexpr):
    """Wait until the warpgroup before has started its products."""
    if s.turns:
        meet(8 + group, 256)


@gluon.jit
def give_turn(group: gl.constexpr, s: gl.constexpr):
    """Let the next warpgroup start its products."""
    if s.turns:
        announce(8 + (group + 1) % s.groups, 256)


@gluon.jit
def sum_in_thread(weights, s: gl.constexpr):
    """Sums over the keys that one thread holds, [64, 4]: the rest of the sum waits for the end."""
    EIGHTHS: gl.constexpr = s.n // 8
    return gl.sum(gl.sum(weights.reshape([64, EIGHTHS, 4, 2]), 3), 1)


@gluon.jit
def absorb(
    u, weights, m, l, q, buffers, signals, step, t, row, column, work, unit,
    group: gl.constexpr, CUT: gl.constexpr, SL: gl.constexpr, OL: gl.constexpr, PL: gl.constexpr, s: gl.constexpr,
):  # fmt: skip
    """q·k of one block beside the weights · v of the one before; CUT: 0 no mask, 1 a mask, 2 if it hides something."""
    N: gl.constexpr = s.n
    stage = step % s.stages
    parity = (step // s.stages) & 1
    before = (step - 1) % s.stages
    mbarrier.wait(signals.k_full.index(stage), parity)
    take_turn(group, s)
    start = gl.zeros([64, N], gl.float32, layout=SL)
    x = warpgroup_mma(q, buffers.k.index(stage).permute((1, 0)), start, use_acc=False, is_async=True)
    mbarrier.wait(signals.v_full.index(before), ((step - 1) // s.stages) & 1)
    u = warpgroup_mma(weights, buffers.v.index(before), u, is_async=True)
    give_turn(group, s)
    if s.overlap:
        x = warpgroup_mma_wait(1, deps=[x])
        mbarrier.arrive(signals.k_empty.index(stage), count=1)
    else:
        x, u = warpgroup_mma_wait(0, deps=[x, u])
        mbarrier.arrive(signals.k_empty.index(stage), count=1)
        mbarrier.arrive(signals.v_empty.index(before), count=1)
    if CUT == 1:
        x = hide(x, t, row, column, work, SL, s)
    elif CUT == 2:
        if hides(t, row, column, work, s):
            x = hide(x, t, row, column, work, SL, s)
    raised = gl.maximum(m, gl.max(x, 1) * unit)
    shrink = exp2(m - raised)
    new = exp2(x * unit - raised[:, None])
    part = sum_in_thread(new, s)
    l = l * gl.convert_layout(shrink, gl.SliceLayout(1, part.type.layout))[:, None] + part
    if CUT and s.bounded:
        new = taint(new, buffers, signals, step, t, row, column, work, SL, s)
    new = gl.convert_layout(to_16_bits(new, q.dtype), PL)
    if s.overlap:
        pin(l)
        u, weights, new = warpgroup_mma_wait(0, deps=[u, weights, new])
        mbarrier.arrive(signals.v_empty.index(before), count=1)
    u = u * gl.convert_layout(shrink, gl.SliceLayout(1, OL))[:, None]
    return u, new, raised, l


@gluon.jit
def attend(
    t, q, buffers, signals, step, row, work, unit,
    group: gl.constexpr, SL: gl.constexpr, OL: gl.constexpr, s: gl.constexpr,
):  # fmt: skip
    """The state of 64 queries after all blocks of the tile, of which there is at least one: (u, m, l, step)."""
    N: gl.constexpr = s.n
    D: gl.constexpr = s.d
    PL: gl.constexpr = gl.DotOperandLayout(0, OL, 2)
    stage = step % s.stages
    column = t.low + (t.blocks - 1) * s.n
    mbarrier.wait(signals.k_full.index(stage), (step // s.stages) & 1)
    take_turn(group, s)
    start = gl.zeros([64, N], gl.float32, layout=SL)
    x = warpgroup_mma(q, buffers.k.index(stage).permute((1, 0)), start, use_acc=False, is_async=True)
    give_turn(group, s)
    x = warpgroup_mma_wait(0, deps=[x])
    mbarrier.arrive(signals.k_empty.index(stage), count=1)
    x = hide(x, t, row, column, work, SL, s)
    m = gl.maximum(gl.max(x, 1) * unit, FLOOR)
    weights = exp2(x * unit - m[:, None])
    l = sum_in_thread(weights, s)
    if s.bounded:
        weights = taint(weights, buffers, signals, step, t, row, column, work, SL, s)
    weights = gl.convert_layout(to_16_bits(weights, q.dtype), PL)
    u = gl.zeros([64, D], gl.float32, layout=OL)
    step += 1
    if s.left or not s.two_loops:
        for j in range(1, t.blocks):
            column = t.low + (t.blocks - 1 - j) * s.n
            u, weights, m, l = absorb(
                u, weights, m, l, q, buffers, signals, step, t, row, column, work, unit, group, 2, SL, OL, PL, s
            )
            step += 1
    else:
        cut = 1
        if s.right:
            p = t.place
            upper = gl.where(t.careful > 0, p.first, row)  # with care, what is cut for one is cut for all
            cut = t.blocks - gl.maximum((upper + p.n_k - p.n_q + work.right + 1) // s.n, 0)
            cut = gl.minimum(gl.maximum(cut, 1), t.blocks)
            for j in range(1, cut):
                column = t.low + (t.blocks - 1 - j) * s.n
                u, weights, m, l = absorb(
                    u, weights, m, l, q, buffers, signals, step, t, row, column, work, unit, group, 1, SL, OL, PL, s
                )
                step += 1
        for _ in range(cut, t.blocks):
            u, weights, m, l = absorb(
                u, weights, m, l, q, buffers, signals, step, t, row, 0, work, unit, group, 0, SL, OL, PL, s
            )
            step += 1
    if not s.shares:
        mbarrier.arrive(signals.q_empty.index(0), count=1)
    last = (step - 1) % s.stages
    mbarrier.wait(signals.v_full.index(last), ((step - 1) // s.stages) & 1)
    u = warpgroup_mma(weights, buffers.v.index(last), u, is_async=True)
    u, weights = warpgroup_mma_wait(0, deps=[u, weights])
    mbarrier.arrive(signals.v_empty.index(last), count=1)
    return u, m, gl.convert_layout(gl.sum(l, 1), gl.SliceLayout(1, SL)), step


@gluon.jit
def attender(
    buffers, notes, signals, out_dst, lse_ptr, work, unit, group: gl.constexpr, s: gl.constexpr
):  # fmt: skip
    """One warpgroup: 64 queries of tile after tile."""
    SL: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, s.n, 16])
    OL: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, s.d, 16])
    ROWS: gl.constexpr = gl.SliceLayout(1, SL)
    D: gl.constexpr = s.d
    q = buffers.q.index(group)
    buffer = q if s.shares else buffers.out.index(group)
    step = 0
    turn = 0
    fill = 0
    if s.turns:
        if group == s.groups - 1:
            announce(8, 256)
    mbarrier.wait(signals.note_full.index(0), 0)
    t = read_note(notes, 4)
    mbarrier.arrive(signals.note_empty.index(0), count=1)
    while t.place.n_q > 0:
        p = t.place
        row = p.first + group * 64
        u = gl.zeros([64, D], gl.float32, layout=OL)
        m = gl.zeros([64], gl.float32, layout=ROWS)
        l = gl.zeros([64], gl.float32, layout=ROWS)
        if (t.blocks > 0) | s.shares:
            mbarrier.wait(signals.q_full.index(0), fill & 1)
            fill += 1
        if t.blocks > 0:
            u, m, l, step = attend(t, q, buffers, signals, step, row, work, unit, group, SL, OL, s)
        empty = l == 0.0
        mass = gl.where(empty, 1.0, l)
        lse = gl.where(empty, float("-inf"), (m + gl.log2(mass)) * LN2)
        out = u * gl.convert_layout(1.0 / mass, gl.SliceLayout(1, OL))[:, None]
        wrong = 0
        if s.bounded:
            wrong = gl.max(gl.max((out * 0.0 != 0.0).to(gl.int32), 1), 0)
            wrong = gl.where(t.careful > 0, 0, wrong)
            if wrong > 0:
                buffers.again.index(turn & 1).store(
                    gl.zeros([1], gl.int32, layout=gl.BlockedLayout([1], [32], [4], [0])) + 1
                )
            mbarrier.arrive(signals.done.index(turn & 1), count=1)
        tma.store_wait(0)
        buffer.store(out.to(q.dtype))
        fence_async_shared()
        query = row + gl.arange(0, 64, layout=ROWS)
        to = lse_ptr + (p.batch * work.heads + t.head).to(gl.int64) * work.n_q + (p.q_start + query)
        gl.store(to, lse, mask=query < p.n_q)
        if (row < p.n_q) & (wrong == 0):  # two stores to one place have no order
            store_rows(out_dst, p, p.q_start, p.n_q, row, t.head, buffer, s.packed)
        if s.shares:
            tma.store_wait(0)
            mbarrier.arrive(signals.q_empty.index(0), count=1)
        turn += 1
        mbarrier.wait(signals.note_full.index(0), turn & 1)
        t = read_note(notes, 4)
        mbarrier.arrive(signals.note_empty.index(0), count=1)
    tma.store_wait(0)


@gluon.jit
def part(
    q_src, k_src, v_src, out_dst, lse_ptr, buffers, notes, signals, work, unit, i: gl.constexpr, s: gl.constexpr
):  # fmt: skip
    """What one set of warps does: attend (i is its number), load or inspect."""
    if i == LOADS:
        loader(q_src, k_src, v_src, buffers, notes, signals, work, s)
    elif i == INSPECTS:
        inspector(buffers, notes, signals, work, s)
    else:
        attender(buffers, notes, signals, out_dst, lse_ptr, work, unit, i, s)


@gluon.jit(do_not_specialize=["n_sequences", "n_q", "n_k", "heads", "group", "per_head", "tiles", "left", "right"])
def _attention_fwd(
    q_src, k_src, v_src, out_dst, lse_ptr, cu_q_ptr, cu_k_ptr, counter_ptr, scale,
    n_sequences, n_q, n_k, heads, group, per_head, tiles, left, right,
    SIZES: gl.constexpr, WORKERS: gl.constexpr, WARPS: gl.constexpr, REGISTERS: gl.constexpr,
):  # fmt: skip
    """Persistent: each program takes tiles of 64 · groups queries of one head until none is left.

    WORKERS says what the warps do that come with the first warpgroup, each set in turn; WARPS how many they are.
    """
    s: gl.constexpr = SIZES
    GROUPS: gl.constexpr = s.groups
    STAGES: gl.constexpr = s.stages
    N: gl.constexpr = s.n
    D: gl.constexpr = s.d
    EIGHTHS: gl.constexpr = s.stages * s.n // 8
    dtype: gl.constexpr = q_src.dtype
    LAYOUT: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    ONE: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    queries = gl.allocate_shared_memory(dtype, [GROUPS, 64, D], LAYOUT)
    buffers = Buffers(
        queries,
        gl.allocate_shared_memory(dtype, [STAGES, N, D], LAYOUT),
        gl.allocate_shared_memory(dtype, [STAGES, N, D], LAYOUT),
        queries if s.shares else gl.allocate_shared_memory(dtype, [GROUPS, 64, D], LAYOUT),
        gl.allocate_shared_memory(gl.int32, [EIGHTHS, 8], ONE),
        gl.allocate_shared_memory(gl.int32, [STAGES, 1], ONE),
        gl.allocate_shared_memory(gl.int32, [2, 1], ONE),
    )
    notes = gl.allocate_shared_memory(gl.int32, [FIELDS, 1], ONE)
    if s.bounded:
        for i in gl.static_range(2):
            buffers.again.index(i).store(gl.zeros([1], gl.int32, layout=gl.BlockedLayout([1], [32], [4], [0])))
        done = make_barriers(2, GROUPS)
    else:
        done = notes  # a barrier that is made and not used lies where something else does
    READERS: gl.constexpr = s.groups + int(s.bounded)
    TWICE: gl.constexpr = 2 * s.stages
    signals = Signals(
        make_barriers(1, 1), make_barriers(1, GROUPS),
        make_barriers(STAGES, 1), make_barriers(STAGES, GROUPS),
        make_barriers(TWICE, 1), make_barriers(STAGES, GROUPS),
        make_barriers(1, 1), make_barriers(1, READERS), done,
    )  # fmt: skip
    work = Work(cu_q_ptr, cu_k_ptr, n_sequences, n_q, n_k, heads, group, per_head, tiles, counter_ptr, left, right)
    unit = scale * 1.4426950408889634
    gl.warp_specialize(
        [
            (part, (q_src, k_src, v_src, out_dst, lse_ptr, buffers, notes, signals, work, unit, gl.constexpr(i), SIZES))
            for i in (0,) + WORKERS  # noqa: RUF005  what a star means it does not know
        ],
        WARPS, REGISTERS,
    )  # fmt: skip
