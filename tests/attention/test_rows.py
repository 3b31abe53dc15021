"""What lies between an encoder's products: kernels, operators and gradients beside the formulas."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from quantattn.attention import add_norm, add_norm_linear, swiglu_linear
from quantattn.attention.norm import add_norm_backward_op, add_norm_linear_op, add_norm_op
from quantattn.attention.swiglu import swiglu_backward_op, swiglu_linear_op, swiglu_op

pytest.importorskip("triton")
from quantattn.attention.kernels.norm import launch_add_norm, launch_add_norm_backward
from quantattn.attention.kernels.swiglu import launch_swiglu, launch_swiglu_backward

SHAPES = [(13, 33), (6, 96), (1, 5)]  # T, C or F
# The interpreter cuts bfloat16 off where a GPU rounds.
DTYPES = [torch.float32, torch.float16, *([torch.bfloat16] if torch.cuda.is_available() else [])]
EPS = 1e-6


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def within_torchs_error(found: Tensor, torchs: Tensor, truth: Tensor) -> bool:
    """No farther from float64 than torch's own in the same dtypes, but for one rounding of the largest."""
    unit = truth.abs().max().item() * max(torch.finfo(found.dtype).eps / 2, torch.finfo(torch.float32).eps)
    return bool((found.double() - truth).abs().max() <= (torchs.double() - truth).abs().max() + unit)


def by_formula(inputs: Sequence[Tensor], upstream: Sequence[Tensor], wide: bool) -> list[Tensor]:
    """Sum, normalised rows in the branch's dtype, and the gradients of x, branch and gain."""
    x, branch, gain = leaves = [(t.double() if wide else t.clone()).requires_grad_() for t in inputs]
    total = x + branch
    normed = functional.rms_norm(total, gain.shape, gain, EPS)
    normed = normed if wide else normed.to(branch.dtype)
    back = torch.autograd.grad(
        (total, normed), leaves, [d.to(o.dtype) for d, o in zip(upstream, (total, normed), strict=True)]
    )
    return [total.detach(), normed.detach(), *back]


def by_kernel(inputs: Sequence[Tensor], upstream: Sequence[Tensor], parts: bool = True) -> list[Tensor]:
    """The same by the kernels; and the normalised rows, computed again."""
    x, branch, gain = inputs
    total, normed, scale = (torch.full_like(t, math.nan) for t in (x, branch, x[:, 0]))
    launch_add_norm(x, branch, gain, total, normed, scale, EPS)
    dx, dbranch, again = (torch.full_like(t, math.nan) for t in (x, branch, branch))
    kept = (x, branch) if parts else (total, None)
    dgain = launch_add_norm_backward(upstream[1], upstream[0], *kept, gain, scale, dx, dbranch, again)
    return [total, normed, dx, dbranch, dgain, again]


