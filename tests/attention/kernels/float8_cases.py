"""What the kernels of eight bits must give, in float64, and how far float32 may take them from it."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from quantattn.attention import Attended, Mask
from quantattn.attention.float8 import BELOW, LARGEST, ROWS_K, Quantised

UNIT = 2.0**-24
# Hopper's matrix units keep fewer bits of a sum of products of float8; 2⁻¹³ of its terms covers what is known of them.
PRODUCT = UNIT if not torch.cuda.is_available() else 2.0**-13


def weights(
    small: tuple[Quantised, ...], causal: bool, rows: int, backwards: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Scores, their errors, weights on the running maximum, what carries those to the last one, and v, all float64.

    `rows` keys are taken up at a time, from the first on or `backwards` from the last.
    """
    q, k, v = (x.restored(torch.float64).transpose(1, 2) for x in small)
    n_q, n_k, d = q.shape[2], k.shape[2], q.shape[3]
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    unit = d**-0.5 / math.log(2)
    hidden = ~Mask(causal=causal).visible(n_q, n_k, q.device)
    scores = (q @ k.mT * unit).masked_fill(hidden, -torch.inf)
    off = (q.abs() @ k.abs().mT * unit * (d * PRODUCT + 6 * UNIT)).masked_fill(hidden, 0)
    highest = torch.cat([x.amax(-1, keepdim=True) for x in scores.split(rows, -1)], -1)
    highest = highest.flip(-1).cummax(-1).values.flip(-1) if backwards else highest.cummax(-1).values
    running = highest - BELOW
    last = running[..., :1] if backwards else running[..., -1:]
    running = running.repeat_interleave(rows, -1)[..., :n_k]
    p = torch.exp2(scores - running).nan_to_num()
    return scores, off, p, torch.exp2(running - last).nan_to_num(), v


def reference(small: tuple[Quantised, ...], causal: bool, rows: int = ROWS_K, backwards: bool = False) -> Attended:
    """Attention of rounded tensors with rounded weights, everything else in float64."""
    scores, _, p, carried, v = weights(small, causal, rows, backwards)
    mass = (p * carried).sum(-1, keepdim=True)
    out = (p.to(torch.float8_e4m3fn).double() * carried) @ v / mass.where(mass > 0, 1)
    return Attended(out.transpose(1, 2), (scores * math.log(2)).logsumexp(-1).transpose(1, 2))


def allowed(small: tuple[Quantised, ...], causal: bool, rows: int, backwards: bool) -> tuple[Tensor, Tensor]:
    """How far float32 may be from the reference: (out, lse).

    A score is off by a unit a term of its sum; a weight by that and an exponential, and where this takes it over a tie
    of e4m3, by the whole step there; sums over keys by a unit a term.
    """
    scores, off, p, carried, v = weights(small, causal, rows, backwards)
    n_k = scores.shape[-1]
    off = math.log(2) * (off + off.amax(-1, keepdim=True)) + 16 * UNIT
    most, least = ((p * factor).clamp(0, LARGEST).to(torch.float8_e4m3fn).double() for factor in (1 + off, 1 - off))
    step = most - least
    mass = (p * carried).sum(-1, keepdim=True)
    terms = 2 * min(n_k, rows) * PRODUCT + (n_k + rows) * UNIT
    moved = (step + p * (terms + off.amax(-1, keepdim=True))) * carried
    out = moved @ v.abs() / mass.where(mass > 0, 1)
    lse = off.amax(-1) + (n_k + 8) * UNIT
    return out.transpose(1, 2), lse.transpose(1, 2)


def outside(
    found: Attended, small: tuple[Quantised, ...], causal: bool, rows: int = ROWS_K, backwards: bool = False,
    rounding: float = 0.0,
) -> list[int]:  # fmt: skip
    """Numbers of (out, lse) that are further off than they may be; `rounding` is that of out's dtype, relative."""
    truth = reference(small, causal, rows, backwards)
    empty = truth.lse == -torch.inf
    assert torch.equal(found.lse == -torch.inf, empty)
    assert (found.out[empty] == 0).all()
    out, lse = allowed(small, causal, rows, backwards)
    gaps = (found.out - truth.out).abs(), (found.lse - truth.lse).where(~empty, 0).abs()
    limits = out * (1 + rounding) + rounding * truth.out.abs(), lse
    return [int((~(gap <= may)).sum()) for gap, may in zip(gaps, limits, strict=True)]


def in_order(x: Any, n_k: int) -> Quantised:
    """The values of `Rounded` as (B, Nk, H, D), in the order of the keys."""
    batch, heads, d, keys = x.v.shape
    by_place = x.v.view(torch.uint8).view(batch, heads, d, keys // 16, 4, 2, 2)
    by_key = by_place.transpose(-3, -2).reshape(batch, heads, d, keys)
    assert (by_key[..., n_k:] == 0).all()
    values = by_key[..., :n_k].permute(0, 3, 1, 2).contiguous().view(torch.float8_e4m3fn)
    return Quantised(values, x.v_scale[..., None], n_k)
