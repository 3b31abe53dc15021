"""Eight bits on sm_90: rounding to the bit, and a forward that is its reference in float64 but for float32 and ties."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from float8_cases import in_order, outside

pytest.importorskip("triton")

from quantattn.attention import Attended, Mask
from quantattn.attention.float8 import ROWS_K, ROWS_Q, Quantised, float8_attention, quantise, rotated
from quantattn.attention.float8_errors import HOPPER, draw, float8_errors
from quantattn.attention.kernels.hopper.float8_launch import launch_float8
from quantattn.attention.kernels.hopper.float8_rounding import round_inputs

pytestmark = pytest.mark.gpu
KEYS = 128
SHAPES = {  # data, B, N, Nk, H, Hkv, D
    "shared heads": ("normal", 2, 500, 700, 4, 2, 128),
    "few keys": ("outliers", 1, 300, 77, 2, 1, 64),
    "filled up": ("columns", 3, 129, 300, 2, 2, 96),
    "one key": ("normal", 1, 5, 1, 1, 1, 64),
    "long": ("outliers", 1, 1000, 3000, 2, 2, 128),
    "narrow": ("normal", 2, 193, 257, 2, 2, 16),
}


@pytest.fixture(autouse=True)
def on_hopper() -> None:
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs a GPU of compute capability 9.0")


def drawn(name, dtype=torch.bfloat16):
    data, batch, n_q, n_k, heads, heads_k, d = SHAPES[name]
    parts = [draw(data, n_q, n_k, heads, d, seed) for seed in range(batch)]
    q, k, v = (torch.stack(x).cuda().to(dtype) for x in zip(*parts, strict=True))
    return q, k[:, :, :heads_k], v[:, :, :heads_k]


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("incoherent", [False, True], ids=["as they are", "rotated"])
def test_rounding_is_that_of_torch(name, incoherent):
    """But for a tie of a rotated number, whose sum may have been added in another order."""
    q, k, v = drawn(name)
    found = round_inputs(q, k, v, incoherent=incoherent, seed=3)
    width = found.q.shape[-1]
    q, k, v = (torch.nn.functional.pad(x, (0, width - x.shape[-1])) for x in (q, k, v))
    turned = (rotated(q, 3), rotated(k, 3)) if incoherent else (q, k)
    expected = [quantise(x, rows) for x, rows in zip((*turned, v), (ROWS_Q, ROWS_K, v.shape[1]), strict=True)]
    values = in_order(found, v.shape[1])
    pairs = zip((found.q, found.k, values.values), (found.q_scale, found.k_scale, values.scales), expected, strict=True)
    for bits, scales, want in pairs:
        torch.testing.assert_close(scales, want.scales, rtol=1e-6 if incoherent else 0, atol=0)
        unequal = (bits.view(torch.uint8) != want.values.view(torch.uint8)).double().mean()
        assert unequal <= (1e-3 if incoherent else 0)


@pytest.mark.parametrize(
    ("name", "causal", "dtype"), list(product(SHAPES, (False, True), (torch.float16, torch.bfloat16)))
)
def test_it_computes_the_reference(name, causal, dtype):
    q, k, v = drawn(name, dtype)
    rounded = round_inputs(q, k, v, incoherent=True, seed=0)
    found = launch_float8(rounded, rounded.q.shape[-1] ** -0.5, causal, dtype)
    small = (
        Quantised(rounded.q, rounded.q_scale, ROWS_Q), Quantised(rounded.k, rounded.k_scale, ROWS_K),
        in_order(rounded, k.shape[1]),
    )  # fmt: skip
    unit = torch.finfo(dtype).eps / 2
    assert outside(found, small, causal, KEYS, backwards=True, rounding=unit) == [0, 0]
    if SHAPES[name][0] == "normal":  # a control, coarse as the bound is: what is sharp is the budget below
        wrong = Attended(found.out * 64, found.lse)
        assert outside(wrong, small, causal, KEYS, backwards=True, rounding=unit)[0] > 0


def test_the_public_function_reaches_it_and_repeats():
    """A pack, an empty sequence; a sequence has the same bits in any pack, and every run has them."""
    q, k, v = (x[0] for x in drawn("shared heads"))
    k, v = k[:500], v[:500]
    cu = torch.tensor([0, 70, 70, 500], dtype=torch.int32, device="cuda")
    out, lse = float8_attention(q, k, v, cu, mask=Mask(causal=True), backend="hopper")
    alone = float8_attention(q[70:], k[70:], v[70:], mask=Mask(causal=True))
    assert torch.equal(out[70:], alone.out)
    assert torch.equal(lse[70:], alone.lse)
    for _ in range(20):
        again = float8_attention(q, k, v, cu, mask=Mask(causal=True))
        assert torch.equal(out, again.out)
        assert torch.equal(lse, again.lse)


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_it_is_within_the_budget_of_eight_bits(causal):
    for data in ("normal", "outliers", "columns"):
        rows = {row.how: row for row in float8_errors(data, 600, 700, 2, 128, causal=causal, device="cuda")}
        assert rows[HOPPER].ok, rows
        assert rows[HOPPER].out.rms < 1.1 * rows["float8, by block and rotated"].out.rms


def test_what_it_does_not_take_is_said():
    q, k, v = drawn("one key")
    with pytest.raises(ValueError, match=r"'hopper' of float8_attention needs float16 or bfloat16 and scales by block"):
        float8_attention(q, k, v, per_block=False, backend="hopper")
    with pytest.raises(ValueError, match=r"got torch.float32"):
        float8_attention(q.float(), k.float(), v.float(), backend="hopper")
