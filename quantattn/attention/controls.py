"""Wrong attention, planted on purpose: each mistake has to be caught by the check that exists for it.

A check that cannot fail proves nothing. Each of these is an approximation, or a leak, that a reader may have met.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from quantattn.attention.bounds import bounds
from quantattn.attention.certificate import Finding, verdict
from quantattn.attention.exact import exact_attention
from quantattn.attention.machine import dtype_name
from quantattn.attention.mask import Mask
from quantattn.attention.problems import random_problem
from quantattn.attention.state import Attended
from quantattn.attention.testing import error_budget, run
from quantattn.attention.theorems import CAUSAL, FULL, Subject, check_theorem


def averages_the_halves(q: Tensor, k: Tensor, v: Tensor, cu: Tensor, cu_k: Tensor, **options: Any) -> Attended:
    """The mean of what two halves of the keys give, without their masses; one sequence without a mask."""
    cut = k.shape[0] // 2
    outs = [
        exact_attention(q, k[part], v[part], cu, cu_k.new_tensor([0, len(k[part])]), **options).out
        for part in (slice(cut), slice(cut, None))
    ]
    return Attended((outs[0] + outs[1]) / 2, exact_attention(q, k, v, cu, cu_k, **options).lse)


def drops_small_weights(q: Tensor, k: Tensor, v: Tensor, cu: Tensor, cu_k: Tensor, **options: Any) -> Attended:
    """Keys with less than a hundredth of the mass are left out, as sparse attention would; one sequence, no mask."""
    group = q.shape[1] // k.shape[1]
    scores = torch.einsum("ihd,jhd->hij", q.float(), k.float().repeat_interleave(group, 1)) * options["scale"]
    small = torch.softmax(scores, -1) < 1e-2
    dropped = torch.zeros_like(scores).masked_fill(small, -torch.inf)[None]
    return exact_attention(q, k, v, cu, cu_k, **{**options, "bias": dropped})


def sees_one_key_ahead(*args: Tensor, **options: Any) -> Attended:
    """A causal mask that is off by one."""
    mask = Mask(window=(None, 1)) if options["mask"] == CAUSAL else options["mask"]
    return exact_attention(*args, **{**options, "mask": mask})


def looks_at_its_neighbours(q: Tensor, k: Tensor, v: Tensor, cu: Tensor, cu_k: Tensor, **options: Any) -> Attended:
    """The last bits depend on how many rows the pack has, as where work is shared out by its size."""
    out, lse = exact_attention(q, k, v, cu, cu_k, **options)
    return Attended(out * (1 + torch.finfo(out.dtype).eps * len(q)), lse)


def multiplies_hidden_by_nothing(*args: Tensor, **options: Any) -> Attended:
    """0 · NaN is NaN: hidden values are multiplied by 0 instead of left out."""
    out, lse = exact_attention(*args, **options)
    return Attended(out + (0 * args[2].sum()).to(out.dtype), lse)


_BY_THEOREM: tuple[tuple[str, Any, str], ...] = (
    ("a causal mask off by one", sees_one_key_ahead, "causal: changing the future changes no earlier bit"),
    ("a rounding that depends on the pack", looks_at_its_neighbours, "a sequence does not depend on its neighbours"),
    ("hidden values multiplied by 0", multiplies_hidden_by_nothing, "NaN in padding goes nowhere"),
)


def check_planted(dtype: torch.dtype, device: torch.device) -> Iterator[Finding]:
    """Passes where the mistake is seen: `worst` is what it misses by and `allowed` what a right one may."""
    problem = random_problem(600, (64,), heads=2, heads_k=1, d=32, dtype=dtype, device=device)
    budget = error_budget(problem, backward=False)
    most = bounds(problem, budget)["out"]
    approximations: tuple[tuple[str, Any], ...] = (
        ("the halves averaged", averages_the_halves),
        ("small weights dropped", drops_small_weights),
    )
    for mistake, wrong in approximations:
        gap = (run(wrong, problem, backward=False)["out"].double() - budget.truth["out"]).abs()
        worst, allowed = float(gap.max()), budget.allowed["out"][0]
        yield _caught(f"{mistake}, against the budget", dtype, worst, allowed, worst > allowed)
        beyond = int((gap > most).sum())
        yield _caught(f"{mistake}, against the bound", dtype, worst, float(most.max()), beyond > 0)
    for mistake, wrong, said in _BY_THEOREM:
        subject = Subject(wrong, (FULL, CAUSAL), dtype, device, (18, 0, 23, 3), (20, 4, 23, 0), 16)
        findings = list(check_theorem("control", said, subject, (0, 1)))
        told = max(findings, key=lambda f: (f.verdict == "fail", f.worst))
        yield _caught(f"{mistake}, by “{said}”", dtype, told.worst, told.allowed, told.verdict == "fail")


def _caught(case: str, dtype: torch.dtype, worst: float, allowed: float, caught: bool) -> Finding:
    note = "" if caught else "nothing noticed it"
    return Finding(
        "control", f"planted: {case}", dtype_name(dtype), "caught", worst, 0.0, allowed, verdict(caught), note
    )  # fmt: skip
