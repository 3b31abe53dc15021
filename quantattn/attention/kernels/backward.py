"""Backward kernels: scores are computed again from q, k and the stored lse (Dao 2023, algorithm 2, in two passes).

With P = exp(q kᵀ · scale + bias − lse) and delta = rowsum(do ∘ out) − dlse:

    dv = Pᵀ do        dS = P ∘ (do vᵀ − delta)        dq = dS k · scale        dk = dSᵀ q · scale

Each tile of dq, dk and dv has one writer, so that the result has the same bits on every run: the price is seven
products a block where a kernel that adds into dq with atomics needs five.
"""

from __future__ import annotations

import triton
import triton.language as tl

from quantattn.attention.kernels.primitives import (
    LOG2E,
    block_start,
    count_edges,
    exp2,
    key_blocks,
    load_bias,
    load_rows,
    load_tile,
    locate,
    query_blocks,
    sees,
    without_nonfinite,
)


@triton.jit
def base2_lse(lse):
    """Lse in base 2; +inf for a row that saw nothing, so that its probabilities are 0 and not NaN."""
    return tl.where(lse == float("-inf"), float("inf"), lse * LOG2E)


@triton.jit
def gather_dq(
    dq, q, do, lse, delta, k_src, v_src, bias_ptr, first, low, full_low, full_high, count, batch, kv_head, k_start,
    n_q, n_k, left, right, scale_log2,
    stride_kb, stride_kn, stride_kh, stride_kd, stride_vb, stride_vn, stride_vh, stride_vd, stride_bi, stride_bj,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    HAS_LEFT: tl.constexpr, HAS_RIGHT: tl.constexpr, HAS_BIAS: tl.constexpr,
    TMA: tl.constexpr, PRECISION: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Add dS k of `count` blocks of keys, cut (MASKED) or full, to one tile of dq (still without the scale)."""
    query = first + tl.arange(0, BLOCK_M)
    for step in tl.range(0, count):
        block = block_start(step, low, full_low, full_high, BLOCK_N, MASKED)
        k = load_tile(k_src, batch, kv_head, k_start, block, n_k, stride_kb, stride_kn, stride_kh, stride_kd,
                      D, BLOCK_N, BLOCK_D, TMA, MASKED)  # fmt: skip
        v = load_tile(v_src, batch, kv_head, k_start, block, n_k, stride_vb, stride_vn, stride_vh, stride_vd,
                      D, BLOCK_N, BLOCK_D, TMA, MASKED)  # fmt: skip
        scores = tl.dot(q, k.T, input_precision=PRECISION) * scale_log2
        dp = tl.dot(do, v.T, input_precision=PRECISION)
        if MASKED:
            key = block + tl.arange(0, BLOCK_N)
            seen = sees(query[:, None], key[None, :], n_q, n_k, left, right, HAS_LEFT, HAS_RIGHT)
            if HAS_BIAS:
                bias = load_bias(bias_ptr, query[:, None], key[None, :], seen, stride_bi, stride_bj)
                seen = seen & (bias != float("-inf"))
                scores += bias
            p = exp2(scores - lse[:, None])
            ds = tl.where(seen, p * (dp - delta[:, None]), 0.0)
            k = without_nonfinite(k)
        else:
            p = exp2(scores - lse[:, None])
            ds = p * (dp - delta[:, None])
        dq = tl.dot(ds.to(k.dtype), k, dq, input_precision=PRECISION)
    return dq


@triton.jit(do_not_specialize=["n_sequences", "n_q", "n_k", "left", "right"])
def _attention_bwd_dq(
    q_src, k_src, v_src, do_src, out_ptr, bias_ptr, lse_ptr, dlse_ptr, delta_ptr, dq_ptr, cu_q_ptr, cu_k_ptr,
    scale, n_sequences, n_q, n_k, left, right,
    stride_qb, stride_qn, stride_qh, stride_qd, stride_kb, stride_kn, stride_kh, stride_kd,
    stride_vb, stride_vn, stride_vh, stride_vd, stride_gb, stride_gn, stride_gh, stride_gd,
    stride_ob, stride_on, stride_oh, stride_bs, stride_bh, stride_bi, stride_bj,
    stride_lb, stride_lh, stride_eb, stride_eh, stride_el,
    D: tl.constexpr, GROUP: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    HAS_LEFT: tl.constexpr, HAS_RIGHT: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_DLSE: tl.constexpr,
    PACKED: tl.constexpr, TMA: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One program a tile of BLOCK_M queries and a head: delta (kept for the other kernel), then dq."""
    tile = tl.program_id(0)
    head = tl.program_id(1)
    kv_head = head // GROUP
    if HAS_RIGHT:
        tile = tl.num_programs(0) - 1 - tile
    batch, sequence, first, q_start, n_q, k_start, n_k = locate(
        tile, cu_q_ptr, cu_k_ptr, n_sequences, n_q, n_k, BLOCK_M, PACKED
    )
    if first >= n_q:
        return
    query = first + tl.arange(0, BLOCK_M)
    inside = query < n_q
    column = tl.arange(0, BLOCK_D)
    q = load_tile(q_src, batch, head, q_start, first, n_q, stride_qb, stride_qn, stride_qh, stride_qd,
                  D, BLOCK_M, BLOCK_D, TMA, True)  # fmt: skip
    do = load_tile(do_src, batch, head, q_start, first, n_q, stride_gb, stride_gn, stride_gh, stride_gd,
                   D, BLOCK_M, BLOCK_D, TMA, True)  # fmt: skip
    own = tl.cast(batch, tl.int64) * stride_ob + tl.cast(head, tl.int64) * stride_oh
    where = own + (q_start + query).to(tl.int64)[:, None] * stride_on + column[None, :]
    stored = inside[:, None] & (column < D)[None, :]
    out = tl.load(out_ptr + where, mask=stored, other=0.0)
    row = tl.cast(batch, tl.int64) * stride_lb + tl.cast(head, tl.int64) * stride_lh + (q_start + query)
    lse = tl.load(lse_ptr + row, mask=inside, other=float("-inf"))
    delta = tl.sum(out.to(tl.float32) * do.to(tl.float32), 1)
    if HAS_DLSE:
        edge = tl.cast(batch, tl.int64) * stride_eb + tl.cast(head, tl.int64) * stride_eh
        delta -= tl.load(dlse_ptr + edge + (q_start + query).to(tl.int64) * stride_el, mask=inside, other=0.0)
    # The other kernel leaves out rows whose delta or lse is not finite. A row that saw nothing shows here, by NaN or
    # by 0, whether its q and do are; its own gradient is 0 either way.
    empty = lse == float("-inf")
    shown = (tl.sum(q.to(tl.float32), 1) + tl.sum(do.to(tl.float32), 1)) * 0.0
    tl.store(delta_ptr + row, tl.where(empty, shown, delta), mask=inside)
    delta = tl.where(empty, 0.0, delta)
    lse = base2_lse(lse)

    if HAS_BIAS:
        bias_ptr += tl.cast(sequence, tl.int64) * stride_bs + tl.cast(head, tl.int64) * stride_bh
    low, full_low, full_high, high = key_blocks(
        first, n_q, n_k, left, right, BLOCK_M, BLOCK_N, HAS_LEFT, HAS_RIGHT, HAS_BIAS
    )
    scale_log2 = scale * LOG2E
    dq = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    edges = count_edges(low, full_low, full_high, high, BLOCK_N)
    dq = gather_dq(
        dq, q, do, lse, delta, k_src, v_src, bias_ptr, first, low, full_low, full_high, edges, batch, kv_head,
        k_start, n_q, n_k, left, right, scale_log2, stride_kb, stride_kn, stride_kh, stride_kd,
        stride_vb, stride_vn, stride_vh, stride_vd, stride_bi, stride_bj,
        D, BLOCK_D, BLOCK_M, BLOCK_N, HAS_LEFT, HAS_RIGHT, HAS_BIAS, TMA, PRECISION, True)  # fmt: skip
    if not HAS_BIAS:
        full = (full_high - full_low) // BLOCK_N
        dq = gather_dq(
            dq, q, do, lse, delta, k_src, v_src, bias_ptr, first, low, full_low, full_high, full, batch, kv_head,
            k_start, n_q, n_k, left, right, scale_log2, stride_kb, stride_kn, stride_kh, stride_kd,
            stride_vb, stride_vn, stride_vh, stride_vd, stride_bi, stride_bj,
            D, BLOCK_D, BLOCK_M, BLOCK_N, HAS_LEFT, HAS_RIGHT, HAS_BIAS, TMA, PRECISION, False)  # fmt: skip
    tl.store(dq_ptr + where, (dq * scale).to(dq_ptr.dtype.element_ty), mask=stored)


@triton.jit
def gather_dkdv(
    dk, dv, k, v, q_src, do_src, q_ptr, do_ptr, bias_ptr, lse_ptr, delta_ptr, first,
    low, full_low, full_high, count, batch, head, q_start, n_q, n_k, left, right, scale_log2,
    stride_qb, stride_qn, stride_qh, stride_qd, stride_gb, stride_gn, stride_gh, stride_gd, stride_bi, stride_bj,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    HAS_LEFT: tl.constexpr, HAS_RIGHT: tl.constexpr, HAS_BIAS: tl.constexpr,
    TMA: tl.constexpr, PRECISION: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Add dSᵀ q and Pᵀ do of `count` blocks of queries to one tile of dk and dv; every score tile is transposed."""
    for step in tl.range(0, count):
        block = block_start(step, low, full_low, full_high, BLOCK_M, MASKED)
        query = block + tl.arange(0, BLOCK_M)
        row = q_start + query
        if MASKED:
            lse = tl.load(lse_ptr + row, mask=query < n_q, other=float("nan"))
            delta = tl.load(delta_ptr + row, mask=query < n_q, other=0.0)
            # q or do that is not finite shows in lse or delta. Such a row is read as 0, since 0 · NaN is NaN, and
            # reaches the keys that it sees, and no other, through its probability.
            sound = (lse < float("inf")) & (tl.abs(delta) < float("inf"))
            q = load_rows(q_ptr, batch, head, q_start, block, sound, stride_qb, stride_qn, stride_qh, stride_qd,
                          D, BLOCK_M, BLOCK_D, False)  # fmt: skip
            do = load_rows(do_ptr, batch, head, q_start, block, sound, stride_gb, stride_gn, stride_gh, stride_gd,
                           D, BLOCK_M, BLOCK_D, False)  # fmt: skip
        else:
            lse = tl.load(lse_ptr + row)
            delta = tl.load(delta_ptr + row)
            q = load_tile(q_src, batch, head, q_start, block, n_q, stride_qb, stride_qn, stride_qh, stride_qd,
                          D, BLOCK_M, BLOCK_D, TMA, False)  # fmt: skip
            do = load_tile(do_src, batch, head, q_start, block, n_q, stride_gb, stride_gn, stride_gh, stride_gd,
                           D, BLOCK_M, BLOCK_D, TMA, False)  # fmt: skip
        scores = tl.dot(k, q.T, input_precision=PRECISION) * scale_log2
        dp = tl.dot(v, do.T, input_precision=PRECISION)
        if MASKED:
            key = first + tl.arange(0, BLOCK_N)
            seen = sees(query[None, :], key[:, None], n_q, n_k, left, right, HAS_LEFT, HAS_RIGHT)
            if HAS_BIAS:
                bias = load_bias(bias_ptr, query[None, :], key[:, None], seen, stride_bi, stride_bj)
                seen = seen & (bias != float("-inf"))
                scores += bias
            p = exp2(scores - tl.where(sound, base2_lse(lse), float("nan"))[None, :])
            p = tl.where(seen, p, 0.0)
            ds = tl.where(seen, p * (dp - delta[None, :]), 0.0)
        else:
            p = exp2(scores - (lse * LOG2E)[None, :])
            ds = p * (dp - delta[None, :])
        dv = tl.dot(p.to(do.dtype), do, dv, input_precision=PRECISION)
        dk = tl.dot(ds.to(q.dtype), q, dk, input_precision=PRECISION)
    return dk, dv


@triton.jit(do_not_specialize=["n_sequences", "n_q", "n_k", "left", "right"])
def _attention_bwd_dkdv(
    q_src, k_src, v_src, do_src, q_ptr, do_ptr, bias_ptr, lse_ptr, delta_ptr, dk_ptr, dv_ptr, cu_k_ptr, cu_q_ptr,
    scale, n_sequences, n_q, n_k, left, right,
    stride_qb, stride_qn, stride_qh, stride_qd, stride_kb, stride_kn, stride_kh, stride_kd,
    stride_vb, stride_vn, stride_vh, stride_vd, stride_gb, stride_gn, stride_gh, stride_gd,
    stride_ob, stride_on, stride_oh, stride_bs, stride_bh, stride_bi, stride_bj, stride_lb, stride_lh,
    D: tl.constexpr, GROUP: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    HAS_LEFT: tl.constexpr, HAS_RIGHT: tl.constexpr, HAS_BIAS: tl.constexpr,
    PACKED: tl.constexpr, TMA: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One program a tile of BLOCK_N keys and a key/value head; the heads of its group are visited in order."""
    tile = tl.program_id(0)
    kv_head = tl.program_id(1)
    batch, sequence, first, k_start, n_k, q_start, n_q = locate(
        tile, cu_k_ptr, cu_q_ptr, n_sequences, n_k, n_q, BLOCK_N, PACKED
    )
    if first >= n_k:
        return
    k = load_tile(k_src, batch, kv_head, k_start, first, n_k, stride_kb, stride_kn, stride_kh, stride_kd,
                  D, BLOCK_N, BLOCK_D, TMA, True)  # fmt: skip
    v = load_tile(v_src, batch, kv_head, k_start, first, n_k, stride_vb, stride_vn, stride_vh, stride_vd,
                  D, BLOCK_N, BLOCK_D, TMA, True)  # fmt: skip
    low, full_low, full_high, high = query_blocks(
        first, n_q, n_k, left, right, BLOCK_M, BLOCK_N, HAS_LEFT, HAS_RIGHT, HAS_BIAS
    )
    edges = count_edges(low, full_low, full_high, high, BLOCK_M)
    full = (full_high - full_low) // BLOCK_M
    scale_log2 = scale * LOG2E
    dk = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    dv = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    for member in range(GROUP):
        head = kv_head * GROUP + member
        rows = tl.cast(batch, tl.int64) * stride_lb + tl.cast(head, tl.int64) * stride_lh
        bias_of_head = bias_ptr
        if HAS_BIAS:
            bias_of_head += tl.cast(sequence, tl.int64) * stride_bs + tl.cast(head, tl.int64) * stride_bh
        dk, dv = gather_dkdv(
            dk, dv, k, v, q_src, do_src, q_ptr, do_ptr, bias_of_head, lse_ptr + rows, delta_ptr + rows, first,
            low, full_low, full_high, edges, batch, head, q_start, n_q, n_k, left, right, scale_log2,
            stride_qb, stride_qn, stride_qh, stride_qd, stride_gb, stride_gn, stride_gh, stride_gd,
            stride_bi, stride_bj,
            D, BLOCK_D, BLOCK_M, BLOCK_N, HAS_LEFT, HAS_RIGHT, HAS_BIAS, TMA, PRECISION, True)  # fmt: skip
        if not HAS_BIAS:
            dk, dv = gather_dkdv(
                dk, dv, k, v, q_src, do_src, q_ptr, do_ptr, bias_of_head, lse_ptr + rows, delta_ptr + rows, first,
                low, full_low, full_high, full, batch, head, q_start, n_q, n_k, left, right, scale_log2,
                stride_qb, stride_qn, stride_qh, stride_qd, stride_gb, stride_gn, stride_gh, stride_gd,
                stride_bi, stride_bj,
                D, BLOCK_D, BLOCK_M, BLOCK_N, HAS_LEFT, HAS_RIGHT, HAS_BIAS, TMA, PRECISION, False)  # fmt: skip
    key = first + tl.arange(0, BLOCK_N)
    column = tl.arange(0, BLOCK_D)
    own = tl.cast(batch, tl.int64) * stride_ob + tl.cast(kv_head, tl.int64) * stride_oh
    where = own + (k_start + key).to(tl.int64)[:, None] * stride_on + column[None, :]
    stored = (key < n_k)[:, None] & (column < D)[None, :]
    tl.store(dk_ptr + where, (dk * scale).to(dk_ptr.dtype.element_ty), mask=stored)
    tl.store(dv_ptr + where, dv.to(dv_ptr.dtype.element_ty), mask=stored)
