"""Forward in float8 e4m3 for sm_90: the forward's rings, tiles and notes around the step of eight bits.

What is rounded and how stands in `quantattn/attention/float8.py`; the arithmetic of a step is that of
`generations/float8.py`. Two things are particular to eight bits here:

    values     A product of eight bits reads both operands along the keys, and values lie along the columns. They come
               transposed, (B, Hkv, D, keys), from the kernel that rounds them.
    weights    The threads that hold a weight after q·k are not those that the next product wants it from. Within
               sixteen keys, key 8g + 2t + e takes the place 4t + 2g + e: then they are, and no weight moves. A sum over
               keys does not ask for their order; values come in the same one (Shah et al. 2024, §3.3).

Hopper's matrix units add products of float8 in fewer bits than float32 has, so each block's product is added to u
outside of them.

Three warpgroups do one thing after the other each, and so something different at a time. With two of them, whose q·k
runs beside their own softmax, 810 TFLOP/s are reached where three reach 930; a polynomial for a quarter of the
exponentials makes it slower (docs/log.md).

Source: Shah et al. 2024, "FlashAttention-3", §3.3.
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

from quantattn.attention.float8 import BELOW, ROWS_K, ROWS_Q
from quantattn.attention.kernels.arguments import Place
from quantattn.attention.kernels.hopper import configs
from quantattn.attention.kernels.hopper.arithmetic import draw, exp2, to_8_bits
from quantattn.attention.kernels.hopper.compat import reshaped, tma_load
from quantattn.attention.kernels.hopper.forward import sum_in_thread
from quantattn.attention.kernels.hopper.tasks import FIELDS, Tile, Work, hide, read_note, tile_of, write_note
from quantattn.attention.kernels.hopper.tiles import load_rows, make_barriers, store_rows
from quantattn.attention.kernels.primitives import LN2

_LOADS = gl.constexpr(configs.LOADS)
_BELOW, _ROWS_Q, _ROWS_K = gl.constexpr(BELOW), gl.constexpr(ROWS_Q), gl.constexpr(ROWS_K)
_FLOOR = gl.constexpr(-3e38)


class Scales(NamedTuple):
    """What e4m3 numbers are multiplied by: float32 (B, H, ⌈N / 128⌉) of q, (B, Hkv, ⌈Nk / 64⌉) of k, (B, Hkv) of v."""

    q: Any
    k: Any
    v: Any


class Rings(NamedTuple):
    """Buffers of e4m3, and one of results a warpgroup."""

    q: Any
    k: Any
    v: Any
    out: Any


class Signals(NamedTuple):
    """Barriers: what is full was written, what is empty was read."""

    q_full: Any
    q_empty: Any
    k_full: Any
    k_empty: Any
    v_full: Any
    v_empty: Any
    note_full: Any
    note_empty: Any


class Shared(NamedTuple):
    """What lies in shared memory."""

    rings: Any
    notes: Any
    signals: Any


@gluon.jit
def loader(q_src, k_src, v_src, rings, notes, signals, work, s: gl.constexpr):
    """One warp: queries, keys and values of tile after tile, one tile ahead of those who multiply."""
    GROUPS: gl.constexpr = s.groups
    BLOCK_M: gl.constexpr = 64 * s.groups
    N: gl.constexpr = s.n
    D: gl.constexpr = s.d
    step = 0
    issued = 0
    filled = 0
    number = gl.program_id(0)
    while number < work.tiles:
        t = tile_of(number, 0, work, BLOCK_M, s)
        p = t.place
        kv_head = t.head // work.group
        mbarrier.wait(signals.note_empty.index(0), (issued & 1) ^ 1)
        write_note(notes, t)
        mbarrier.arrive(signals.note_full.index(0), count=1)
        issued += 1
        if t.blocks > 0:
            q_full = signals.q_full.index(0)
            mbarrier.wait(signals.q_empty.index(0), (filled & 1) ^ 1)
            mbarrier.expect(q_full, s.q_bytes)
            for w in gl.static_range(GROUPS):
                load_rows(q_src, p, 0, p.n_q, p.first + w * 64, t.head, q_full, rings.q.index(w), False)
            filled += 1
        for j in range(t.blocks):
            stage = step % s.stages
            empty = ((step // s.stages) & 1) ^ 1
            row = t.low + (t.blocks - 1 - j) * s.n
            k_full = signals.k_full.index(stage)
            mbarrier.wait(signals.k_empty.index(stage), empty)
            mbarrier.expect(k_full, s.kv_bytes)
            load_rows(k_src, p, 0, p.n_k, row, kv_head, k_full, rings.k.index(stage), False)
            v_full = signals.v_full.index(stage)
            mbarrier.wait(signals.v_empty.index(stage), empty)
            mbarrier.expect(v_full, s.kv_bytes)
            box = reshaped(rings.v.index(stage), [1, 1, D, N], v_src.layout)
            tma_load(v_src, [p.batch, kv_head, 0, row], v_full, box)
            step += 1
        if s.dynamic:
            number = draw(work.counter) + gl.num_programs(0)
        else:
            number += gl.num_programs(0)
    mbarrier.wait(signals.note_empty.index(0), (issued & 1) ^ 1)
    nowhere = Place(0, 0, 0, 0, 0, 0, 0)
    write_note(notes, Tile(nowhere, 0, 0, 0, 0))
    mbarrier.arrive(signals.note_full.index(0), count=1)


@gluon.jit
def weigh(x, m, units, PL: gl.constexpr, s: gl.constexpr):
    """Softmax of one block of scores [64, n] on the running maximum m: (weights as an operand, maximum, sums).

    `units` has the factor of each 64 keys; sums over the keys that one thread holds are [64, 4].
    """
    N: gl.constexpr = s.n
    PARTS: gl.constexpr = s.n // _ROWS_K
    EIGHTHS: gl.constexpr = _ROWS_K // 8
    parts = x.reshape([64, PARTS, EIGHTHS, 4, 2])
    top = gl.max(gl.max(parts, 4), 2)  # [64, PARTS, 4]: what a thread has of each factor
    unit = gl.convert_layout(units, gl.SliceLayout(0, gl.SliceLayout(2, top.type.layout)))
    top = gl.max(gl.max(top * unit[None, :, None], 1), 1)
    raised = gl.maximum(m, gl.convert_layout(top, m.type.layout) - _BELOW)
    halves = x.reshape([64, PARTS, _ROWS_K])
    each = gl.convert_layout(units, gl.SliceLayout(0, gl.SliceLayout(2, halves.type.layout)))
    pivot = gl.convert_layout(raised, gl.SliceLayout(1, gl.SliceLayout(2, halves.type.layout)))
    weights = exp2(halves * each[None, :, None] - pivot[:, None, None])
    sums = sum_in_thread(weights.reshape([64, N]), s)
    placed = weights.reshape([64, N // 16, 2, 4, 2]).permute((0, 1, 3, 2, 4)).reshape([64, N])
    return to_8_bits(gl.convert_layout(placed, PL)), raised, sums


@gluon.jit
def score(q, rings, signals, step, SL: gl.constexpr, s: gl.constexpr):
    """Start q·k of a block."""
    N: gl.constexpr = s.n
    stage = step % s.stages
    mbarrier.wait(signals.k_full.index(stage), (step // s.stages) & 1)
    start = gl.zeros([64, N], gl.float32, layout=SL)
    return warpgroup_mma(q, rings.k.index(stage).permute((1, 0)), start, use_acc=False, is_async=True)


@gluon.jit
def units_of(scales, t, work, unit, column, s: gl.constexpr):
    """The factors of the scores of a block of keys, one for each 64 of them."""
    PARTS: gl.constexpr = s.n // _ROWS_K
    LAYOUT: gl.constexpr = gl.BlockedLayout([PARTS], [32], [4], [0])
    blocks = (work.n_k + _ROWS_K - 1) // _ROWS_K
    block = column // _ROWS_K + gl.arange(0, PARTS, layout=LAYOUT)
    first = (t.place.batch * (work.heads // work.group) + t.head // work.group) * blocks
    return unit * gl.load(scales.k + first + block, mask=block < blocks, other=1.0)


@gluon.jit
def scored(q, rings, signals, step, SL: gl.constexpr, s: gl.constexpr):
    """q·k of a block."""
    x = warpgroup_mma_wait(0, deps=[score(q, rings, signals, step, SL, s)])
    mbarrier.arrive(signals.k_empty.index(step % s.stages), count=1)
    return x


@gluon.jit
def times_values(weights, values, FIRST: gl.constexpr, OL: gl.constexpr, s: gl.constexpr):
    """Start weights · v for half of the columns, from FIRST on."""
    HALF: gl.constexpr = s.d // 2
    start = gl.zeros([64, HALF], gl.float32, layout=OL)
    return warpgroup_mma(weights, values.slice(FIRST, HALF, dim=0).permute((1, 0)), start, use_acc=False, is_async=True)


@gluon.jit
def absorb(
    x, u, w, m, l, q, rings, signals, scales, step, t, row, column, work, unit,
    CUT: gl.constexpr, MORE: gl.constexpr, SL: gl.constexpr, OL: gl.constexpr, s: gl.constexpr,
):  # fmt: skip
    """Softmax of a block's scores x, weights · v, and q·k of the next block if there are MORE: (next x, u, w, m, l).

    With `overlap` that q·k runs beside the softmax; without, a warpgroup needs no registers for two blocks of scores.
    u and w are the halves of the sums' columns; as one tensor the assembler finds no registers for them.
    """
    D: gl.constexpr = s.d
    PL: gl.constexpr = gl.DotOperandLayout(0, OL, 4)
    stage = step % s.stages
    if CUT:
        x = hide(x, t, row, column, work, SL, s)
    ahead = x
    if MORE and s.overlap:
        ahead = score(q, rings, signals, step + 1, SL, s)
    weights, raised, sums = weigh(x, m, units_of(scales, t, work, unit, column, s), PL, s)
    shrink = exp2(m - raised)
    l = l * gl.convert_layout(shrink, gl.SliceLayout(1, sums.type.layout))[:, None] + sums
    mbarrier.wait(signals.v_full.index(stage), (step // s.stages) & 1)
    of_u = times_values(weights, rings.v.index(stage), 0, OL, s)
    of_w = times_values(weights, rings.v.index(stage), D // 2, OL, s)
    factor = gl.convert_layout(shrink, gl.SliceLayout(1, OL))[:, None]
    u, w = u * factor, w * factor
    if MORE and s.overlap:
        ahead, of_u, of_w = warpgroup_mma_wait(0, deps=[ahead, of_u, of_w])
        mbarrier.arrive(signals.k_empty.index((step + 1) % s.stages), count=1)
    else:
        of_u, of_w = warpgroup_mma_wait(0, deps=[of_u, of_w])
    mbarrier.arrive(signals.v_empty.index(stage), count=1)
    u, w = u + of_u, w + of_w
    if MORE and not s.overlap:
        # The sums are to be there first, or their terms and the next scores want registers at the same time.
        u, w = warpgroup_mma_wait(0, deps=[u, w])
        ahead = scored(q, rings, signals, step + 1, SL, s)
    return ahead, u, w, raised, l


@gluon.jit
def attend(
    t, q, rings, signals, scales, step, row, work, unit, SL: gl.constexpr, OL: gl.constexpr, s: gl.constexpr
):  # fmt: skip
    """The state of 64 queries after all blocks of the tile, of which there is at least one: (u, w, m, l, step)."""
    HALF: gl.constexpr = s.d // 2
    N: gl.constexpr = s.n
    column = t.low + (t.blocks - 1) * s.n
    x = scored(q, rings, signals, step, SL, s)
    u = gl.zeros([64, HALF], gl.float32, layout=OL)
    w = gl.zeros([64, HALF], gl.float32, layout=OL)
    m = gl.zeros([64], gl.float32, layout=gl.SliceLayout(1, SL)) + _FLOOR
    l = sum_in_thread(gl.zeros([64, N], gl.float32, layout=SL), s)
    cut = 1
    if s.right:
        p = t.place
        cut = t.blocks - gl.maximum((row + p.n_k - p.n_q + work.right + 1) // s.n, 0)
    last = t.blocks - 1
    cut = gl.minimum(gl.maximum(cut, 1), last)
    for _ in range(cut):
        x, u, w, m, l = absorb(
            x, u, w, m, l, q, rings, signals, scales, step, t, row, column, work, unit, True, True, SL, OL, s
        )
        column -= s.n
        step += 1
    for _ in range(cut, last):
        x, u, w, m, l = absorb(
            x, u, w, m, l, q, rings, signals, scales, step, t, row, column, work, unit, False, True, SL, OL, s
        )
        column -= s.n
        step += 1
    mbarrier.arrive(signals.q_empty.index(0), count=1)
    x, u, w, m, l = absorb(
        x, u, w, m, l, q, rings, signals, scales, step, t, row, column, work, unit, True, False, SL, OL, s
    )
    return u, w, m, gl.convert_layout(gl.sum(l, 1), gl.SliceLayout(1, SL)), step + 1


@gluon.jit
def attender(rings, notes, signals, scales, out_dst, lse_ptr, work, unit, group: gl.constexpr, s: gl.constexpr):
    """One warpgroup: 64 queries of tile after tile."""
    SL: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, s.n, 32])
    OL: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, s.d // 2, 32])
    ALL: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, s.d, 32])
    HALF: gl.constexpr = s.d // 2
    ROWS: gl.constexpr = gl.SliceLayout(1, SL)
    D: gl.constexpr = s.d
    buffer = rings.out.index(group)
    step = 0
    turn = 0
    fill = 0
    mbarrier.wait(signals.note_full.index(0), 0)
    t = read_note(notes, 4)
    mbarrier.arrive(signals.note_empty.index(0), count=1)
    while t.place.n_q > 0:
        p = t.place
        row = p.first + group * 64
        u = gl.zeros([64, HALF], gl.float32, layout=OL)
        w = gl.zeros([64, HALF], gl.float32, layout=OL)
        m = gl.zeros([64], gl.float32, layout=ROWS)
        l = gl.zeros([64], gl.float32, layout=ROWS)
        if t.blocks > 0:
            blocks = (p.n_q + _ROWS_Q - 1) // _ROWS_Q
            block = gl.minimum(row // _ROWS_Q, blocks - 1)
            own = unit * gl.load(scales.q + (p.batch * work.heads + t.head) * blocks + block)
            mbarrier.wait(signals.q_full.index(0), fill & 1)
            fill += 1
            q = rings.q.index(group)
            u, w, m, l, step = attend(t, q, rings, signals, scales, step, row, work, own, SL, OL, s)
        empty = l == 0.0
        mass = gl.where(empty, 1.0, l)
        lse = gl.where(empty, float("-inf"), (m + gl.log2(mass)) * LN2)
        of_v = gl.load(scales.v + p.batch * (work.heads // work.group) + t.head // work.group)
        factor = gl.convert_layout(of_v / mass, gl.SliceLayout(1, OL))[:, None]
        out = gl.join((u * factor).to(out_dst.dtype), (w * factor).to(out_dst.dtype)).permute((0, 2, 1))
        tma.store_wait(0)
        buffer.store(gl.convert_layout(out.reshape([64, D]), ALL))
        fence_async_shared()
        query = row + gl.arange(0, 64, layout=ROWS)
        to = lse_ptr + (p.batch * work.heads + t.head).to(gl.int64) * work.n_q + query
        gl.store(to, lse, mask=query < p.n_q)
        if row < p.n_q:
            store_rows(out_dst, p, 0, p.n_q, row, t.head, buffer, False)
        turn += 1
        mbarrier.wait(signals.note_full.index(0), turn & 1)
        t = read_note(notes, 4)
        mbarrier.arrive(signals.note_empty.index(0), count=1)
    tma.store_wait(0)


@gluon.jit
def part(
    q_src, k_src, v_src, out_dst, lse_ptr, shared, scales, work, unit, i: gl.constexpr, s: gl.constexpr
):  # fmt: skip
    """What one set of warps does: attend (i is its number) or load."""
    if i == _LOADS:
        loader(q_src, k_src, v_src, shared.rings, shared.notes, shared.signals, work, s)
    else:
        attender(shared.rings, shared.notes, shared.signals, scales, out_dst, lse_ptr, work, unit, i, s)


@gluon.jit(do_not_specialize=["n_sequences", "n_q", "n_k", "heads", "group", "per_head", "tiles"])
def _float8_fwd(
    q_src, k_src, v_src, out_dst, lse_ptr, q_scale_ptr, k_scale_ptr, v_scale_ptr, counter_ptr, scale,
    n_sequences, n_q, n_k, heads, group, per_head, tiles,
    SIZES: gl.constexpr, WORKERS: gl.constexpr, WARPS: gl.constexpr, REGISTERS: gl.constexpr,
):  # fmt: skip
    """Persistent, as the forward of sixteen bits."""
    s: gl.constexpr = SIZES
    GROUPS: gl.constexpr = s.groups
    STAGES: gl.constexpr = s.stages
    N: gl.constexpr = s.n
    D: gl.constexpr = s.d
    ROW: gl.constexpr = s.d
    KEYS: gl.constexpr = s.n
    BY_COLUMNS: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=min(128, ROW), element_bitwidth=8, rank=2)
    BY_KEYS: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=min(128, KEYS), element_bitwidth=8, rank=2)
    RESULTS: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    rings = Rings(
        gl.allocate_shared_memory(gl.float8e4nv, [GROUPS, 64, D], BY_COLUMNS),
        gl.allocate_shared_memory(gl.float8e4nv, [STAGES, N, D], BY_COLUMNS),
        gl.allocate_shared_memory(gl.float8e4nv, [STAGES, D, N], BY_KEYS),
        gl.allocate_shared_memory(out_dst.dtype, [GROUPS, 64, D], RESULTS),
    )
    notes = gl.allocate_shared_memory(gl.int32, [FIELDS, 1], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    signals = Signals(
        make_barriers(1, 1), make_barriers(1, GROUPS),
        make_barriers(STAGES, 1), make_barriers(STAGES, GROUPS),
        make_barriers(STAGES, 1), make_barriers(STAGES, GROUPS),
        make_barriers(1, 1), make_barriers(1, GROUPS),
    )  # fmt: skip
    work = Work(None, None, n_sequences, n_q, n_k, heads, group, per_head, tiles, counter_ptr, 0, 0)
    scales = Scales(q_scale_ptr, k_scale_ptr, v_scale_ptr)
    unit = scale * 1.4426950408889634
    shared = Shared(rings, notes, signals)
    gl.warp_specialize(
        [
            (part, (q_src, k_src, v_src, out_dst, lse_ptr, shared, scales, work, unit, gl.constexpr(i), SIZES))
            for i in (0,) + WORKERS  # noqa: RUF005  what a star means it does not know
        ],
        WARPS, REGISTERS,
    )  # fmt: skip
