"""Which program of the backward takes which keys and queries, and whose turn it is to add to dq.

**Order of the sums.** Sums of floating-point numbers depend on their order. So every block of queries counts the tiles
that were added to it, and a writer adds its own when the count has come to its turn; the first overwrites what was
there. Programs draw numbers of tiles from a counter, one after the other, and the turns of a head go in the order of
its tiles' numbers: a writer waits only for tiles that some program drew before, and the first of all waits for nobody.
So there is no deadlock, however few programs are resident. Nor is there much to wait for:

- Without a left bound, a causal mask leaves the first keys most to do. They are drawn first, so that little is left
  to do when the last are drawn. All of them see the last block. Each begins there and goes
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
from quantattn.attention.kernels.hopper.notes import read_field, write_fields
from quantattn.attention.kernels.primitives import find_sequence

KEYS = gl.constexpr(128)
"""Keys of a program."""


class Launch(NamedTuple):
    """What the numbers of tiles stand for.

    Attributes:
        cu_q, cu_k: pointers to a pack's offsets, or None.
        n_sequences: of a pack or a batch.
        n_q, n_k: rows of a sequence of a dense batch.
        heads_k: heads of keys.
        group: query heads of each.
        tiles_k: tiles of keys of a strip.
        strips: tiles of one head, of one sequence of a dense batch or of the whole pack.
        together: strips that take turns.
    """

    cu_q: Any
    cu_k: Any
    n_sequences: Any
    n_q: Any
    n_k: Any
    heads_k: Any
    group: Any
    tiles_k: Any
    strips: Any
    together: Any


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
def blocks_that_see(place, left, right, KEYS: gl.constexpr, BLOCK: gl.constexpr):
    """The first block of BLOCK queries that see some of a program's KEYS keys, and how many there are."""
    shift = place.n_k - place.n_q
    low = 0
    high = place.n_q
    if right is not None:
        low = gl.maximum(place.first - right - shift, 0)
    if left is not None:
        high = gl.minimum(gl.minimum(place.first + KEYS, place.n_k) + left - shift, place.n_q)
    count = gl.maximum(ceil_div(high, BLOCK) - low // BLOCK, 0)
    return low // BLOCK, gl.where((place.first < place.n_k) & (low < place.n_q), count, 0)


@gluon.jit
def walk_of(place, head, group, slot, left, right, s: gl.constexpr):
    """The blocks of queries that see some of the program's keys, of which there may be none."""
    low, count = blocks_that_see(place, left, right, KEYS, s.block)
    offset = 0
    if left is None:
        if right is None:
            offset = start_of(place.first // KEYS, gl.maximum(count, 1), gl.maximum(ceil_div(place.n_k, KEYS), 1))
        else:
            offset = count - 1
    return Walk(low, count, offset, count * group, group, head, slot)


@gluon.jit
def find_work(number, of, left, right, s: gl.constexpr):
    """(place, key/value head, walk) of a tile's number. A tile of a pack may own no row."""
    turn = number // (of.together * of.tiles_k)
    rest = number - turn * (of.together * of.tiles_k)
    width = gl.minimum(of.together, of.strips - turn * of.together)
    strip = turn * of.together + rest % width
    tile = rest // width
    if right is None or left is not None:
        tile = of.tiles_k - 1 - tile
    if s.packed:
        sequence = find_sequence(tile, of.cu_k, of.n_sequences, KEYS)
        k_start = gl.load(of.cu_k + sequence)
        q_start = gl.load(of.cu_q + sequence)
        n_k = gl.load(of.cu_k + sequence + 1) - k_start
        n_q = gl.load(of.cu_q + sequence + 1) - q_start
        first = (tile - (k_start // KEYS + sequence)) * KEYS
        place = Place(0, sequence, first, q_start, n_q, k_start, n_k)
        kv_head = strip
        slot = q_start // s.block + sequence
    else:
        sequence = strip // of.heads_k
        place = Place(sequence, sequence, tile * KEYS, 0, of.n_q, 0, of.n_k)
        kv_head = strip - sequence * of.heads_k
        slot = sequence * ceil_div(of.n_q, s.block)
    return place, kv_head, walk_of(place, kv_head * of.group, of.group, slot, left, right, s)


FIELDS = gl.constexpr(14)
"""Numbers of a note."""


@gluon.jit
def write_note(notes, note, p, n_k, kv_head, w):
    """Tell the other warps which keys come next; `n_k` is how many the sequence has, 0 where no tile is left."""
    fields = (
        n_k, p.batch, p.first, p.q_start, p.n_q, p.k_start, kv_head, w.low, w.count, w.offset, w.steps, w.group,
        w.head, w.slot,
    )  # fmt: skip
    write_fields(notes, note, fields, FIELDS)


@gluon.jit
def read_first(notes, note, WARPS: gl.constexpr):
    """The first key of the noted tile."""
    return read_field(notes, note + 2, WARPS)


@gluon.jit
def read_steps(notes, note, WARPS: gl.constexpr):
    """How many steps it takes."""
    return read_field(notes, note + 10, WARPS)


@gluon.jit
def read_place(notes, note, WARPS: gl.constexpr):
    """(place, key/value head) of the note."""
    n_k = read_field(notes, note, WARPS)
    batch = read_field(notes, note + 1, WARPS)
    first = read_first(notes, note, WARPS)
    q_start = read_field(notes, note + 3, WARPS)
    n_q = read_field(notes, note + 4, WARPS)
    k_start = read_field(notes, note + 5, WARPS)
    return Place(batch, 0, first, q_start, n_q, k_start, n_k), read_field(notes, note + 6, WARPS)


@gluon.jit
def read_walk(notes, note, WARPS: gl.constexpr):
    """The walk of the note."""
    low = read_field(notes, note + 7, WARPS)
    count = read_field(notes, note + 8, WARPS)
    offset = read_field(notes, note + 9, WARPS)
    steps = read_steps(notes, note, WARPS)
    group = read_field(notes, note + 11, WARPS)
    head = read_field(notes, note + 12, WARPS)
    return Walk(low, count, offset, steps, group, head, read_field(notes, note + 13, WARPS))


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
