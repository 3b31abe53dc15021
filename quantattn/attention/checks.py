"""The single checks of a validation: laws of the state, mistakes made on purpose, worked examples, random problems.

Each yields findings and raises nothing for a failure.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial, reduce
from typing import Literal

import torch
from torch import Tensor

from quantattn.attention.api import attention
from quantattn.attention.certificate import Finding
from quantattn.attention.choose import require_backend
from quantattn.attention.exact import standard_attention
from quantattn.attention.examples import Arguments, Example, worked_examples
from quantattn.attention.extras import Extras
from quantattn.attention.mask import Mask
from quantattn.attention.problems import Problem, random_problem
from quantattn.attention.state import Attended, AttentionState
from quantattn.attention.testing import Backend, Budget, Row, check, errors, run
from quantattn.attention.tiled import tiled_attention

Size = Literal["small", "usual"]
"""Of the random problems: small for an interpreter, or usual."""

_FAR = 70
"""Places between neighbours of a stretched example: more than a tile of 64."""

_VISIBLE = 0.05
"""Distance from a worked example's right answer at which a wrong answer counts as another one."""


def backend_named(name: str, deterministic: bool | str = True) -> Backend:
    """`attention(backend=name, deterministic=deterministic)` with the signature of the implementations."""

    def call(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cu_seqlens: Tensor,
        cu_seqlens_k: Tensor,
        *,
        mask: Mask,
        bias: Tensor | None,
        scale: float,
        extras: Extras = Extras(),  # noqa: B008  a frozen value
    ) -> Attended:
        e = extras
        return attention(
            q,
            k,
            v,
            cu_seqlens,
            cu_seqlens_k,
            mask=mask,
            bias=bias,
            scale=scale if e.scales is None else e.scales * scale,
            dropout=e.dropout,
            dropout_seed=e.seed,
            softcap=e.softcap,
            alibi=e.alibi,
            sinks=e.sinks,
            segments=e.segments,
            segments_k=e.segments_k,
            deterministic=deterministic,
            backend=name,
        )

    return call


def check_algebra(dtype: torch.dtype) -> Iterator[Finding]:
    """The laws of the state on scores of very different sizes, some rows without keys."""
    rng = torch.Generator().manual_seed(0)
    scores = torch.randn(64, 96, generator=rng, dtype=torch.float64) * 20
    scores[torch.rand(64, 96, generator=rng) < 0.2] = -torch.inf
    scores[:4] = -torch.inf
    scores, values = scores.to(dtype), torch.randn(96, 8, generator=rng, dtype=torch.float64).to(dtype)
    sees = (scores != -torch.inf).any(-1, keepdim=True)
    truth = torch.softmax(scores.double(), -1).where(sees, 0) @ values.double()
    loss, _ = errors(torch.softmax(scores, -1).where(sees, 0) @ values, truth)
    a, b, c = (AttentionState.of_block(scores[:, s], values[s]) for s in (slice(20), slice(20, 21), slice(21, 96)))
    part = torch.randint(7, (96,), generator=rng)
    parts = [AttentionState.of_block(scores[:, part == i], values[part == i]) for i in range(7)]
    empty = AttentionState.empty(64, 8, dtype=dtype)
    for law, left, right in (
        ("∅ ⊕ a = a", empty.merge(a), a),
        ("∅ ⊕ ∅ = ∅", empty.merge(empty), empty),
        ("a ⊕ b = b ⊕ a", a.merge(b), b.merge(a)),
    ):
        worst = max(errors(getattr(left, x), getattr(right, x).double())[0] for x in ("m", "l", "u"))
        yield _finding("state", law, dtype, "bits", worst, 0.0, 0.0)
    allowed = 2 * loss + 8 * torch.finfo(dtype).eps * float(values.abs().max())  # a rounding of each merge
    for law, state in (
        ("(a ⊕ b) ⊕ c = softmax", a.merge(b).merge(c)),
        ("a ⊕ (b ⊕ c) = softmax", a.merge(b.merge(c))),
        ("seven parts, any order = softmax", reduce(AttentionState.merge, parts)),
        ("a finished part is a part", AttentionState.of_attended(a.merge(b).finish()).merge(c)),
    ):
        worst, _ = errors(state.finish().out, truth)
        yield _finding("state", law, dtype, "forward", worst, loss, allowed)


