"""Exact attention by blocks in plain torch: the state algebra at work, on any device, in memory O(T).

The forward merges the states of blocks of keys; the backward keeps no weight and recomputes each block from q, k and
the stored logsumexp, p_ij = exp(s_ij − lse_i), with

    delta_i = do_i · out_i − dlse_i      ds_ij = p_ij · (do_i · v_j − delta_i)
    dv_j = Σ_i p_ij · do_i      dq_i = scale · Σ_j ds_ij · k_j      dk_j = scale · Σ_i ds_ij · q_i      dbias_ij = ds_ij

(Dao et al. 2022, "FlashAttention", §3.1 and appendix B.2). Blocks are visited in one fixed order and nothing is added
atomically: the same input gives the same bits. Blocks that the mask hides are never visited.

Dimensions: N sequences, T packed queries, Tk packed keys, H query heads, Hkv key/value heads, G = H/Hkv, D head size;
Bq and Bk the rows and columns of a block.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from quantattn.attention import ops
from quantattn.attention.mask import Mask
from quantattn.attention.seen import bias_of_sequence, product_of_seen, visible_block
from quantattn.attention.state import Attended, AttentionState, lse_dtype


def tiled_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens: Tensor,
    cu_seqlens_k: Tensor,
    *,
    mask: Mask,
    bias: Tensor | None,
    scale: float,
    block_q: int = 128,
    block_k: int = 128,
) -> Attended:
    """Exactly `exact_attention`, block by block, without ever forming a matrix of size Nq × Nk.

    Differentiable once, in q, k, v and bias, through out and through lse. Accumulates in float32, or in float64 for
    float64 inputs. A value at an invisible place, NaN and inf included, reaches no output and no gradient.

    Args:
        q: (T, H, D).
        k: (Tk, Hkv, D); H is a multiple of Hkv.
        v: (Tk, Hkv, D).
        cu_seqlens: (N + 1,) int32 offsets of the sequences in q.
        cu_seqlens_k: (N + 1,) int32 offsets of the sequences in k and v.
        mask: who sees whom.
        bias: additive, broadcastable to (N, H, longest Nq, longest Nk), read block by block; its gradient is
            summed over the broadcast axes.
        scale: factor of q·k before the bias.
        block_q: queries of a block.
        block_k: keys of a block.

    Returns:
        out (T, H, D) in the dtype of q, lse (T, H) in float32, or float64 for float64 inputs.
    """
    problem = (bias, scale, mask.left, mask.right, "tiled", block_q, block_k)
    return Attended(*ops.packed_attention_op(q, k, v, cu_seqlens, cu_seqlens_k, *problem))


@dataclass(frozen=True)
class Tiling:
    """Everything about a computation by blocks that is not a tensor.

    Attributes:
        rows: N + 1 offsets of the sequences in q.
        columns: N + 1 offsets of the sequences in k and v.
        mask: who sees whom.
        scale: factor of q·k.
        block_q: queries of a block.
        block_k: keys of a block.
    """

    rows: tuple[int, ...]
    columns: tuple[int, ...]
    mask: Mask
    scale: float
    block_q: int = 128
    block_k: int = 128

    def __post_init__(self) -> None:
        if self.block_q < 1 or self.block_k < 1:
            raise ValueError(f"blocks need at least one row and one column, got {self.block_q} × {self.block_k}")

    def sequences(self) -> Iterator[tuple[int, slice, slice]]:
        """(n, its rows in q, its rows in k and v) for each sequence."""
        for n in range(len(self.rows) - 1):
            yield n, slice(self.rows[n], self.rows[n + 1]), slice(self.columns[n], self.columns[n + 1])

    def query_blocks(self, n_q: int) -> Iterator[tuple[int, int]]:
        """Half-open ranges of queries within a sequence of n_q."""
        for first in range(0, n_q, self.block_q):
            yield first, min(first + self.block_q, n_q)

    def key_blocks(self, queries: tuple[int, int], n_q: int, n_k: int) -> Iterator[tuple[int, int]]:
        """Half-open ranges of keys that some of these queries see."""
        start, stop = self.mask.key_range(*queries, n_q, n_k)
        for first in range(start, stop, self.block_k):
            yield first, min(first + self.block_k, stop)


@dataclass(frozen=True)
class _Sequence:
    """One sequence with its heads in front and in the dtype of the accumulators.

    Attributes:
        q: (Hkv, G, Nq, D), multiplied by the scale.
        k: (Hkv, Nk, D).
        v: (Hkv, Nk, D).
        bias: (1 or Hkv, 1 or G, 1 or Nq, 1 or Nk), or None.
        tiling: of the whole computation.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    bias: Tensor | None
    tiling: Tiling

    def scores(self, queries: tuple[int, int], keys: tuple[int, int]) -> tuple[Tensor, Tensor | None]:
        """Scores (Hkv, G·Bq, Bk), −∞ where invisible, and who sees whom, the same shape; None when all see all."""
        q, k = self.q[:, :, slice(*queries)], self.k[:, slice(*keys)]
        heads_k, group, n_q, n_k = *q.shape[:3], k.shape[1]
        scores = (_rows(q) @ k.mT).view(heads_k, group, n_q, n_k)
        seen = visible_block(self.tiling.mask, queries, keys, self.q.shape[2], self.k.shape[1], q.device)
        if self.bias is not None:
            bias = _block(self.bias, queries, keys)
            scores = scores + bias.to(scores.dtype)
            seen = bias != -torch.inf if seen is None else seen & (bias != -torch.inf)
        if seen is None:
            return scores.view(heads_k, group * n_q, n_k), None
        seen = seen.expand(scores.shape).reshape(heads_k, group * n_q, n_k)
        return scores.view(seen.shape).masked_fill(~seen, -torch.inf), seen


