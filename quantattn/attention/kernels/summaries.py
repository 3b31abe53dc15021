"""Kernels of the summaries: weights are computed again from q, k and lse, summed by key or by query, and forgotten.

With t = ln p = q kᵀ · scale + bias − lse:

    received_j = Σ_i p_ij        entropy_i = −Σ_j p_ij · t_ij        distance_i = Σ_j p_ij · |j − i − shift|

and Σ p_ij over blocks of queries and keys. Each result has one writer: the same input gives the same bits.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import torch
import triton
import triton.language as tl
from torch import Tensor

from quantattn.attention.kernels.backward import base2_lse
from quantattn.attention.kernels.configs import INTERPRETED as INTERPRETED_CONFIG
from quantattn.attention.kernels.configs import Config, configuration, padded_head
from quantattn.attention.kernels.launch import Problem, capability, describe, use_descriptors
from quantattn.attention.kernels.primitives import (
    INTERPRETED,
    LN2,
    LOG2E,
    block_start,
    count_edges,
    exp2,
    key_blocks,
    load_bias,
    load_tile,
    locate,
    query_blocks,
    sees,
)

NOTHING = tl.constexpr(-1e4)
"""A log weight whose weight is 0, and whose product with that weight is 0 and not 0 · ∞ = NaN."""


@triton.jit
def gather_received(
    received, k, q_src, bias_ptr, lse_ptr, first, low, full_low, full_high, count, batch, head, q_start,
    n_q, n_k, left, right, scale_log2, stride_qb, stride_qn, stride_qh, stride_qd, stride_bi, stride_bj,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    HAS_LEFT: tl.constexpr, HAS_RIGHT: tl.constexpr, HAS_BIAS: tl.constexpr,
    TMA: tl.constexpr, PRECISION: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Add the weights of `count` blocks of queries to what one tile of keys received; score tiles are transposed."""
    for step in tl.range(0, count):
        block = block_start(step, low, full_low, full_high, BLOCK_M, MASKED)
        query = block + tl.arange(0, BLOCK_M)
        lse = base2_lse(tl.load(lse_ptr + q_start + query, mask=query < n_q, other=float("-inf")))
        q = load_tile(q_src, batch, head, q_start, block, n_q, stride_qb, stride_qn, stride_qh, stride_qd,
                      D, BLOCK_M, BLOCK_D, TMA, MASKED)  # fmt: skip
        t = tl.dot(k, q.T, input_precision=PRECISION) * scale_log2  # [BLOCK_N, BLOCK_M]
        if MASKED:
            key = first + tl.arange(0, BLOCK_N)
            seen = sees(query[None, :], key[:, None], n_q, n_k, left, right, HAS_LEFT, HAS_RIGHT)
            if HAS_BIAS:
                bias = load_bias(bias_ptr, query[None, :], key[:, None], seen, stride_bi, stride_bj)
                seen = seen & (bias != float("-inf"))
                t += bias
            p = tl.where(seen, exp2(t - lse[None, :]), 0.0)
        else:
            p = exp2(t - lse[None, :])
        received += tl.sum(p, 1)
    return received