def check_mistakes() -> Iterator[Finding]:
    """Mistakes made on purpose on the worked examples: a check that cannot fail proves nothing."""
    for example in worked_examples():
        blocks, answers = example.blocks, {}
        if blocks:
            answers["sums added without rescaling"] = float(sum(b.u for b in blocks) / sum(b.l for b in blocks))
            answers["block outputs averaged"] = float(sum(b.out for b in blocks) / len(blocks))
        p = torch.exp(example.scores[0, 0].float())
        answers["no running maximum"] = float(p @ example.values[0].float() / p.sum())
        right = float(example.out[0, 0])
        for mistake in [name for name in answers if name in example.wrong]:  # a set has no order that repeats
            missed, _ = errors(torch.tensor(answers[mistake]), torch.tensor(right).double())
            note = f"gives {answers[mistake]:.4g}, right is {right:.4g}"
            case, differs = f"{mistake} ({example.name})", missed > _VISIBLE
            yield _finding("control", case, torch.float32, "forward", missed, 0.0, _VISIBLE, ok=differs, note=note)


def check_example(name: str, example: Example, dtype: torch.dtype, device: torch.device) -> Iterator[Finding]:
    """A worked example through every tiling of a backend: its answer, and none of its wrong ones.

    One example has too few numbers for the budget's floor, so that a rounding of each weight and of the result is
    allowed beside twice what standard attention loses.
    """
    case, expected = f"example: {example.name}", example.expected()
    out, lse = _call(standard_attention, example.arguments(dtype, device))
    loss, loss_of_lse = errors(out.cpu(), expected.out)[0], errors(lse.cpu(), expected.lse)[0]
    eps, eps_of_lse = torch.finfo(dtype).eps, torch.finfo(lse.dtype).eps
    allowed = 2 * loss + 2 * eps * float(example.values.abs().max())
    largest = float(example.lse.abs().nan_to_num(0, posinf=0).max())
    allowed_of_lse = 2 * loss_of_lse + 4 * eps_of_lse * max(1.0, largest)
    tilings: list[tuple[Backend, int]] = [(backend_named(name), 1), (backend_named(name), _FAR)]
    if name == "tiled":
        tilings += [(partial(tiled_attention, block_q=i, block_k=j), 1) for i, j in ((1, 1), (2, 2), (1, 2), (3, 3))]
    worst, worst_of_lse, notes, calls = 0.0, 0.0, [], 0
    for backend, stretch in tilings:
        arguments = example.arguments(dtype, device, stretch=stretch)
        refusal = refused(name, arguments.q, arguments.mask, arguments.bias)
        if refusal is not None:
            notes.append(refusal)
            continue
        calls += 1
        out, lse = (x[::stretch].cpu() for x in _call(backend, arguments))
        worst = max(worst, errors(out, expected.out)[0])
        worst_of_lse = max(worst_of_lse, errors(lse, expected.lse)[0])
        for mistake, answer in example.wrong.items():
            if errors(out[..., 0], answer.T)[0] <= _VISIBLE:
                yield _finding(name, case, dtype, "forward", worst, loss, allowed, ok=False, note=f"gives: {mistake}")
    if calls == 0:
        yield not_offered(name, case, dtype, notes[0])
        return
    yield _finding(name, case, dtype, "forward", worst, loss, allowed)
    yield _finding(name, case, dtype, "lse", worst_of_lse, loss_of_lse, allowed_of_lse)


def random_problems(dtype: torch.dtype, device: torch.device, size: Size) -> list[Problem]:
    """Ragged packs with empty sequences, blind queries, windows, biases, odd head sizes and shared key heads."""
    draw = partial(random_problem, dtype=dtype, device=device)
    if size == "small":
        return [
            draw(0, (66, 0, 3), (5, 2, 70), heads=2, heads_k=1, dlse=True, label="ragged, full"),
            draw(1, (20,), (70,), heads=1, d=40, mask=Mask(causal=True), label="causal, Nq < Nk, D 40"),
            draw(2, (66,), heads=1, d=8, mask=Mask(window=(9, 2)), bias="full", label="window (9, 2), bias"),
        ]
    return [
        draw(0, (67, 0, 130, 1), (35, 3, 130, 70), heads=6, heads_k=2, d=72, dlse=True, label="ragged, full, D 72"),
        draw(1, (97, 40), (150, 20), heads=4, heads_k=2, d=64, mask=Mask(causal=True), label="causal, Nq ≠ Nk"),
        draw(2, (200,), heads=2, d=59, mask=Mask(window=(32, 8)), dlse=True, label="window (32, 8), D 59"),
        draw(3, (60, 33), (90, 33), heads=3, heads_k=1, bias="full", label="bias with −∞, 3 heads on 1"),
    ]


