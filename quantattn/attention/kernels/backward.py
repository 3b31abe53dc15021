"""Backward kernels: scores are computed again from q, k and the stored lse (Dao 2023, algorithm 2, in two passes).

With P = exp(scores − lse), Z the dropout's factors and delta = rowsum(do ∘ out) − dlse:

    dv = (P ∘ Z)ᵀ do        dS = P ∘ (Z ∘ do vᵀ − delta)        dq = dS k · scale        dk = dSᵀ q · scale

where a softcap multiplies dS by its derivative first. Each tile of dq, dk and dv has one writer, so that the result has
the same bits on every run: the price is seven products a block where a kernel that adds into dq with atomics needs
five. The gradient of the additive mask has a pass of its own (`dbias.py`).
"""

from __future__ import annotations

import triton
import triton.language as tl

from quantattn.attention.kernels.arguments import Place
from quantattn.attention.kernels.primitives import (
    LOG2E,
    block_start,
    count_blocks,
    exp2,
    key_blocks,
    load_rows,
    load_tile,
    locate,
    query_blocks,
    without_nonfinite,
)
from quantattn.attention.kernels.scores import by_score, is_kept, keep_rate, look, of_head


@triton.jit
def base2_lse(lse):
    """Lse in base 2; +inf for a row that saw nothing, so that its probabilities are 0 and not NaN."""
    return tl.where(lse == float("-inf"), float("inf"), lse * LOG2E)


