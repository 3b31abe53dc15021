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
from quantattn.attention.dropout import kept_weights, threshold
from quantattn.attention.extras import Extras
from quantattn.attention.mask import Mask
from quantattn.attention.seen import bias_of_sequence, product_of_seen, visible_block
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

    Returns:
        out (T, H, D) in the dtype of q, lse (T, H) in float32, or float64 for float64 inputs.
    """
    problem = (bias, scale, mask.left, mask.right, "tiled", block_q, block_k)
    more = ops.arguments(mask, extras)
    return Attended(*ops.packed_attention_op(q, k, v, cu_seqlens, cu_seqlens_k, *problem, *more))


@dataclass(frozen=True)
class _Sequence:
    """One sequence with its heads in front and in the dtype of the accumulators.

    Attributes:
        q: (Hkv, G, Nq, D), multiplied by the scales.
        k: (Hkv, Nk, D).
        v: (Hkv, Nk, D).
        bias: (1 or Hkv, 1 or G, 1 or Nq, 1 or Nk), or None.
        extras: of this sequence.
        tiling: of the whole computation.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    bias: Tensor | None
    extras: Extras
    tiling: Tiling

    def scores(self, queries: tuple[int, int], keys: tuple[int, int]) -> _Block:
        """The block of these queries and keys."""
        q, k = self.q[:, :, slice(*queries)], self.k[:, slice(*keys)]
        heads_k, group, n_q, n_k = *q.shape[:3], k.shape[1]
        scores = self.extras.bent((_rows(q) @ k.mT).view(heads_k * group, n_q, n_k))
        bend = 1 - (scores / self.extras.softcap).square() if self.extras.softcap else None
        shift = self.k.shape[1] - self.q.shape[2]
        scores = self.extras.slanted(scores, queries, keys, shift).view(heads_k, group, n_q, n_k)
        seen = visible_block(self.tiling.mask, queries, keys, self.q.shape[2], self.k.shape[1], q.device)
        same = self.extras.visible(slice(*queries), slice(*keys))
        if same is not None:
            seen = same if seen is None else seen & same
        if self.bias is not None:
            bias = _block(self.bias, queries, keys)
            shown = bias if bias.dtype == torch.bool else bias != -torch.inf
            scores = scores if bias.dtype == torch.bool else scores + bias.to(scores.dtype)
            seen = shown if seen is None else seen & shown
        flat = (heads_k, group * n_q, n_k)
        bend = None if bend is None else bend.view(flat)
        if seen is None:
            return _Block(scores.view(flat), None, bend, self._kept(queries, keys))
        seen = seen.expand(scores.shape).reshape(flat)
        return _Block(scores.view(flat).masked_fill(~seen, -torch.inf), seen, bend, self._kept(queries, keys))

    def _kept(self, queries: tuple[int, int], keys: tuple[int, int]) -> Tensor | None:
        """Factors 0 or 1/(1 − p) of the weights, (Hkv, G·Bq, Bk); None without dropout."""
        extras, (heads_k, group) = self.extras, self.q.shape[:2]
        if not extras.dropout or extras.seed is None:
            return None
        sequence, head = extras.origin
        kept = kept_weights(extras.seed, extras.dropout, sequence, (head, head + heads_k * group), queries, keys)
        return kept.view(heads_k, -1, kept.shape[-1]).to(self.q.dtype) * (2**32 / threshold(extras.dropout))


@dataclass(frozen=True)
class _Block:
    """A block of scores, rows the queries of all heads that share a key head.

    Attributes:
        scores: (Hkv, G·Bq, Bk), −∞ where invisible.
        seen: the same shape, bool; None when all see all.
        bend: derivative of the soft cap; None without one.
        kept: factors that dropout gives the weights; None without dropout.
    """

    scores: Tensor
    seen: Tensor | None
    bend: Tensor | None
    kept: Tensor | None


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
        sequence = _sequence(q[rows], k[columns], v[columns], bias, n, tiling, extras.of_sequence(n, rows, columns))
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
        weight = torch.exp(extras.sinks.to(dtype) - lse).where(lse > -torch.inf, 0)
        dsinks = -(weight * delta).where(weight > 0, 0).sum(0).to(extras.sinks.dtype)
    for n, rows, columns in tiling.sequences():
        sequence = _sequence(q[rows], k[columns], v[columns], bias, n, tiling, extras.of_sequence(n, rows, columns))
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
        dq_n = (gradients.dq * tiling.scale).permute(2, 0, 1, 3).flatten(1, 2)
        if dscales is not None and extras.scales is not None:
            dscales += (dq_n * q[rows].to(dtype)).sum((0, 2))
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
    sinks = sequence.extras.sinks
    if sinks is not None:
        of_sink = sinks.to(state.m.dtype).view(heads_k, group, 1).expand(-1, -1, rows // group).reshape(heads_k, rows)
        state = AttentionState.of_attended(Attended(state.u, of_sink))
    for keys in sequence.tiling.key_blocks(queries, n_q, sequence.k.shape[1]):
        block, v = sequence.scores(queries, keys), sequence.v[:, slice(*keys)]
        part = AttentionState.of_block(block.scores, v)
        if block.kept is not None:  # the mass counts every weight, the sum of the values those that are kept
            p = torch.exp(block.scores - part.m.where(part.m > -torch.inf, 0)[..., None])
            part = AttentionState(part.m, part.l, product_of_seen(p * block.kept, v, block.seen))
        state = state.merge(part)
    return state


def _backward_of_rows(
    sequence: _Sequence, queries: tuple[int, int], do: Tensor, lse: Tensor, delta: Tensor, into: _Gradients
) -> None:
    """Add what one block of queries contributes: do (Hkv, G·Bq, D), lse and delta (Hkv, G·Bq, 1)."""
    n_q, n_k = sequence.q.shape[2], sequence.k.shape[1]
    q, dq = _rows(sequence.q[:, :, slice(*queries)]), into.dq[:, :, slice(*queries)]
    for keys in sequence.tiling.key_blocks(queries, n_q, n_k):
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
            part = _block(into.dbias, queries, keys)
            part += ds.view(*dq.shape[:3], -1).sum_to_size(part.shape)
        if block.bend is not None:
            ds = ds * block.bend
        seen_t = None if seen is None else seen.mT
        into.dv[:, at] += product_of_seen(p.mT, do, seen_t)
        into.dk[:, at] += product_of_seen(ds.mT, q, seen_t)
        dq += product_of_seen(ds, sequence.k[:, at], seen).view(dq.shape)


def _sequence(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, n: int, tiling: Tiling, extras: Extras
) -> _Sequence:
    dtype = lse_dtype(q.dtype)
    q = q.to(dtype) * tiling.scale
    if extras.scales is not None:
        q = q * extras.scales.to(dtype)[:, None]
    q_n = _heads_first(q, k.shape[1])
    return _Sequence(
        q=q_n,
        k=k.to(dtype).transpose(0, 1).contiguous(),
        v=v.to(dtype).transpose(0, 1).contiguous(),
        bias=None if bias is None else _bias_of(bias, n, q_n, k.shape[0]),
        extras=extras,
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
