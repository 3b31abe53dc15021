"""Float8 operands: outside the budget of 16 bits, inside that of eight, and better where outliers are spread."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from quantattn.attention import Mask
from quantattn.attention.problems import random_problem
from quantattn.attention.testing import check, error_budget

pytest.importorskip("triton")
from quantattn.attention.kernels.configs import Config
from quantattn.attention.kernels.generations import float8
from quantattn.attention.kernels.generations.float8 import attend_float8, incoherent, quantised

pytestmark = [
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
    pytest.mark.skipif(
        torch.cuda.is_available() and torch.cuda.get_device_capability() < (9, 0),
        reason="products of float8 need sm_90",
    ),
]


def problem_of(device, causal=False, outliers=False):
    p = random_problem(2, (70,), (75,), d=64, mask=Mask(causal=causal), dtype=torch.float16)
    if outliers:
        rng = torch.Generator().manual_seed(3)

        def rare(x):
            return x + 10 * torch.randn(x.shape, generator=rng).to(x) * (torch.rand(x.shape, generator=rng) < 0.008)

        p = replace(p, q=rare(p.q), k=rare(p.k))
    return p.to(device=device)


def run(p, **options):
    out, lse = attend_float8(*(x[None].contiguous() for x in (p.q, p.k, p.v)), causal=p.mask.causal, **options)
    return {"out": out[0], "lse": lse[0]}


def plain_float8(p):
    """Standard attention with q, k, v and the weights in float8, one scale a tensor."""

    def rounded(x):
        scale = x.float().abs().max() / float8.LARGEST
        return ((x / scale).to(torch.float8_e4m3fn).float() * scale).transpose(0, 1)

    q, k, v = map(rounded, (p.q, p.k, p.v))
    scores = (q @ k.mT * p.scale).masked_fill(~p.mask.visible(q.shape[1], k.shape[1], q.device), -torch.inf)
    weights = torch.exp(scores - scores.amax(-1, keepdim=True))
    out = (weights.to(torch.float8_e4m3fn).float() @ v) / weights.sum(-1, keepdim=True)
    return {"out": out.transpose(0, 1), "lse": torch.logsumexp(scores, -1).T}


def rms(out, truth) -> float:
    return float((out.double() - truth).square().mean().sqrt())


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_it_loses_what_eight_bits_lose(causal, device):
    p = problem_of(device, causal)
    budget = error_budget(p, backward=False)
    plain = plain_float8(p)
    for spread in (False, True):
        found = run(p, spread=spread)
        for part in ("out", "lse"):
            # Half as much again at least is the interpreter's: it rounds to float8 wrongly below 2⁻⁶ and just under 2ⁿ.
            assert rms(found[part], budget.truth[part]) < 2 * rms(plain[part], budget.truth[part])
        assert not check(found, budget)[0].ok  # the budget of 16 bits


def test_spreading_outliers_pays(device):
    """Seen in lse, which the rounding of weights and values does not touch."""
    p = problem_of(device, outliers=True)
    truth = error_budget(p, backward=False).truth["lse"]
    spread, blocks = (rms(run(p, spread=spread)["lse"], truth) for spread in (True, False))
    assert 1.5 * spread < min(blocks, rms(plain_float8(p)["lse"], truth))


def test_scales_that_are_forgotten_show(device, monkeypatch):
    p = problem_of(device)
    truth = error_budget(p, backward=False).truth["out"]
    right = rms(run(p)["out"], truth)

    def without_scales(x, block):
        small, scale = quantised(x, block)
        return small, torch.ones_like(scale)

    monkeypatch.setattr(float8, "quantised", without_scales)
    assert rms(run(p)["out"], truth) > 10 * right


def test_what_is_rounded_comes_back(device):
    x = torch.randn(2, 37, 3, 32, device=device) * torch.logspace(-3, 3, 37, device=device)[:, None, None]
    x[:, 8:16] = 0
    small, scale = quantised(x, 8)
    back = small.float() * scale.transpose(1, 2).repeat_interleave(8, 1)[:, :37, :, None]
    largest = torch.nn.functional.pad(x, (0, 0, 0, 0, 0, 3)).view(2, 5, 8, 3, 32).abs().amax((2, 4))
    assert scale.shape == (2, 3, 5)
    assert ((back - x).abs() <= x.abs() / 16 + largest.repeat_interleave(8, 1)[:, :37, :, None] * 2.0**-18).all()


def test_the_matrix_is_orthogonal(device):
    q, k = torch.randn(2, 5, 1, 64, device=device)
    torch.testing.assert_close(incoherent(q) @ incoherent(k).mT, q @ k.mT, rtol=1e-5, atol=1e-5)
    peak = torch.zeros(64, device=device)
    peak[5] = 8.0
    assert torch.equal(incoherent(peak).abs(), torch.ones(64, device=device))


def test_narrow_products_are_refused():
    x = torch.zeros(1, 8, 1, 16)
    with pytest.raises(ValueError, match="over 32 at least, got head size 16"):
        attend_float8(x, x, x)
    x = torch.zeros(1, 8, 1, 32)
    with pytest.raises(ValueError, match="over 32 at least"):
        attend_float8(x, x, x, blocks=Config(16, 16, 1, 1))
