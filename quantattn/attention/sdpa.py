"""Exact attention on a CPU through torch's own fused operator, one run of equally long sequences at a time.

The operator (`torch.ops.aten._scaled_dot_product_flash_attention_for_cpu`) computes tile by tile in native code and
returns the logsumexp. What it does differently from this package is mended here:

- its causal mask starts at the top left, ours ends at the bottom right. With Nk > Nq the first Nk − Nq keys are seen by
  every query and the last Nq form a square, so two calls are merged as states; with Nk < Nq the first Nq − Nk queries
  see nothing and the rest form a square;
- it multiplies hidden values by 0, so that a NaN in the future reaches the past: a causal problem with values that are
  not finite is computed by blocks (`tiled`), which leaves hidden values out;
- it masks a score before it multiplies it, so that a scale that is not positive would show what is hidden: the sign
  moves to q;
- it has no gradient through the logsumexp: where one arrives, the backward is that of `tiled`.

Windows and biases are refused: as dense masks they would cost O(N²), by blocks they cost what they show.

Dimensions: N sequences, T packed queries, Tk packed keys, H query heads, Hkv key/value heads, D head size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import groupby

import torch
from torch import Tensor

from quantattn.attention import ops, tiled
from quantattn.attention.extras import Extras
from quantattn.attention.mask import Mask
from quantattn.attention.seen import all_finite
from quantattn.attention.state import Attended, AttentionState, lse_dtype
from quantattn.attention.tiling import Tiling

_forward_op = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_backward_op = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default
_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def supports(q: Tensor, mask: Mask, bias: Tensor | None, extras: Extras = Extras()) -> str | None:  # noqa: B008
    """Why `sdpa_attention` cannot take such inputs, as one clause; None when it can."""
    if q.device.type != "cpu":
        return f"torch's fused operator used here runs on a CPU and q is on {q.device}"
    if q.dtype not in _DTYPES:
        return f"it takes float16, bfloat16, float32 and float64, got {str(q.dtype).removeprefix('torch.')}"
    if bias is not None:
        return "it would read a bias as a dense mask and give it no gradient"
    if mask.left is not None or mask.right not in (None, 0) or mask.prefix:
        return "its masks are full and causal, a window would become a dense mask"
    if mask.rule is not None:
        return "its masks know no rules"
    if extras.names():
        return f"torch's operator has no {', no '.join(extras.names())}"
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
    extras: Extras = Extras(),  # noqa: B008  a frozen value
) -> Attended:
    """Exactly `exact_attention` for full and causal masks on a CPU; memory O(T). Signature as `exact_attention`.

    Differentiable once, in q, k and v, through out and through lse. A value at an invisible place, NaN and inf
    included, reaches no output and no gradient.

    Raises:
        ValueError: `supports` names a reason.
    """
    reason = supports(q, mask, bias, extras)
    if reason is not None:
        raise ValueError(f"sdpa cannot run this: {reason}")
    q, scale = ops.positive_scale(q, scale)
    problem = (bias, scale, mask.left, mask.right, "sdpa", 128, 128)
    return Attended(*ops.packed_attention_op(q, k, v, cu_seqlens, cu_seqlens_k, *problem))


@dataclass(frozen=True)
class _Piece:
    """The same rectangle of several equally long sequences in a row, one that the operator can express.

    Attributes:
        count: sequences.
        rows: of all of them in q.
        columns: of all of them in k and v.
        queries: of the rectangle within each sequence.
        keys: of the rectangle within each sequence.
        square: whether the rectangle is a causal square; all of it is visible otherwise.
    """

    count: int
    rows: slice
    columns: slice
    queries: slice
    keys: slice
    square: bool

    def of_rows(self, x: Tensor) -> Tensor:
        """(T, H, …) → (count, queries, H, …), a view."""
        x = x[self.rows]
        return x.view(self.count, x.shape[0] // self.count, *x.shape[1:])[:, self.queries]

    def of_columns(self, x: Tensor) -> Tensor:
        """(Tk, Hkv, …) → (count, keys, Hkv, …), a view."""
        x = x[self.columns]
        return x.view(self.count, x.shape[0] // self.count, *x.shape[1:])[:, self.keys]


def _pieces(tiling: Tiling) -> Iterator[_Piece]:
    for (n_q, n_k), run in groupby(tiling.sequences(), key=_lengths):
        sequences = list(run)
        if n_q == 0 or n_k == 0:
            continue
        rows = slice(sequences[0][1].start, sequences[-1][1].stop)
        columns = slice(sequences[0][2].start, sequences[-1][2].stop)
        piece = partial(_Piece, len(sequences), rows, columns)
        if tiling.mask.right is None:
            yield piece(queries=slice(n_q), keys=slice(n_k), square=False)
            continue
        if n_k > n_q:
            yield piece(queries=slice(n_q), keys=slice(n_k - n_q), square=False)
        n = min(n_q, n_k)
        yield piece(queries=slice(n_q - n, n_q), keys=slice(n_k - n, n_k), square=True)


def _lengths(sequence: tuple[int, slice, slice]) -> tuple[int, int]:
    _, rows, columns = sequence
    return rows.stop - rows.start, columns.stop - columns.start


def forward(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, tiling: Tiling, extras: Extras
) -> tuple[Tensor, Tensor]:
    """(out, lse), shapes as in `sdpa_attention`, bias None and extras empty; no autograd of its own."""
    if tiling.mask.right is not None and not all_finite(q, k, v):
        return tiled.forward(q, k, v, bias, tiling, extras)
    return _forward(q, k, v, tiling)


def backward(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, out: Tensor, lse: Tensor, do: Tensor, dlse: Tensor | None,
    tiling: Tiling, wants_dbias: bool, extras: Extras,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """(dq, dk, dv, None, None, None); arguments as in `tiled.backward`."""
    if dlse is not None or (tiling.mask.right is not None and not all_finite(q, k, v, do)):
        return tiled.backward(q, k, v, bias, out, lse, do, dlse, tiling, wants_dbias, extras)
    return *_backward(q, k, v, out, lse, do, tiling), None, None, None


def _forward(q: Tensor, k: Tensor, v: Tensor, tiling: Tiling) -> tuple[Tensor, Tensor]:
    out = torch.zeros_like(q, memory_format=torch.contiguous_format)
    lse = torch.full(q.shape[:2], -torch.inf, dtype=lse_dtype(q.dtype), device=q.device)
    for piece in _pieces(tiling):
        o, s = _forward_op(
            _heads_first(piece.of_rows(q)),
            _heads_first(piece.of_columns(k)),
            _heads_first(piece.of_columns(v)),
            is_causal=piece.square,
            scale=tiling.scale,
        )
        o, s = o.transpose(1, 2), s.transpose(1, 2)
        out_piece, lse_piece = piece.of_rows(out), piece.of_rows(lse)
        if piece.square and piece.keys.start > 0:  # the keys before the square have been seen already
            before = AttentionState.of_attended(Attended(out_piece, lse_piece))
            o, s = before.merge(AttentionState.of_attended(Attended(o, s))).finish()
        out_piece.copy_(o)
        lse_piece.copy_(s)
    return out, lse


def _backward(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, do: Tensor, tiling: Tiling
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients piece by piece: with the whole row's out and lse, each piece yields its own part of the sum."""
    dq, dk, dv = (torch.zeros_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
    for piece in _pieces(tiling):
        parts = _backward_op(
            _heads_first(piece.of_rows(do)),
            _heads_first(piece.of_rows(q)),
            _heads_first(piece.of_columns(k)),
            _heads_first(piece.of_columns(v)),
            _heads_first(piece.of_rows(out)),
            piece.of_rows(lse).transpose(1, 2),
            0.0,
            piece.square,
            scale=tiling.scale,
        )
        dq_piece, dk_piece, dv_piece = (part.transpose(1, 2) for part in parts)
        rows = piece.of_rows(dq)
        rows += dq_piece
        piece.of_columns(dk).copy_(dk_piece)
        piece.of_columns(dv).copy_(dv_piece)
    return dq, dk, dv


def _heads_first(x: Tensor) -> Tensor:
    """(B, N, H, D) → (B, H, N, D) with its last axis contiguous, as the operator reads it."""
    x = x.transpose(1, 2)
    return x if x.stride(-1) == 1 else x.contiguous()
