"""The specification: exact attention written densely, sequence by sequence, to be read and to be compared with.

    out_i = Σ_j softmax_j(scale · q_i·k_j + bias_ij) · v_j        lse_i = ln Σ_j exp(scale · q_i·k_j + bias_ij)

over the keys j that query i sees; `extras.py` has the formula with everything that may be added. It forms the N×N
matrix and is differentiated by autograd alone. It is slow on purpose and shares no code with the kernels.

Dimensions: N sequences, T packed queries, Tk packed keys, H query heads, Hkv key/value heads, D head size.
"""

from __future__ import annotations

import torch
from torch import Tensor

from quantattn.attention.dropout import kept_weights, threshold
from quantattn.attention.extras import Extras
from quantattn.attention.mask import Mask
from quantattn.attention.seen import bias_of_sequence, seen_scores, seen_sum
from quantattn.attention.state import Attended, lse_dtype


def exact_attention(
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
    """Attention of each packed sequence, in float64 for float64 inputs, else in float32 and rounded once at the end.

    A query that sees no key has out 0, lse −∞ and gradients 0. What stands at an invisible place, NaN and inf included,
    reaches no output and no gradient. Memory O(H·N²) for the longest sequence, kept for the backward.

    Args:
        q: (T, H, D).
        k: (Tk, Hkv, D); H is a multiple of Hkv, and query heads h·H/Hkv … share key head h.
        v: (Tk, Hkv, D).
        cu_seqlens: (N + 1,) int32 offsets of the sequences in q.
        cu_seqlens_k: (N + 1,) int32 offsets of the sequences in k and v.
        mask: who sees whom.
        bias: additive, broadcastable to (N, H, longest Nq, longest Nk); a key with bias −∞ is invisible.
        scale: factor of q·k before the bias.
        extras: what else acts on scores and weights.

    Returns:
        out (T, H, D) in the dtype of q, lse (T, H) in float32, or float64 for float64 inputs.
    """
    dtype = lse_dtype(q.dtype)
    if bias is not None and bias.is_floating_point():
        bias = bias.to(dtype)
    operands = (q.to(dtype), k.to(dtype), v.to(dtype))
    out, lse = _packed(*operands, cu_seqlens, cu_seqlens_k, mask, bias, scale, extras.to(dtype))
    return Attended(out.to(q.dtype), lse)


def standard_attention(
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
    """The same computation as it is usually written: scores, weights and products each rounded to the inputs' dtype.

    What it loses against float64 is what users of that dtype accept already; the error budget is stated in that unit.
    Signature and result as `exact_attention`.
    """
    out, lse = _packed(q, k, v, cu_seqlens, cu_seqlens_k, mask, bias, scale, extras)
    return Attended(out, lse)


def _packed(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_q: Tensor,
    cu_k: Tensor,
    mask: Mask,
    bias: Tensor | None,
    scale: float,
    extras: Extras,
) -> tuple[Tensor, Tensor]:
    group = q.shape[1] // k.shape[1]
    rows, columns = cu_q.tolist(), cu_k.tolist()
    outs, lses = [q[:0]], [q[:0].sum(-1, dtype=lse_dtype(q.dtype))]  # so that no sequence at all is a result too
    for n in range(len(rows) - 1):
        q_n = q[rows[n] : rows[n + 1]].transpose(0, 1)  # (H, Nq, D)
        k_n = k[columns[n] : columns[n + 1]].transpose(0, 1).repeat_interleave(group, dim=0)  # (H, Nk, D)
        v_n = v[columns[n] : columns[n + 1]].transpose(0, 1).repeat_interleave(group, dim=0)
        bias_n = None if bias is None else bias_of_sequence(bias, n, q_n.shape[1], k_n.shape[1])
        extras_n = extras.of_sequence(n, slice(rows[n], rows[n + 1]), slice(columns[n], columns[n + 1]))
        out, lse = _dense(q_n, k_n, v_n, mask, bias_n, scale, extras_n)
        outs.append(out.transpose(0, 1))
        lses.append(lse.transpose(0, 1))
    return torch.cat(outs), torch.cat(lses)


def _dense(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: Tensor | None, scale: float, extras: Extras
) -> tuple[Tensor, Tensor]:
    """One sequence: q (H, Nq, D), k, v (H, Nk, D), bias broadcastable to (H, Nq, Nk) → out (H, Nq, D), lse (H, Nq)."""
    n_q, n_k = q.shape[1], k.shape[1]
    seen = mask.visible(n_q, n_k, device=q.device)
    if bias is not None:
        seen = seen & (bias if bias.dtype == torch.bool else bias != -torch.inf)
    same = extras.visible()
    seen = seen if same is None else seen & same
    scores = seen_scores(q, k, seen) * scale  # (H, Nq, Nk)
    if extras.scales is not None:
        scores = scores * extras.scales.to(scores.dtype)[:, None, None]
    scores = extras.slanted(extras.bent(scores), (0, n_q), (0, n_k), n_k - n_q)
    if bias is not None and bias.dtype != torch.bool:
        scores = scores + bias.to(scores.dtype)
    sees = seen.any(dim=-1, keepdim=True).expand(*scores.shape[:2], 1)
    # A row without keys gets finite scores, so that softmax and logsumexp have a gradient there to multiply by nothing.
    scores = scores.where(seen, -torch.inf).where(sees, 0)
    if extras.sinks is not None:  # one more key, whose value is zero
        sink = extras.sinks.to(scores.dtype)[:, None, None].expand(-1, n_q, 1)
        scores = torch.cat([scores.where(sees, -torch.inf), sink], dim=-1)
        sees = sees | (sink != -torch.inf)
        scores = scores.where(sees, 0)
    lse = torch.logsumexp(scores.to(lse_dtype(q.dtype)), dim=-1).where(sees[..., 0], -torch.inf)
    weights = torch.softmax(scores, dim=-1)
    of_sink = weights[..., n_k:].sum(-1, keepdim=True)
    weights = weights[..., :n_k].where(seen, 0)
    if extras.dropout and extras.seed is not None:
        sequence, head = extras.origin
        kept = kept_weights(extras.seed, extras.dropout, sequence, (head, head + q.shape[0]), (0, n_q), (0, n_k))
        weights = weights.where(kept, 0) * (2**32 / threshold(extras.dropout))
    out = seen_sum(weights, v, seen)
    return out if extras.sinks is None else out + 0 * of_sink, lse  # NaN where the sink is
