"""Kernels of the summaries: weights are computed again from q, k and lse, summed by key or by query, and forgotten.

With t = ln p = scores − lse, where `scores.py` says what a score is:

    received_j = Σ_i p_ij        entropy_i = −Σ_j p_ij · t_ij        distance_i = Σ_j p_ij · |j − i − shift|

and Σ p_ij over blocks of queries and keys. Each result has one writer: the same input gives the same bits.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import triton
import triton.language as tl
from torch import Tensor

from quantattn.attention.kernels import launch
from quantattn.attention.kernels.arguments import Place, Terms
from quantattn.attention.kernels.backward import base2_lse
from quantattn.attention.kernels.configs import Config, padded_head
from quantattn.attention.kernels.launch import Problem, describe, strides, use_descriptors
from quantattn.attention.kernels.primitives import (
    LN2,
    block_start,
    count_blocks,
    exp2,
    key_blocks,
    load_tile,
    locate,
    query_blocks,
)
from quantattn.attention.kernels.scores import look, of_head

NOTHING = tl.constexpr(-1e4)
"""A log weight whose weight is 0, and whose product with that weight is 0 and not 0 · ∞ = NaN."""


@triton.jit
def gather_received(
    received, k, q_src, q_strides, lse_ptr, first, place, head, visit, scoring, bounds, terms,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    TMA: tl.constexpr, PRECISION: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Add the weights of the blocks of queries, cut (MASKED) or full, to what a tile of keys received; transposed."""
    key = first + tl.arange(0, BLOCK_N)
    for step in tl.range(0, count_blocks(visit, BLOCK_M, MASKED)):
        block = block_start(step, visit, BLOCK_M, MASKED)
        query = block + tl.arange(0, BLOCK_M)
        lse = base2_lse(tl.load(lse_ptr + place.q_start + query, mask=query < place.n_q, other=float("-inf")))
        q = load_tile(
            q_src, q_strides, place.batch, head, place.q_start, block, place.n_q, D, BLOCK_M, BLOCK_D, TMA, MASKED
        )
        products = tl.dot(k, q.T, input_precision=PRECISION)  # [BLOCK_N, BLOCK_M]
        t, seen, _ = look(products, query[None, :], key[:, None], place, scoring, bounds, terms, MASKED)
        p = exp2(t - lse[None, :])
        if MASKED:
            p = tl.where(seen, p, 0.0)
        received += tl.sum(p, 1)
    return received


