"""Which weights dropout keeps: a pure function of (seed, sequence, head, query, key), the same for every tiling.

A weight is kept where the first word of Philox 4×32 with ten rounds (Salmon et al. 2011, "Parallel random numbers: as
easy as 1, 2, 3"), of the counter (key, query, head, sequence) under the key `seed`, is below (1 − p)·2³². Nothing is
stored for the backward but the seed.
"""

from __future__ import annotations

import torch
from torch import Tensor

_WORD = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)


def threshold(dropout: float) -> int:
    """How many of the 2³² words keep a weight."""
    return max(1, round((1.0 - dropout) * 2**32))


def kept_weights(
    seed: Tensor, dropout: float, sequence: int, heads: tuple[int, int], queries: tuple[int, int], keys: tuple[int, int]
) -> Tensor:
    """(heads, queries, keys) bool of half-open ranges, counted inside the sequence: the mask written out.

    Args:
        seed: (1,) int64.
        dropout: probability that a weight is dropped, in [0, 1).
        sequence: its number in the pack or batch.
        heads: query heads.
        queries: rows.
        keys: columns.
    """
    device = seed.device
    h, i, j = (torch.arange(*r, device=device) for r in (heads, queries, keys))
    shape = (len(h), len(i), len(j))
    n = torch.full((), sequence, device=device)
    c0, c1, c2, c3 = (x.expand(shape) for x in (j, i[:, None], h[:, None, None], n))
    return philox(seed, c0, c1, c2, c3) < threshold(dropout)


def philox(seed: Tensor, c0: Tensor, c1: Tensor, c2: Tensor, c3: Tensor, rounds: int = 10) -> Tensor:
    """First word of Philox 4×32, int64 in [0, 2³²); counters int64 in [0, 2³²) of one shape, seed (1,) int64."""
    k0, k1 = seed & _WORD, (seed >> 32) & _WORD
    for _ in range(rounds):
        high0, low0 = _product(c0, _MULTIPLIERS[0])
        high2, low2 = _product(c2, _MULTIPLIERS[1])
        c0, c1, c2, c3 = high2 ^ c1 ^ k0, low2, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + _WEYL[0]) & _WORD, (k1 + _WEYL[1]) & _WORD
    return c0


def _product(a: Tensor, b: int) -> tuple[Tensor, Tensor]:
    """High and low word of a 32 × 32 bit product, in halves since int64 has no room for its sign."""
    return (a * (b >> 16) + ((a * (b & 0xFFFF)) >> 16)) >> 16, (a * b) & _WORD
