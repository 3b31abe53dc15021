"""Rotary positions: the kernel, the operator and its gradient beside the formula."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from quantattn.attention import rotate, rotate_heads
from quantattn.attention.rotation import rotate_heads_backward_op, rotate_heads_op

pytest.importorskip("triton")
from quantattn.attention.kernels.rotation import launch_rotation

SHAPES = [(37, 3, 3, 64), (5, 4, 1, 40), (1, 2, 2, 6), (130, 2, 1, 128)]  # T, H, Hkv, D
# The interpreter cuts bfloat16 off where a GPU rounds.
DTYPES = [torch.float32, torch.float16, *([torch.bfloat16] if torch.cuda.is_available() else [])]


def draw(
    rows: int, heads: int, kv_heads: int, d: int, dtype: torch.dtype, device: str
) -> tuple[Tensor, Tensor, Tensor]:
    rng = torch.Generator().manual_seed(rows)
    qkv = torch.randn(rows, heads + 2 * kv_heads, d, generator=rng).to(dtype)
    angle = (torch.rand(rows, 1, d // 2, generator=rng, dtype=torch.float64) * 2 * math.pi).to(device)
    cos, sin = angle.cos().float(), angle.sin().float()
    return qkv.to(device), torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Each pair as a complex number times e^{iφ}, in float64."""
    half = x.shape[-1] // 2
    z = torch.complex(x[..., :half].double(), x[..., half:].double())
    z = z * torch.complex(cos[..., half:].double(), sin[..., half:].double())
    return torch.cat([z.real, z.imag], -1)


def bound(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Three roundings of float32 and one of the dtype, of a number no larger than the pair's length."""
    half = x.shape[-1] // 2
    length = torch.hypot(x[..., :half].double(), x[..., half:].double())
    unit = 2 * torch.finfo(torch.float32).eps + torch.finfo(dtype).eps / 2
    return torch.cat([length, length], -1) * unit + torch.finfo(dtype).tiny


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_kernel_turns_pairs_as_complex_numbers_and_copies_values(device, shape, dtype):
    rows, heads, kv_heads, d = shape
    qkv, cos, sin = draw(*shape, dtype, device)
    qkv[0, -1, 0] = math.nan
    q, k, v = (qkv.new_full((rows, n, d), math.nan) for n in (heads, kv_heads, kv_heads))
    launch_rotation(qkv, q, k, v, cos, sin)
    for got, x in ((q, qkv[:, :heads]), (k, qkv[:, heads : heads + kv_heads])):
        assert ((got.double() - turned(x, cos, sin)).abs() <= bound(x, dtype)).all()
    assert torch.equal(v.nan_to_num(7.0), qkv[:, heads + kv_heads :].nan_to_num(7.0))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_back_is_the_rotation_by_the_negative_angle(device, shape, dtype):
    _, heads, kv_heads, _ = shape
    dqkv, cos, sin = draw(*shape, dtype, device)
    dq, dk, dv = (x.contiguous() for x in torch.split(dqkv, [heads, kv_heads, kv_heads], dim=1))
    found = torch.full_like(dqkv, math.nan)
    launch_rotation(found, dq, dk, dv, cos, sin, back=True)
    both = dqkv[:, : heads + kv_heads]
    assert ((found[:, : heads + kv_heads].double() - turned(both, cos, -sin)).abs() <= bound(both, dtype)).all()
    assert torch.equal(found[:, heads + kv_heads :], dv)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64])
def test_the_operator_is_the_formula_on_the_parts(device, dtype):
    qkv, cos, sin = draw(33, 4, 2, 16, dtype, device)
    q, k, v = rotate_heads(qkv, cos, sin, 4)
    parts = torch.split(qkv, [4, 2, 2], dim=1)
    assert torch.equal(v, parts[2])
    for got, x in ((q, parts[0]), (k, parts[1])):
        torch.testing.assert_close(got, rotate(x, cos, sin))
    assert all(x.is_contiguous() for x in (q, k, v))


def test_gradients_are_those_of_the_formula():
    qkv, cos, sin = draw(5, 2, 1, 6, torch.float64, "cpu")
    qkv.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: rotate_heads(x, cos, sin, 2), (qkv,))
    q, k, v = rotate_heads(qkv, cos, sin, 2)
    by_op = torch.autograd.grad((q * v).sum() + k.square().sum(), qkv)[0]
    a, b, c = torch.split(qkv, [2, 1, 1], dim=1)
    plain = (rotate(a, cos, sin) * c).sum() + rotate(b, cos, sin).square().sum()
    torch.testing.assert_close(by_op, torch.autograd.grad(plain, qkv)[0])


def test_the_operators_keep_the_rules_of_operators(device):
    qkv, cos, sin = draw(7, 2, 1, 8, torch.float32, device)
    torch.library.opcheck(rotate_heads_op, (qkv.requires_grad_(), cos, sin, 2))
    dq, dk, dv = (x.detach().contiguous() for x in torch.split(qkv, [2, 1, 1], dim=1))
    torch.library.opcheck(rotate_heads_backward_op, (dq, dk, dv, cos, sin))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda qkv, cos, sin: (qkv[:, :2], cos, sin, 2), r"qkv must be \(T, 2 \+ 2 Hkv, D\)"),
        (lambda qkv, cos, sin: (qkv[:, :3], cos, sin, 2), "got "),
        (lambda qkv, cos, sin: (qkv[0], cos, sin, 2), "got "),
        (lambda qkv, cos, sin: (qkv, cos[1:], sin, 2), "cos must be float32"),
        (lambda qkv, cos, sin: (qkv, cos, sin.half(), 2), "sin must be float32"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        rotate_heads(*change(*draw(7, 2, 1, 8, torch.float32, "cpu")))


def test_the_kernel_assembles_without_a_spill_and_moves_128_bits_at_a_time():
    # A child, because in this process the kernel may belong to the interpreter.
    script = Path(__file__).parent / "kernels" / "compiling_rotation.py"
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    table = json.loads(done.stdout)
    assert {row["capability"] for row in table} == {80, 90, 100}
    assert not [row for row in table if row["spills"] or not row["wide"]]
