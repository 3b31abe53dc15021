"""Forward for sm_90: one warp loads, two or three warpgroups of 64 queries each multiply and take the softmax.

The state of a row is the portable kernel's (m, l, u), and so is the arithmetic of a step; what differs is who waits for
whom. Keys and values go through a ring of `stages` buffers each. A *loader* warp fills them by TMA, tile after tile; it
draws the number of the next tile (from a counter, so that who is done first goes on first) and tells the others by a
note in shared memory. A warpgroup starts q·k of the next block before it takes the softmax of this one (`overlap`), or
takes turns at the tensor cores with its neighbours (`turns`).

Blocks of keys are visited from the last to the first: the mask and the end of the sequence cut the first ones visited
(and, with a left bound, the last ones), and a block between is multiplied without a compare. Of a cut block two
*inspector* warps read the values first: one that is not finite becomes 0 in shared memory, since 0 · NaN is NaN, and its
key is noted; a query that sees it gets NaN, and no other.

Sources: Shah et al. 2024, "FlashAttention-3", for the overlap and the turns; Dao 2023 for the order of the loop.
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
from quantattn.attention.kernels.hopper.arithmetic import announce, exp2, meet, pin, to_16_bits
from quantattn.attention.kernels.hopper.compat import reshaped
from quantattn.attention.kernels.hopper.tiles import load_rows, make_barriers, store_rows
from quantattn.attention.kernels.primitives import LN2, locate

FLOOR = gl.constexpr(-3e38)
"""Running maximum of a row that has seen nothing, so that −inf − m is −inf."""


class Sizes(NamedTuple):
    """Compile-time facts of one program.

    Attributes:
        d: columns of a buffer, D padded to 64 or 128.
        n: keys a block.
        stages: buffers of keys, and of values.
        groups: warpgroups of 64 queries each.
        packed: whether rows have offsets.
        overlap: a warpgroup's products run beside its own softmax.
        turns: warpgroups take turns at the tensor cores.
        dynamic: tiles are drawn from a counter.
        left, right: whether the mask has that bound.
    """

    d: Any
    n: Any
    stages: Any
    groups: Any
    packed: Any
    overlap: Any
    turns: Any
    dynamic: Any
    left: Any
    right: Any

    @property
    def bounded(self) -> bool:
        """Whether the mask cuts blocks."""
        return bool(self.left or self.right)

    @property
    def q_bytes(self) -> int:
        """Of all queries of a tile."""
        return int(self.groups * 64 * self.d * 2)

    @property
    def kv_bytes(self) -> int:
        """Of a block of keys, or of values."""
        return int(self.n * self.d * 2)


class Buffers(NamedTuple):
    """Shared memory: queries, keys, values and results, and the keys whose values are not finite."""

    q: Any
    k: Any
    v: Any
    out: Any
    odd: Any
    any_odd: Any


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


class Tile(NamedTuple):
    """64 queries a warpgroup of one head, and `blocks` blocks of keys from `low` on that some of them see."""

    place: Any
    head: Any
    low: Any
    blocks: Any


class Work(NamedTuple):
    """What the tiles of a launch are made from."""

    cu_q: Any
    cu_k: Any
    n_sequences: Any
    n_q: Any
    n_k: Any
    heads: Any
    group: Any
    per_head: Any
    tiles: Any
    counter: Any
    left: Any
    right: Any


FIELDS = gl.constexpr(9)


@gluon.jit
def tile_of(number, work, BLOCK_M: gl.constexpr, s: gl.constexpr):
    """The tile of a number: heads one after the other, the longest rows of a causal mask first.

    A dense batch has per_head tiles a sequence and head, a pack per_head tiles a head; some may own no row.
    """
    unit = number // work.per_head
    tile = number - unit * work.per_head
    if s.right:
        tile = work.per_head - 1 - tile
    head = unit % work.heads
    sequence = unit // work.heads
    if s.packed:
        place = locate_in_pack(tile, work, BLOCK_M)
    else:
        place = Place(sequence, sequence, tile * BLOCK_M, 0, work.n_q, 0, work.n_k)
    shift = place.n_k - place.n_q
    last = gl.minimum(place.first + BLOCK_M, place.n_q) - 1
    low = 0
    high = place.n_k
    if s.left:
        low = gl.minimum(gl.maximum(place.first + shift - work.left, 0), place.n_k) // s.n * s.n
    if s.right:
        high = gl.minimum(last + shift + work.right + 1, place.n_k)
    blocks = (gl.maximum(high - low, 0) + s.n - 1) // s.n
    if place.first >= place.n_q:
        blocks = 0
    return Tile(place, head, low, blocks)


@gluon.jit
def locate_in_pack(tile, work, BLOCK_M: gl.constexpr):
    """`locate` for a pack."""
    batch, sequence, first, q_start, n_q, k_start, n_k = locate(
        tile, work.cu_q, work.cu_k, work.n_sequences, work.n_q, work.n_k, BLOCK_M
    )
    return Place(batch, sequence, first, q_start, n_q, k_start, n_k)


@gluon.jit
def write_note(notes, t):
    """Tell the other warps which tile comes next."""
    p = t.place
    fields = (p.batch, p.first, p.q_start, p.n_q, p.k_start, p.n_k, t.head, t.low, t.blocks)
    for i in gl.static_range(FIELDS):
        notes.index(i).store(gl.full([1], fields[i], gl.int32, layout=gl.BlockedLayout([1], [32], [1], [0])))


@gluon.jit
def read_field(notes, i: gl.constexpr, WARPS: gl.constexpr):
    """One number of the note."""
    return gl.max(notes.index(i).load(gl.BlockedLayout([1], [32], [WARPS], [0])), 0)


@gluon.jit
def read_note(notes, WARPS: gl.constexpr):
    """The tile that the loader noted; no rows mean that there is none left."""
    place = Place(
        read_field(notes, 0, WARPS), 0, read_field(notes, 1, WARPS), read_field(notes, 2, WARPS),
        read_field(notes, 3, WARPS), read_field(notes, 4, WARPS), read_field(notes, 5, WARPS),
    )  # fmt: skip
    return Tile(place, read_field(notes, 6, WARPS), read_field(notes, 7, WARPS), read_field(notes, 8, WARPS))


@gluon.jit
def is_cut(t, column, work, BLOCK_M: gl.constexpr, s: gl.constexpr):
    """Whether a query of the tile does not see a key of the block at `column`."""
    shift = t.place.n_k - t.place.n_q
    cut = column < 0
    if s.right:
        cut = cut | (column + s.n - 1 > t.place.first + shift + work.right)
    if s.left:
        cut = cut | (column < t.place.first + BLOCK_M - 1 + shift - work.left)
    return cut


@gluon.jit
def loader(q_src, k_src, v_src, buffers, notes, signals, work, s: gl.constexpr):
    """One warp: queries, keys and values of tile after tile into shared memory."""
    BLOCK_M: gl.constexpr = 64 * s.groups
    GROUPS: gl.constexpr = s.groups
    step = 0
    turn = 0
    fill = 0
    number = gl.program_id(0)
    while number < work.tiles:
        t = tile_of(number, work, BLOCK_M, s)
        p = t.place
        if p.first < p.n_q:
            mbarrier.wait(signals.note_empty.index(0), (turn & 1) ^ 1)
            write_note(notes, t)
            mbarrier.arrive(signals.note_full.index(0), count=1)
            turn += 1
            if t.blocks > 0:
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
                load_rows(
                    k_src, p, p.k_start, p.n_k, row, t.head // work.group, k_full, buffers.k.index(stage), s.packed
                )
                # What is inspected arrives at another barrier.
                v_full = signals.v_full.index(stage + is_cut(t, row, work, BLOCK_M, s) * s.stages)
                mbarrier.wait(signals.v_empty.index(stage), parity ^ 1)
                mbarrier.expect(v_full, s.kv_bytes)
                load_rows(
                    v_src, p, p.k_start, p.n_k, row, t.head // work.group, v_full, buffers.v.index(stage), s.packed
                )
                step += 1
        if s.dynamic:
            number = gl.atomic_add(work.counter, 1) + gl.num_programs(0)
        else:
            number += gl.num_programs(0)
    mbarrier.wait(signals.note_empty.index(0), (turn & 1) ^ 1)
    nowhere = Place(0, 0, 0, 0, 0, 0, 0)
    write_note(notes, Tile(nowhere, 0, 0, 0))
    mbarrier.arrive(signals.note_full.index(0), count=1)


@gluon.jit
def inspector(buffers, notes, signals, work, s: gl.constexpr):
    """Two warps: in blocks that the mask cuts, note the values that are not finite and replace them by 0.

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
            if is_cut(t, t.low + (t.blocks - 1 - j) * s.n, work, 64 * s.groups, s):
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
def sees(t, row, column, work, SL: gl.constexpr, s: gl.constexpr):
    """[64, n] of one warpgroup's queries from `row` on and the keys from `column` on."""
    p = t.place
    query = row - column + (p.n_k - p.n_q) + gl.arange(0, 64, layout=gl.SliceLayout(1, SL))
    N: gl.constexpr = s.n
    key = gl.arange(0, N, layout=gl.SliceLayout(0, SL))
    # A thread holds keys 8 i + 2 · lane + {0, 1}: compared like this, one side is an immediate and one is kept.
    lane = (key & 6)[None, :]
    rest = (key & (s.n - 7))[None, :]
    last = gl.zeros([64], gl.int32, layout=gl.SliceLayout(1, SL)) + (p.n_k - 1 - column)
    if s.right:
        last = gl.minimum(last, query + work.right)
    seen = last[:, None] - lane >= rest
    if s.left:
        seen = seen & ((query - work.left)[:, None] - lane <= rest)
    return seen


