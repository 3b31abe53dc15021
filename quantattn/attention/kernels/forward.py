"""Forward kernel: out = softmax(scores) v and its lse, tile by tile (Dao 2023, algorithm 1)."""

from __future__ import annotations

import triton
import triton.language as tl

from quantattn.attention.kernels.arguments import Place
from quantattn.attention.kernels.primitives import (
    LN2,
    LOG2E,
    block_start,
    count_blocks,
    exp2,
    key_blocks,
    load_tile,
    locate,
    within,
    without_nonfinite,
)
from quantattn.attention.kernels.scores import is_kept, keep_rate, look, of_head


@triton.jit
def absorb_block(m, l, u, scores, unit, v, seen, kept, PRECISION: tl.constexpr, MASKED: tl.constexpr):
    """One step of the online softmax: (m, l, u) ⊕ block, with s = scores · unit in base 2 and −inf where masked.

    m [BLOCK_M] running maximum, l [BLOCK_M] Σ 2^(s − m), u [BLOCK_M, BLOCK_D] Σ 2^(s − m) v over the kept weights
    (None: all). unit > 0, so that the maximum may be taken before the multiplication, which then fuses with the
    subtraction.
    """
    raised = tl.maximum(m, tl.max(scores, 1) * unit)
    pivot = raised
    if MASKED:
        pivot = tl.where(raised == float("-inf"), 0.0, raised)  # −inf − (−inf) is not a number
    p = exp2(scores * unit - pivot[:, None])
    shrink = exp2(m - pivot)
    l = l * shrink + tl.sum(p, 1)
    u = u * shrink[:, None]
    if kept is not None:
        p = tl.where(kept, p, 0.0)
    if MASKED:
        # A value that is not finite must reach the queries that see its key, and no other.
        tainted = tl.max((tl.abs(v) < float("inf")).to(tl.int32) ^ 1, 1) > 0
        v = without_nonfinite(v)
        p = tl.where(seen & tainted[None, :], float("nan"), p)
    u = tl.dot(p.to(v.dtype), v, u, input_precision=PRECISION)
    return raised, l, u


