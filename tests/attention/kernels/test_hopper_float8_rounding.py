"""Rounding to eight bits, also in the interpreter, which turns into e4m3 what e4m3 has and little else rightly."""

from __future__ import annotations

import pytest
import torch
from float8_cases import in_order

pytest.importorskip("triton")

from quantattn.attention.float8 import ROWS_K, ROWS_Q, quantise, rotated
from quantattn.attention.kernels.hopper.float8_rounding import rotation, round_inputs


def short(*shape: int, seed: int = 0) -> torch.Tensor:
    """Numbers of e4m3 below 256 in size, and −448 here and there: every block of 64 rows has one, or is all zeros."""
    rng = torch.Generator().manual_seed(seed)
    x = torch.randint(-15, 16, shape, generator=rng) * 2.0 ** torch.randint(-3, 5, shape, generator=rng)
    x[:, ::20, :, 3] = -448
    return x.half()


@pytest.mark.parametrize("d", [40, 64, 72])
def test_what_eight_bits_hold_is_kept_and_every_value_finds_its_place(device: str, d: int) -> None:
    q, k, v = short(2, 300, 2, d), short(2, 150, 1, d, seed=1), short(2, 150, 1, d, seed=2)
    k[:, 64:128] = 0  # a block of zeros has a scale as well
    found = round_inputs(q.to(device), k.to(device), v.to(device), incoherent=False, seed=0)
    for values, x in ((found.q, q), (found.k, k), (in_order(found, 150).values, v)):
        assert torch.equal(values[..., :d].cpu().half(), x)
        assert not values[..., d:].view(torch.uint8).any()
    for scales in (found.q_scale, found.k_scale, found.v_scale):
        assert (scales == 1).all()
    assert found.q_scale.shape == (2, 2, 3)
    assert found.k_scale.shape == (2, 1, 3)


def test_scales_are_those_of_torch(device: str) -> None:
    """Values far apart, more of them than one program finds the largest of; and after a rotation, but for a unit of
    float32 for each of its 64 terms."""
    size = torch.logspace(-4, 3, 1200)[torch.randperm(1200, generator=torch.Generator().manual_seed(0))]
    x = (short(1, 1200, 1, 64) / 448 * size[:, None, None]).half().to(device)
    for incoherent in (False, True):
        found = round_inputs(x, x, x, incoherent=incoherent, seed=7)
        turned = rotated(x, 7) if incoherent else x
        tolerance = 64 * 2.0**-24 if incoherent else 0
        torch.testing.assert_close(found.q_scale, quantise(turned, ROWS_Q).scales, rtol=tolerance, atol=0)
        torch.testing.assert_close(found.k_scale, quantise(turned, ROWS_K).scales, rtol=tolerance, atol=0)
        assert torch.equal(found.v_scale, quantise(x, 1200).scales[..., 0])


def test_a_nan_spoils_its_head_of_values_and_no_other(device: str) -> None:
    x = short(1, 600, 3, 64)
    x[0, 511, 1, 5] = torch.nan  # the last row of those whose largest one program finds
    x[0, 599, 2, 63] = torch.nan
    found = round_inputs(x.to(device), x.to(device), x.to(device), incoherent=False, seed=0)
    assert found.v_scale.isnan().tolist() == [[False, True, True]]


def test_the_matrix_is_that_of_the_rotation() -> None:
    """Up to √D, and orthogonal; another seed has another one."""
    matrix = rotation(64, 3, torch.device("cpu"), torch.float16).double()
    assert torch.equal(matrix @ matrix.T, 64 * torch.eye(64, dtype=torch.float64))
    assert torch.equal(matrix / 8, rotated(torch.eye(64, dtype=torch.float64), 3))
    assert not torch.equal(matrix, rotation(64, 4, torch.device("cpu"), torch.float16).double())
    assert rotation(64, 3, torch.device("cpu"), torch.float16) is rotation(64, 3, torch.device("cpu"), torch.float16)