def drawn(shape: tuple[int, int], dtype: torch.dtype, device: str) -> tuple[list[Tensor], list[Tensor]]:
    x, branch, dtotal, dnormed = (normal(*shape, seed=seed).to(device) for seed in range(4))
    gain = (1 + 0.1 * normal(shape[1])).to(device)
    return [x, branch.to(dtype), gain], [dtotal, dnormed.to(dtype)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_norm_loses_no_more_than_torchs(device: str, shape: tuple[int, int], dtype: torch.dtype) -> None:
    inputs, upstream = drawn(shape, dtype, device)
    found = by_kernel(inputs, upstream)
    truth, torchs = (by_formula(inputs, upstream, wide) for wide in (True, False))
    for got, theirs, true in zip(found, torchs, truth, strict=False):
        assert got.dtype == theirs.dtype
        assert within_torchs_error(got, theirs, true)
    assert torch.equal(found[5], found[1])  # of the rows again
    assert all(torch.equal(a, b) for a, b in zip(found, by_kernel(inputs, upstream, parts=False), strict=True))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_stream_of_few_bits_is_rounded_before_it_is_normalised(device: str, dtype: torch.dtype) -> None:
    (x, branch, gain), (dtotal, dnormed) = drawn((7, 40), dtype, device)
    inputs, upstream = [x.to(dtype), branch, gain.to(dtype)], [dtotal.to(dtype), dnormed]
    found = by_kernel(inputs, upstream)
    assert torch.equal(found[0], inputs[0] + inputs[1])
    normed, scale = torch.full_like(branch, math.nan), torch.empty(7, device=device)
    launch_add_norm(found[0], None, inputs[2], None, normed, scale, EPS)
    assert torch.equal(found[1], normed)


def test_without_a_branch_nothing_is_added_and_nothing_comes_back_for_it(device: str) -> None:
    (x, _, gain), (_, dnormed) = drawn((9, 24), torch.float32, device)
    zero = torch.zeros_like(x)
    with_zero = by_kernel([x, zero, gain], [zero, dnormed])
    normed, scale, dx = torch.full_like(x, math.nan), torch.full_like(x[:, 0], math.nan), torch.full_like(x, math.nan)
    launch_add_norm(x, None, gain, None, normed, scale, EPS)
    dgain = launch_add_norm_backward(dnormed, None, x, None, gain, scale, dx, None, None)
    assert torch.equal(normed, with_zero[1])
    assert torch.equal(dx, with_zero[2])
    assert torch.equal(dgain, with_zero[4])


def test_a_row_has_the_same_bits_among_any_rows_and_at_any_address(device: str) -> None:
    (x, branch, gain), _ = drawn((11, 33), torch.float16, device)
    scale, whole, total = torch.empty(11, device=device), torch.empty_like(branch), torch.empty_like(x)
    launch_add_norm(x, branch, gain, total, whole, scale, EPS)
    for rows in (slice(0, 1), slice(3, 4), slice(5, 11)):
        part = torch.empty_like(branch[rows])
        count = len(part)
        launch_add_norm(x[rows], branch[rows], gain, total[:count], part, scale[:count], EPS)
        assert torch.equal(part, whole[rows])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_swiglu_loses_no_more_than_torchs(device: str, shape: tuple[int, int], dtype: torch.dtype) -> None:
    rows, f = shape
    x, dout = (5 * normal(rows, 2 * f)).to(device, dtype), normal(rows, f).to(device, dtype)
    out, again, dx = (torch.full_like(t, math.nan) for t in (dout, dout, x))
    launch_swiglu(x, out)
    launch_swiglu_backward(dout, x, dx, again)

    def formula(wide: torch.dtype) -> tuple[Tensor, Tensor]:
        leaf = x.to(wide).requires_grad_()
        gate, value = leaf.chunk(2, 1)
        made = functional.silu(gate) * value
        return made.detach(), torch.autograd.grad(made, leaf, dout.to(wide))[0]

    for got, theirs, true in zip((out, dx), formula(dtype), formula(torch.float64), strict=True):
        assert within_torchs_error(got, theirs, true)
    assert torch.equal(again, out)


@pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning")  # of the interpreter
@pytest.mark.parametrize("dtype", DTYPES)
def test_swiglu_of_what_is_far_out_is_its_limit(device: str, dtype: torch.dtype) -> None:
    gate = torch.tensor([-1e4, -200.0, -0.0, 0.0, 200.0, 1e4, math.inf, math.nan], device=device).to(dtype)[:, None]
    x, out = torch.cat([gate, torch.ones_like(gate)], 1), torch.full_like(gate, 7.0)
    launch_swiglu(x, out)
    dx = torch.full_like(x, 7.0)
    launch_swiglu_backward(torch.ones_like(out), x, dx, None)
    assert torch.equal(out[:-1], gate.clamp(min=0)[:-1])
    assert dx[:6, 0].tolist() == [0, 0, 0.5, 0.5, 1, 1]
    assert bool(out[-1].isnan() & dx[-1].isnan().all())


def test_gradients_are_those_of_the_formulas() -> None:
    x, branch = (normal(5, 6, seed=seed).double().requires_grad_() for seed in (0, 1))
    gain, weight = (1 + 0.1 * normal(6)).double().requires_grad_(), normal(4, 6).double().requires_grad_()
    for parts in (False, True):
        assert torch.autograd.gradcheck(
            lambda *given, parts=parts: add_norm_linear(*given[:3], EPS, given[3], keep_parts=parts),
            (x, branch, gain, weight),
        )
    assert torch.autograd.gradcheck(
        lambda *given: add_norm_linear(given[0], None, given[1], EPS, given[2])[1], (x, gain, weight)
    )
    assert torch.autograd.gradcheck(lambda *given: add_norm(*given, EPS, torch.float64), (x, branch, gain))
    up, down = normal(5, 6).double().requires_grad_(), normal(4, 3).double().requires_grad_()
    assert torch.autograd.gradcheck(swiglu_linear, (up, down))
    assert torch.autograd.gradcheck(swiglu_op, (up,))
    truth = functional.linear(functional.rms_norm(x + branch, (6,), gain, EPS), weight)
    torch.testing.assert_close(add_norm_linear(x, branch, gain, EPS, weight)[1], truth)
    gate, value = up.chunk(2, 1)
    torch.testing.assert_close(swiglu_linear(up, down), functional.linear(functional.silu(gate) * value, down))


def test_frozen_weights_have_no_gradient_and_the_rest_has_the_same(device: str) -> None:
    (x, branch, gain), _ = drawn((5, 8), torch.float32, device)
    weight = normal(6, 8).to(device)
    found = []
    for frozen in (False, True):
        leaves = [t.clone().requires_grad_() for t in (x, branch, gain)]
        own = weight.clone().requires_grad_(not frozen)
        total, y = add_norm_linear(*leaves, EPS, own)
        z = swiglu_linear(y, own[:, :3] if not frozen else weight[:, :3])
        (total.sum() + z.sin().sum()).backward()
        found.append([t.grad for t in leaves])
        assert (own.grad is None) == frozen
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_neither_normalised_rows_nor_products_are_kept() -> None:
    (x, branch, gain), _ = drawn((64, 8), torch.bfloat16, "cpu")
    gain.requires_grad_()
    weight = normal(16, 8).bfloat16().requires_grad_()

    def kept(call: Any) -> int:
        sizes = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t: sizes.append(t.nbytes if t.shape[0] == 64 else 0), lambda t: t
        ):
            call()
        return sum(sizes)

    row, product = 4 * 64, torch.randn(64, 16).bfloat16()
    assert kept(lambda: add_norm_linear(x, branch, gain, EPS, weight)) == x.nbytes + row
    assert (
        kept(lambda: add_norm_linear(x, branch, gain, EPS, weight, keep_parts=True)) == x.nbytes + branch.nbytes + row
    )
    assert kept(lambda: swiglu_linear(product, weight)) == product.nbytes


