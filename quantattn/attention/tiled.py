"""Exact attention by blocks in plain torch: the state algebra at work, on any device, in memory O(T).

The forward merges the states of blocks of keys; the backward keeps no weight and recomputes each block from q, k and
the stored logsumexp, p_ij = exp(s_ij − lse_i), with

    delta_i = do_i · out_i − dlse_i      ds_ij = p_ij · (do_i · v_j − delta_i)
    dv_j = Σ_i p_ij · do_i      dq_i = scale · Σ_j ds_ij · k_j      dk_j = scale · Σ_i ds_ij · q_i      dbias_ij = ds_ij

(dropout multiplies p in dv and do_i · v_j in ds by its factors, a soft cap multiplies ds in dq and dk by its slope)
(Dao et al. 2022, "FlashAttention", §3.1 and appendix B.2). Blocks are visited in one fixed order and nothing is added
atomically: the same input gives the same bits. Blocks that the mask hides are never visited.

Dimensions: N sequences, T packed queries, Tk packed keys, H query heads, Hkv key/value heads, G = H/Hkv, D head size;
Bq and Bk the rows and columns of a block.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from quantattn.attention import ops
from quantattn.attention.blocks import SequenceInBlocks, bias_in_heads, block_of, heads_first, rows_of
from quantattn.attention.extras import Extras
from quantattn.attention.mask import Mask
from quantattn.attention.seen import product_of_seen
from quantattn.attention.state import Attended, AttentionState, lse_dtype
from quantattn.attention.tiling import Tiling


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
    extras: Extras = Extras(),  # noqa: B008  a frozen value
    block_q: int = 128,
    block_k: int = 128,
    ordered: bool = False,
) -> Attended:
    """Exactly `exact_attention`, block by block, without ever forming a matrix of size Nq × Nk.

    Differentiable once, in q, k, v, bias, sinks and the heads' scales, through out and through lse. Accumulates in
    float32, or in float64 for float64 inputs. A value at an invisible place, NaN and inf included, reaches no output
    and no gradient.

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
        extras: what else acts on scores and weights.
        block_q: queries of a block.
        block_k: keys of a block.
        ordered: a query's out and lse have the same bits whichever queries are computed with it. Blocks lie at
            multiples of their sizes, queries by the key beside them, and are filled up to their size, because a product
            of another shape may be summed in another order.

    Returns:
        out (T, H, D) in the dtype of q, lse (T, H) in float32, or float64 for float64 inputs.
    """
    problem = (bias, scale, mask.left, mask.right, "tiled", block_q, block_k)
    more = ops.arguments(mask, extras)
    return Attended(*ops.packed_attention_op(q, k, v, cu_seqlens, cu_seqlens_k, *problem, *more, ordered))


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    tiling: Tiling,
    extras: Extras = Extras(),  # noqa: B008
) -> tuple[Tensor, Tensor]:
    """(out, lse) of attention by blocks, shapes as in `tiled_attention`; no autograd of its own."""
    out = torch.zeros_like(q, memory_format=torch.contiguous_format)
    lse = torch.full(q.shape[:2], -torch.inf, dtype=lse_dtype(q.dtype), device=q.device)
    for n, rows, columns in tiling.sequences():
        of_n = extras.of_sequence(n, rows, columns)
        sequence = SequenceInBlocks.of(q[rows], k[columns], v[columns], bias, n, tiling, of_n)
        for queries in tiling.query_blocks(sequence.n_q, sequence.n_k):
            o, s = _attend(sequence, queries).finish()
            at = slice(rows.start + queries[0], rows.start + queries[1])
            out[at] = sequence.packed(o, queries).flatten(1, 2).to(q.dtype)
            lse[at] = sequence.packed(s[..., None], queries).flatten(1)
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
    extras: Extras = Extras(),  # noqa: B008  a frozen value
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """(dq, dk, dv, dbias, dscales, dsinks) of attention, recomputed block by block from its inputs and results.

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
        extras: as given to the forward; the gradients of what is not there are None.
    """
    dtype = lse_dtype(q.dtype)
    dq, dk, dv = (torch.zeros_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
    dbias = None
    if bias is not None and bias_needs_grad:
        dbias = torch.zeros((1,) * (4 - bias.dim()) + tuple(bias.shape), dtype=dtype, device=q.device)
    delta = (out.to(dtype) * do.to(dtype)).sum(dim=-1)
    if dlse is not None:
        delta = delta - dlse
    dscales = None if extras.scales is None else torch.zeros_like(extras.scales, dtype=dtype)
    dsinks = None
    if extras.sinks is not None:  # ∂lse/∂sink is the sink's weight, ∂out/∂sink is minus that weight times out
        weight = torch.exp(extras.sinks.to(dtype) - lse).where(lse != -torch.inf, 0)
        dsinks = -(weight * delta).where(weight != 0, 0).sum(0).to(extras.sinks.dtype)
    for n, rows, columns in tiling.sequences():
        of_n = extras.of_sequence(n, rows, columns)
        sequence = SequenceInBlocks.of(q[rows], k[columns], v[columns], bias, n, tiling, of_n)
        gradients = _Gradients(
            dq=torch.zeros_like(sequence.q),
            dk=torch.zeros_like(sequence.k),
            dv=torch.zeros_like(sequence.v),
            dbias=None if dbias is None else bias_in_heads(dbias, n, sequence.q.shape[:2], sequence.n_q, sequence.n_k),
        )
        do_n, lse_n, delta_n = (
            heads_first(x, sequence.k.shape[0]) for x in (do[rows].to(dtype), lse[rows, :, None], delta[rows, :, None])
        )
        for queries in tiling.query_blocks(sequence.n_q, sequence.n_k):
            do_i, lse_i, delta_i = (rows_of(x[:, :, slice(*queries)]) for x in (do_n, lse_n, delta_n))
            _backward_of_rows(sequence, queries, do_i, lse_i, delta_i, gradients)
        dq_n = (gradients.dq * tiling.scale).permute(2, 0, 1, 3).flatten(1, 2)
        if dscales is not None and extras.scales is not None:
            dscales += (dq_n * q[rows].to(dtype)).where(dq_n != 0, 0).sum((0, 2))
            dq_n = dq_n * extras.scales.to(dtype)[:, None]
        dq[rows] = dq_n.to(q.dtype)
        dk[columns] = gradients.dk.transpose(0, 1).to(k.dtype)
        dv[columns] = gradients.dv.transpose(0, 1).to(v.dtype)
    if dscales is not None and extras.scales is not None:
        dscales = dscales.to(extras.scales.dtype)
    if bias is None or dbias is None:
        return dq, dk, dv, None, dscales, dsinks
    return dq, dk, dv, dbias.reshape(bias.shape).to(bias.dtype), dscales, dsinks


@dataclass(frozen=True)
class _Gradients:
    """Accumulators of one sequence, shaped as the fields of `SequenceInBlocks`; dbias is a view into the whole."""

    dq: Tensor
    dk: Tensor
    dv: Tensor
    dbias: Tensor | None


def _attend(sequence: SequenceInBlocks, queries: tuple[int, int]) -> AttentionState:
    """The state of a block of queries after every key that it may see: rows (Hkv, G·Bq)."""
    heads_k, group, n_q, d = sequence.q[:, :, sequence.rows(queries)].shape
    rows = group * n_q
    state = AttentionState.empty((heads_k, rows), d, dtype=sequence.q.dtype, device=sequence.q.device)
    sinks = sequence.extras.sinks
    if sinks is not None:
        of_sink = sinks.to(state.m.dtype).view(heads_k, group, 1).expand(-1, -1, n_q).reshape(heads_k, rows)
        state = AttentionState.of_attended(Attended(state.u, of_sink))
    for keys in sequence.tiling.key_blocks(queries, sequence.n_q, sequence.n_k):
        block, v = sequence.scores(queries, keys), sequence.v[:, sequence.columns(keys)]
        part = AttentionState.of_block(block.scores, v)
        if block.kept is not None:  # the mass counts every weight, the sum of the values those that are kept
            p = torch.exp(block.scores - part.m.where(part.m > -torch.inf, 0)[..., None])
            part = AttentionState(part.m, part.l, product_of_seen(p * block.kept, v, block.seen))
        state = state.merge(part)
    return state


def _backward_of_rows(
    sequence: SequenceInBlocks, queries: tuple[int, int], do: Tensor, lse: Tensor, delta: Tensor, into: _Gradients
) -> None:
    """Add what one block of queries contributes: do (Hkv, G·Bq, D), lse and delta (Hkv, G·Bq, 1)."""
    q, dq = rows_of(sequence.q[:, :, slice(*queries)]), into.dq[:, :, slice(*queries)]
    for keys in sequence.tiling.key_blocks(queries, sequence.n_q, sequence.n_k):
        at = slice(*keys)
        block = sequence.scores(queries, keys)
        seen = block.seen
        p = torch.exp(block.scores - lse)
        dp = do @ sequence.v[:, at].mT
        if block.kept is not None:
            dp = dp.where(block.kept > 0, 0) * block.kept
        ds = p * (dp - delta)
        if block.kept is not None:
            p = p * block.kept
        if seen is not None:
            p, ds = p.where(seen, 0), ds.where(seen, 0)
        if into.dbias is not None:
            part = block_of(into.dbias, queries, keys)
            part += ds.view(*dq.shape[:3], -1).sum_to_size(part.shape)
        if block.bend is not None:
            ds = ds * (block.bend if seen is None else block.bend.where(seen, 0))
        seen_t = None if seen is None else seen.mT
        into.dv[:, at] += product_of_seen(p.mT, do, seen_t)
        into.dk[:, at] += product_of_seen(ds.mT, q, seen_t)
        dq += product_of_seen(ds, sequence.k[:, at], seen).view(dq.shape)
