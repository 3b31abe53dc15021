"""The warps of the forward that do not multiply: one loads, and two look at values before they are used."""

from __future__ import annotations

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier

from quantattn.attention.kernels.arguments import Place
from quantattn.attention.kernels.hopper.arithmetic import draw
from quantattn.attention.kernels.hopper.compat import reshaped
from quantattn.attention.kernels.hopper.tasks import Tile, is_cut, read_note, sees, tile_of, write_note
from quantattn.attention.kernels.hopper.tiles import load_rows


class Buffers(NamedTuple):
    """Shared memory: queries, keys, values and results, the keys whose values are not finite, and the tiles that are
    to be attended to again."""

    q: Any
    k: Any
    v: Any
    out: Any
    odd: Any
    any_odd: Any
    again: Any


class Signals(NamedTuple):
    """Barriers: what is full was written, what is empty was read. Those of values are twice as many: values that are to
    be inspected first arrive at the second half."""

    q_full: Any
    q_empty: Any
    k_full: Any
    k_empty: Any
    v_full: Any
    v_empty: Any
    note_full: Any
    note_empty: Any
    done: Any


@gluon.jit
def load_tile(t, q_src, k_src, v_src, buffers, signals, work, step, fill, s: gl.constexpr):
    """The queries of a tile and block after block of its keys and values: (step, fill) afterwards."""
    GROUPS: gl.constexpr = s.groups
    p = t.place
    kv_head = t.head // work.group
    if (t.blocks > 0) | s.shares:
        q_full = signals.q_full.index(0)
        mbarrier.wait(signals.q_empty.index(0), (fill & 1) ^ 1)
        mbarrier.expect(q_full, s.q_bytes)
        for w in gl.static_range(GROUPS):
            row = p.first + w * 64
            load_rows(q_src, p, p.q_start, p.n_q, row, t.head, q_full, buffers.q.index(w), s.packed)
        fill += 1
    for j in range(t.blocks):
        stage = step % s.stages
        parity = (step // s.stages) & 1
        row = t.low + (t.blocks - 1 - j) * s.n
        k_full = signals.k_full.index(stage)
        mbarrier.wait(signals.k_empty.index(stage), parity ^ 1)
        mbarrier.expect(k_full, s.kv_bytes)
        load_rows(k_src, p, p.k_start, p.n_k, row, kv_head, k_full, buffers.k.index(stage), s.packed)
        v_full = signals.v_full.index(stage)
        if s.bounded:  # what is inspected arrives at another barrier
            v_full = signals.v_full.index(stage + is_inspected(t, row, work, s) * s.stages)
        mbarrier.wait(signals.v_empty.index(stage), parity ^ 1)
        mbarrier.expect(v_full, s.kv_bytes)
        load_rows(v_src, p, p.k_start, p.n_k, row, kv_head, v_full, buffers.v.index(stage), s.packed)
        step += 1
    return step, fill


@gluon.jit
def loader(q_src, k_src, v_src, buffers, notes, signals, work, s: gl.constexpr):
    """One warp: queries, keys and values of tile after tile into shared memory, at most one tile ahead.

    With a bounded mask it looks at the end of every tile whether that is to be attended to again, with care.
    """
    BLOCK_M: gl.constexpr = 64 * s.groups
    step = 0
    fill = 0
    issued = 0
    ended = 0
    older = 0  # the tiles that are issued and have not ended: one, or two
    newer = 0
    number = gl.program_id(0)
    while (number < work.tiles) | (s.bounded & (ended < issued)):
        task = number
        careful = 0
        if s.bounded:
            if (issued - ended == 2) | (number >= work.tiles):
                # Two barriers take turns: by now the tile after may have ended too.
                mbarrier.wait(signals.done.index(ended & 1), (ended >> 1) & 1)
                again = buffers.again.index(ended & 1)
                careful = gl.max(again.load(gl.BlockedLayout([1], [32], [1], [0])), 0)
                again.store(gl.zeros([1], gl.int32, layout=gl.BlockedLayout([1], [32], [1], [0])))
                task = gl.where(careful > 0, older, number)
                older = newer
                ended += 1
        if task < work.tiles:
            t = tile_of(task, careful, work, BLOCK_M, s)
            if t.place.first < t.place.n_q:
                mbarrier.wait(signals.note_empty.index(0), (issued & 1) ^ 1)
                write_note(notes, t)
                mbarrier.arrive(signals.note_full.index(0), count=1)
                older = gl.where(issued == ended, task, older)
                newer = task
                issued += 1
                step, fill = load_tile(t, q_src, k_src, v_src, buffers, signals, work, step, fill, s)
            if careful == 0:
                if s.dynamic:
                    number = draw(work.counter) + gl.num_programs(0)
                else:
                    number += gl.num_programs(0)
    mbarrier.wait(signals.note_empty.index(0), (issued & 1) ^ 1)
    nowhere = Place(0, 0, 0, 0, 0, 0, 0)
    write_note(notes, Tile(nowhere, 0, 0, 0, 0))
    mbarrier.arrive(signals.note_full.index(0), count=1)


@gluon.jit
def is_inspected(t, column, work, s: gl.constexpr):
    """Whether the values of a block are looked at before they are used."""
    return is_cut(t, column, work, 64 * s.groups, s) & (t.careful > 0)


@gluon.jit
def inspector(buffers, notes, signals, work, s: gl.constexpr):
    """Two warps: in cut blocks of tiles that want care, note the values that are not finite and replace them by 0.

    They read a buffer as lines of 128 bytes, 32 pairs of numbers, whose order within a line does not matter here: line
    i holds 64 columns of row i mod n.
    """
    WARPS: gl.constexpr = 2
    PER_BLOCK: gl.constexpr = s.n // 8
    CHUNKS: gl.constexpr = PER_BLOCK * s.d // 64
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 4], [4, 8], [WARPS, 1], [1, 0])
    FLAT: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    BF16: gl.constexpr = buffers.v.dtype == gl.bfloat16
    step = 0
    turn = 0
    used = 0  # bit i: parity of the uses of stage i here
    mbarrier.wait(signals.note_full.index(0), 0)
    t = read_note(notes, WARPS)
    mbarrier.arrive(signals.note_empty.index(0), count=1)
    while t.place.n_q > 0:
        for j in range(t.blocks):
            stage = step % s.stages
            if is_inspected(t, t.low + (t.blocks - 1 - j) * s.n, work, s):
                mbarrier.wait(signals.v_full.index(stage + s.stages), (used >> stage) & 1)
                used = used ^ (1 << stage)
                chunks = reshaped(buffers.v.index(stage), [CHUNKS, 8, 32], FLAT, gl.int32)
                worst = gl.zeros([8, 32], gl.int32, layout=LAYOUT)
                for i in range(CHUNKS // 2):  # two loads on their way need no more registers than there are
                    worst = worst | infinite(chunks.index(2 * i).load(LAYOUT), BF16)
                    worst = worst | infinite(chunks.index(2 * i + 1).load(LAYOUT), BF16)
                found = (gl.max(gl.max((worst != 0).to(gl.int32), 1), 0) > 0).to(gl.int32)
                buffers.any_odd.index(stage).store(
                    gl.zeros([1], gl.int32, layout=gl.BlockedLayout([1], [32], [WARPS], [0])) + found
                )
                if found > 0:
                    for i in range(PER_BLOCK):
                        buffers.odd.index(stage * PER_BLOCK + i).store(
                            gl.zeros([8], gl.int32, layout=gl.SliceLayout(1, LAYOUT))
                        )
                    for i in range(CHUNKS):
                        pairs = chunks.index(i).load(LAYOUT)
                        odd = infinite(pairs, BF16)
                        flags = buffers.odd.index(stage * PER_BLOCK + i % PER_BLOCK)
                        before = flags.load(gl.SliceLayout(1, LAYOUT))
                        flags.store(gl.maximum(before, gl.max((odd != 0).to(gl.int32), 1)))
                        low = gl.where((odd & 0x8000) != 0, 0xFFFF, 0)
                        high = gl.where(odd < 0, -65536, 0)
                        chunks.index(i).store(pairs & ~(low | high))
                fence_async_shared()
                mbarrier.arrive(signals.v_full.index(stage), count=1)
            step += 1
        turn += 1
        mbarrier.wait(signals.note_full.index(0), turn & 1)
        t = read_note(notes, WARPS)
        mbarrier.arrive(signals.note_empty.index(0), count=1)


@gluon.jit
def infinite(pairs, BF16: gl.constexpr):
    """Bits 15 and 31 of a pair of numbers: whether each is infinite or NaN, which is an exponent of ones alone."""
    if BF16:
        bits = (pairs & 0x7F807F80) + 0x00800080
    else:
        bits = (pairs & 0x7C007C00) + 0x04000400
    return bits & -2147450880  # 0x80008000


@gluon.jit
def taint(weights, buffers, signals, step, t, row, column, work, SL: gl.constexpr, s: gl.constexpr):
    """NaN for the queries that see a key whose value is not finite."""
    stage = step % s.stages
    if is_inspected(t, column, work, s):
        mbarrier.wait(signals.v_full.index(stage), (step // s.stages) & 1)
        if gl.max(buffers.any_odd.index(stage).load(gl.BlockedLayout([1], [32], [4], [0])), 0) > 0:
            STAGES: gl.constexpr = s.stages
            N: gl.constexpr = s.n
            flags = reshaped(buffers.odd, [STAGES, N], gl.SwizzledSharedLayout(1, 1, 1, [0]))
            odd = flags.index(stage).load(gl.SliceLayout(0, SL)) > 0
            weights = gl.where(sees(t, row, column, work, SL, s) & odd[None, :], float("nan"), weights)
    return weights