@triton.jit(do_not_specialize=["n_sequences", "n_q", "n_k", "left", "right"])
def _attention_received(
    q_src, k_src, bias_ptr, lse_ptr, received_ptr, cu_k_ptr, cu_q_ptr,
    scale_log2, n_sequences, n_q, n_k, left, right,
    stride_qb, stride_qn, stride_qh, stride_qd, stride_kb, stride_kn, stride_kh, stride_kd,
    stride_bs, stride_bh, stride_bi, stride_bj, stride_lb, stride_lh, stride_rb, stride_rh,
    D: tl.constexpr, GROUP: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    HAS_LEFT: tl.constexpr, HAS_RIGHT: tl.constexpr, HAS_BIAS: tl.constexpr,
    PACKED: tl.constexpr, TMA: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One program a tile of BLOCK_N keys and a query head."""
    head = tl.program_id(1)
    batch, sequence, first, k_start, n_k, q_start, n_q = locate(
        tl.program_id(0), cu_k_ptr, cu_q_ptr, n_sequences, n_k, n_q, BLOCK_N, PACKED
    )
    if first >= n_k:
        return
    k = load_tile(k_src, batch, head // GROUP, k_start, first, n_k, stride_kb, stride_kn, stride_kh, stride_kd,
                  D, BLOCK_N, BLOCK_D, TMA, True)  # fmt: skip
    lse_ptr += tl.cast(batch, tl.int64) * stride_lb + tl.cast(head, tl.int64) * stride_lh
    if HAS_BIAS:
        bias_ptr += tl.cast(sequence, tl.int64) * stride_bs + tl.cast(head, tl.int64) * stride_bh
    low, full_low, full_high, high = query_blocks(
        first, n_q, n_k, left, right, BLOCK_M, BLOCK_N, HAS_LEFT, HAS_RIGHT, HAS_BIAS
    )
    received = tl.zeros([BLOCK_N], tl.float32)
    edges = count_edges(low, full_low, full_high, high, BLOCK_M)
    received = gather_received(
        received, k, q_src, bias_ptr, lse_ptr, first, low, full_low, full_high, edges, batch, head, q_start,
        n_q, n_k, left, right, scale_log2, stride_qb, stride_qn, stride_qh, stride_qd, stride_bi, stride_bj,
        D, BLOCK_D, BLOCK_M, BLOCK_N, HAS_LEFT, HAS_RIGHT, HAS_BIAS, TMA, PRECISION, True)  # fmt: skip
    if not HAS_BIAS:
        full = (full_high - full_low) // BLOCK_M
        received = gather_received(
            received, k, q_src, bias_ptr, lse_ptr, first, low, full_low, full_high, full, batch, head, q_start,
            n_q, n_k, left, right, scale_log2, stride_qb, stride_qn, stride_qh, stride_qd, stride_bi, stride_bj,
            D, BLOCK_D, BLOCK_M, BLOCK_N, HAS_LEFT, HAS_RIGHT, HAS_BIAS, TMA, PRECISION, False)  # fmt: skip
    key = first + tl.arange(0, BLOCK_N)
    row = tl.cast(batch, tl.int64) * stride_rb + tl.cast(head, tl.int64) * stride_rh + (k_start + key)
    tl.store(received_ptr + row, received, mask=key < n_k)


@triton.jit
def gather_rows(
    entropy, distance, q, lse, k_src, bias_ptr, first, low, full_low, full_high, count, batch, kv_head, k_start,
    n_q, n_k, left, right, scale_log2, stride_kb, stride_kn, stride_kh, stride_kd, stride_bi, stride_bj,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    HAS_LEFT: tl.constexpr, HAS_RIGHT: tl.constexpr, HAS_BIAS: tl.constexpr,
    TMA: tl.constexpr, PRECISION: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Add `count` blocks of keys to the entropy (in bits) and the distance of one tile of queries."""
    query = first + tl.arange(0, BLOCK_M)
    for step in tl.range(0, count):
        block = block_start(step, low, full_low, full_high, BLOCK_N, MASKED)
        key = block + tl.arange(0, BLOCK_N)
        k = load_tile(k_src, batch, kv_head, k_start, block, n_k, stride_kb, stride_kn, stride_kh, stride_kd,
                      D, BLOCK_N, BLOCK_D, TMA, MASKED)  # fmt: skip
        t = tl.dot(q, k.T, input_precision=PRECISION) * scale_log2
        if MASKED:
            seen = sees(query[:, None], key[None, :], n_q, n_k, left, right, HAS_LEFT, HAS_RIGHT)
            if HAS_BIAS:
                bias = load_bias(bias_ptr, query[:, None], key[None, :], seen, stride_bi, stride_bj)
                seen = seen & (bias != float("-inf"))
                t += bias
            t = tl.where(seen, t - lse[:, None], NOTHING)
        else:
            t -= lse[:, None]
        t = tl.where(t < NOTHING, NOTHING, t)  # and NaN stays what it is
        p = exp2(t)
        away = tl.abs(key[None, :] - (query + (n_k - n_q))[:, None]).to(tl.float32)
        entropy -= tl.sum(p * t, 1)
        distance += tl.sum(p * away, 1)
    return entropy, distance


@triton.jit(do_not_specialize=["n_sequences", "n_q", "n_k", "left", "right"])
def _attention_rows(
    q_src, k_src, bias_ptr, lse_ptr, entropy_ptr, distance_ptr, cu_q_ptr, cu_k_ptr,
    scale_log2, n_sequences, n_q, n_k, left, right,
    stride_qb, stride_qn, stride_qh, stride_qd, stride_kb, stride_kn, stride_kh, stride_kd,
    stride_bs, stride_bh, stride_bi, stride_bj, stride_lb, stride_lh,
    D: tl.constexpr, GROUP: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    HAS_LEFT: tl.constexpr, HAS_RIGHT: tl.constexpr, HAS_BIAS: tl.constexpr,
    PACKED: tl.constexpr, TMA: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One program a tile of BLOCK_M queries and a head; entropy and distance lie as lse does."""
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
    query = first + tl.arange(0, BLOCK_M)
    inside = query < n_q
    q = load_tile(q_src, batch, head, q_start, first, n_q, stride_qb, stride_qn, stride_qh, stride_qd,
                  D, BLOCK_M, BLOCK_D, TMA, True)  # fmt: skip
    row = tl.cast(batch, tl.int64) * stride_lb + tl.cast(head, tl.int64) * stride_lh + (q_start + query)
    lse = base2_lse(tl.load(lse_ptr + row, mask=inside, other=float("-inf")))
    if HAS_BIAS:
        bias_ptr += tl.cast(sequence, tl.int64) * stride_bs + tl.cast(head, tl.int64) * stride_bh
    low, full_low, full_high, high = key_blocks(
        first, n_q, n_k, left, right, BLOCK_M, BLOCK_N, HAS_LEFT, HAS_RIGHT, HAS_BIAS
    )
    entropy = tl.zeros([BLOCK_M], tl.float32)
    distance = tl.zeros([BLOCK_M], tl.float32)
    edges = count_edges(low, full_low, full_high, high, BLOCK_N)
    entropy, distance = gather_rows(
        entropy, distance, q, lse, k_src, bias_ptr, first, low, full_low, full_high, edges, batch, kv_head, k_start,
        n_q, n_k, left, right, scale_log2, stride_kb, stride_kn, stride_kh, stride_kd, stride_bi, stride_bj,
        D, BLOCK_D, BLOCK_M, BLOCK_N, HAS_LEFT, HAS_RIGHT, HAS_BIAS, TMA, PRECISION, True)  # fmt: skip
    if not HAS_BIAS:
        full = (full_high - full_low) // BLOCK_N
        entropy, distance = gather_rows(
            entropy, distance, q, lse, k_src, bias_ptr, first, low, full_low, full_high, full, batch, kv_head, k_start,
            n_q, n_k, left, right, scale_log2, stride_kb, stride_kn, stride_kh, stride_kd, stride_bi, stride_bj,
            D, BLOCK_D, BLOCK_M, BLOCK_N, HAS_LEFT, HAS_RIGHT, HAS_BIAS, TMA, PRECISION, False)  # fmt: skip
    entropy = tl.where(entropy < 0.0, 0.0, entropy)  # a weight rounded above 1 has a negative one
    tl.store(entropy_ptr + row, entropy * LN2, mask=inside)
    tl.store(distance_ptr + row, distance, mask=inside)


@triton.jit(do_not_specialize=["n_q", "n_k", "left", "right", "size_q", "size_k", "blocks_k"])
def _attention_map(
    q_src, k_src, bias_ptr, lse_ptr, sums_ptr,
    scale_log2, n_q, n_k, left, right, size_q, size_k, blocks_k,
    stride_qb, stride_qn, stride_qh, stride_qd, stride_kb, stride_kn, stride_kh, stride_kd,
    stride_bs, stride_bh, stride_bi, stride_bj, stride_lb, stride_lh, stride_sh,
    D: tl.constexpr, GROUP: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    HAS_LEFT: tl.constexpr, HAS_RIGHT: tl.constexpr, HAS_BIAS: tl.constexpr,
    TMA: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One program a pair of size_q queries and size_k keys of the one sequence, and a head: the sum of its weights."""
    pair = tl.program_id(0)
    head = tl.program_id(1)
    first_query = pair // blocks_k * size_q
    first_key = pair % blocks_k * size_k
    end_query = tl.minimum(first_query + size_q, n_q)
    end_key = tl.minimum(first_key + size_k, n_k)
    lse_ptr += tl.cast(head, tl.int64) * stride_lh
    if HAS_BIAS:
        bias_ptr += tl.cast(head, tl.int64) * stride_bh
    total = tl.zeros([BLOCK_M], tl.float32)
    for first in tl.range(first_query, end_query, BLOCK_M):
        query = first + tl.arange(0, BLOCK_M)
        lse = base2_lse(tl.load(lse_ptr + query, mask=query < end_query, other=float("-inf")))
        q = load_tile(q_src, 0, head, 0, first, end_query, stride_qb, stride_qn, stride_qh, stride_qd,
                      D, BLOCK_M, BLOCK_D, TMA, True)  # fmt: skip
        low, _, _, high = key_blocks(first, n_q, n_k, left, right, BLOCK_M, BLOCK_N, HAS_LEFT, HAS_RIGHT, True)
        start = first_key + tl.maximum(low - first_key, 0) // BLOCK_N * BLOCK_N
        for block in tl.range(start, tl.minimum(high, end_key), BLOCK_N):
            k = load_tile(k_src, 0, head // GROUP, 0, block, end_key,
                          stride_kb, stride_kn, stride_kh, stride_kd, D, BLOCK_N, BLOCK_D, TMA, True)  # fmt: skip
            t = tl.dot(q, k.T, input_precision=PRECISION) * scale_log2
            key = block + tl.arange(0, BLOCK_N)
            seen = sees(query[:, None], key[None, :], n_q, n_k, left, right, HAS_LEFT, HAS_RIGHT)
            seen = seen & (query < end_query)[:, None] & (key < end_key)[None, :]
            if HAS_BIAS:
                bias = load_bias(bias_ptr, query[:, None], key[None, :], seen, stride_bi, stride_bj)
                seen = seen & (bias != float("-inf"))
                t += bias
            total += tl.sum(tl.where(seen, exp2(t - lse[:, None]), 0.0), 1)
    tl.store(sums_ptr + tl.cast(head, tl.int64) * stride_sh + pair, tl.sum(total, 0))


def choose_config(which: Literal["received", "rows", "map"], q: Tensor, bias: bool, on: int) -> Config:
    """The forward's blocks, whose loop over keys `rows` and `map` repeat without the values; `received` is its mirror.

    A map with a bias takes at most 64 queries; with 128 it spills.

    Args:
        which: the kernel.
        q: (B, N, H, D).
        bias: whether there is an additive mask.
        on: compute capability as one number, 90 for sm_90.
    """
    if INTERPRETED:
        return INTERPRETED_CONFIG
    config = configuration("fwd", 8 * q.element_size(), q.shape[-1], on, bias=bias)
    if which == "received":
        return replace(config, block_m=config.block_n, block_n=config.block_m)
    return replace(config, block_m=min(64, config.block_m)) if which == "map" and bias else config


def launch_received(
    q: Tensor, k: Tensor, lse: Tensor, received: Tensor, problem: Problem,
    config: Config | None = None, descriptors: bool | None = None,
) -> None:  # fmt: skip
    """Write received (B, H, Nk) float32, from lse (B, H, N); both contiguous."""
    config = config or choose_config("received", q, problem.bias is not None, capability(q.device))
    tiles = problem.tiles(k, config.block_n)
    if not (tiles and q.shape[2]):
        return
    tma, sources = _sources(q, k, config, descriptors)
    bias, bias_strides = problem.bias_arguments(q)
    cu_q, cu_k = problem.offsets(q)
    _attention_received[(tiles, q.shape[2])](
        *sources, bias, lse, received, cu_k, cu_q, problem.scale * LOG2E.value, *problem.lengths(q, k),
        *q.stride(), *k.stride(), *bias_strides, *lse.stride()[:2], *received.stride()[:2],
        TMA=tma, **_constants(q, k, problem, config),
    )  # fmt: skip


def launch_rows(
    q: Tensor, k: Tensor, lse: Tensor, entropy: Tensor, distance: Tensor, problem: Problem,
    config: Config | None = None, descriptors: bool | None = None,
) -> None:  # fmt: skip
    """Write entropy and distance (B, H, N) float32, from lse (B, H, N); all contiguous."""
    config = config or choose_config("rows", q, problem.bias is not None, capability(q.device))
    tiles = problem.tiles(q, config.block_m)
    if not (tiles and q.shape[2]):
        return
    tma, sources = _sources(q, k, config, descriptors)
    bias, bias_strides = problem.bias_arguments(q)
    _attention_rows[(tiles, q.shape[2])](
        *sources, bias, lse, entropy, distance, *problem.offsets(q), problem.scale * LOG2E.value,
        *problem.lengths(q, k), *q.stride(), *k.stride(), *bias_strides, *lse.stride()[:2],
        TMA=tma, **_constants(q, k, problem, config),
    )  # fmt: skip


def launch_map(
    q: Tensor, k: Tensor, lse: Tensor, sums: Tensor, problem: Problem, sizes: tuple[int, int],
    config: Config | None = None, descriptors: bool | None = None,
) -> None:  # fmt: skip
    """Write sums (1, H, ⌈N / size⌉, ⌈Nk / size⌉) float32, contiguous, of one dense sequence; lse (1, H, N)."""
    config = config or choose_config("map", q, problem.bias is not None, capability(q.device))
    pairs = sums.shape[2] * sums.shape[3]
    if not (pairs and q.shape[2]):
        return
    tma, sources = _sources(q, k, config, descriptors)
    bias, bias_strides = problem.bias_arguments(q)
    constants = _constants(q, k, problem, config)
    constants.pop("PACKED")
    _attention_map[(pairs, q.shape[2])](
        *sources, bias, lse, sums, problem.scale * LOG2E.value, *problem.lengths(q, k)[1:], *sizes, sums.shape[3],
        *q.stride(), *k.stride(), *bias_strides, *lse.stride()[:2], sums.stride(1),
        TMA=tma, **constants,
    )  # fmt: skip


def _sources(q: Tensor, k: Tensor, config: Config, descriptors: bool | None) -> tuple[bool, tuple[Any, ...]]:
    """What tiles are read from: descriptors, or the tensors themselves."""
    tma = use_descriptors(q, k) if descriptors is None else descriptors
    if not tma:
        return tma, (q, k)
    wide = padded_head(q.shape[-1])
    return tma, (describe(q, config.block_m, wide), describe(k, config.block_n, wide))


def _constants(q: Tensor, k: Tensor, problem: Problem, config: Config) -> dict[str, Any]:
    return {
        "D": q.shape[-1],
        "GROUP": q.shape[2] // k.shape[2],
        "BLOCK_D": padded_head(q.shape[-1]),
        "BLOCK_M": config.block_m,
        "BLOCK_N": config.block_n,
        "HAS_LEFT": problem.left is not None,
        "HAS_RIGHT": problem.right is not None,
        "HAS_BIAS": problem.bias is not None,
        "PACKED": problem.packed,
        # float32 is multiplied as torch's own matrix products do.
        "PRECISION": "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32",
        "num_warps": config.num_warps,
        "num_stages": config.num_stages,
        "enable_fp_fusion": True,
    }
