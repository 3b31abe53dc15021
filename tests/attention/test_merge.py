"""Results over disjoint keys put together again."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from quantattn import Attended, attention, merge_attention


def draw(n_k: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    rng = torch.Generator().manual_seed(n_k)
    shapes = ((5, 4, 8), (n_k, 2, 8), (n_k, 2, 8))
    return [torch.randn(*shape, generator=rng, dtype=torch.float64).to(dtype).requires_grad_() for shape in shapes]


def in_parts(q: Tensor, k: Tensor, v: Tensor, cuts: list[int]) -> list[Attended]:
    edges = [0, *cuts, k.shape[0]]
    return [attention(q, k[a:b], v[a:b]) for a, b in pairwise(edges)]


@pytest.mark.parametrize("cuts", [[], [3], [1, 2, 9], [4, 4], [0, 11]])
def test_any_cut_of_the_keys_gives_attention_over_all_of_them(cuts: list[int]) -> None:
    q, k, v = draw(11)
    whole, merged = attention(q, k, v), merge_attention(in_parts(q, k, v, cuts))
    torch.testing.assert_close(merged.out, whole.out, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(merged.lse, whole.lse, rtol=1e-12, atol=1e-12)
    seeds = [torch.randn_like(whole.out), torch.randn_like(whole.lse)]
    pairs = (torch.autograd.grad(list(result), [q, k, v], seeds) for result in (whole, merged))
    for expected, found in zip(*pairs, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-11)


def test_the_average_of_the_parts_is_another_number() -> None:
    q, k, v = draw(11)
    parts = in_parts(q, k, v, [3])
    assert (torch.stack([p.out for p in parts]).mean(0) - merge_attention(parts).out).abs().max() > 0.01


def test_sixteen_bits_are_rounded_once() -> None:
    q, k, v = draw(40, torch.bfloat16)
    parts = in_parts(q, k, v, [10, 20, 30])
    merged = merge_attention(parts)
    assert merged.out.dtype == torch.bfloat16
    wide = merge_attention([Attended(p.out.double(), p.lse.double()) for p in parts])
    torch.testing.assert_close(merged.out.double(), wide.out, rtol=2**-8, atol=1e-6)


def test_what_cannot_be_merged() -> None:
    q, k, v = draw(6)
    part = attention(q, k, v)
    with pytest.raises(ValueError, match="at least one part"):
        merge_attention([])
    with pytest.raises(ValueError, match=r"one shape merge, got u \(5, 4, 8\) and \(4, 4, 8\)"):
        merge_attention([part, Attended(part.out[1:], part.lse[1:])])
