"""Gradient of the additive mask: dS itself, summed in a fixed order over the axes that the mask is broadcast over.

No peer gives it: it is as large as the mask, and never larger. A mask with an entry for each query and key gets one
program a tile, which walks over the sequences and heads that share the entry. One that is broadcast over queries or
keys gets one program a tile, sequence and head, which walks over the broadcast axis; the few rows that they write are
added by whoever launches.
"""

from __future__ import annotations

import triton
import triton.language as tl

from quantattn.attention.kernels.arguments import Place
from quantattn.attention.kernels.backward import base2_lse
from quantattn.attention.kernels.primitives import exp2, load_tile
from quantattn.attention.kernels.scores import by_score, is_kept, look, of_head


@triton.jit
def score_gradient(
    q_ptr, k_ptr, v_ptr, do_ptr, lse_ptr, delta_ptr, q_strides, k_strides, v_strides, do_strides,
    place, head, kv_head, row, column, scoring, bounds, terms,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The gradient by the scores [BLOCK_M, BLOCK_N] of queries from `row`, keys from `column` on; 0 if unseen."""
    query = row + tl.arange(0, BLOCK_M)
    key = column + tl.arange(0, BLOCK_N)
    q = load_tile(q_ptr, q_strides, place.batch, head, place.q_start, row, place.n_q, D, BLOCK_M, BLOCK_D, False, True)
    k = load_tile(
        k_ptr, k_strides, place.batch, kv_head, place.k_start, column, place.n_k, D, BLOCK_N, BLOCK_D, False, True
    )
    products = tl.dot(q, k.T, input_precision=PRECISION)
    scores, seen, _ = look(products, query[:, None], key[None, :], place, scoring, bounds, terms, True)
    do = load_tile(
        do_ptr, do_strides, place.batch, head, place.q_start, row, place.n_q, D, BLOCK_M, BLOCK_D, False, True
    )
    v = load_tile(
        v_ptr, v_strides, place.batch, kv_head, place.k_start, column, place.n_k, D, BLOCK_N, BLOCK_D, False, True
    )
    dp = tl.dot(do, v.T, input_precision=PRECISION)
    lse = base2_lse(tl.load(lse_ptr + place.q_start + query, mask=query < place.n_q, other=float("-inf")))
    delta = tl.load(delta_ptr + place.q_start + query, mask=query < place.n_q, other=0.0)
    kept = None
    if terms.seed is not None:
        kept = is_kept(query[:, None], key[None, :], place, head, terms)
    ds = by_score(exp2(scores - lse[:, None]), dp, delta[:, None], kept, terms)
    return tl.where(seen, ds, 0.0)


@triton.jit
def may_see(row, column, n_q, n_k, bounds, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Whether a bound of the mask leaves anything of a block visible."""
    beside = row + n_k - n_q
    near = (row < n_q) & (column < n_k)
    if bounds.left is not None:
        near = near & (column + BLOCK_N - 1 >= beside - bounds.left)
    if bounds.right is not None:
        near = near & (column <= beside + BLOCK_M - 1 + bounds.right)
    if bounds.prefix is not None:
        near = near | ((row < n_q) & (column < tl.minimum(bounds.prefix, n_k)))
    return near


@triton.jit(do_not_specialize=["n_sequences", "n_heads", "n_q", "n_k", "rows", "columns"])
def _attention_bwd_dbias(
    q_ptr, k_ptr, v_ptr, do_ptr, lse_ptr, delta_ptr, dbias_ptr, cu_q_ptr, cu_k_ptr,
    scale, n_sequences, n_heads, n_q, n_k, rows, columns,
    q_strides, k_strides, v_strides, do_strides, lse_strides, dbias_strides, bounds, terms,
    D: tl.constexpr, GROUP: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    PRECISION: tl.constexpr, ALL_SEQUENCES: tl.constexpr, ALL_HEADS: tl.constexpr,
    ALL_QUERIES: tl.constexpr, ALL_KEYS: tl.constexpr,
):  # fmt: skip
    """One program a tile of dbias (sequence or all, head or all); ALL_… are the axes that it adds up.

    rows and columns are the longest Nq and Nk of all sequences.
    """
    own_head = tl.program_id(1)
    tiles_i = 1 if ALL_QUERIES else tl.cdiv(rows, BLOCK_M)
    tiles_j = 1 if ALL_KEYS else tl.cdiv(columns, BLOCK_N)
    own_sequence = tl.program_id(0) // (tiles_i * tiles_j)
    tile = tl.program_id(0) - own_sequence * (tiles_i * tiles_j)
    tile_i = tile // tiles_j
    tile_j = tile - tile_i * tiles_j
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for sequence in range(own_sequence, n_sequences if ALL_SEQUENCES else own_sequence + 1):
        q_start = 0
        k_start = 0
        batch = sequence
        if cu_q_ptr is not None:
            q_start = tl.load(cu_q_ptr + sequence)
            k_start = tl.load(cu_k_ptr + sequence)
            n_q = tl.load(cu_q_ptr + sequence + 1) - q_start
            n_k = tl.load(cu_k_ptr + sequence + 1) - k_start
            batch = 0
        place = Place(batch, sequence, 0, q_start, n_q, k_start, n_k)
        for head in range(own_head, n_heads if ALL_HEADS else own_head + 1):
            scoring = of_head(terms, sequence, head, scale)
            at = tl.cast(batch, tl.int64) * lse_strides.b + tl.cast(head, tl.int64) * lse_strides.h
            for row in range(tile_i * BLOCK_M, n_q if ALL_QUERIES else (tile_i + 1) * BLOCK_M, BLOCK_M):
                for column in range(tile_j * BLOCK_N, n_k if ALL_KEYS else (tile_j + 1) * BLOCK_N, BLOCK_N):
                    if may_see(row, column, n_q, n_k, bounds, BLOCK_M, BLOCK_N):
                        acc += score_gradient(
                            q_ptr, k_ptr, v_ptr, do_ptr, lse_ptr + at, delta_ptr + at,
                            q_strides, k_strides, v_strides, do_strides, place, head, head // GROUP, row, column,
                            scoring, bounds, terms, D, BLOCK_D, BLOCK_M, BLOCK_N, PRECISION)  # fmt: skip
    own = tl.cast(own_sequence, tl.int64) * dbias_strides.b + tl.cast(own_head, tl.int64) * dbias_strides.h
    i = tile_i * BLOCK_M + tl.arange(0, BLOCK_M)
    j = tile_j * BLOCK_N + tl.arange(0, BLOCK_N)
    where = dbias_ptr + own
    if ALL_QUERIES and ALL_KEYS:
        tl.store(where, tl.sum(tl.sum(acc, 1), 0))
    elif ALL_QUERIES:
        tl.store(where + j * dbias_strides.d, tl.sum(acc, 0), mask=j < columns)
    elif ALL_KEYS:
        tl.store(where + i.to(tl.int64) * dbias_strides.n, tl.sum(acc, 1), mask=i < rows)
    else:
        where += i.to(tl.int64)[:, None] * dbias_strides.n + j[None, :] * dbias_strides.d
        tl.store(where, acc, mask=(i < rows)[:, None] & (j < columns)[None, :])