@triton.jit
def absorb_keys(
    m, l, u, q, k_src, v_src, k_strides, v_strides, place, head, kv_head, visit, scoring, bounds, terms,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    TMA: tl.constexpr, PRECISION: tl.constexpr, PLAIN: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Absorb the blocks of keys, the cut ones (MASKED) or the full ones, into the state of one tile of queries."""
    query = place.first + tl.arange(0, BLOCK_M)
    # At 256 the state leaves no registers for a pipeline in the loop over cut blocks, which is short.
    stages: tl.constexpr = 1 if MASKED and TMA and BLOCK_D == 256 else None
    for step in tl.range(0, count_blocks(visit, BLOCK_N, MASKED), num_stages=stages):
        block = block_start(step, visit, BLOCK_N, MASKED)
        key = block + tl.arange(0, BLOCK_N)
        k = load_tile(
            k_src, k_strides, place.batch, kv_head, place.k_start, block, place.n_k, D, BLOCK_N, BLOCK_D, TMA, MASKED
        )
        products = tl.dot(q, k.T, input_precision=PRECISION)
        scores, seen, _ = look(products, query[:, None], key[None, :], place, scoring, bounds, terms, MASKED)
        unit = 1.0
        if PLAIN:
            scores = products
            unit = scoring.unit
        if MASKED:
            scores = tl.where(seen, scores, float("-inf"))
        kept = None
        if terms.seed is not None:
            kept = is_kept(query[:, None], key[None, :], place, head, terms)
        v = load_tile(
            v_src, v_strides, place.batch, kv_head, place.k_start, block, place.n_k, D, BLOCK_N, BLOCK_D, TMA, MASKED
        )
        m, l, u = absorb_block(m, l, u, scores, unit, v, seen, kept, PRECISION, MASKED)
    return m, l, u


@triton.jit(do_not_specialize=["n_sequences", "n_q", "n_k"])
def _attention_fwd(
    q_src, k_src, v_src, out_ptr, lse_ptr, cu_q_ptr, cu_k_ptr, scale, n_sequences, n_q, n_k,
    q_strides, k_strides, v_strides, out_strides, lse_strides, part_strides, bounds, terms,
    D: tl.constexpr, GROUP: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    TMA: tl.constexpr, PRECISION: tl.constexpr, PLAIN: tl.constexpr, HIDES: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """One program a tile of BLOCK_M queries and a head; offsets that are None make a dense batch.

    With PART there is one more for each PART keys, which are all that it sees; part_strides are those of out and lse
    between the parts, whose results are to be merged.
    """
    tile = tl.program_id(0)
    head = tl.program_id(1)
    kv_head = head // GROUP
    if bounds.right is not None:
        tile = tl.num_programs(0) - 1 - tile  # the longest rows of a causal mask first
    batch, sequence, first, q_start, n_q, k_start, n_k = locate(
        tile, cu_q_ptr, cu_k_ptr, n_sequences, n_q, n_k, BLOCK_M
    )
    place = Place(batch, sequence, first, q_start, n_q, k_start, n_k)
    if first >= n_q:
        return
    q = load_tile(q_src, q_strides, batch, head, q_start, first, n_q, D, BLOCK_M, BLOCK_D, TMA, True)
    visit = key_blocks(first, n_q, n_k, bounds, BLOCK_M, BLOCK_N, HIDES)
    part = tl.program_id(2)
    if PART:
        visit = within(visit, part * PART, (part + 1) * PART, BLOCK_N)
        out_ptr += tl.cast(part, tl.int64) * part_strides.b
        lse_ptr += tl.cast(part, tl.int64) * part_strides.n
    scoring = of_head(terms, sequence, head, scale)
    m = tl.full([BLOCK_M], float("-inf"), tl.float32)
    l = tl.zeros([BLOCK_M], tl.float32)
    u = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    if terms.sinks is not None:
        sink = tl.load(terms.sinks + head) * LOG2E
        if PART:  # which belongs to one part
            sink = tl.where(part == 0, sink, float("-inf"))
        m = tl.full([BLOCK_M], 0.0, tl.float32) + sink
        l += tl.where(sink == float("-inf"), 0.0, 1.0)
    m, l, u = absorb_keys(
        m, l, u, q, k_src, v_src, k_strides, v_strides, place, head, kv_head, visit, scoring, bounds, terms,
        D, BLOCK_D, BLOCK_M, BLOCK_N, TMA, PRECISION, PLAIN, True)  # fmt: skip
    if not HIDES:
        m, l, u = absorb_keys(
            m, l, u, q, k_src, v_src, k_strides, v_strides, place, head, kv_head, visit, scoring, bounds, terms,
            D, BLOCK_D, BLOCK_M, BLOCK_N, TMA, PRECISION, PLAIN, False)  # fmt: skip

    empty = l == 0.0
    mass = tl.where(empty, 1.0, l)
    lse = tl.where(empty, float("-inf"), (m + tl.log2(mass)) * LN2)
    if terms.seed is not None:
        mass = mass * keep_rate(terms)
    out = u / mass[:, None]
    query = first + tl.arange(0, BLOCK_M)
    inside = query < n_q
    row = tl.cast(batch, tl.int64) * lse_strides.b + tl.cast(head, tl.int64) * lse_strides.h + (q_start + query)
    tl.store(lse_ptr + row, lse, mask=inside)
    column = tl.arange(0, BLOCK_D)
    out_ptr += tl.cast(batch, tl.int64) * out_strides.b + tl.cast(head, tl.int64) * out_strides.h
    where = out_ptr + (q_start + query).to(tl.int64)[:, None] * out_strides.n + column[None, :]
    tl.store(where, out.to(out_ptr.dtype.element_ty), mask=inside[:, None] & (column < D)[None, :])