@gluon.jit
def hides(t, row, column, work, s: gl.constexpr):
    """Whether a query of the warpgroup does not see a key of the block, be it one beyond the end."""
    p = t.place
    shift = p.n_k - p.n_q
    hidden = column + s.n > p.n_k
    if s.right:
        hidden = hidden | (column + s.n - 1 > row + shift + work.right)
    if s.left:
        hidden = hidden | (column < row + 63 + shift - work.left)
    return hidden


@gluon.jit
def hide(x, t, row, column, work, SL: gl.constexpr, s: gl.constexpr):
    """−inf where the query does not see the key."""
    return gl.where(sees(t, row, column, work, SL, s), x, float("-inf"))


@gluon.jit
def taint(weights, buffers, signals, step, t, row, column, work, SL: gl.constexpr, s: gl.constexpr):
    """NaN for the queries that see a key whose value is not finite."""
    stage = step % s.stages
    if is_cut(t, column, work, 64 * s.groups, s):
        mbarrier.wait(signals.v_full.index(stage), (step // s.stages) & 1)
        if gl.max(buffers.any_odd.index(stage).load(gl.BlockedLayout([1], [32], [4], [0])), 0) > 0:
            STAGES: gl.constexpr = s.stages
            N: gl.constexpr = s.n
            flags = reshaped(buffers.odd, [STAGES, N], gl.SwizzledSharedLayout(1, 1, 1, [0]))
            odd = flags.index(stage).load(gl.SliceLayout(0, SL)) > 0
            weights = gl.where(sees(t, row, column, work, SL, s) & odd[None, :], float("nan"), weights)
    return weights


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
    if s.left or (s.right and s.groups == 3):  # two loops would not fit into the registers
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
            cut = t.blocks - gl.maximum((row + p.n_k - p.n_q + work.right + 1) // s.n, 0)
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
    buffer = buffers.out.index(group)
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
        if t.blocks > 0:
            mbarrier.wait(signals.q_full.index(0), fill & 1)
            fill += 1
            u, m, l, step = attend(t, q, buffers, signals, step, row, work, unit, group, SL, OL, s)
        empty = l == 0.0
        mass = gl.where(empty, 1.0, l)
        lse = gl.where(empty, float("-inf"), (m + gl.log2(mass)) * LN2)
        out = u * gl.convert_layout(1.0 / mass, gl.SliceLayout(1, OL))[:, None]
        tma.store_wait(0)
        buffer.store(out.to(q.dtype))
        fence_async_shared()
        query = row + gl.arange(0, 64, layout=ROWS)
        to = lse_ptr + (p.batch * work.heads + t.head).to(gl.int64) * work.n_q + (p.q_start + query)
        gl.store(to, lse, mask=query < p.n_q)
        if row < p.n_q:
            store_rows(out_dst, p, p.q_start, p.n_q, row, t.head, buffer, s.packed)
        turn += 1
        mbarrier.wait(signals.note_full.index(0), turn & 1)
        t = read_note(notes, 4)
        mbarrier.arrive(signals.note_empty.index(0), count=1)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["n_sequences", "n_q", "n_k", "heads", "group", "per_head", "tiles", "left", "right"])
def _attention_fwd(
    q_src, k_src, v_src, out_dst, lse_ptr, cu_q_ptr, cu_k_ptr, counter_ptr, scale,
    n_sequences, n_q, n_k, heads, group, per_head, tiles, left, right,
    SIZES: gl.constexpr, REGISTERS: gl.constexpr, SPARE: gl.constexpr,
):  # fmt: skip
    """Persistent: a program a multiprocessor takes tiles of 64 · groups queries of one head until none is left."""
    s: gl.constexpr = SIZES
    GROUPS: gl.constexpr = s.groups
    STAGES: gl.constexpr = s.stages
    N: gl.constexpr = s.n
    D: gl.constexpr = s.d
    EIGHTHS: gl.constexpr = s.stages * s.n // 8
    dtype: gl.constexpr = q_src.dtype
    LAYOUT: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    ONE: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    buffers = Buffers(
        gl.allocate_shared_memory(dtype, [GROUPS, 64, D], LAYOUT),
        gl.allocate_shared_memory(dtype, [STAGES, N, D], LAYOUT),
        gl.allocate_shared_memory(dtype, [STAGES, N, D], LAYOUT),
        gl.allocate_shared_memory(dtype, [GROUPS, 64, D], LAYOUT),
        gl.allocate_shared_memory(gl.int32, [EIGHTHS, 8], ONE),
        gl.allocate_shared_memory(gl.int32, [STAGES, 1], ONE),
    )
    notes = gl.allocate_shared_memory(gl.int32, [FIELDS, 1], ONE)
    READERS: gl.constexpr = s.groups + int(s.bounded)
    TWICE: gl.constexpr = 2 * s.stages
    signals = Signals(
        make_barriers(1, 1), make_barriers(1, GROUPS),
        make_barriers(STAGES, 1), make_barriers(STAGES, GROUPS),
        make_barriers(TWICE, 1), make_barriers(STAGES, GROUPS),
        make_barriers(1, 1), make_barriers(1, READERS),
    )  # fmt: skip
    work = Work(cu_q_ptr, cu_k_ptr, n_sequences, n_q, n_k, heads, group, per_head, tiles, counter_ptr, left, right)
    unit = scale * 1.4426950408889634
    if s.groups == 2:
        if s.bounded:
            gl.warp_specialize(
                [
                    (attender, (buffers, notes, signals, out_dst, lse_ptr, work, unit, 0, SIZES)),
                    (attender, (buffers, notes, signals, out_dst, lse_ptr, work, unit, 1, SIZES)),
                    (loader, (q_src, k_src, v_src, buffers, notes, signals, work, SIZES)),
                    (inspector, (buffers, notes, signals, work, SIZES)),
                ],
                [4, 1, 2], [REGISTERS, SPARE, SPARE],
            )  # fmt: skip
        else:
            gl.warp_specialize(
                [
                    (attender, (buffers, notes, signals, out_dst, lse_ptr, work, unit, 0, SIZES)),
                    (attender, (buffers, notes, signals, out_dst, lse_ptr, work, unit, 1, SIZES)),
                    (loader, (q_src, k_src, v_src, buffers, notes, signals, work, SIZES)),
                ],
                [4, 1], [REGISTERS, SPARE],
            )  # fmt: skip
    else:
        if s.bounded:
            gl.warp_specialize(
                [
                    (attender, (buffers, notes, signals, out_dst, lse_ptr, work, unit, 0, SIZES)),
                    (attender, (buffers, notes, signals, out_dst, lse_ptr, work, unit, 1, SIZES)),
                    (attender, (buffers, notes, signals, out_dst, lse_ptr, work, unit, 2, SIZES)),
                    (loader, (q_src, k_src, v_src, buffers, notes, signals, work, SIZES)),
                    (inspector, (buffers, notes, signals, work, SIZES)),
                ],
                [4, 4, 1, 2], [REGISTERS, REGISTERS, SPARE, SPARE],
            )  # fmt: skip
        else:
            gl.warp_specialize(
                [
                    (attender, (buffers, notes, signals, out_dst, lse_ptr, work, unit, 0, SIZES)),
                    (attender, (buffers, notes, signals, out_dst, lse_ptr, work, unit, 1, SIZES)),
                    (attender, (buffers, notes, signals, out_dst, lse_ptr, work, unit, 2, SIZES)),
                    (loader, (q_src, k_src, v_src, buffers, notes, signals, work, SIZES)),
                ],
                [4, 4, 1], [REGISTERS, REGISTERS, SPARE],
            )  # fmt: skip
