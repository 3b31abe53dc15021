"""Forward kernel: out = softmax(q kᵀ · scale + bias) v and its lse, tile by tile (Dao 2023, algorithm 1)."""

from __future__ import annotations

import triton
import triton.language as tl

from quantattn.attention.kernels.primitives import (
    LN2,
    block_start,
    count_edges,
    exp2,
    key_blocks,
    load_bias,
    load_tile,
    locate,
    sees,
    without_nonfinite,
)


@triton.jit
def absorb_block(m, l, u, scores, unit, v, seen, PRECISION: tl.constexpr, MASKED: tl.constexpr):
    """One step of the online softmax: (m, l, u) ⊕ block, with s = scores · unit in base 2 and −inf where masked.

    m [BLOCK_M] running maximum, l [BLOCK_M] Σ 2^(s − m), u [BLOCK_M, BLOCK_D] Σ 2^(s − m) v. unit > 0, so that
    the maximum may be taken before the multiplication, which then fuses with the subtraction.
    """
    raised = tl.maximum(m, tl.max(scores, 1) * unit)
    pivot = raised
    if MASKED:
        pivot = tl.where(raised == float("-inf"), 0.0, raised)  # −inf − (−inf) is not a number
    p = exp2(scores * unit - pivot[:, None])
    shrink = exp2(m - pivot)
    l = l * shrink + tl.sum(p, 1)
    u = u * shrink[:, None]
    if MASKED:
        # A value that is not finite must reach the queries that see its key, and no other.
        tainted = tl.max((tl.abs(v) < float("inf")).to(tl.int32) ^ 1, 1) > 0
        v = without_nonfinite(v)
        p = tl.where(seen & tainted[None, :], float("nan"), p)
    u = tl.dot(p.to(v.dtype), v, u, input_precision=PRECISION)
    return raised, l, u


