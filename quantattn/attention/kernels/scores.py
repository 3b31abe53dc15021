"""What a score becomes before the softmax, and a weight after it; shared by the forward and every backward pass.

    s_ij = c·tanh(scale · scale_h · q_i·k_j / c) − slope_h·|distance| + bias_ij        z_ij = kept_ij / (1 − p)

Scores are in base 2 here: everything that is added has been multiplied by log₂ e. Every
function takes index tensors that broadcast against each other, so that a transposed tile needs no other function.
"""

from __future__ import annotations

import triton
import triton.language as tl

from quantattn.attention.kernels.arguments import Head
from quantattn.attention.kernels.primitives import LOG2E, exp2, sees


@triton.jit
def of_head(terms, sequence, number, scale):
    """What a head's scores need."""
    own = 1.0
    bias = 0
    slope = 0.0
    if terms.scales is not None:
        own = tl.load(terms.scales + number)
    if terms.bias is not None:
        bias = terms.bias + tl.cast(sequence, tl.int64) * terms.bias_s + tl.cast(number, tl.int64) * terms.bias_h
    if terms.slopes is not None:
        slope = tl.load(terms.slopes + number) * LOG2E
    return Head(scale * LOG2E * own, bias, slope, own)


@triton.jit
def see(query, key, place, bounds, terms):
    """Who sees whom by the bounds of the mask, its rule and segments, not yet by the bias."""
    seen = sees(query, key, place.n_q, place.n_k, bounds)
    if terms.segments_q is not None:  # (sequences, rows) when dense, where the starts are 0; (rows,) when packed
        of_query = terms.segments_q + tl.cast(place.batch, tl.int64) * place.n_q + place.q_start + query
        of_key = terms.segments_k + tl.cast(place.batch, tl.int64) * place.n_k + place.k_start + key
        own = tl.load(of_query, mask=query < place.n_q, other=0)
        seen = seen & (own == tl.load(of_key, mask=key < place.n_k, other=0))
    if terms.rule is not None:
        seen = seen & terms.rule(query, key, place.n_q, place.n_k)
    return seen


@triton.jit
def look(products, query, key, place, head, bounds, terms, MASKED: tl.constexpr):
    """(scores, seen, bend) of a tile of q·k: who sees whom if MASKED, and ∂(capped)/∂(uncapped), 1 without a cap.

    Scores are not yet −inf where nothing is seen.
    """
    scores = products * head.unit
    seen = query == query
    bend = 1.0
    if MASKED:
        seen = see(query, key, place, bounds, terms)
    if terms.softcap is not None:
        bent = tanh(scores / (terms.softcap * LOG2E))
        scores = bent * (terms.softcap * LOG2E)
        bend = 1.0 - bent * bent
    if terms.slopes is not None:
        scores -= head.slope * tl.abs(key - query - (place.n_k - place.n_q)).to(tl.float32)
    if terms.bias is not None:
        where = head.bias + query.to(tl.int64) * terms.bias_i + key.to(tl.int64) * terms.bias_j
        bias = tl.load(where, mask=seen, other=0)
        if terms.bias.dtype.element_ty.primitive_bitwidth == 8:  # a bool, as bytes
            seen = seen & (bias != 0)
        else:
            bias = bias.to(tl.float32)
            seen = seen & (bias != float("-inf"))
            bias *= LOG2E
            scores += tl.where(bias < -3.4e38, -3.4e38, bias)  # the least numbers would be −inf in base 2; NaN stays
    return scores, seen, bend


@triton.jit
def tanh(x):
    """By its series where 1 − 2/(1 + e²ˣ) would cancel, so that small scores keep all their digits."""
    square = x * x
    tail = 2 / 15 + square * (-17 / 315 + square * (62 / 2835 + square * (-1382 / 155925)))
    series = x * (1.0 + square * (-1 / 3 + square * tail))
    return tl.where(tl.abs(x) < 0.4, series, 1.0 - 2.0 / (1.0 + exp2(x * (2 * LOG2E))))


@triton.jit
def is_kept(query, key, place, number, terms):
    """Whether dropout keeps a weight: first word of Philox 4×32 of (key, query, head, sequence) under the seed."""
    zero = (query + key) * 0
    random, _, _, _ = tl.philox(tl.load(terms.seed), key + zero, query + zero, number + zero, place.sequence + zero)
    return random.to(tl.uint32, bitcast=True).to(tl.int64) < terms.threshold


@triton.jit
def keep_rate(terms):
    """The probability that dropout keeps a weight."""
    return tl.cast(terms.threshold, tl.float32) * (1 / 4294967296)


@triton.jit
def by_score(p, dp, delta, kept, terms):
    """∂L/∂score = p · (z · dp − delta), with delta broadcast over keys already."""
    if kept is not None:
        dp = tl.where(kept, dp / keep_rate(terms), 0.0)
    return p * (dp - delta)
