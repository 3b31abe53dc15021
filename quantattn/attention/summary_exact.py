"""The specification of the summaries, written densely from the weights, and how far from it a result may be.

It forms the N × N matrix, is slow on purpose, and shares no arithmetic with the tiles and the kernels.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from quantattn.attention.exact import exact_attention, standard_attention
from quantattn.attention.problems import Problem
from quantattn.attention.seen import bias_of_sequence, seen_scores
from quantattn.attention.state import lse_dtype
from quantattn.attention.summary_tiles import Pack
from quantattn.attention.testing import Backend, Budget, errors

NAMES = ("received", "entropy", "distance")
"""The summaries, in the order in which every implementation returns them."""


def exact_summary(pack: Pack) -> tuple[Tensor, Tensor, Tensor]:
    """(received (Tk, H), entropy (T, H), distance (T, H)) in the dtype of lse, from the matrix of each sequence."""
    dtype = lse_dtype(pack.q.dtype)
    return _sums(replace(pack, q=pack.q.to(dtype), k=pack.k.to(dtype)))


def exact_map(pack: Pack, n: int, sizes: tuple[int, int]) -> Tensor:
    """Σ p_ij of sequence n over blocks of `sizes` queries and keys, (H, blocks of queries, blocks of keys)."""
    dtype = lse_dtype(pack.q.dtype)
    return _block_sums(exact_weights(replace(pack, q=pack.q.to(dtype), k=pack.k.to(dtype)), n), sizes)


def _block_sums(p: Tensor, sizes: tuple[int, int]) -> Tensor:
    for axis, size in zip((1, 2), sizes, strict=True):
        blocks = [block.sum(dim=axis) for block in torch.split(p, size, dim=axis)]
        p = torch.stack(blocks, dim=axis) if p.shape[axis] else p
    return p


def exact_weights(pack: Pack, n: int) -> Tensor:
    """exp(s_ij − lse_i) of sequence n, (H, Nq, Nk) in the dtype of q; 0 where query i does not see key j."""
    rows, columns = pack.ranges(n)
    q, lse = (x[rows].transpose(0, 1) for x in (pack.q, pack.lse))  # (H, Nq, D), (H, Nq)
    k = pack.k[columns].transpose(0, 1).repeat_interleave(pack.q.shape[1] // pack.k.shape[1], dim=0)  # (H, Nk, D)
    seen = pack.mask.visible(*pack.lengths(n), device=q.device)
    bias = None if pack.bias is None else bias_of_sequence(pack.bias, n, *pack.lengths(n))
    if bias is not None:
        seen = seen & (bias if bias.dtype == torch.bool else bias != -torch.inf)
    extras, (n_q, n_k) = pack.extras.of_sequence(n, rows, columns), pack.lengths(n)
    same = extras.visible()
    seen = seen if same is None else seen & same
    scores = seen_scores(q, k, seen) * pack.scale
    if extras.scales is not None:
        scores = scores * extras.scales.to(scores.dtype)[:, None, None]
    scores = extras.slanted(extras.bent(scores), (0, n_q), (0, n_k), n_k - n_q)
    if bias is not None and bias.dtype != torch.bool:
        scores = scores + bias.to(scores.dtype)
    return torch.exp(scores - lse[..., None]).where(seen, 0).to(q.dtype)


def _sums(pack: Pack) -> tuple[Tensor, Tensor, Tensor]:
    """The summaries in the dtype of q."""
    none = pack.q.new_zeros(0, pack.q.shape[1])
    parts = [(none, none, none)]  # so that no sequence at all is a result too
    for n in range(len(pack)):
        p, (n_q, n_k) = exact_weights(pack, n), pack.lengths(n)
        beside = torch.arange(n_q, device=p.device)[:, None] + (n_k - n_q)
        away = (torch.arange(n_k, device=p.device) - beside).abs().to(p.dtype)
        parts.append((p.sum(dim=1).T, torch.special.entr(p).sum(dim=-1).clamp(min=0).T, (p * away).sum(dim=-1).T))
    received, entropy, distance = (torch.cat(column) for column in zip(*parts, strict=True))
    return received, entropy, distance


def summary_budget(problem: Problem, sizes: tuple[int, int] = (1, 1)) -> Budget:
    """Truth and budget of the summaries of `problem`, by the rule of `quantattn.attention.testing` for outputs.

    Names are those of `NAMES`, and "maps": the sums over blocks of `sizes`, flattened, of all sequences on end.

    The unit is the larger loss of two dense computations in the problem's dtype, with the lse of standard attention
    and with one that is a unit in the last place too large: what is lost by keeping lse and no weights.

    Raises:
        ValueError: the problem is in float64, for which there is no truth above it.
    """
    if problem.q.dtype == torch.float64:
        raise ValueError("the budget needs inputs below float64, in which the truth is computed; got float64")
    bias = problem.bias.double() if problem.bias is not None and problem.bias.is_floating_point() else problem.bias
    lifted = replace(problem.to(torch.float64), bias=bias, extras=problem.extras.to(torch.float64))
    truth = _dense(exact_attention, lifted, sizes, ulps=0)
    units = [_dense(standard_attention, problem, sizes, ulps=n) for n in (0, 1)]
    standard, allowed = {}, {}
    for name, value in truth.items():
        worst, mean = (max(loss) for loss in zip(*(errors(unit[name], value) for unit in units), strict=True))
        # The noise of two additions, as the budget of attention has it.
        noise = errors(value.to(problem.q.dtype) + 0.3 - 0.3, value.to(problem.q.dtype).double())
        standard[name] = worst, mean
        allowed[name] = 2 * (worst + noise[0]), 2 * (mean + noise[1])
    return Budget(truth=truth, standard=standard, allowed=allowed)


def _dense(backend: Backend, p: Problem, sizes: tuple[int, int], ulps: int) -> dict[str, Tensor]:
    rest: dict[str, Any] = {"mask": p.mask, "bias": p.bias, "scale": p.scale, "extras": p.extras}
    lse = backend(p.q, p.k, p.v, p.cu_seqlens, p.cu_seqlens_k, **rest).lse
    if ulps:
        lse = torch.nextafter(lse, torch.full_like(lse, torch.inf))
    rows, columns = (tuple(cu.tolist()) for cu in (p.cu_seqlens, p.cu_seqlens_k))
    pack = Pack(p.q, p.k, lse, rows, columns, **rest)
    maps = [_block_sums(exact_weights(pack, n), sizes).flatten() for n in range(len(pack))]
    return dict(zip(NAMES, _sums(pack), strict=True)) | {"maps": torch.cat([*maps, p.q.new_zeros(0)])}
