"""Which rows a program of the forward works on, which keys they see, and how its warps agree on that."""

from __future__ import annotations

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from quantattn.attention.kernels.arguments import Place
from quantattn.attention.kernels.hopper.notes import read_field, write_fields
from quantattn.attention.kernels.primitives import locate


class Sizes(NamedTuple):
    """Compile-time facts of one program.

    Attributes:
        d: columns of a buffer, D padded to 64, 128 or 256.
        n: keys a block.
        stages: buffers of keys, and of values.
        groups: warpgroups of 64 queries each.
        packed: whether rows have offsets.
        overlap: a warpgroup's products run beside its own softmax.
        turns: warpgroups take turns at the tensor cores.
        two_loops: cut blocks and full ones have a loop each, unless there is a left bound.
        shares: results leave through the buffer of the queries.
        dynamic: tiles are drawn from a counter.
        left, right: whether the mask has that bound.
        bounded: whether it has either.
        q_bytes: of all queries of a tile.
        kv_bytes: of a block of keys, or of values.
    """

    d: Any
    n: Any
    stages: Any
    groups: Any
    packed: Any
    overlap: Any
    turns: Any
    two_loops: Any
    shares: Any
    dynamic: Any
    left: Any
    right: Any
    bounded: Any
    q_bytes: Any
    kv_bytes: Any


class Tile(NamedTuple):
    """64 queries a warpgroup of one head, and `blocks` blocks of keys from `low` on that some of them see.

    `careful`: values are inspected before they are used.
    """

    place: Any
    head: Any
    low: Any
    blocks: Any
    careful: Any


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


FIELDS = gl.constexpr(10)
"""Numbers of a note."""


@gluon.jit
def tile_of(number, careful, work, BLOCK_M: gl.constexpr, s: gl.constexpr):
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
    return Tile(place, head, low, blocks, careful)


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
    fields = (p.batch, p.first, p.q_start, p.n_q, p.k_start, p.n_k, t.head, t.low, t.blocks, t.careful)
    write_fields(notes, 0, fields, FIELDS)


@gluon.jit
def read_note(notes, WARPS: gl.constexpr):
    """The tile that the loader noted; no rows mean that there is none left."""
    place = Place(
        read_field(notes, 0, WARPS), 0, read_field(notes, 1, WARPS), read_field(notes, 2, WARPS),
        read_field(notes, 3, WARPS), read_field(notes, 4, WARPS), read_field(notes, 5, WARPS),
    )  # fmt: skip
    return Tile(
        place, read_field(notes, 6, WARPS), read_field(notes, 7, WARPS), read_field(notes, 8, WARPS),
        read_field(notes, 9, WARPS),
    )  # fmt: skip


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
