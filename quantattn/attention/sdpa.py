"""Exact attention on a CPU through torch's own fused operator, one sequence at a time.

The operator (`torch.ops.aten._scaled_dot_product_flash_attention_for_cpu`) computes tile by tile in native code and
returns the logsumexp. What it does differently from this package is mended here:

- its causal mask starts at the top left, ours ends at the bottom right. With Nk > Nq the first Nk − Nq keys are seen by
  every query and the last Nq form a square, so two calls are merged as states; with Nk < Nq the first Nq − Nk queries
  see nothing and the rest form a square;
- it multiplies hidden values by 0, so that a NaN in the future reaches the past: a causal problem with values that are
  not finite is computed by blocks (`tiled`), which leaves hidden values out;
- it has no gradient through the logsumexp: where one arrives, the backward is that of `tiled`.

Windows and biases are refused: as dense masks they would cost O(N²), by blocks they cost what they show.

Dimensions: N sequences, T packed queries, Tk packed keys, H query heads, Hkv key/value heads, D head size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from quantattn.attention.mask import Mask
from quantattn.attention.state import Attended, AttentionState
from quantattn.attention.tiled import Tiling, tiled_backward, tiled_forward

_forward_op = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_backward_op = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default
_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def supports(q: Tensor, mask: Mask, bias: Tensor | None) -> str | None:
    """Why `sdpa_attention` cannot take such inputs, as one clause; None when it can."""
    if q.device.type != "cpu":
        return f"torch's fused operator used here runs on a CPU and q is on {q.device}"
    if q.dtype not in _DTYPES:
        return f"it takes float16, bfloat16, float32 and float64, got {str(q.dtype).removeprefix('torch.')}"
    if bias is not None:
        return "it would read a bias as a dense mask and give it no gradient"
    if mask.left is not None or mask.right not in (None, 0):
        return f"its masks are full and causal, a window ({mask.left}, {mask.right}) would become a dense mask"
    return None


def sdpa_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens: Tensor,
    cu_seqlens_k: Tensor,
    *,
    mask: Mask,
    bias: Tensor | None,
    scale: float,
) -> Attended:
    """Exactly `exact_attention` for full and causal masks on a CPU; memory O(T). Signature as `exact_attention`.

    Differentiable once, in q, k and v, through out and through lse. A value at an invisible place, NaN and inf
    included, reaches no output and no gradient.

    Raises:
        ValueError: `supports` names a reason.
    """
    reason = supports(q, mask, bias)
    if reason is not None:
        raise ValueError(f"sdpa cannot run this: {reason}")
    tiling = Tiling(tuple(cu_seqlens.tolist()), tuple(cu_seqlens_k.tolist()), mask, scale)
    out, lse = _Sdpa.apply(q, k, v, tiling)  # type: ignore[no-untyped-call]
    return Attended(out, lse)


@dataclass(frozen=True)
class _Piece:
    """A rectangle of one sequence that the operator can express: all of it visible, or a causal square."""

    rows: slice
    columns: slice
    square: bool


def _pieces(tiling: Tiling) -> Iterator[_Piece]:
    for _, rows, columns in tiling.sequences():
        n_q, n_k = rows.stop - rows.start, columns.stop - columns.start
        if n_q == 0 or n_k == 0:
            continue
        if tiling.mask.right is None:
            yield _Piece(rows, columns, square=False)
            continue
        if n_k > n_q:
            yield _Piece(rows, slice(columns.start, columns.stop - n_q), square=False)
        n = min(n_q, n_k)
        yield _Piece(slice(rows.stop - n, rows.stop), slice(columns.stop - n, columns.stop), square=True)


class _Sdpa(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, tiling: Tiling) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.tiling = tiling
        ctx.by_blocks = tiling.mask.right is not None and not _finite(q, k, v)
        out, lse = tiled_forward(q, k, v, None, tiling) if ctx.by_blocks else _forward(q, k, v, tiling)
        ctx.save_for_backward(q, k, v, out, lse)
        return out, lse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, do: Tensor | None, dlse: Tensor | None) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse = ctx.saved_tensors
        do = torch.zeros_like(out) if do is None else do
        by_blocks = ctx.by_blocks or dlse is not None or (ctx.tiling.mask.right is not None and not _finite(do))
        if by_blocks:
            return *tiled_backward(q, k, v, None, out, lse, do, dlse, ctx.tiling)[:3], None
        return *_backward(q, k, v, out, lse, do, ctx.tiling), None


def _forward(q: Tensor, k: Tensor, v: Tensor, tiling: Tiling) -> tuple[Tensor, Tensor]:
    lse_dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
    out = torch.zeros_like(q, memory_format=torch.contiguous_format)
    lse = torch.full(q.shape[:2], -torch.inf, dtype=lse_dtype, device=q.device)
    for piece in _pieces(tiling):
        o, s = _forward_op(
            _heads_first(q[piece.rows]),
            _heads_first(k[piece.columns]),
            _heads_first(v[piece.columns]),
            is_causal=piece.square,
            scale=tiling.scale,
        )
        o, s = o[0].transpose(0, 1), s[0].transpose(0, 1)
        if piece.square and tiling.mask.right is not None:
            before = AttentionState.of_attended(Attended(out[piece.rows], lse[piece.rows]))
            o, s = before.merge(AttentionState.of_attended(Attended(o, s))).finish()
        out[piece.rows], lse[piece.rows] = o, s
    return out, lse


def _backward(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, do: Tensor, tiling: Tiling
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients piece by piece: with the whole row's out and lse, each piece yields its own part of the sum."""
    dq, dk, dv = (torch.zeros_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
    for piece in _pieces(tiling):
        parts = _backward_op(
            _heads_first(do[piece.rows]),
            _heads_first(q[piece.rows]),
            _heads_first(k[piece.columns]),
            _heads_first(v[piece.columns]),
            _heads_first(out[piece.rows]),
            lse[piece.rows].transpose(0, 1)[None],
            0.0,
            piece.square,
            scale=tiling.scale,
        )
        dq_piece, dk_piece, dv_piece = (part[0].transpose(0, 1) for part in parts)
        dq[piece.rows] += dq_piece
        dk[piece.columns], dv[piece.columns] = dk_piece, dv_piece
    return dq, dk, dv


def _heads_first(x: Tensor) -> Tensor:
    """(N, H, D) → (1, H, N, D) with its last axis contiguous, as the operator reads it."""
    x = x.transpose(0, 1)[None]
    return x if x.stride(-1) == 1 else x.contiguous()


def _finite(*tensors: Tensor) -> bool:
    return all(bool(torch.isfinite(x).all()) for x in tensors)