@triton.jit
def absorb_keys(
    m, l, u, q, k_src, v_src, bias_ptr, first, low, full_low, full_high, count, batch, kv_head, k_start,
    n_q, n_k, left, right, scale_log2,
    stride_kb, stride_kn, stride_kh, stride_kd, stride_vb, stride_vn, stride_vh, stride_vd, stride_bi, stride_bj,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    HAS_LEFT: tl.constexpr, HAS_RIGHT: tl.constexpr, HAS_BIAS: tl.constexpr,
    TMA: tl.constexpr, PRECISION: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Absorb `count` blocks of keys, the cut ones (MASKED) or the full ones, into the state of one tile of queries."""
    query = first + tl.arange(0, BLOCK_M)
    for step in tl.range(0, count):
        block = block_start(step, low, full_low, full_high, BLOCK_N, MASKED)
        k = load_tile(k_src, batch, kv_head, k_start, block, n_k, stride_kb, stride_kn, stride_kh, stride_kd,
                      D, BLOCK_N, BLOCK_D, TMA, MASKED)  # fmt: skip
        scores = tl.dot(q, k.T, input_precision=PRECISION)
        unit = scale_log2
        seen = None
        if MASKED:
            key = block + tl.arange(0, BLOCK_N)
            seen = sees(query[:, None], key[None, :], n_q, n_k, left, right, HAS_LEFT, HAS_RIGHT)
            if HAS_BIAS:
                bias = load_bias(bias_ptr, query[:, None], key[None, :], seen, stride_bi, stride_bj)
                seen = seen & (bias != float("-inf"))
                scores = scores * scale_log2 + bias
                unit = 1.0
            scores = tl.where(seen, scores, float("-inf"))
        v = load_tile(v_src, batch, kv_head, k_start, block, n_k, stride_vb, stride_vn, stride_vh, stride_vd,
                      D, BLOCK_N, BLOCK_D, TMA, MASKED)  # fmt: skip
        m, l, u = absorb_block(m, l, u, scores, unit, v, seen, PRECISION, MASKED)
    return m, l, u


@triton.jit(do_not_specialize=["n_sequences", "n_q", "n_k", "left", "right"])
def _attention_fwd(
    q_src, k_src, v_src, bias_ptr, out_ptr, lse_ptr, cu_q_ptr, cu_k_ptr,
    scale_log2, n_sequences, n_q, n_k, left, right,
    stride_qb, stride_qn, stride_qh, stride_qd, stride_kb, stride_kn, stride_kh, stride_kd,
    stride_vb, stride_vn, stride_vh, stride_vd, stride_ob, stride_on, stride_oh,
    stride_bs, stride_bh, stride_bi, stride_bj, stride_lb, stride_lh,
    D: tl.constexpr, GROUP: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    HAS_LEFT: tl.constexpr, HAS_RIGHT: tl.constexpr, HAS_BIAS: tl.constexpr,
    PACKED: tl.constexpr, TMA: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One program a tile of BLOCK_M queries and a head."""
    tile = tl.program_id(0)
    head = tl.program_id(1)
    kv_head = head // GROUP
    if HAS_RIGHT:
        tile = tl.num_programs(0) - 1 - tile  # the longest rows of a causal mask first
    batch, sequence, first, q_start, n_q, k_start, n_k = locate(
        tile, cu_q_ptr, cu_k_ptr, n_sequences, n_q, n_k, BLOCK_M, PACKED
    )
    if first >= n_q:
        return
    q = load_tile(q_src, batch, head, q_start, first, n_q, stride_qb, stride_qn, stride_qh, stride_qd,
                  D, BLOCK_M, BLOCK_D, TMA, True)  # fmt: skip
    if HAS_BIAS:
        bias_ptr += tl.cast(sequence, tl.int64) * stride_bs + tl.cast(head, tl.int64) * stride_bh
    low, full_low, full_high, high = key_blocks(
        first, n_q, n_k, left, right, BLOCK_M, BLOCK_N, HAS_LEFT, HAS_RIGHT, HAS_BIAS
    )
    m = tl.full([BLOCK_M], float("-inf"), tl.float32)
    l = tl.zeros([BLOCK_M], tl.float32)
    u = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    edges = count_edges(low, full_low, full_high, high, BLOCK_N)
    m, l, u = absorb_keys(
        m, l, u, q, k_src, v_src, bias_ptr, first, low, full_low, full_high, edges, batch, kv_head,
        k_start, n_q, n_k, left, right, scale_log2, stride_kb, stride_kn, stride_kh, stride_kd,
        stride_vb, stride_vn, stride_vh, stride_vd, stride_bi, stride_bj,
        D, BLOCK_D, BLOCK_M, BLOCK_N, HAS_LEFT, HAS_RIGHT, HAS_BIAS, TMA, PRECISION, True)  # fmt: skip
    if not HAS_BIAS:
        full = (full_high - full_low) // BLOCK_N
        m, l, u = absorb_keys(
            m, l, u, q, k_src, v_src, bias_ptr, first, low, full_low, full_high, full, batch, kv_head,
            k_start, n_q, n_k, left, right, scale_log2, stride_kb, stride_kn, stride_kh, stride_kd,
            stride_vb, stride_vn, stride_vh, stride_vd, stride_bi, stride_bj,
            D, BLOCK_D, BLOCK_M, BLOCK_N, HAS_LEFT, HAS_RIGHT, HAS_BIAS, TMA, PRECISION, False)  # fmt: skip

    empty = l == 0.0
    out = u / tl.where(empty, 1.0, l)[:, None]
    lse = tl.where(empty, float("-inf"), (m + tl.log2(tl.where(empty, 1.0, l))) * LN2)
    query = first + tl.arange(0, BLOCK_M)
    inside = query < n_q
    row = tl.cast(batch, tl.int64) * stride_lb + tl.cast(head, tl.int64) * stride_lh + (q_start + query)
    tl.store(lse_ptr + row, lse, mask=inside)
    column = tl.arange(0, BLOCK_D)
    out_ptr += tl.cast(batch, tl.int64) * stride_ob + tl.cast(head, tl.int64) * stride_oh
    where = out_ptr + (q_start + query).to(tl.int64)[:, None] * stride_on + column[None, :]
    tl.store(where, out.to(out_ptr.dtype.element_ty), mask=inside[:, None] & (column < D)[None, :])
