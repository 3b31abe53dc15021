"""The eight-bit kernel gives the result of its reference in float64, but for float32 sums and ties of weights."""

from __future__ import annotations

import math

import pytest
import torch

pytest.importorskip("triton")
from quantattn.attention import Mask
from quantattn.attention.float8 import BELOW, ROWS_K, ROWS_Q, attend_quantised, float8_attention, quantise
from quantattn.attention.float8_errors import draw
from quantattn.attention.kernels.generations import float8

pytestmark = [
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
    pytest.mark.skipif(
        torch.cuda.is_available() and torch.cuda.get_device_capability() < (9, 0),
        reason="products of float8 need sm_90",
    ),
]
UNIT = 2.0**-24
# Hopper's matrix units keep fewer bits of a sum of products of float8; 2⁻¹³ of its terms covers what is known of them.
PRODUCT = UNIT if not torch.cuda.is_available() else 2.0**-13


def operands(data, n_q, n_k, d, device):
    q, k, v = (x[None].to(device) for x in draw(data, n_q, n_k, 2, d))
    return quantise(q, ROWS_Q), quantise(k, ROWS_K), quantise(v, n_k)


def by_kernel(small, causal):
    return float8.launch(
        *(part for x in small for part in x[:2]), scale=small[0].values.shape[3] ** -0.5, causal=causal,
        dtype=torch.float32,
    )  # fmt: skip


def allowed(small, causal):
    """How far float32 may be from the reference in float64: (out, lse).

    A score is off by a unit a term of its sum; a weight by that and an exponential, and where this takes it over a tie
    of e4m3, by the whole step there; sums over keys by a unit a term.
    """
    q, k, v = (x.restored(torch.float64).transpose(1, 2) for x in small)
    n_q, n_k, d = q.shape[2], k.shape[2], q.shape[3]
    unit = d**-0.5 / math.log(2)
    hidden = ~Mask(causal=causal).visible(n_q, n_k, q.device)
    scores = (q @ k.mT * unit).masked_fill(hidden, -torch.inf)
    off = (q.abs() @ k.abs().mT * unit * (d * PRODUCT + 6 * UNIT)).masked_fill(hidden, 0)
    highest = [x.amax(-1, keepdim=True) for x in scores.split(ROWS_K, -1)]
    running = torch.cat(highest, -1).cummax(-1).values - BELOW
    last = running[..., -1:]
    running = running.repeat_interleave(ROWS_K, -1)[..., :n_k]
    p = torch.exp2(scores - running).nan_to_num()
    off = math.log(2) * (off + off.amax(-1, keepdim=True)) + 16 * UNIT
    step = ((p * (1 + off)).to(torch.float8_e4m3fn).double() - (p * (1 - off)).to(torch.float8_e4m3fn).double()).abs()
    carried = torch.exp2(running - last).nan_to_num()
    mass = (p * carried).sum(-1, keepdim=True)
    terms = (n_k + ROWS_K) * max(UNIT, PRODUCT * ROWS_K / n_k)
    moved = (step + p * (terms + off.amax(-1, keepdim=True))) * carried
    out = moved @ v.abs() / mass.where(mass > 0, 1)
    lse = off.amax(-1) + (n_k + 8) * UNIT
    return out.transpose(1, 2), lse.transpose(1, 2)


def outside(found, small, causal):
    """Numbers of (out, lse) that are further off than they may."""
    truth = attend_quantised(*small, small[0].values.shape[3] ** -0.5, causal, torch.float64)
    empty = truth.lse == -torch.inf
    assert torch.equal(found.lse == -torch.inf, empty)
    assert (found.out[empty] == 0).all()
    out, lse = allowed(small, causal)
    gaps = (found.out - truth.out).abs(), (found.lse - truth.lse).where(~empty, 0).abs()
    return [int((~(gap <= may)).sum()) for gap, may in zip(gaps, (out, lse), strict=True)]


@pytest.mark.parametrize(
    ("data", "n_q", "n_k", "d", "causal"),
    [("normal", 150, 200, 64, False), ("outliers", 200, 150, 32, True), ("columns", 40, 300, 128, True)],
)
def test_it_computes_the_reference(data, n_q, n_k, d, causal, device):
    small = operands(data, n_q, n_k, d, device)
    assert outside(by_kernel(small, causal), small, causal) == [0, 0]


def test_a_scale_that_is_off_in_the_last_block_shows(device):
    small = operands("normal", 40, 200, 32, device)
    for i in range(3):
        wrong = list(small)
        scales = small[i].scales.clone()
        scales[..., -1] *= 8
        wrong[i] = small[i]._replace(scales=scales)
        assert outside(by_kernel(wrong, False), small, False)[0] > 100


def test_the_public_function_reaches_it(device):
    """Shared heads, a head size filled up, an empty sequence; within float32 and ties of torch's."""
    q, k, v = (x.to(device) for x in draw("normal", 90, 90, 4, 24))
    k, v = k[:, :2], v[:, :2]
    cu = torch.tensor([0, 70, 70, 90], dtype=torch.int32, device=device)
    (out, lse), (other, other_lse) = (
        float8_attention(q, k, v, cu, mask=Mask(causal=True), backend=backend) for backend in ("triton", "tiled")
    )
    torch.testing.assert_close(lse, other_lse, rtol=1e-5, atol=1e-5 if PRODUCT == UNIT else 1e-2)
    # Few weights cross a tie; one that does moves by an eighth.
    assert ((out - other).abs() > (1e-5 if PRODUCT == UNIT else 1e-2)).double().mean() < 0.02
    assert (out - other).abs().max() < 0.2
