"""The specification against torch's own attention and against finite differences."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from quantattn.attention.api import attention
from quantattn.attention.exact import exact_attention, standard_attention
from quantattn.attention.mask import Mask
from quantattn.attention.problems import random_problem
from quantattn.attention.seen import seen_scores, seen_sum, visible_block
from quantattn.attention.testing import run

MASKS = (Mask(), Mask(causal=True), Mask(window=(3, 1)), Mask(causal=True, window=(2, 5)), Mask(window=(None, 2)))


@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize("bias", ["none", "key", "full"])
def test_it_is_torch_attention_of_each_sequence(mask: Mask, bias: str) -> None:
    p = random_problem(0, (5, 8), (9, 8), heads=6, heads_k=2, d=7, mask=mask, bias=bias, dtype=torch.float64)  # type: ignore[arg-type]
    out = run(exact_attention, p, backward=False)["out"]
    for n, (rows, columns) in enumerate(((slice(0, 5), slice(0, 9)), (slice(5, 13), slice(9, 17)))):
        q, k, v = (x.transpose(0, 1) for x in (p.q[rows], p.k[columns], p.v[columns]))
        added = torch.zeros(6, q.shape[1], k.shape[1], dtype=torch.float64)
        if p.bias is not None:
            added += p.bias[n if bias == "full" else 0, :, : q.shape[1], : k.shape[1]]
        added = added.masked_fill(~mask.visible(q.shape[1], k.shape[1]), -torch.inf)
        expected = scaled_dot_product_attention(q, k, v, attn_mask=added, enable_gqa=True)
        torch.testing.assert_close(out[rows], expected.transpose(0, 1).nan_to_num(0), rtol=1e-12, atol=1e-12)


def test_its_gradients_are_its_slopes_twice_over() -> None:
    p = random_problem(1, (3, 0, 4), (5, 0, 2), heads=4, heads_k=2, d=3, mask=Mask(causal=True), dtype=torch.float64)
    leaves = [x.clone().requires_grad_() for x in (p.q, p.k, p.v, torch.randn(1, 4, 1, 5, dtype=torch.float64))]

    def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        out, lse = exact_attention(q, k, v, p.cu_seqlens, p.cu_seqlens_k, mask=p.mask, bias=bias, scale=0.3)
        return out, lse.where(lse.isfinite(), 0)

    assert torch.autograd.gradcheck(attend, leaves)
    assert torch.autograd.gradgradcheck(attend, leaves)


def test_the_products_of_visible_pairs_have_the_gradients_of_masked_products() -> None:
    """Also with a gradient that comes back to hidden pairs."""
    rng = torch.Generator().manual_seed(4)
    q, k, v = (torch.randn(2, n, 3, dtype=torch.float64, generator=rng).requires_grad_() for n in (4, 5, 5))
    seen = torch.rand(2, 4, 5, generator=rng) < 0.6
    pairs = q @ k.mT * seen
    assert torch.equal(seen_scores(q, k, seen), pairs)
    assert torch.equal(seen_sum(pairs, v, seen), pairs @ v)
    g = torch.randn(2, 4, 5, dtype=torch.float64, generator=rng)
    torch.testing.assert_close(
        torch.autograd.grad(seen_scores(q, k, seen), (q, k), g), torch.autograd.grad(pairs, (q, k), g)
    )
    assert torch.autograd.gradgradcheck(lambda *x: seen_sum(seen_scores(x[0], x[1], seen), x[2], seen), (q, k, v))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sixteen_bit_results_are_the_float32_results_rounded_once(dtype: torch.dtype) -> None:
    p = random_problem(2, (13,), heads=2, dtype=dtype)
    sixteen, thirty_two = run(exact_attention, p), run(exact_attention, p.to(torch.float32))
    for name in ("out", "lse", "dq", "dk", "dv"):
        assert torch.equal(sixteen[name], thirty_two[name].to(sixteen[name].dtype))
    assert sixteen["lse"].dtype == torch.float32


def test_standard_attention_rounds_on_the_way_and_exact_does_not() -> None:
    p = random_problem(3, (64,), heads=2, dtype=torch.bfloat16)
    truth = run(exact_attention, p.to(torch.float64), backward=False)["out"]
    exact, standard = (run(f, p, backward=False)["out"].double() for f in (exact_attention, standard_attention))
    assert (exact - truth).abs().mean() < 0.5 * (standard - truth).abs().mean()


@pytest.mark.parametrize("mask", MASKS, ids=str)
def test_a_visible_block_is_a_block_of_the_mask(mask: Mask) -> None:
    """Every block of every small matrix; None exactly where all of the block is visible."""
    for n_q, n_k in ((4, 4), (3, 6), (6, 2)):
        whole = mask.visible(n_q, n_k)
        for first in range(n_q):
            for last in range(first + 1, n_q + 1):
                for start in range(n_k):
                    for stop in range(start + 1, n_k + 1):
                        seen = visible_block(mask, (first, last), (start, stop), n_q, n_k, torch.device("cpu"))
                        expected = whole[first:last, start:stop]
                        assert (seen is None) == bool(expected.all())
                        assert seen is None or torch.equal(seen, expected)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy under the interpreter, where −inf and NaN are
@pytest.mark.parametrize("backend", ["tiled", "triton"])
def test_a_sink_that_is_nan_makes_every_row_of_its_head_nan(backend: str, device: str) -> None:
    """Also a row that sees no key, whose whole sum the sink is."""
    if backend == "triton":
        pytest.importorskip("triton")
    p = random_problem(
        3, (5,), (3,), heads=2, heads_k=2, d=16, mask=Mask(causal=True), extras=("sinks",), device=device
    )
    found = []
    for name in ("exact", backend):
        leaves = [x.detach().requires_grad_() for x in (p.q, p.k, p.v, torch.tensor([math.nan, 0.5], device=device))]
        out, lse = attention(*leaves[:3], mask=p.mask, sinks=leaves[3], backend=name)
        found.append([out, lse, *torch.autograd.grad(out.square().sum() + lse.sum(), leaves)])
        assert out[:, 0].isnan().all()
        assert lse[:, 0].isnan().all()
        assert found[-1][-1][0].isnan()
        assert all(x[:, 1].isfinite().all() for x in found[-1][:-1])
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-5, equal_nan=True)
