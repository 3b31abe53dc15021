"""Random problems of every sort against the specification in float64: `python -m quantattn.attention.fuzz --help`.

A failure is printed with its kind and seed, from which `any_problem` draws it again.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor
from torch.multiprocessing import get_context

from quantattn.attention.api import attention
from quantattn.attention.checks import backend_named, refused
from quantattn.attention.choose import BACKENDS
from quantattn.attention.extras import Extras
from quantattn.attention.mask import Mask
from quantattn.attention.problems import Problem, any_problem
from quantattn.attention.state import Attended
from quantattn.attention.testing import Backend, check, error_budget, run


@dataclass(frozen=True)
class Task:
    """The instances first … last − 1 of one kind, in one dtype."""

    backend: str
    kind: int
    first: int
    last: int
    dtype: torch.dtype
    device: str


@dataclass(frozen=True)
class Outcome:
    """How many instances were run, how many the backend does not offer, and a sentence for each failure."""

    run: int
    refused: int
    failures: tuple[str, ...]


def dense(backend: str) -> Backend:
    """A backend that takes packs of equally long sequences and calls `attention` with a dense batch."""

    def call(
        q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, cu_seqlens_k: Tensor, *,
        mask: Mask, bias: Tensor | None, scale: float, extras: Extras = Extras(),  # noqa: B008  a frozen value
    ) -> Attended:  # fmt: skip
        batch, e = len(cu_seqlens) - 1, extras
        batched = [x.view(batch, -1, *x.shape[1:]) for x in (q, k, v)]
        segments = [None if x is None else x.view(batch, -1) for x in (e.segments, e.segments_k)]
        out, lse = attention(
            *batched, mask=mask, bias=bias, scale=scale if e.scales is None else e.scales * scale,
            dropout=e.dropout, dropout_seed=e.seed, softcap=e.softcap, alibi=e.alibi, sinks=e.sinks,
            segments=segments[0], segments_k=segments[1], backend=backend,
        )  # fmt: skip
        return Attended(out.flatten(0, 1), lse.flatten(0, 1))

    return call


def is_dense(problem: Problem) -> bool:
    """Whether the sequences are equally long and not empty on both sides."""
    lengths = [cu.diff() for cu in (problem.cu_seqlens, problem.cu_seqlens_k)]
    return all(len(x) > 0 and bool((x == x[0]).all()) and int(x[0]) > 0 for x in lengths)


def run_task(task: Task) -> Outcome:
    """Every instance within its budget, forward and backward, as a pack and, where it can be, as a dense batch.

    Budgets stay on the CPU: workers that share a GPU wait for their turn at every number that they read from it.
    """
    torch.set_num_threads(1)
    count, not_offered, failures = 0, 0, []
    for seed in range(task.first, task.last):
        drawn = any_problem(task.kind, seed, dtype=task.dtype)
        problem = drawn.to(device=task.device)
        if refused(task.backend, problem.q, problem.mask, problem.bias, problem.extras) is not None:
            not_offered += 1
            continue
        call = dense(task.backend) if seed % 2 and is_dense(problem) else backend_named(task.backend)
        count += 1
        try:
            found = {name: x.cpu() for name, x in run(call, problem).items()}
            rows = check(found, error_budget(drawn))
        except Exception as error:  # an error is a finding here, reported with the seed that repeats it
            failures.append(f"{problem.label}, {task.dtype}: {type(error).__name__}: {error}")
            continue
        failures += [
            f"{problem.label}, {task.dtype}: {row.name} off by {row.worst:.3g}, mean {row.mean:.3g}, "
            f"allowed {row.allowed:.3g}"
            for row in rows
            if not row.ok
        ]
    return Outcome(count, not_offered, tuple(failures))


def tasks(
    backend: str, dtypes: Sequence[torch.dtype], kinds: int, instances: int, device: str, first: int = 0
) -> Iterator[Task]:
    """`instances` problems shared out evenly over kinds and dtypes, seeds from `first` on."""
    each = -(-instances // (kinds * len(dtypes)))
    for kind in range(kinds):
        for dtype in dtypes:
            yield Task(backend, kind, first, first + each, dtype, device)


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when something was run and nothing failed, 1 otherwise."""
    dtypes = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
    parser = argparse.ArgumentParser(prog="python -m quantattn.attention.fuzz", description=__doc__)
    parser.add_argument("--backend", default="tiled", choices=BACKENDS)
    parser.add_argument("--dtype", action="append", choices=dtypes, help="one of several; all when left out")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--kinds", type=int, default=100, help="sorts of problems")
    parser.add_argument(
        "--instances", type=int, default=2000, help="problems in all, at least one of each sort and dtype"
    )
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--workers", type=int, default=1)
    asked = parser.parse_args(arguments)
    for name in ("kinds", "instances", "workers"):
        if getattr(asked, name) < 1:
            parser.error(f"--{name} must be at least 1, got {getattr(asked, name)}")
    if asked.device.startswith("cuda") and not torch.cuda.is_available():
        parser.error(f"--device {asked.device}: there is no CUDA device here")
    chosen = [dtypes[name] for name in asked.dtype or dtypes]
    work = list(tasks(asked.backend, chosen, asked.kinds, asked.instances, asked.device, asked.first))
    began, done, not_offered, failed = time.monotonic(), 0, 0, 0
    with get_context("spawn").Pool(asked.workers) as pool:
        for i, outcome in enumerate(islice(pool.imap_unordered(run_task, work), len(work)), 1):
            done, not_offered = done + outcome.run, not_offered + outcome.refused
            failed += len(outcome.failures)
            for failure in outcome.failures:
                print(f"\nFAILED {failure}", flush=True)
            left = (time.monotonic() - began) / i * (len(work) - i)
            print(f"\r{done} problems, {failed} failures, about {left:.0f} s left ", end="", flush=True)
    took = time.monotonic() - began
    print(f"\n{done} problems run, {not_offered} not offered, {failed} failures, {took:.0f} s")
    return 1 if failed or not done else 0


if __name__ == "__main__":
    sys.exit(main())
