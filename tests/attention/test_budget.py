"""A right implementation is inside the error budget, a slightly wrong one is far outside."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from quantattn.attention import rounding, testing
from quantattn.attention.exact import exact_attention, standard_attention
from quantattn.attention.mask import Mask
from quantattn.attention.problems import Problem, any_problem, random_problem
from quantattn.attention.state import Attended, AttentionState
from quantattn.attention.testing import Budget, check, error_budget, run

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def problem(dtype: torch.dtype, **options: Any) -> Problem:
    settings: dict[str, Any] = {
        "lengths": (61, 0, 35),
        "heads": 4,
        "heads_k": 2,
        "mask": Mask(causal=True),
        "dlse": True,
    }
    return random_problem(0, dtype=dtype, **(settings | options))


def forgets_a_key(*args: Tensor, **options: Any) -> Attended:
    """Every query of the first sequence misses the first key."""
    bias = torch.zeros(1, 1, 1, 61)
    bias[..., 0] = -torch.inf
    return exact_attention(*args, **options | {"bias": bias})


def scales_one_percent_off(*args: Tensor, **options: Any) -> Attended:
    return exact_attention(*args, **options | {"scale": options["scale"] * 1.01})


def aligned_one_off(*args: Tensor, **options: Any) -> Attended:
    return exact_attention(*args, **options | {"mask": Mask(window=(None, 1))})


def lse_in_base_two(*args: Tensor, **options: Any) -> Attended:
    out, lse = exact_attention(*args, **options)
    return Attended(out, lse / torch.log(torch.tensor(2.0)))


def no_gradient_through_lse(*args: Tensor, **options: Any) -> Attended:
    out, lse = exact_attention(*args, **options)
    return Attended(out, lse.detach().requires_grad_())


def weights_in_eight_bits(*args: Tensor, **options: Any) -> Attended:
    q, k, v, *offsets = args
    return exact_attention(q, k, v.to(torch.float8_e4m3fn).to(v.dtype), *offsets, **options)


def one_nan(*args: Tensor, **options: Any) -> Attended:
    out, lse = exact_attention(*args, **options)
    return Attended(out.index_fill(0, torch.tensor([3]), torch.nan), lse)


@dtypes
@pytest.mark.parametrize("backend", [exact_attention, standard_attention])
def test_exact_and_standard_attention_are_inside(dtype: torch.dtype, backend: testing.Backend) -> None:
    p = problem(dtype, bias="full")
    rows = check(run(backend, p), error_budget(p))
    assert [row.name for row in rows] == ["out", "lse", "dq", "dk", "dv", "dbias"]
    assert all(row.ok for row in rows), rows


@dtypes
@pytest.mark.parametrize(
    ("wrong", "first"),
    [
        (forgets_a_key, "out"),
        (scales_one_percent_off, "lse"),
        (aligned_one_off, "out"),
        (lse_in_base_two, "lse"),
        (no_gradient_through_lse, "dq"),
        (weights_in_eight_bits, "out"),
        (one_nan, "out"),
    ],
)
def test_a_wrong_implementation_is_outside(dtype: torch.dtype, wrong: Callable[..., Attended], first: str) -> None:
    p = problem(dtype)
    failed = [row.name for row in check(run(wrong, p), error_budget(p)) if not row.ok]
    assert first in failed


def test_adding_sums_of_different_references_is_outside() -> None:
    p = problem(torch.float32, lengths=(40,), mask=None, heads_k=4, dlse=False)

    def unrescaled(q: Tensor, k: Tensor, v: Tensor, *_: Tensor, scale: float, **__: Any) -> Attended:
        q, k, v = (x.transpose(0, 1) for x in (q, k, v))
        scores = q @ k.mT * scale
        a, b = (AttentionState.of_block(scores[..., s], v[:, s]) for s in (slice(20), slice(20, 40)))
        out, lse = AttentionState(a.m, a.l + b.l, a.u + b.u).finish()
        return Attended(out.transpose(0, 1), lse.transpose(0, 1))

    assert not any(row.ok for row in check(run(unrescaled, p), error_budget(p)))


def test_lse_must_be_minus_infinity_exactly_where_nothing_is_seen() -> None:
    p = problem(torch.float32, lengths=(5,), lengths_k=(3,))
    budget = error_budget(p, backward=False)
    results = run(exact_attention, p, backward=False)
    assert all(row.ok for row in check(results, budget))
    for value in (-1e30, torch.nan, torch.inf):
        lse = results["lse"].where(results["lse"] != -torch.inf, value)
        (row,) = check({"lse": lse}, budget)
        assert not row.ok


@pytest.mark.parametrize("bias", ["none", "key", "full"])
def test_the_truth_does_not_depend_on_how_many_heads_are_taken_at_a_time(
    monkeypatch: pytest.MonkeyPatch, bias: str
) -> None:
    p = problem(torch.bfloat16, bias=bias)
    whole = error_budget(p)
    monkeypatch.setattr(testing, "_ELEMENTS_AT_ONCE", 1)
    pieces = error_budget(p)
    truth = run(exact_attention, p.to(torch.float64))
    for name, value in whole.truth.items():
        torch.testing.assert_close(value, pieces.truth[name], rtol=1e-12, atol=1e-13)
        assert value.dtype == torch.float64
        loose = 1e-6 if name == "dbias" else 1e-12  # the bias of the problem is float32
        torch.testing.assert_close(value, truth[name].double(), rtol=loose, atol=loose)
        assert whole.standard[name] == pytest.approx(pieces.standard[name], rel=0.25)


def test_the_ratio_is_in_units_of_standard_attention() -> None:
    budget = Budget({"out": torch.zeros(4).double()}, {"out": (0.5, 0.1)}, {"out": (1.0, 0.25)})

    def row(*values: float) -> testing.Row:
        return check({"out": torch.tensor(values)}, budget)[0]

    assert row(1.0, 0.0, 0.0, 0.0) == testing.Row("out", 1.0, 0.25, 1.0, 2.0, True)
    assert not row(1.1, 0.0, 0.0, 0.0).ok  # the worst is too large
    assert not row(0.9, 0.9, 0.0, 0.0).ok  # the mean is too large
    nothing = replace(budget, standard={"out": (0.0, 0.0)})
    assert check({"out": torch.zeros(4)}, nothing)[0].ratio == 0
    assert check({"out": torch.ones(4)}, nothing)[0].ratio == torch.inf


def test_float64_has_no_truth_above_it() -> None:
    with pytest.raises(ValueError, match="below float64"):
        error_budget(problem(torch.float64))


def test_a_problem_is_the_same_on_every_call_and_in_every_dtype() -> None:
    a, b, c = problem(torch.float64, bias="full"), problem(torch.float64, bias="full"), problem(torch.bfloat16)
    for name in ("q", "k", "v", "do", "dlse", "bias"):
        assert torch.equal(getattr(a, name), getattr(b, name))
    assert torch.equal(a.q.to(torch.bfloat16), c.q)


@pytest.mark.parametrize("kind", range(0, 30, 3))
def test_the_model_of_roundings_without_roundings_is_attention(kind: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounding, "_SINGLE", 0.0)
    p = any_problem(kind, 5, dtype=torch.float32)
    bias = p.bias.double() if p.bias is not None and p.bias.is_floating_point() else p.bias
    p = replace(p.to(torch.float64), bias=bias, dlse=torch.ones_like(p.q[..., 0]).double())
    p = replace(p, extras=p.extras.to(torch.float64))
    model = rounding.RoundedAttention(torch.float64, 0)
    without, truth = (testing._by_pieces(x, p, torch.float64, backward=True) for x in (model, exact_attention))
    for name, value in truth.items():
        torch.testing.assert_close(without[name], value, atol=1e-11, rtol=1e-11)
