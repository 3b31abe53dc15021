"""The registered operator of the summaries that kernels compute: schema, and shapes without data."""

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