def forward(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, tiling: Tiling) -> tuple[Tensor, Tensor]:
    """(out, lse) of attention by blocks, shapes as in `tiled_attention`; no autograd of its own."""
    out = torch.zeros_like(q, memory_format=torch.contiguous_format)
    lse = torch.full(q.shape[:2], -torch.inf, dtype=lse_dtype(q.dtype), device=q.device)
    for n, rows, columns in tiling.sequences():
        sequence = _sequence(q[rows], k[columns], v[columns], bias, n, tiling)
        for queries in tiling.query_blocks(sequence.q.shape[2]):
            o, s = _attend(sequence, queries).finish()
            at = slice(rows.start + queries[0], rows.start + queries[1])
            out[at] = _packed(o, queries).flatten(1, 2).to(q.dtype)
            lse[at] = _packed(s[..., None], queries).flatten(1)
    return out, lse


def backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    out: Tensor,
    lse: Tensor,
    do: Tensor,
    dlse: Tensor | None,
    tiling: Tiling,
    bias_needs_grad: bool = True,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """(dq, dk, dv, dbias) of attention, recomputed block by block from its inputs, its results and their gradients.

    Args:
        q: (T, H, D); k and v (Tk, Hkv, D); bias as given to the forward.
        k: see q.
        v: see q.
        bias: see q.
        out: (T, H, D), the forward's result.
        lse: (T, H), the forward's natural logsumexp.
        do: (T, H, D), gradient by out.
        dlse: (T, H), gradient by lse, or None.
        tiling: offsets, mask, scale and blocks.
        bias_needs_grad: False leaves dbias out (None).
    """
    dtype = lse_dtype(q.dtype)
    dq, dk, dv = (torch.zeros_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
    dbias = None
    if bias is not None and bias_needs_grad:
        dbias = torch.zeros((1,) * (4 - bias.dim()) + tuple(bias.shape), dtype=dtype, device=q.device)
    delta = (out.to(dtype) * do.to(dtype)).sum(dim=-1)
    if dlse is not None:
        delta = delta - dlse
    for n, rows, columns in tiling.sequences():
        sequence = _sequence(q[rows], k[columns], v[columns], bias, n, tiling)
        gradients = _Gradients(
            dq=torch.zeros_like(sequence.q),
            dk=torch.zeros_like(sequence.k),
            dv=torch.zeros_like(sequence.v),
            dbias=None if dbias is None else _bias_of(dbias, n, sequence.q, sequence.k.shape[1]),
        )
        do_n, lse_n, delta_n = (
            _heads_first(x, sequence.k.shape[0]) for x in (do[rows].to(dtype), lse[rows, :, None], delta[rows, :, None])
        )
        for queries in tiling.query_blocks(sequence.q.shape[2]):
            at = slice(*queries)
            _backward_of_rows(
                sequence, queries, _rows(do_n[:, :, at]), _rows(lse_n[:, :, at]), _rows(delta_n[:, :, at]), gradients
            )
        dq[rows] = (gradients.dq * tiling.scale).permute(2, 0, 1, 3).flatten(1, 2).to(q.dtype)
        dk[columns] = gradients.dk.transpose(0, 1).to(k.dtype)
        dv[columns] = gradients.dv.transpose(0, 1).to(v.dtype)
    if bias is None or dbias is None:
        return dq, dk, dv, None
    return dq, dk, dv, dbias.reshape(bias.shape).to(bias.dtype)


@dataclass(frozen=True)
class _Gradients:
    """Accumulators of one sequence, shaped as the fields of `_Sequence`; dbias is a view into the whole."""

    dq: Tensor
    dk: Tensor
    dv: Tensor
    dbias: Tensor | None


def _attend(sequence: _Sequence, queries: tuple[int, int]) -> AttentionState:
    """The state of a block of queries after every key that it may see: rows (Hkv, G·Bq)."""
    heads_k, group, n_q, d = sequence.q.shape
    rows = group * (queries[1] - queries[0])
    state = AttentionState.empty((heads_k, rows), d, dtype=sequence.q.dtype, device=sequence.q.device)
    for keys in sequence.tiling.key_blocks(queries, n_q, sequence.k.shape[1]):
        scores, _ = sequence.scores(queries, keys)
        state = state.merge(AttentionState.of_block(scores, sequence.v[:, slice(*keys)]))
    return state


def _backward_of_rows(
    sequence: _Sequence, queries: tuple[int, int], do: Tensor, lse: Tensor, delta: Tensor, into: _Gradients
) -> None:
    """Add what one block of queries contributes: do (Hkv, G·Bq, D), lse and delta (Hkv, G·Bq, 1)."""
    n_q, n_k = sequence.q.shape[2], sequence.k.shape[1]
    q, dq = _rows(sequence.q[:, :, slice(*queries)]), into.dq[:, :, slice(*queries)]
    for keys in sequence.tiling.key_blocks(queries, n_q, n_k):
        at = slice(*keys)
        scores, seen = sequence.scores(queries, keys)
        p = torch.exp(scores - lse)
        dp = do @ sequence.v[:, at].mT
        ds = p * (dp - delta)
        if seen is not None:
            p, ds = p.where(seen, 0), ds.where(seen, 0)
        seen_t = None if seen is None else seen.mT
        into.dv[:, at] += product_of_seen(p.mT, do, seen_t)
        into.dk[:, at] += product_of_seen(ds.mT, q, seen_t)
        dq += product_of_seen(ds, sequence.k[:, at], seen).view(dq.shape)
        if into.dbias is not None:
            part = _block(into.dbias, queries, keys)
            part += ds.view(*dq.shape[:3], -1).sum_to_size(part.shape)


def _sequence(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, n: int, tiling: Tiling) -> _Sequence:
    dtype = lse_dtype(q.dtype)
    q_n = _heads_first(q.to(dtype) * tiling.scale, k.shape[1])
    return _Sequence(
        q=q_n,
        k=k.to(dtype).transpose(0, 1).contiguous(),
        v=v.to(dtype).transpose(0, 1).contiguous(),
        bias=None if bias is None else _bias_of(bias, n, q_n, k.shape[0]),
        tiling=tiling,
    )


def _heads_first(x: Tensor, heads_k: int) -> Tensor:
    """(N, H, D) → (Hkv, G, N, D), a view."""
    return x.reshape(x.shape[0], heads_k, x.shape[1] // heads_k, x.shape[2]).permute(1, 2, 0, 3)


def _rows(x: Tensor) -> Tensor:
    """(Hkv, G, Bq, D) → (Hkv, G·Bq, D): the queries that share keys, one under the other."""
    return x.reshape(x.shape[0], -1, x.shape[3])


def _packed(rows: Tensor, queries: tuple[int, int]) -> Tensor:
    """(Hkv, G·Bq, D) → (Bq, Hkv, G, D)."""
    return rows.reshape(rows.shape[0], -1, queries[1] - queries[0], rows.shape[2]).permute(2, 0, 1, 3)


def _bias_of(bias: Tensor, n: int, q: Tensor, n_k: int) -> Tensor:
    """A view of sequence n's bias as (1 or Hkv, 1 or G, 1 or Nq, 1 or Nk), q (Hkv, G, Nq, D)."""
    bias = bias_of_sequence(bias, n, q.shape[2], n_k)
    heads = (1, 1) if bias.shape[0] == 1 else q.shape[:2]
    return bias.reshape(*heads, *bias.shape[1:])


def _block(bias: Tensor, queries: tuple[int, int], keys: tuple[int, int]) -> Tensor:
    """The view of a sequence's bias that a block reads; broadcast axes stay."""
    bias = bias[:, :, slice(*queries)] if bias.shape[2] > 1 else bias
    return bias[..., slice(*keys)] if bias.shape[3] > 1 else bias
