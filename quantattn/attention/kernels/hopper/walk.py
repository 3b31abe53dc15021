"""Which program of the backward takes which keys and queries, and whose turn it is to add to dq.

**Order of the sums.** Sums of floating-point numbers depend on their order. So every block of queries counts the tiles
that were added to it, and a writer adds its own when the count has come to its turn; the first overwrites what was
there. Programs draw their work from a counter when they start, and the turns of a head go in the order in which its
tiles of keys are drawn: a writer waits only for programs that have started before, and the first of them waits for
nobody. So there is no deadlock, however few programs are resident. Nor is there much to wait for:

- Without a left bound, a causal mask leaves the first keys most to do. They are drawn first, so that the programs that
  are still at work when the last begins have little left. All of them see the last block. Each begins there and goes
  back to its diagonal: programs that start at once are a step apart after the first block, and stay so. (Going up from
  its diagonal, a program would begin two blocks ahead of the one before it and wait for that to come by.) All heads of
  a group visit a block before the next one: head after head, a follower, which has two blocks less to visit, would
  catch up with every head.
- With a left bound every tile visits a few blocks. The last keys are drawn first: when a program comes to a block that
  it shares with later keys, these had it two steps ago.
- Without bounds all would begin at block 0; they begin evenly spread instead and go around, the last keys first. The
  turn of a program that has gone around would come after those of earlier keys, which it must not wait for: its tiles
  are added to a second sum, again from the last keys to the first. The two are added in the end.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from quantattn.attention.kernels.arguments import Place
from quantattn.attention.kernels.primitives import find_sequence

KEYS = gl.constexpr(128)
"""Keys of a program."""


class Walk(NamedTuple):
    """Blocks of queries: `count` from block `low` on, for each of `group` heads from `head` on, beginning with block
    low + offset; `slot` is the sequence's first block in the workspaces of a head."""

    low: Any
    count: Any
    offset: Any
    steps: Any
    group: Any
    head: Any
    slot: Any


@gluon.jit
def ceil_div(a, b):
    """⌈a / b⌉ of a ≥ 0."""
    return (a + b - 1) // b


