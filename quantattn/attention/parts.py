"""The parts of a validation, and the share of them that one process checks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from quantattn.attention import machine
from quantattn.attention.certificate import Errors, Finding
from quantattn.attention.checks import (
    Size,
    backend_named,
    check_algebra,
    check_example,
    check_hidden,
    check_mistakes,
    check_random,
    not_offered,
    random_problems,
    refused,
)
from quantattn.attention.controls import check_planted
from quantattn.attention.distribution import check_distributions, table_problems
from quantattn.attention.examples import worked_examples
from quantattn.attention.features import check_fuzz, feature_problems
from quantattn.attention.mask import Mask
from quantattn.attention.problems import Problem
from quantattn.attention.repeats import check_bits, check_memories, repeated_problem
from quantattn.attention.testing import error_budget
from quantattn.attention.theorems import THEOREMS, check_theorem, subject_of

USUAL = ("laws", "examples", "random")
"""What is checked always."""

PARTS = (*USUAL, "controls", "theorems", "features", "tables", "fuzz", "repeats", "memory")
"""What a full certificate consists of."""


@dataclass(frozen=True)
class Job:
    """A share of a validation, for one process.

    Attributes:
        parts: of `PARTS`.
        backends: whose.
        dtypes: of the inputs.
        share: (i, n), every n-th problem from the i-th on.
    """

    parts: tuple[str, ...]
    backends: tuple[str, ...]
    dtypes: tuple[torch.dtype, ...]
    share: tuple[int, int] = (0, 1)


def findings_of(
    job: Job, device: torch.device, progress: Callable[[Finding], None] | None = None
) -> Iterator[Finding | Errors]:
    """Everything that the job's parts find, in their order."""
    for part in job.parts:
        for found in _PART[part](job, device):
            if progress is not None and isinstance(found, Finding):
                progress(found)
            yield found


def _laws(job: Job, device: torch.device) -> Iterator[Finding]:
    if "exact" in job.backends or "tiled" in job.backends:
        yield from check_algebra(torch.float64)
        yield from check_algebra(torch.float32)
        yield from check_mistakes()


def _examples(job: Job, device: torch.device) -> Iterator[Finding]:
    for dtype in job.dtypes:
        for name in job.backends:
            for example in worked_examples():
                yield from check_example(name, example, dtype, device)


def _random(job: Job, device: torch.device) -> Iterator[Finding]:
    size: Size = "small" if _small(job, device) else "usual"
    for dtype in _below_float64(job):
        for problem in _share(random_problems(dtype, device, size), job):
            budget = error_budget(problem)
            for name in job.backends:
                yield from check_random(name, problem, budget)
                if problem.mask == Mask(causal=True):
                    yield from check_hidden(name, problem, budget)


def _controls(job: Job, device: torch.device) -> Iterator[Finding]:
    for dtype in _below_float64(job):
        yield from check_planted(dtype, device)


def _theorems(job: Job, device: torch.device) -> Iterator[Finding]:
    seeds = (0,) if _small(job, device) else (0, 1)
    for dtype in _below_float64(job):
        for name in job.backends:
            q = torch.empty(1, 1, 64, dtype=dtype, device=device)
            refusal = refused(name, q, Mask(), None)
            if refusal is not None:
                yield not_offered(name, "theorems", dtype, refusal)
                continue
            subject = subject_of(name, backend_named(name), dtype, device, small=_small(job, device))
            for said in THEOREMS:
                yield from check_theorem(name, said, subject, seeds)


def _features(job: Job, device: torch.device) -> Iterator[Finding]:
    for dtype in _below_float64(job):
        for problem in _share(feature_problems(dtype, device, small=_small(job, device)), job):
            budget = error_budget(problem)
            for name in job.backends:
                yield from check_random(name, problem, budget, "feature")


def _tables(job: Job, device: torch.device) -> Iterator[Finding | Errors]:
    for dtype in _below_float64(job):
        problems = _share(table_problems(dtype, device, small=_small(job, device)), job)
        yield from check_distributions({name: backend_named(name) for name in job.backends}, problems)


def _fuzz(job: Job, device: torch.device) -> Iterator[Finding]:
    kinds, instances = (3, 30) if device.type == "cuda" else (60, 60)
    for dtype in _below_float64(job):
        for name in job.backends:
            yield from check_fuzz(name, dtype, device, kinds, instances)


def _repeats(job: Job, device: torch.device) -> Iterator[Finding]:
    small = _small(job, device)
    for dtype in _below_float64(job):
        problem = repeated_problem(dtype, device, small=small)
        for name in job.backends:
            yield from check_bits(name, problem, 3 if small else 100, (1, 2) if small else (1, 2, 5, 17))


def _memory(job: Job, device: torch.device) -> Iterator[Finding]:
    q = torch.empty(1, 1, 64, dtype=torch.bfloat16 if device.type == "cuda" else torch.float32, device=device)
    if not _small(job, device):
        yield from check_memories([name for name in job.backends if refused(name, q, Mask(), None) is None], device)


_PART: dict[str, Callable[[Job, torch.device], Iterator[Finding | Errors]]] = dict(
    zip(
        PARTS,
        (_laws, _examples, _random, _controls, _theorems, _features, _tables, _fuzz, _repeats, _memory),
        strict=True,
    )
)


def _share(problems: list[Problem], job: Job) -> list[Problem]:
    first, step = job.share
    return problems[first::step]


def _small(job: Job, device: torch.device) -> bool:
    return "triton" in job.backends and device.type == "cpu" and machine.interpreted()


def _below_float64(job: Job) -> list[torch.dtype]:
    return [dtype for dtype in job.dtypes if dtype != torch.float64]
