"""The eight-bit kernel gives the result of its reference in float64, but for float32 sums and ties of weights."""

from __future__ import annotations

import pytest
import torch
from float8_cases import PRODUCT, UNIT, outside, reference

pytest.importorskip("triton")
from quantattn.attention import Mask
from quantattn.attention.float8 import ROWS_K, ROWS_Q, attend_quantised, float8_attention, quantise
from quantattn.attention.float8_errors import draw
from quantattn.attention.kernels.generations import float8

pytestmark = [
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
    pytest.mark.skipif(
        torch.cuda.is_available() and torch.cuda.get_device_capability() < (9, 0),
        reason="products of float8 need sm_90",
    ),
]


def operands(data, n_q, n_k, d, device):
    q, k, v = (x[None].to(device) for x in draw(data, n_q, n_k, 2, d))
    return quantise(q, ROWS_Q), quantise(k, ROWS_K), quantise(v, n_k)


def by_kernel(small, causal):
    return float8.launch(
        *(part for x in small for part in x[:2]), scale=small[0].values.shape[3] ** -0.5, causal=causal,
        dtype=torch.float32,
    )  # fmt: skip


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_the_reference_is_that_of_torch(causal, device):
    """Two ways to write it down, in float64."""
    small = operands("outliers", 90, 200, 32, device)
    one = reference(small, causal)
    other = attend_quantised(*small, 32**-0.5, causal, torch.float64)
    assert torch.equal(one.lse == -torch.inf, other.lse == -torch.inf)
    torch.testing.assert_close(one.lse, other.lse, rtol=1e-12, atol=1e-12)
    # A weight on a tie may fall to either side.
    assert ((one.out - other.out).abs() > 1e-12).double().mean() < 0.01


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