@triton.jit(do_not_specialize=["n_sequences", "n_q", "n_k"])
def _attention_received(
    q_src, k_src, lse_ptr, received_ptr, cu_k_ptr, cu_q_ptr, scale, n_sequences, n_q, n_k,
    q_strides, k_strides, lse_strides, received_strides, bounds, terms,
    D: tl.constexpr, GROUP: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    TMA: tl.constexpr, PRECISION: tl.constexpr, HIDES: tl.constexpr,
):  # fmt: skip
    """One program a tile of BLOCK_N keys and a query head."""
    head = tl.program_id(1)
    batch, sequence, first, k_start, n_k, q_start, n_q = locate(
        tl.program_id(0), cu_k_ptr, cu_q_ptr, n_sequences, n_k, n_q, BLOCK_N
    )
    place = Place(batch, sequence, first, q_start, n_q, k_start, n_k)
    if first >= n_k:
        return
    k = load_tile(k_src, k_strides, batch, head // GROUP, k_start, first, n_k, D, BLOCK_N, BLOCK_D, TMA, True)
    lse_ptr += tl.cast(batch, tl.int64) * lse_strides.b + tl.cast(head, tl.int64) * lse_strides.h
    scoring = of_head(terms, sequence, head, scale)
    visit = query_blocks(first, n_q, n_k, bounds, BLOCK_M, BLOCK_N, HIDES)
    received = tl.zeros([BLOCK_N], tl.float32)
    received = gather_received(
        received, k, q_src, q_strides, lse_ptr, first, place, head, visit, scoring, bounds, terms,
        D, BLOCK_D, BLOCK_M, BLOCK_N, TMA, PRECISION, True)  # fmt: skip
    if not HIDES:
        received = gather_received(
            received, k, q_src, q_strides, lse_ptr, first, place, head, visit, scoring, bounds, terms,
            D, BLOCK_D, BLOCK_M, BLOCK_N, TMA, PRECISION, False)  # fmt: skip
    key = first + tl.arange(0, BLOCK_N)
    row = tl.cast(batch, tl.int64) * received_strides.b + tl.cast(head, tl.int64) * received_strides.h + (k_start + key)
    tl.store(received_ptr + row, received, mask=key < n_k)


@triton.jit
def gather_rows(
    entropy, distance, q, lse, k_src, k_strides, place, kv_head, visit, scoring, bounds, terms,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    TMA: tl.constexpr, PRECISION: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Add the blocks of keys, cut (MASKED) or full, to the entropy (in bits) and the distance of a tile of queries."""
    query = place.first + tl.arange(0, BLOCK_M)
    beside = query + (place.n_k - place.n_q)
    for step in tl.range(0, count_blocks(visit, BLOCK_N, MASKED)):
        block = block_start(step, visit, BLOCK_N, MASKED)
        key = block + tl.arange(0, BLOCK_N)
        k = load_tile(
            k_src, k_strides, place.batch, kv_head, place.k_start, block, place.n_k, D, BLOCK_N, BLOCK_D, TMA, MASKED
        )
        products = tl.dot(q, k.T, input_precision=PRECISION)
        t, seen, _ = look(products, query[:, None], key[None, :], place, scoring, bounds, terms, MASKED)
        t -= lse[:, None]
        if MASKED:
            t = tl.where(seen, t, NOTHING)
        t = tl.where(t < NOTHING, NOTHING, t)  # and NaN stays what it is
        p = exp2(t)
        entropy -= tl.sum(p * t, 1)
        distance += tl.sum(p * tl.abs(key[None, :] - beside[:, None]).to(tl.float32), 1)
    return entropy, distance


@triton.jit(do_not_specialize=["n_sequences", "n_q", "n_k"])
def _attention_rows(
    q_src, k_src, lse_ptr, entropy_ptr, distance_ptr, cu_q_ptr, cu_k_ptr, scale, n_sequences, n_q, n_k,
    q_strides, k_strides, lse_strides, bounds, terms,
    D: tl.constexpr, GROUP: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    TMA: tl.constexpr, PRECISION: tl.constexpr, HIDES: tl.constexpr,
):  # fmt: skip
    """One program a tile of BLOCK_M queries and a head; entropy and distance lie as lse does."""
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
    query = first + tl.arange(0, BLOCK_M)
    inside = query < n_q
    q = load_tile(q_src, q_strides, batch, head, q_start, first, n_q, D, BLOCK_M, BLOCK_D, TMA, True)
    row = tl.cast(batch, tl.int64) * lse_strides.b + tl.cast(head, tl.int64) * lse_strides.h + (q_start + query)
    lse = base2_lse(tl.load(lse_ptr + row, mask=inside, other=float("-inf")))
    scoring = of_head(terms, sequence, head, scale)
    visit = key_blocks(first, n_q, n_k, bounds, BLOCK_M, BLOCK_N, HIDES)
    entropy = tl.zeros([BLOCK_M], tl.float32)
    distance = tl.zeros([BLOCK_M], tl.float32)
    entropy, distance = gather_rows(
        entropy, distance, q, lse, k_src, k_strides, place, kv_head, visit, scoring, bounds, terms,
        D, BLOCK_D, BLOCK_M, BLOCK_N, TMA, PRECISION, True)  # fmt: skip
    if not HIDES:
        entropy, distance = gather_rows(
            entropy, distance, q, lse, k_src, k_strides, place, kv_head, visit, scoring, bounds, terms,
            D, BLOCK_D, BLOCK_M, BLOCK_N, TMA, PRECISION, False)  # fmt: skip
    entropy = tl.where(entropy < 0.0, 0.0, entropy)  # a weight rounded above 1 has a negative one
    tl.store(entropy_ptr + row, entropy * LN2, mask=inside)
    tl.store(distance_ptr + row, distance, mask=inside)


@triton.jit(do_not_specialize=["n_q", "n_k", "size_q", "size_k", "blocks_k"])
def _attention_map(
    q_src, k_src, lse_ptr, sums_ptr, scale, n_q, n_k, size_q, size_k, blocks_k,
    q_strides, k_strides, lse_strides, sums_stride_h, bounds, terms,
    D: tl.constexpr, GROUP: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    TMA: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One program a pair of size_q queries and size_k keys of the one sequence, and a head: the sum of its weights."""
    pair = tl.program_id(0)
    head = tl.program_id(1)
    first_query = pair // blocks_k * size_q
    first_key = pair % blocks_k * size_k
    end_query = tl.minimum(first_query + size_q, n_q)
    end_key = tl.minimum(first_key + size_k, n_k)
    place = Place(0, 0, first_query, 0, n_q, 0, n_k)
    lse_ptr += tl.cast(head, tl.int64) * lse_strides.h
    scoring = of_head(terms, 0, head, scale)
    total = tl.zeros([BLOCK_M], tl.float32)
    for first in tl.range(first_query, end_query, BLOCK_M):
        query = first + tl.arange(0, BLOCK_M)
        lse = base2_lse(tl.load(lse_ptr + query, mask=query < end_query, other=float("-inf")))
        q = load_tile(q_src, q_strides, 0, head, 0, first, end_query, D, BLOCK_M, BLOCK_D, TMA, True)
        visit = key_blocks(first, n_q, n_k, bounds, BLOCK_M, BLOCK_N, True)
        low = visit.low
        if bounds.prefix is not None:
            low = tl.where(first_key < bounds.prefix, 0, low)
        start = first_key + tl.maximum(low - first_key, 0) // BLOCK_N * BLOCK_N
        for block in tl.range(start, tl.minimum(visit.high, end_key), BLOCK_N):
            key = block + tl.arange(0, BLOCK_N)
            k = load_tile(k_src, k_strides, 0, head // GROUP, 0, block, end_key, D, BLOCK_N, BLOCK_D, TMA, True)
            products = tl.dot(q, k.T, input_precision=PRECISION)
            t, seen, _ = look(products, query[:, None], key[None, :], place, scoring, bounds, terms, True)
            seen = seen & (query < end_query)[:, None] & (key < end_key)[None, :]
            total += tl.sum(tl.where(seen, exp2(t - lse[:, None]), 0.0), 1)
    tl.store(sums_ptr + tl.cast(head, tl.int64) * sums_stride_h + pair, tl.sum(total, 0))


Which = Literal["received", "rows", "map"]


def adapt(which: Which, forward: Config, terms: Terms) -> Config:
    """The forward's blocks, whose loop over keys `rows` and `map` repeat without the values; `received` is its mirror.

    A map with anything beside q·k in a score takes at most 64 queries; with 128 it spills.
    """
    if which == "received":
        return replace(forward, block_m=forward.block_n, block_n=forward.block_m)
    if which == "map" and (not terms.plain or terms.hides):
        return replace(forward, block_m=min(64, forward.block_m))
    return forward


def launch_received(
    q: Tensor, k: Tensor, lse: Tensor, received: Tensor, problem: Problem,
    config: Config | None = None, descriptors: bool | None = None,
) -> None:  # fmt: skip
    """Write received (B, H, Nk) float32, from lse (B, H, N); both contiguous."""
    terms = problem.terms()
    config = config or adapt("received", launch.choose_config("fwd", q, terms), terms)
    tiles = problem.tiles(k, config.block_n)
    if not (tiles and q.shape[2]):
        return
    tma, sources = _sources(q, k, config, descriptors)
    _attention_received[(tiles, q.shape[2])](
        *sources, lse, received, problem.cu_k, problem.cu_q,
        problem.scale, problem.sequences(q), q.shape[1], k.shape[1],
        strides(q), strides(k), strides(lse), strides(received), problem.bounds(), terms,
        TMA=tma, HIDES=terms.hides, **problem.constants(q, k, config),
    )  # fmt: skip


def launch_rows(
    q: Tensor, k: Tensor, lse: Tensor, entropy: Tensor, distance: Tensor, problem: Problem,
    config: Config | None = None, descriptors: bool | None = None,
) -> None:  # fmt: skip
    """Write entropy and distance (B, H, N) float32, from lse (B, H, N); all contiguous."""
    terms = problem.terms()
    config = config or adapt("rows", launch.choose_config("fwd", q, terms), terms)
    tiles = problem.tiles(q, config.block_m)
    if not (tiles and q.shape[2]):
        return
    tma, sources = _sources(q, k, config, descriptors)
    _attention_rows[(tiles, q.shape[2])](
        *sources, lse, entropy, distance, problem.cu_q, problem.cu_k,
        problem.scale, problem.sequences(q), q.shape[1], k.shape[1],
        strides(q), strides(k), strides(lse), problem.bounds(), terms,
        TMA=tma, HIDES=terms.hides, **problem.constants(q, k, config),
    )  # fmt: skip


def launch_map(
    q: Tensor, k: Tensor, lse: Tensor, sums: Tensor, problem: Problem, sizes: tuple[int, int],
    config: Config | None = None, descriptors: bool | None = None,
) -> None:  # fmt: skip
    """Write sums (H, ⌈N / size⌉, ⌈Nk / size⌉) float32, contiguous, of one dense sequence (B = 1); lse (1, H, N)."""
    terms = problem.terms()
    config = config or adapt("map", launch.choose_config("fwd", q, terms), terms)
    pairs = sums.shape[1] * sums.shape[2]
    if not (pairs and q.shape[2]):
        return
    tma, sources = _sources(q, k, config, descriptors)
    _attention_map[(pairs, q.shape[2])](
        *sources, lse, sums, problem.scale, q.shape[1], k.shape[1], *sizes, sums.shape[2],
        strides(q), strides(k), strides(lse), sums.stride(0), problem.bounds(), terms,
        TMA=tma, **problem.constants(q, k, config),
    )  # fmt: skip


def _sources(q: Tensor, k: Tensor, config: Config, descriptors: bool | None) -> tuple[bool, tuple[Any, ...]]:
    """What tiles are read from: descriptors, or the tensors themselves."""
    tma = use_descriptors(q, k) if descriptors is None else descriptors
    if not tma:
        return tma, (q, k)
    wide = padded_head(q.shape[-1])
    return tma, (describe(q, config.block_m, wide), describe(k, config.block_n, wide))
