"""What the backward does in blocks that its mask cuts: which they are, what is hidden, and rows that are not finite,
which are cleared where they are loaded."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier

from quantattn.attention.kernels.hopper.arithmetic import meet
from quantattn.attention.kernels.hopper.compat import reshaped, tma_load
from quantattn.attention.kernels.hopper.notes import write_field
from quantattn.attention.kernels.hopper.tiles import load_rows

HALF = gl.constexpr(64)
"""Keys of a warpgroup, and queries of a tile of scores."""


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
def load_queries(
    q_src, do_src, lse_src, delta_src, buffers, signals, p, head, row, first, tile, used, left, right,
    KEYS: gl.constexpr, s: gl.constexpr,
):  # fmt: skip
    """One warp: q, do and the numbers of 64 rows from `row` on into their stage, cleared where the mask cuts.

    `first` is the row in the workspaces of numbers, `tile` how many such loads there were, and bit i of `used` the
    parity of the inspections of stage i, which comes back as it is afterwards. p places the program's KEYS keys. What
    is inspected first arrives at the second half of a barrier.
    """
    STAGES: gl.constexpr = s.stages
    BYTES: gl.constexpr = 64 * s.d * 2 + 64 * 4
    stage = tile % STAGES
    parity = (tile // STAGES) & 1
    beside = p.first - row - (p.n_k - p.n_q)
    to = stage
    cut = False
    if left is not None or right is not None:
        cut = is_cut(beside, KEYS, left, right, KEYS)
        to = stage + cut * STAGES
    q_full = signals.q_full.index(to)
    do_full = signals.do_full.index(to)
    mbarrier.wait(signals.q_empty.index(stage), parity ^ 1)
    write_field(buffers.beside, stage, beside)
    mbarrier.expect(q_full, BYTES)
    load_rows(q_src, p, p.q_start, p.n_q, row, head, q_full, buffers.q.index(stage), s.packed)
    tma_load(lse_src, [first], q_full, buffers.lse.index(stage))
    mbarrier.wait(signals.do_empty.index(stage), parity ^ 1)
    mbarrier.expect(do_full, BYTES)
    load_rows(do_src, p, p.q_start, p.n_q, row, head, do_full, buffers.do.index(stage), s.packed)
    tma_load(delta_src, [first], do_full, buffers.delta.index(stage))
    if left is not None or right is not None:
        if cut:
            mbarrier.wait(q_full, (used >> stage) & 1)
            mbarrier.wait(do_full, (used >> stage) & 1)
            used = used ^ (1 << stage)
            clear_rows(buffers, stage, s)
            fence_async_shared()
            mbarrier.arrive(signals.q_full.index(stage), count=1)
            mbarrier.arrive(signals.do_full.index(stage), count=1)
    return used


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
