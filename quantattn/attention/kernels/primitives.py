"""What the forward and the backward share: where a tile lies, which blocks it visits, what it may see.

Legend: a tile is BLOCK_M queries or BLOCK_N keys of one sequence and one head. `shift` = Nk − Nq puts query i
beside key i + shift (bottom-right alignment, as in `Mask`).
"""

from __future__ import annotations

import os

import triton
import triton.language as tl

from quantattn.attention.kernels.arguments import Visit

INTERPRETED = os.environ.get("TRITON_INTERPRET", "0") == "1"
LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)

if INTERPRETED:  # inline assembly has no interpreter

    @triton.jit
    def exp2(x):
        """2^x."""
        return tl.exp2(x)
else:

    @triton.jit
    def exp2(x):
        """2^x; results below 2⁻¹²⁶ become 0, which spares the range check that the default makes on every score."""
        return tl.inline_asm_elementwise(
            "ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )


@triton.jit
def find_sequence(tile, cu_ptr, n_sequences, BLOCK: tl.constexpr):
    """Number of the sequence that owns a tile of a pack, without a table and without knowing the longest length.

    Sequence n owns the tiles from ⌊cu[n] / BLOCK⌋ + n up to ⌊cu[n + 1] / BLOCK⌋ + n + 1, exclusive. The ranges
    are disjoint and each is long enough, so T // BLOCK + N programs cover every pack; what is too many returns.
    """
    low = 0
    high = n_sequences
    while high - low > 1:
        middle = (low + high) // 2
        if tl.load(cu_ptr + middle) // BLOCK + middle <= tile:
            low = middle
        else:
            high = middle
    return low


@triton.jit
def locate(tile, cu_own_ptr, cu_other_ptr, n_sequences, n_own, n_other, BLOCK: tl.constexpr):
    """Place of a tile: (batch index, sequence, first row, start and length of its own rows, of the other side's).

    A pack has offsets; without them the batch is dense and every sequence has n_own and n_other rows.
    """
    if cu_own_ptr is not None:
        sequence = find_sequence(tile, cu_own_ptr, n_sequences, BLOCK)
        own_start = tl.load(cu_own_ptr + sequence)
        n_own = tl.load(cu_own_ptr + sequence + 1) - own_start
        other_start = tl.load(cu_other_ptr + sequence)
        n_other = tl.load(cu_other_ptr + sequence + 1) - other_start
        first = (tile - (own_start // BLOCK + sequence)) * BLOCK
        batch = 0
    else:
        tiles = tl.cdiv(n_own, BLOCK)
        sequence = tile // tiles
        first = (tile - sequence * tiles) * BLOCK
        own_start = 0
        other_start = 0
        batch = sequence
    return batch, sequence, first, own_start, n_own, other_start, n_other


@triton.jit
def key_blocks(first, n_q, n_k, bounds, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, ALL_MASKED: tl.constexpr):
    """The blocks of keys that a tile of queries visits: (apart, low, full_low, full_high, high).

    Outside [low, high) no query of the tile sees a key, but for the keys of a prefix, which fill the first `apart`
    blocks; in [full_low, full_high) every query sees every key. low, full_low and full_high are multiples of BLOCK_N;
    high may lie under full_high, then nothing is left after it.
    """
    shift = n_k - n_q
    last = tl.minimum(first + BLOCK_M, n_q) - 1
    low = 0
    high = n_k
    full_low = 0
    full_high = n_k
    if bounds.left is not None:
        low = tl.maximum(first + shift - bounds.left, 0)
        full_low = tl.maximum(last + shift - bounds.left, 0)
    if bounds.right is not None:
        high = tl.minimum(last + shift + bounds.right + 1, n_k)
        full_high = tl.minimum(first + shift + bounds.right + 1, n_k)
        if bounds.prefix is not None and bounds.left is None:
            high = tl.maximum(high, tl.minimum(bounds.prefix, n_k))
            full_high = tl.maximum(full_high, tl.minimum(bounds.prefix, n_k))
    low = tl.minimum(low, n_k) // BLOCK_N * BLOCK_N
    high = tl.maximum(high, low)
    full_low = tl.minimum(tl.cdiv(full_low, BLOCK_N) * BLOCK_N, tl.cdiv(high, BLOCK_N) * BLOCK_N)
    full_high = tl.maximum(tl.maximum(full_high, 0) // BLOCK_N * BLOCK_N, full_low)
    if ALL_MASKED:
        full_high = full_low
    apart = 0
    if bounds.prefix is not None and bounds.left is not None:
        apart = tl.cdiv(tl.minimum(tl.minimum(bounds.prefix, n_k), low), BLOCK_N)
        if bounds.right is not None:  # what the prefix shows beyond the window, after it
            beyond = tl.minimum(bounds.prefix, n_k)
            high = tl.where((beyond > high) & (beyond > low), beyond, high)
    return Visit(0, apart, low, full_low, full_high, high)


@triton.jit
def query_blocks(first, n_q, n_k, bounds, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, ALL_MASKED: tl.constexpr):
    """The mirror of `key_blocks`: the blocks of queries that see a tile of keys, in units of BLOCK_M."""
    shift = n_k - n_q
    last = tl.minimum(first + BLOCK_N, n_k) - 1
    low = 0
    high = n_q
    full_low = 0
    full_high = n_q
    if bounds.right is not None:
        low = tl.maximum(first - bounds.right - shift, 0)
        full_low = tl.maximum(last - bounds.right - shift, 0)
        if bounds.prefix is not None:
            low = tl.where(first < bounds.prefix, 0, low)
            full_low = tl.where(last < bounds.prefix, 0, full_low)
    if bounds.left is not None:
        high = tl.minimum(last + bounds.left - shift + 1, n_q)
        full_high = tl.minimum(first + bounds.left - shift + 1, n_q)
        if bounds.prefix is not None:
            high = tl.where(first < bounds.prefix, n_q, high)
            full_high = tl.where(last < bounds.prefix, n_q, full_high)
    low = tl.minimum(low, n_q) // BLOCK_M * BLOCK_M
    high = tl.maximum(high, low)
    full_low = tl.minimum(tl.cdiv(full_low, BLOCK_M) * BLOCK_M, tl.cdiv(high, BLOCK_M) * BLOCK_M)
    full_high = tl.maximum(tl.maximum(full_high, 0) // BLOCK_M * BLOCK_M, full_low)
    if ALL_MASKED:
        full_high = full_low
    return Visit(0, 0, low, full_low, full_high, high)


@triton.jit
def clamp(x, low, high):
    """X, or the nearer end of [low, high]."""
    return tl.minimum(tl.maximum(x, low), high)


@triton.jit
def within(visit, start, stop, BLOCK: tl.constexpr):
    """What of a visit lies in [start, stop), both multiples of BLOCK."""
    apart = (clamp(visit.start + visit.apart * BLOCK, start, stop) - start) // BLOCK
    return Visit(
        start, apart, clamp(visit.low, start, stop), clamp(visit.full_low, start, stop),
        clamp(visit.full_high, start, stop), clamp(visit.high, start, stop),
    )  # fmt: skip


@triton.jit
def count_blocks(visit, BLOCK: tl.constexpr, EDGES: tl.constexpr):
    """How many blocks are cut by a mask or an end (EDGES), or how many are full."""
    if EDGES:
        after = tl.maximum(tl.cdiv(visit.high - visit.full_high, BLOCK), 0)
        count = visit.apart + (visit.full_low - visit.low) // BLOCK + after
    else:
        count = (visit.full_high - visit.full_low) // BLOCK
    return count


@triton.jit
def block_start(step, visit, BLOCK: tl.constexpr, EDGES: tl.constexpr):
    """First row of the step-th block: of the edges, which surround the full blocks, or of the full blocks."""
    if EDGES:
        start = visit.low + (step - visit.apart) * BLOCK
        start = tl.where(start >= visit.full_low, start + (visit.full_high - visit.full_low), start)
        start = tl.where(step < visit.apart, visit.start + step * BLOCK, start)
    else:
        start = visit.full_low + step * BLOCK
    return tl.multiple_of(start, BLOCK)


@triton.jit
def sees(query, key, n_q, n_k, bounds):
    """The jit twin of `Mask.visible`; query and key are index tensors that broadcast against each other."""
    relative = key - (query + (n_k - n_q))
    seen = (key < n_k) & (query < n_q)
    near = seen
    if bounds.left is not None:
        near = near & (relative >= -bounds.left)
    if bounds.right is not None:
        near = near & (relative <= bounds.right)
    if bounds.prefix is not None:
        near = near | (seen & (key < bounds.prefix))
    return near


@triton.jit
def load_rows(
    ptr, strides, batch, head, start, first, keep,
    D: tl.constexpr, BLOCK: tl.constexpr, BLOCK_D: tl.constexpr, ALL: tl.constexpr,
):  # fmt: skip
    """Rows first … first + BLOCK of one sequence and head through pointers, [BLOCK, BLOCK_D].

    Columns ≥ D are 0, and so are the rows that `keep` [BLOCK] leaves out, unless ALL are kept.
    """
    row = tl.arange(0, BLOCK).to(tl.int64)
    column = tl.arange(0, BLOCK_D)
    base = (
        ptr
        + tl.cast(batch, tl.int64) * strides.b
        + tl.cast(head, tl.int64) * strides.h
        + tl.cast(start + first, tl.int64) * strides.n
    )
    where = base + row[:, None] * strides.n + column[None, :] * tl.cast(strides.d, tl.int64)
    if not ALL:
        inside = keep[:, None]
        if D != BLOCK_D:
            inside = inside & (column < D)[None, :]
        tile = tl.load(where, mask=inside, other=0.0)
    elif D != BLOCK_D:
        tile = tl.load(where, mask=(column < D)[None, :], other=0.0)
    else:
        tile = tl.load(where)
    return tile


@triton.jit
def load_tile(
    source, strides, batch, head, start, first, n_rows,
    D: tl.constexpr, BLOCK: tl.constexpr, BLOCK_D: tl.constexpr, TMA: tl.constexpr, CHECK_ROWS: tl.constexpr,
):  # fmt: skip
    """The same from a descriptor over (B, H, N, D) when TMA, else from a pointer.

    A descriptor may bring rows of the next sequence, which whoever uses them must mask; a pointer brings 0 for them
    when CHECK_ROWS.
    """
    if TMA:
        tile = source.load([batch, head, start + first, 0]).reshape([BLOCK, BLOCK_D])
    else:
        keep = first + tl.arange(0, BLOCK) < n_rows
        tile = load_rows(source, strides, batch, head, start, first, keep, D, BLOCK, BLOCK_D, not CHECK_ROWS)
    return tile


@triton.jit
def without_nonfinite(x):
    """X with NaN and ±inf replaced by 0: 0 · NaN is NaN, so a zero weight alone does not hide a value."""
    return tl.where(tl.abs(x) < float("inf"), x, 0.0).to(x.dtype)
