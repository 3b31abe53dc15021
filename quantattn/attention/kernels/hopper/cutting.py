"""What the backward does in blocks that its mask cuts: which they are, what is hidden, and rows that are not finite."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared

from quantattn.attention.kernels.hopper.arithmetic import meet
from quantattn.attention.kernels.hopper.compat import reshaped

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