def test_the_operators_keep_the_rules_of_operators(device: str) -> None:
    (x, branch, gain), (dtotal, dnormed) = drawn((7, 8), torch.float32, device)
    weight, scale = normal(6, 8).to(device), torch.ones(7, device=device)
    leaves = [t.requires_grad_() for t in (x, branch, gain)]
    torch.library.opcheck(add_norm_op, (x, branch, gain, EPS, torch.float32))
    torch.library.opcheck(add_norm_linear_op, (x, branch, gain, weight.requires_grad_(), EPS, True, False))
    torch.library.opcheck(add_norm_linear_op, (x, None, gain, weight, EPS, False, False))
    x, branch, gain = (t.detach() for t in leaves)
    torch.library.opcheck(add_norm_backward_op, (dnormed, dtotal, x, branch, gain, scale, torch.float16, True))
    torch.library.opcheck(add_norm_backward_op, (dnormed, None, x, None, gain, scale, None, False))
    up, down = normal(7, 16).to(device).requires_grad_(), normal(6, 8).to(device).requires_grad_()
    torch.library.opcheck(swiglu_op, (up,))
    torch.library.opcheck(swiglu_linear_op, (up, down, False))
    torch.library.opcheck(swiglu_backward_op, (dnormed, up.detach(), True))


def test_second_derivatives_are_refused_in_a_sentence() -> None:
    (x, branch, gain), _ = drawn((3, 8), torch.float32, "cpu")
    x.requires_grad_()
    for made in (add_norm_linear(x, branch, gain, EPS, normal(4, 8))[1], swiglu_linear(x, normal(4, 4))):
        (dx,) = torch.autograd.grad(made.square().sum(), x, create_graph=True)
        with pytest.raises(RuntimeError, match="first derivatives only"):
            dx.sum().backward()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x, w: add_norm(x, x[:2], w[0], EPS, x.dtype), r"got \(3, 8\), \(2, 8\), \(8,\)"),
        (lambda x, w: add_norm(x, None, w[0, :3], EPS, x.dtype), r"got \(3, 8\), \(3,\)"),
        (lambda x, w: add_norm_linear(x[None], None, w[0], EPS, w), r"must be \(T, C\)"),
        (lambda x, w: add_norm_linear(x, None, w[0], EPS, w[:, :4]), r"weight must be \(N, 8\), got \(6, 4\)"),
        (lambda x, w: swiglu_linear(x, w), r"must be \(T, 2 F\) and \(N, F\), got \(3, 8\) and \(6, 8\)"),
    ],
)
def test_shapes_that_do_not_fit_together_are_refused(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(normal(3, 8), normal(6, 8))


def test_the_kernels_assemble_without_a_spill_and_move_128_bits_at_a_time() -> None:
    # A child, because in this process the kernels may belong to the interpreter.
    script = Path(__file__).parent / "kernels" / "compiling_rows.py"
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    table = json.loads(done.stdout)
    assert {row["capability"] for row in table} == {80, 90, 100}
    # Sums across warps take some bytes of shared memory; changing from one layout to another would take a row's.
    assert not [row for row in table if row["spills"] or not row["wide"] or row["shared"] > 256]
    # With up to 192 a multiprocessor holds five programs of two warps, whose loads hide each other.
    assert not [row for row in table if row["registers"] > (192 if row["kernel"] == "norm back" else 64)]
