"""Each part of a full certificate passes for what is right and fails for a mistake that it exists for."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from quantattn.attention import api, bounds, controls, repeats
from quantattn.attention.certificate import Errors, Finding
from quantattn.attention.checks import backend_named, check_random
from quantattn.attention.controls import averages_the_halves, check_planted, drops_small_weights
from quantattn.attention.distribution import check_distribution, check_distributions, unit_in_last_place
from quantattn.attention.exact import exact_attention
from quantattn.attention.features import check_fuzz, feature_problems
from quantattn.attention.mask import Mask
from quantattn.attention.problems import random_problem
from quantattn.attention.state import Attended
from quantattn.attention.testing import error_budget, run
from quantattn.attention.theorems import FULL, THEOREMS, Subject, check_theorem, subject_of

CPU = torch.device("cpu")
BELOW = [torch.float32, torch.float16, torch.bfloat16]


def scaled(*args: Tensor, **options: Any) -> Attended:
    """Weights that add up to a little more than one."""
    out, lse = exact_attention(*args, **options)
    return Attended(out * 1.02, lse + 0.02)


def by_place(q: Tensor, k: Tensor, v: Tensor, cu: Tensor, cu_k: Tensor, **options: Any) -> Attended:
    """Later rows of k count for more."""
    grow = 1 + 0.1 * torch.arange(len(k))[:, None, None].to(k.dtype) / max(1, len(k))
    return exact_attention(q, k * grow, v, cu, cu_k, **options)


def squared(q: Tensor, k: Tensor, v: Tensor, *rest: Tensor, **options: Any) -> Attended:
    """Not linear in the values, and no mean of them."""
    return exact_attention(q, k, v + 0.1 * v * v, *rest, **options)


def through_values(*args: Tensor, **options: Any) -> Attended:
    """The logsumexp depends on the values."""
    out, lse = exact_attention(*args, **options)
    return Attended(out, lse + 1e-3 * out.sum(-1).to(lse.dtype))


def one_key_more(q: Tensor, k: Tensor, v: Tensor, *rest: Tensor, **options: Any) -> Attended:
    """A window that is a key too wide, at both ends."""
    mask = options["mask"]
    wider = Mask(window=tuple(None if bound is None else bound + 1 for bound in (mask.left, mask.right)))  # type: ignore[arg-type]
    return exact_attention(q, k, v, *rest, **{**options, "mask": wider})


@pytest.mark.parametrize("dtype", BELOW, ids=str)
def test_every_theorem_holds_of_the_tiled_way(dtype: torch.dtype) -> None:
    subject = subject_of("tiled", backend_named("tiled"), dtype, CPU, small=True)
    assert len(subject.masks) == 3
    for said in THEOREMS:
        findings = list(check_theorem("tiled", said, subject, (0,)))
        assert findings, said
        assert all(f.verdict == "pass" for f in findings), findings
        assert {f.seeds for f in findings} == {(0, 0)}
        assert all(f.cases > 0 for f in findings)


@pytest.mark.parametrize(
    ("said", "wrong"),
    [
        ("permuting the keys changes nothing", by_place),
        ("permuting the sequences permutes the results", by_place),
        ("a sequence does not depend on its neighbours", controls.looks_at_its_neighbours),
        ("a constant added to a row's scores changes nothing but lse", by_place),
        ("masked is removed", scaled),
        ("NaN in padding goes nowhere", controls.multiplies_hidden_by_nothing),
        ("causal: changing the future changes no earlier bit", one_key_more),
        ("dV is 0 when only lse has a gradient", through_values),
        ("linear in V", squared),
        ("inside the convex hull of V", scaled),
        ("two parts merged are the whole", scaled),
    ],
)
def test_every_theorem_fails_for_a_wrong_backend(said: str, wrong: Any) -> None:
    subject = Subject(wrong, subject_of("exact", wrong, torch.float32, CPU, small=True).masks, torch.float32, CPU,
                      (18, 0, 23, 3), (20, 4, 23, 0), 16)  # fmt: skip
    verdicts = [f.verdict for f in check_theorem("wrong", said, subject, (0, 1))]
    assert "fail" in verdicts


def test_there_is_a_wrong_backend_for_every_theorem() -> None:
    marks = test_every_theorem_fails_for_a_wrong_backend.pytestmark
    assert {said for said, _ in marks[0].args[1]} == set(THEOREMS)


@pytest.mark.parametrize("dtype", BELOW, ids=str)
def test_planted_mistakes_are_caught(dtype: torch.dtype) -> None:
    assert {f.verdict for f in check_planted(dtype, CPU)} == {"pass"}


def test_a_control_that_misses_nothing_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controls, "drops_small_weights", exact_attention)
    missed = [f for f in check_planted(torch.float32, CPU) if f.verdict == "fail"]
    assert {f.note for f in missed} == {"nothing noticed it"}
    assert len(missed) == 2


@pytest.mark.parametrize("dtype", BELOW, ids=str)
@pytest.mark.parametrize("mask", [Mask(), Mask(causal=True), Mask(window=(9, 2))], ids=str)
def test_no_error_exceeds_its_bound(dtype: torch.dtype, mask: Mask) -> None:
    problem = random_problem(3, (40, 0, 7), (50, 3, 2), heads=4, heads_k=2, d=24, mask=mask, dtype=dtype)
    budget = error_budget(problem, backward=False)
    most = bounds.bounds(problem, budget)
    for name in ("exact", "tiled"):
        out, lse = backend_named(name)(
            problem.q, problem.k, problem.v, problem.cu_seqlens, problem.cu_seqlens_k, mask=mask, bias=None,
            scale=problem.scale,
        )  # fmt: skip
        for result, value in (("out", out), ("lse", lse)):
            truth = budget.truth[result]
            gap = (value.double() - truth).abs().where(value.double() != truth, 0)
            assert bool((gap <= most[result]).all())
    # It says something: the largest bound is within a few hundred units of the largest number.
    unit = torch.finfo(dtype).eps if dtype != torch.float32 else 2.0**-23 * 50
    assert float(most["out"].max()) < 16 * unit * float(problem.v.abs().max())


def test_a_bound_is_for_plain_scores() -> None:
    problem = random_problem(0, (4,), bias="key", label="a bias")
    with pytest.raises(ValueError, match=r"q·k alone, got a bias"):
        bounds.bounds(problem, error_budget(problem, backward=False))


@pytest.mark.parametrize("wrong", [averages_the_halves, drops_small_weights])
def test_an_approximation_leaves_its_bound_and_the_tables_say_so(wrong: Any) -> None:
    problem = random_problem(0, (64,), heads=2, heads_k=1, d=16, label="full")
    found = list(check_distribution("exact", problem, error_budget(problem), wrong))
    failed = {f.case.partition(":")[0] for f in found if isinstance(f, Finding) and f.verdict == "fail"}
    assert failed == {"bound", "random"}
    out = next(row for row in found if isinstance(row, Errors) and row.result == "out")
    assert out.used > 1
    assert out.worst >= out.q999 >= out.mean > 0


def test_tables_have_a_row_a_result_and_no_row_where_nothing_is_offered() -> None:
    window = random_problem(0, (20,), d=8, mask=Mask(window=(4, 4)), label="window")
    found = list(check_distributions({name: backend_named(name) for name in ("tiled", "sdpa")}, [window]))
    rows = [row for row in found if isinstance(row, Errors)]
    assert [(row.backend, row.result) for row in rows] == [("tiled", x) for x in ("out", "lse", "dq", "dk", "dv")]
    assert [f.verdict for f in found if isinstance(f, Finding) and f.backend == "sdpa"] == ["not offered"]
    assert all(0 < row.used < 1 for row in rows[:2])
    assert all(row.bound == 0 for row in rows[2:])


def test_units_in_the_last_place_are_distances_to_the_next_number() -> None:
    x = torch.tensor([1.0, 1.5, 2.0, 0.3, -7.0, 1000.0, 6e-8, 0.0])
    for dtype, whole in ((torch.float16, torch.int16), (torch.bfloat16, torch.int16), (torch.float32, torch.int32)):
        held = x.to(dtype)
        after = (held.abs().view(whole) + 1).view(dtype)
        expected = after.double() - held.abs().double()
        assert torch.equal(unit_in_last_place(held.double(), dtype)[:6], expected[:6])
    smallest = torch.finfo(torch.float16).smallest_normal * torch.finfo(torch.float16).eps
    assert float(unit_in_last_place(torch.zeros(1).double(), torch.float16)) == smallest


def test_every_feature_has_a_row() -> None:
    labels = []
    for problem in feature_problems(torch.float32, CPU, small=True):
        findings = list(check_random("tiled", problem, error_budget(problem), "feature"))
        assert {f.verdict for f in findings} == {"pass"}, findings
        labels += [f.case for f in findings if f.quantity == "forward"]
    for word in ("softcap", "sinks", "ALiBi", "scales", "segments", "dropout", "prefix", "bool", "−∞", "a key"):
        assert any(word in label for label in labels), word
    refusals = {
        f.verdict
        for problem in feature_problems(torch.float32, CPU, small=True)
        for f in check_random("sdpa", problem, error_budget(problem, backward=False), "feature")
    }
    assert refusals == {"not offered"}


def test_the_fuzz_counts_and_names_its_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    (right,) = check_fuzz("tiled", torch.float32, CPU, kinds=3, instances=6)
    assert (right.verdict, right.cases, right.seeds) == ("pass", 6, (0, 1))
    monkeypatch.setitem(api._PLAIN, "exact", scaled)
    (wrong,) = check_fuzz("exact", torch.float32, CPU, kinds=3, instances=6)
    assert wrong.verdict == "fail"
    assert wrong.worst >= 1
    assert "kind 0, seed" in wrong.note


def test_repeats_and_batches_have_the_same_bits_and_noise_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = repeats.repeated_problem(torch.float32, CPU, small=True)
    found = list(repeats.check_bits("tiled", problem, 3, (1, 2)))
    assert [f.verdict for f in found] == ["pass"] * 3
    assert "batch mode" in found[-1].case

    def noisy(*args: Tensor, **options: Any) -> Attended:
        out, lse = exact_attention(*args, **options)
        return Attended(out * (1 + 1e-6 * torch.rand(out.shape)), lse)

    for wrong, failed in ((noisy, "3 times the same call"), (controls.looks_at_its_neighbours, "batches of 1, 2")):
        monkeypatch.setitem(api._PLAIN, "exact", wrong)
        verdicts = {f.case: f.verdict for f in repeats.check_bits("exact", problem, 3, (1, 2))}
        assert verdicts[f"repeat: {failed}"] == "fail"
        assert verdicts["repeat: batches, batch mode"] == "not offered"


def test_memory_grows_with_the_length_and_the_matrix_with_its_square(monkeypatch: pytest.MonkeyPatch) -> None:
    linear, dense = repeats.check_memories(["tiled", "exact"], CPU)
    assert (linear.backend, linear.verdict) == ("tiled", "pass")
    assert linear.worst <= 1.1
    assert (dense.backend, dense.verdict) == ("control", "pass")
    assert 1.6 < dense.worst < 2.1
    monkeypatch.setitem(api._PLAIN, "tiled", exact_attention)
    found = repeats.check_memory("tiled", (256, 512, 1024), torch.float32, CPU)
    assert found.verdict == "fail"
    assert "MiB at 1024" in found.note


def test_the_slope_of_a_power_is_its_exponent() -> None:
    lengths = [2**i for i in range(4, 9)]
    for power in (0.0, 1.0, 1.5, 2.0):
        assert math.isclose(
            repeats.fitted_slope(lengths, [round(1e9 * n**power) for n in lengths]), power, abs_tol=1e-6
        )


def test_the_masks_of_a_subject_are_those_that_it_offers() -> None:
    assert FULL in subject_of("sdpa", backend_named("sdpa"), torch.float32, CPU, small=True).masks
    assert len(subject_of("sdpa", backend_named("sdpa"), torch.float32, CPU, small=True).masks) == 2


def test_the_exponential_of_torch_is_named_where_it_leaves_a_budget() -> None:
    """Its float32 backward by twenty units, its 16-bit forward by half a per cent of a weight; ours by neither."""
    assert bounds.exponential("tiled", torch.bfloat16) == bounds.exponential("sdpa", torch.float32) == 40 * 2.0**-24
    problem = random_problem(208, (300,), heads=2, heads_k=1, d=8, mask=Mask(causal=True), label="causal")
    moved = bounds.exponential_in_gradients(problem, bounds.exponential("sdpa", torch.float32))
    assert set(moved) == {"dq", "dk", "dv"}
    lifted = problem.to(torch.float64)
    by_values = run(exact_attention, replace(lifted, do=lifted.do.abs()))["dv"]
    assert math.isclose(moved["dv"], 40 * 2.0**-24 * float(by_values.max()), rel_tol=1e-9)
    found = check_distributions({"sdpa": backend_named("sdpa"), "tiled": backend_named("tiled")}, [problem])
    assert {f.verdict for f in found if isinstance(f, Finding)} == {"pass"}
