"""The registered operators of the summaries that kernels compute: schema, and shapes without data."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from quantattn.attention.device import on_its_device
from quantattn.attention.extras import Extras
from quantattn.attention.mask import Mask
from quantattn.attention.ops import check_values

_MORE = (
    "float scale, int? left, int? right, int prefix, float softcap, Tensor? scales, Tensor? alibi, Tensor? segments, "
    "Tensor? segments_k"
)


def arguments(mask: Mask, scale: float, extras: Extras) -> tuple[Any, ...]:
    """What the operators take after tensors and offsets, in the order of their schema."""
    tensors = (extras.scales, extras.alibi, extras.segments, extras.segments_k)
    return scale, mask.left, mask.right, mask.prefix, extras.softcap or 0.0, *tensors


def _problem(cu_q: Tensor | None, cu_k: Tensor | None, bias: Tensor | None, *more: Any) -> Any:
    from quantattn.attention.kernels.launch import Problem

    scale, left, right, prefix, softcap, scales, alibi, segments, segments_k = more
    return Problem(
        scale, left, right, cu_q, cu_k, bias, prefix, scales, softcap, alibi,
        segments_q=segments, segments_k=segments_k,
    )  # fmt: skip


@torch.library.custom_op(
    "quantattn::attention_summary",
    mutates_args=(),
    schema=f"(Tensor q, Tensor k, Tensor lse, Tensor? cu_q, Tensor? cu_k, Tensor? bias, {_MORE}) "
    "-> (Tensor, Tensor, Tensor)",
)
@on_its_device
def attention_summary_op(
    q: Tensor, k: Tensor, lse: Tensor, cu_q: Tensor | None, cu_k: Tensor | None, bias: Tensor | None, *more: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """(received (B, H, Nk), entropy (B, H, N), distance (B, H, N)) float32 of a finished attention.

    q (B, N, H, D), k (B, Nk, Hkv, D), lse (B, H, N) as `quantattn::attention` returns it; a pack is B = 1 with offsets.
    """
    from quantattn.attention.kernels import summaries

    if cu_q is not None and cu_k is not None:
        check_values(q.shape[1], k.shape[1], cu_q, cu_k, bias)
    received, entropy, distance = _shapes(q, k)
    problem = _problem(cu_q, cu_k, bias, *more)
    summaries.launch_received(q, k, lse.contiguous(), received, problem)
    summaries.launch_rows(q, k, lse.contiguous(), entropy, distance, problem)
    return received, entropy, distance


@attention_summary_op.register_fake
def _shapes(q: Tensor, k: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    b, n, h, _d = q.shape
    by_key, by_query = (b, h, k.shape[1]), (b, h, n)
    received, entropy, distance = (q.new_empty(shape, dtype=torch.float32) for shape in (by_key, by_query, by_query))
    return received, entropy, distance


@torch.library.custom_op(
    "quantattn::attention_map",
    mutates_args=(),
    schema=f"(Tensor q, Tensor k, Tensor lse, int size_q, int size_k, Tensor? bias, {_MORE}) -> Tensor",
)
@on_its_device
def attention_map_op(
    q: Tensor, k: Tensor, lse: Tensor, size_q: int, size_k: int, bias: Tensor | None, *more: Any
) -> Tensor:
    """Σ p_ij over blocks of queries and keys of one sequence, (H, ⌈N / size_q⌉, ⌈Nk / size_k⌉) float32.

    q (N, H, D), k (Nk, Hkv, D), lse (H, N), bias (1 or H, 1 or N, 1 or Nk).
    """
    from quantattn.attention.kernels import summaries

    sums: Tensor = _map_shape(q, k, lse, size_q, size_k)
    problem = _problem(None, None, None if bias is None else bias[None], *more)
    summaries.launch_map(q[None], k[None], lse.contiguous()[None], sums, problem, (size_q, size_k))
    return sums


@attention_map_op.register_fake
def _map_shape(q: Tensor, k: Tensor, lse: Tensor, size_q: int, size_k: int, *_: Any) -> Tensor:
    blocks = ((x.shape[0] + size - 1) // size for x, size in ((q, size_q), (k, size_k)))
    return q.new_empty(q.shape[1], *blocks, dtype=torch.float32)