def check_random(name: str, problem: Problem, budget: Budget, part: str = "random") -> Iterator[Finding]:
    """A random problem within its budget, forward and backward, twice with the same bits."""
    case, dtype = f"{part}: {problem.label}", problem.q.dtype
    refusal = refused(name, problem.q, problem.mask, problem.bias, problem.extras)
    if refusal is not None:
        yield not_offered(name, case, dtype, refusal)
        return
    backend = backend_named(name)
    results = run(backend, problem)
    rows = check(results, budget)
    for quantity, group in (("forward", rows[:2]), ("gradients", rows[2:])):
        row = _tellingest(group)
        note = "" if row.ok else f"{row.name}, mean error {row.mean:.3g}"
        loss = budget.standard[row.name][0]
        yield _finding(name, case, dtype, quantity, row.worst, loss, row.allowed, ok=row.ok, note=note)
    again = run(backend, problem)
    worst = max(errors(again[x], results[x].double())[0] for x in results)
    yield _finding(name, f"{case}, again", dtype, "bits", worst, 0.0, 0.0)


def check_hidden(name: str, problem: Problem, budget: Budget) -> Iterator[Finding]:
    """NaN in the last key and value of each sequence of a causal problem: queries before it must not notice."""
    case, dtype = f"random: {problem.label}, NaN in the future", problem.q.dtype
    refusal = refused(name, problem.q, problem.mask, problem.bias)
    if refusal is not None:
        yield not_offered(name, case, dtype, refusal)
        return
    k, v = problem.k.clone(), problem.v.clone()
    last = problem.cu_seqlens_k[1:].long() - 1
    k[last], v[last] = torch.nan, torch.nan
    before = torch.ones(problem.q.shape[0], dtype=torch.bool, device=problem.q.device)
    before[problem.cu_seqlens[1:].long() - 1] = False
    results = run(backend_named(name), replace(problem, k=k, v=v))
    for result, quantity in (("out", "forward"), ("dq", "gradients")):
        worst, _ = errors(results[result][before], budget.truth[result][before])
        yield _finding(name, case, dtype, quantity, worst, budget.standard[result][0], budget.allowed[result][0])


def refused(
    name: str, q: Tensor, mask: Mask, bias: Tensor | None, extras: Extras | None = None,
    deterministic: bool | str = True,
) -> str | None:  # fmt: skip
    """Why the backend does not take such inputs; None when it does."""
    try:
        require_backend(name, q, mask=mask, bias=bias, extras=extras, deterministic=deterministic)
    except ValueError as refusal:
        return str(refusal)
    return None


def not_offered(name: str, case: str, dtype: torch.dtype, reason: str) -> Finding:
    """The finding of a case that a backend refuses."""
    return Finding(name, case, _name(dtype), "forward", 0.0, 0.0, 0.0, "not offered", reason)


def _finding(
    backend: str,
    case: str,
    dtype: torch.dtype,
    quantity: str,
    worst: float,
    standard: float,
    allowed: float,
    *,
    ok: bool | None = None,
    note: str = "",
) -> Finding:
    """A finding that passes when `ok` says so or, without it, when the worst error is allowed."""
    ok = worst <= allowed if ok is None else ok
    return Finding(backend, case, _name(dtype), quantity, worst, standard, allowed, "pass" if ok else "fail", note)


def _tellingest(rows: list[Row]) -> Row:
    """The row that is farthest outside, or the first when all are inside."""
    failed = [row for row in rows if not row.ok]
    return max(failed, key=lambda row: row.worst / row.allowed) if failed else rows[0]


def _call(backend: Backend, a: Arguments) -> Attended:
    return backend(a.q, a.k, a.v, a.cu_seqlens, a.cu_seqlens_k, mask=a.mask, bias=a.bias, scale=a.scale)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