@gluon.jit
def start_of(n, n_blocks, n_keys):
    """Block of queries at which the n-th of n_keys programs begins; it grows with n."""
    if n_blocks >= n_keys:
        start = n * (n_blocks // n_keys)
    else:
        start = n // ceil_div(n_keys, n_blocks)
    return start


@gluon.jit
def begun_by(block, n_blocks, n_keys):
    """How many programs begin at this block or before."""
    if n_blocks >= n_keys:
        count = block // (n_blocks // n_keys) + 1
    else:
        count = (block + 1) * ceil_div(n_keys, n_blocks)
    return gl.minimum(count, n_keys)


@gluon.jit
def walk_of(place, head, group, slot, left, right, s: gl.constexpr):
    """The blocks of queries that see some of the program's keys, of which there may be none."""
    shift = place.n_k - place.n_q
    low = 0
    high = place.n_q
    if right is not None:
        low = gl.maximum(place.first - right - shift, 0)
    if left is not None:
        high = gl.minimum(gl.minimum(place.first + KEYS, place.n_k) + left - shift, place.n_q)
    count = gl.maximum(ceil_div(high, s.block) - low // s.block, 0)
    count = gl.where((place.first < place.n_k) & (low < place.n_q), count, 0)
    offset = 0
    if left is None:
        if right is None:
            offset = start_of(place.first // KEYS, gl.maximum(count, 1), gl.maximum(ceil_div(place.n_k, KEYS), 1))
        else:
            offset = count - 1
    return Walk(low // s.block, count, offset, count * group, group, head, slot)


@gluon.jit
def find_work(
    number, cu_q_ptr, cu_k_ptr, n_sequences, n_q, n_k, heads_k, group, tiles_k, strips, together, left, right,
    s: gl.constexpr,
):  # fmt: skip
    """(place, key/value head, walk) of the program that drew `number`.

    A strip is the tiles of one head, of one sequence of a dense batch or of the whole pack. `together` strips take
    turns. A tile of a pack that owns no row has nothing to walk over.
    """
    turn = number // (together * tiles_k)
    rest = number - turn * (together * tiles_k)
    width = gl.minimum(together, strips - turn * together)
    strip = turn * together + rest % width
    tile = rest // width
    if right is None or left is not None:
        tile = tiles_k - 1 - tile
    if s.packed:
        sequence = find_sequence(tile, cu_k_ptr, n_sequences, KEYS)
        k_start = gl.load(cu_k_ptr + sequence)
        q_start = gl.load(cu_q_ptr + sequence)
        n_k = gl.load(cu_k_ptr + sequence + 1) - k_start
        n_q = gl.load(cu_q_ptr + sequence + 1) - q_start
        first = (tile - (k_start // KEYS + sequence)) * KEYS
        place = Place(0, sequence, first, q_start, n_q, k_start, n_k)
        kv_head = strip
        slot = q_start // s.block + sequence
    else:
        sequence = strip // heads_k
        place = Place(sequence, sequence, tile * KEYS, 0, n_q, 0, n_k)
        kv_head = strip - sequence * heads_k
        slot = sequence * ceil_div(n_q, s.block)
    return place, kv_head, walk_of(place, kv_head * group, group, slot, left, right, s)


@gluon.jit
def advance(at, member, walk, left, right):
    """The next block, counted from walk.low, and its member of the group of heads: down, each block for all members,
    where there is a right bound only; else around, one member after the other."""
    if left is None and right is not None:
        member += 1
        at = gl.where(member == walk.group, at - 1, at)
        member = gl.where(member == walk.group, 0, member)
    else:
        at += 1
        at = gl.where(at == walk.count, 0, at)
        member = gl.where(at == walk.offset, member + 1, member)
    return at, member


@gluon.jit
def turn_of(at, place, walk, left, right, s: gl.constexpr):
    """How many programs add to this block, in the same of its sums, before this one.

    Both ends of a walk grow with the keys. Where the first keys are drawn first, everybody before this program visits
    its blocks. Else they are those of later keys that visit the block, and follow without a gap on this program, up to
    the last whose walk has begun by this block.
    """
    tile = place.first // KEYS
    if right is not None and left is None:
        turn = tile
    else:
        n_keys = ceil_div(place.n_k, KEYS)
        begun = n_keys
        if right is not None:
            last = gl.minimum((walk.low + at + 1) * s.block, place.n_q) - 1
            begun = gl.minimum(n_keys, (last + right + (place.n_k - place.n_q)) // KEYS + 1)
        elif left is None:
            if at >= walk.offset:
                begun = begun_by(at, walk.count, n_keys)
        turn = begun - 1 - tile
    return turn


@gluon.jit
def wait_for_turn(counter_ptr, turn):
    """Spin until the counter is at `turn`; what was added before it moved is then there for this warp's TMA too."""
    gl.inline_asm_elementwise(
        "{ .reg .pred p; .reg .b32 t; again: ld.acquire.gpu.global.b32 t, [$1]; setp.ne.s32 p, t, $2; @p bra again;"
        " fence.proxy.async; mov.u32 $0, 0; }",
        "=r,l,r", [counter_ptr.to(gl.int64), turn], dtype=gl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@gluon.jit
def pass_turn(counter_ptr):
    """Add one to the counter, after all that this warp has waited for."""
    gl.inline_asm_elementwise(
        "{ .reg .pred p; .reg .b32 t; bar.warp.sync 0xffffffff; mov.u32 t, %laneid; setp.eq.u32 p, t, 0;"
        " @p red.release.gpu.global.add.s32 [$1], 1; mov.u32 $0, 0; }",
        "=r,l", [counter_ptr.to(gl.int64)], dtype=gl.int32, is_pure=False, pack=1,
    )  # fmt: skip