@triton.jit
def gather_dq(
    dq, q, do, lse, delta, k_src, v_src, k_strides, v_strides, place, head, kv_head, visit, scoring,
    bounds, terms,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    TMA: tl.constexpr, PRECISION: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Add dS k of the blocks of keys, cut (MASKED) or full, to one tile of dq (still without the scale)."""
    query = place.first + tl.arange(0, BLOCK_M)
    # Whatever is hoisted out of a loop takes registers, which these rows of float32 need.
    for step in tl.range(0, count_blocks(visit, BLOCK_N, MASKED), disable_licm=q.dtype == tl.float32):
        block = block_start(step, visit, BLOCK_N, MASKED)
        key = block + tl.arange(0, BLOCK_N)
        k = load_tile(
            k_src, k_strides, place.batch, kv_head, place.k_start, block, place.n_k, D, BLOCK_N, BLOCK_D, TMA, MASKED
        )
        if MASKED and terms.softcap is None:  # a query that sees a key that is not finite has an lse that is not
            k = without_nonfinite(k)
        v = load_tile(
            v_src, v_strides, place.batch, kv_head, place.k_start, block, place.n_k, D, BLOCK_N, BLOCK_D, TMA, MASKED
        )
        products = tl.dot(q, k.T, input_precision=PRECISION)
        scores, seen, bend = look(products, query[:, None], key[None, :], place, scoring, bounds, terms, MASKED)
        dp = tl.dot(do, v.T, input_precision=PRECISION)
        kept = None
        if terms.seed is not None:
            kept = is_kept(query[:, None], key[None, :], place, head, terms)
        ds = by_score(exp2(scores - lse[:, None]), dp, delta[:, None], kept, terms)
        if terms.softcap is not None:
            ds = ds * bend
        if MASKED:
            ds = tl.where(seen, ds, 0.0)
            if terms.softcap is not None:  # which makes a finite score of an infinite one
                odd = tl.max((tl.abs(k) < float("inf")).to(tl.int32) ^ 1, 1) > 0
                ds = tl.where(seen & odd[None, :], float("nan"), ds)
                k = without_nonfinite(k)
        dq = tl.dot(ds.to(k.dtype), k, dq, input_precision=PRECISION)
    return dq


@triton.jit(do_not_specialize=["n_sequences", "n_q", "n_k"])
def _attention_bwd_dq(
    q_src, k_src, v_src, do_src, out_ptr, lse_ptr, dlse_ptr, delta_ptr, dq_ptr, along_ptr, cu_q_ptr, cu_k_ptr,
    scale, n_sequences, n_q, n_k,
    q_strides, k_strides, v_strides, do_strides, out_strides, lse_strides, dlse_strides, bounds, terms,
    D: tl.constexpr, GROUP: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    TMA: tl.constexpr, PRECISION: tl.constexpr, HIDES: tl.constexpr,
):  # fmt: skip
    """One program a tile of BLOCK_M queries and a head: delta (kept for the other kernels), then dq."""
    tile = tl.program_id(0)
    head = tl.program_id(1)
    kv_head = head // GROUP
    if bounds.right is not None:
        tile = tl.num_programs(0) - 1 - tile
    batch, sequence, first, q_start, n_q, k_start, n_k = locate(
        tile, cu_q_ptr, cu_k_ptr, n_sequences, n_q, n_k, BLOCK_M
    )
    place = Place(batch, sequence, first, q_start, n_q, k_start, n_k)
    if first >= n_q:
        return
    query = first + tl.arange(0, BLOCK_M)
    inside = query < n_q
    column = tl.arange(0, BLOCK_D)
    q = load_tile(q_src, q_strides, batch, head, q_start, first, n_q, D, BLOCK_M, BLOCK_D, TMA, True)
    do = load_tile(do_src, do_strides, batch, head, q_start, first, n_q, D, BLOCK_M, BLOCK_D, TMA, True)
    own = tl.cast(batch, tl.int64) * out_strides.b + tl.cast(head, tl.int64) * out_strides.h
    where = own + (q_start + query).to(tl.int64)[:, None] * out_strides.n + column[None, :]
    stored = inside[:, None] & (column < D)[None, :]
    out = tl.load(out_ptr + where, mask=stored, other=0.0)
    row = tl.cast(batch, tl.int64) * lse_strides.b + tl.cast(head, tl.int64) * lse_strides.h + (q_start + query)
    lse = tl.load(lse_ptr + row, mask=inside, other=float("-inf"))
    delta = tl.sum(out.to(tl.float32) * do.to(tl.float32), 1)
    if dlse_ptr is not None:
        edge = tl.cast(batch, tl.int64) * dlse_strides.b + tl.cast(head, tl.int64) * dlse_strides.h
        delta -= tl.load(dlse_ptr + edge + (q_start + query).to(tl.int64) * dlse_strides.n, mask=inside, other=0.0)
    # The other kernels leave out rows whose delta or lse is not finite. A row that saw nothing shows here, by NaN or
    # by 0, whether its q and do are; its own gradient is 0 either way.
    empty = lse == float("-inf")
    shown = (tl.sum(q.to(tl.float32), 1) + tl.sum(do.to(tl.float32), 1)) * 0.0
    tl.store(delta_ptr + row, tl.where(empty, shown, delta), mask=inside)
    delta = tl.where(empty, 0.0, delta)
    lse = base2_lse(lse)

    scoring = of_head(terms, sequence, head, scale)
    visit = key_blocks(first, n_q, n_k, bounds, BLOCK_M, BLOCK_N, HIDES)
    dq = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    dq = gather_dq(
        dq, q, do, lse, delta, k_src, v_src, k_strides, v_strides, place, head, kv_head, visit, scoring,
        bounds, terms, D, BLOCK_D, BLOCK_M, BLOCK_N, TMA, PRECISION, True)  # fmt: skip
    if not HIDES:
        dq = gather_dq(
            dq, q, do, lse, delta, k_src, v_src, k_strides, v_strides, place, head, kv_head, visit,
            scoring, bounds, terms, D, BLOCK_D, BLOCK_M, BLOCK_N, TMA, PRECISION, False)  # fmt: skip
    if along_ptr is not None:
        tl.store(along_ptr + row, tl.sum(tl.where(dq == 0.0, 0.0, q.to(tl.float32) * dq), 1) * scale, mask=inside)
    tl.store(dq_ptr + where, (dq * (scale * scoring.own)).to(dq_ptr.dtype.element_ty), mask=stored)


@triton.jit
def gather_dkdv(
    dk, dv, k, v, q_src, do_src, q_ptr, do_ptr, q_strides, do_strides, lse_ptr, delta_ptr, first, place, head, visit,
    scoring, bounds, terms,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    TMA: tl.constexpr, PRECISION: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Add dSᵀ q and (P ∘ Z)ᵀ do of the blocks of queries to one tile of dk and dv; every score tile is transposed."""
    key = first + tl.arange(0, BLOCK_N)
    # Here hoisting spills where wgmma keeps dk and dv in registers; it helps where there is no copy engine.
    for step in tl.range(0, count_blocks(visit, BLOCK_M, MASKED), disable_licm=TMA):
        block = block_start(step, visit, BLOCK_M, MASKED)
        query = block + tl.arange(0, BLOCK_M)
        row = place.q_start + query
        if MASKED:
            lse = tl.load(lse_ptr + row, mask=query < place.n_q, other=float("nan"))
            delta = tl.load(delta_ptr + row, mask=query < place.n_q, other=0.0)
            # q or do that is not finite shows in lse or delta. Such a row is read as 0, since 0 · NaN is NaN, and
            # reaches the keys that it sees, and no other, through its probability.
            sound = (lse < float("inf")) & (tl.abs(delta) < float("inf"))
            q = load_rows(q_ptr, q_strides, place.batch, head, place.q_start, block, sound, D, BLOCK_M, BLOCK_D, False)
            do = load_rows(
                do_ptr, do_strides, place.batch, head, place.q_start, block, sound, D, BLOCK_M, BLOCK_D, False
            )
            lse = tl.where(sound, base2_lse(lse), float("nan"))
        else:
            lse = tl.load(lse_ptr + row) * LOG2E
            delta = tl.load(delta_ptr + row)
            q = load_tile(
                q_src, q_strides, place.batch, head, place.q_start, block, place.n_q, D, BLOCK_M, BLOCK_D, TMA, False
            )
            do = load_tile(
                do_src, do_strides, place.batch, head, place.q_start, block, place.n_q, D, BLOCK_M, BLOCK_D, TMA, False
            )
        products = tl.dot(k, q.T, input_precision=PRECISION)
        scores, seen, bend = look(products, query[None, :], key[:, None], place, scoring, bounds, terms, MASKED)
        dp = tl.dot(v, do.T, input_precision=PRECISION)
        p = exp2(scores - lse[None, :])
        kept = None
        if terms.seed is not None:
            kept = is_kept(query[None, :], key[:, None], place, head, terms)
        ds = by_score(p, dp, delta[None, :], kept, terms)
        if terms.softcap is not None:
            ds = ds * bend
        if kept is not None:
            p = tl.where(kept, p / keep_rate(terms), 0.0)
        if terms.scales is not None:
            ds = ds * scoring.own
        if MASKED:
            p = tl.where(seen, p, 0.0)
            ds = tl.where(seen, ds, 0.0)
            if terms.sinks is not None or terms.softcap is not None:  # then lse may be finite where q is not
                odd = tl.max((tl.abs(q) < float("inf")).to(tl.int32) ^ 1, 1) > 0
                ds = tl.where(seen & odd[None, :], float("nan"), ds)
                q = without_nonfinite(q)
        dv = tl.dot(p.to(do.dtype), do, dv, input_precision=PRECISION)
        dk = tl.dot(ds.to(q.dtype), q, dk, input_precision=PRECISION)
    return dk, dv


@triton.jit(do_not_specialize=["n_sequences", "n_q", "n_k"])
def _attention_bwd_dkdv(
    q_src, k_src, v_src, do_src, q_ptr, do_ptr, lse_ptr, delta_ptr, dk_ptr, dv_ptr, cu_k_ptr, cu_q_ptr,
    scale, n_sequences, n_q, n_k,
    q_strides, k_strides, v_strides, do_strides, out_strides, lse_strides, bounds, terms,
    D: tl.constexpr, GROUP: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    TMA: tl.constexpr, PRECISION: tl.constexpr, HIDES: tl.constexpr,
):  # fmt: skip
    """One program a tile of BLOCK_N keys and a key/value head; the heads of its group are visited in order."""
    tile = tl.program_id(0)
    kv_head = tl.program_id(1)
    batch, sequence, first, k_start, n_k, q_start, n_q = locate(
        tile, cu_k_ptr, cu_q_ptr, n_sequences, n_k, n_q, BLOCK_N
    )
    if first >= n_k:
        return
    place = Place(batch, sequence, first, q_start, n_q, k_start, n_k)
    k = load_tile(k_src, k_strides, batch, kv_head, k_start, first, n_k, D, BLOCK_N, BLOCK_D, TMA, True)
    v = load_tile(v_src, v_strides, batch, kv_head, k_start, first, n_k, D, BLOCK_N, BLOCK_D, TMA, True)
    visit = query_blocks(first, n_q, n_k, bounds, BLOCK_M, BLOCK_N, HIDES)
    dk = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    dv = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    for member in tl.range(0, GROUP, disable_licm=TMA):
        head = kv_head * GROUP + member
        rows = tl.cast(batch, tl.int64) * lse_strides.b + tl.cast(head, tl.int64) * lse_strides.h
        scoring = of_head(terms, sequence, head, scale)
        dk, dv = gather_dkdv(
            dk, dv, k, v, q_src, do_src, q_ptr, do_ptr, q_strides, do_strides, lse_ptr + rows, delta_ptr + rows,
            first, place, head, visit, scoring, bounds, terms,
            D, BLOCK_D, BLOCK_M, BLOCK_N, TMA, PRECISION, True)  # fmt: skip
        if not HIDES:
            dk, dv = gather_dkdv(
                dk, dv, k, v, q_src, do_src, q_ptr, do_ptr, q_strides, do_strides, lse_ptr + rows, delta_ptr + rows,
                first, place, head, visit, scoring, bounds, terms,
                D, BLOCK_D, BLOCK_M, BLOCK_N, TMA, PRECISION, False)  # fmt: skip
    key = first + tl.arange(0, BLOCK_N)
    column = tl.arange(0, BLOCK_D)
    own = tl.cast(batch, tl.int64) * out_strides.b + tl.cast(kv_head, tl.int64) * out_strides.h
    where = own + (k_start + key).to(tl.int64)[:, None] * out_strides.n + column[None, :]
    stored = (key < n_k)[:, None] & (column < D)[None, :]
    tl.store(dk_ptr + where, (dk * scale).to(dk_ptr.dtype.element_ty), mask=stored)
    tl.store(dv_ptr + where, dv.to(dv_ptr.dtype.element_ty), mask=stored)
