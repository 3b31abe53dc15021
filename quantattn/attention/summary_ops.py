"""The registered operators of the summaries that kernels compute: schema, and shapes without data."""

from __future__ import annotations

import torch
from torch import Tensor

from quantattn.attention.ops import check_values


@torch.library.custom_op(
    "quantattn::attention_summary",
    mutates_args=(),
    schema="(Tensor q, Tensor k, Tensor lse, Tensor? cu_q, Tensor? cu_k, Tensor? bias, float scale, int? left, "
    "int? right) -> (Tensor, Tensor, Tensor)",
)
def attention_summary_op(
    q: Tensor, k: Tensor, lse: Tensor, cu_q: Tensor | None, cu_k: Tensor | None, bias: Tensor | None,
    scale: float, left: int | None, right: int | None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """(received (B, H, Nk), entropy (B, H, N), distance (B, H, N)) float32 of a finished attention.

    q (B, N, H, D), k (B, Nk, Hkv, D), lse (B, H, N) as `quantattn::attention` returns it; a pack is B = 1 with offsets.
    """
    from quantattn.attention.kernels import summaries
    from quantattn.attention.kernels.launch import Problem

    if cu_q is not None and cu_k is not None:
        check_values(q.shape[1], k.shape[1], cu_q, cu_k, bias)
    received, entropy, distance = _shapes(q, k, lse, cu_q, cu_k, bias, scale, left, right)
    problem = Problem(scale, left, right, cu_q, cu_k, bias)
    summaries.launch_received(q, k, lse.contiguous(), received, problem)
    summaries.launch_rows(q, k, lse.contiguous(), entropy, distance, problem)
    return received, entropy, distance


@attention_summary_op.register_fake
def _shapes(
    q: Tensor, k: Tensor, lse: Tensor, cu_q: Tensor | None, cu_k: Tensor | None, bias: Tensor | None,
    scale: float, left: int | None, right: int | None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    b, n, h, _ = q.shape
    by_key, by_query = (b, h, k.shape[1]), (b, h, n)
    received, entropy, distance = (q.new_empty(shape, dtype=torch.float32) for shape in (by_key, by_query, by_query))
    return received, entropy, distance


@torch.library.custom_op(
    "quantattn::attention_map",
    mutates_args=(),
    schema="(Tensor q, Tensor k, Tensor lse, Tensor? bias, float scale, int? left, int? right, int size_q, "
    "int size_k) -> Tensor",
)
def attention_map_op(
    q: Tensor, k: Tensor, lse: Tensor, bias: Tensor | None, scale: float, left: int | None, right: int | None,
    size_q: int, size_k: int,
) -> Tensor:  # fmt: skip
    """Σ p_ij over blocks of queries and keys of one sequence, (H, ⌈N / size_q⌉, ⌈Nk / size_k⌉) float32.

    q (N, H, D), k (Nk, Hkv, D), lse (H, N), bias (1 or H, 1 or N, 1 or Nk).
    """
    from quantattn.attention.kernels import summaries
    from quantattn.attention.kernels.launch import Problem

    sums: Tensor = _map_shape(q, k, lse, bias, scale, left, right, size_q, size_k)
    problem = Problem(scale, left, right, bias=None if bias is None else bias[None])
    summaries.launch_map(q[None], k[None], lse.contiguous()[None], sums[None], problem, (size_q, size_k))
    return sums


@attention_map_op.register_fake
def _map_shape(
    q: Tensor, k: Tensor, lse: Tensor, bias: Tensor | None, scale: float, left: int | None, right: int | None,
    size_q: int, size_k: int,
) -> Tensor:  # fmt: skip
    blocks = ((x.shape[0] + size - 1) // size for x, size in ((q, size_q), (k, size_k)))
    return q.new_empty(q.shape[1], *blocks, dtype=torch.float32)
