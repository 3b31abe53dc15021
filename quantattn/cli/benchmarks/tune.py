"""Block sizes for the launch tables: every candidate of every kernel alone, checked on poisoned outputs, then timed."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import product
from multiprocessing import get_context
from typing import Any

import torch
from torch import Tensor

from quantattn.attention.kernels import launch
from quantattn.attention.kernels.configs import Config, Pass
from quantattn.attention.testing import Budget, check, error_budget
from quantattn.cli.benchmarks.attention import draw
from quantattn.cli.benchmarks.gate import piece_of
from quantattn.cli.benchmarks.peers import Inputs
from quantattn.cli.benchmarks.shapes import Shape, describe
from quantattn.cli.benchmarks.timing import time_interleaved
from quantattn.cli.errors import DONE

PASSES: tuple[Pass, ...] = ("fwd", "dq", "dkdv")
PRODUCTS = {"fwd": 2, "dq": 3, "dkdv": 4}
"""Matrix products a block of each kernel; 2 of them are what the convention counts for the forward."""


@dataclass(frozen=True)
class Measured:
    """One candidate: milliseconds (median), and TFLOP/s of the products that its kernel really makes."""

    kernel: Pass
    d: int
    n: int
    mask: str
    config: Config
    ms: float
    tflops: float


def run(shapes: Sequence[Shape], dtype: torch.dtype, settings: Mapping[str, Any], say: Callable[[str], None]) -> int:
    """bench=tune tune.table=portable."""
    configs = candidates(settings["tune"])
    say(f"{len(configs)} candidates for each of {len(PASSES)} kernels and {len(shapes)} shapes")
    compile_ahead(shapes, configs, dtype)
    for found in tune(shapes, configs, dtype, rounds=settings["rounds"], say=say):
        say(
            f"{found.kernel:4} D {found.d} N {found.n} {found.mask}: {found.config} {found.ms:.3f} ms, "
            f"{found.tflops:.0f} TFLOP/s of its own products"
        )
    return DONE


def candidates(grid: Mapping[str, Sequence[int]]) -> list[Config]:
    """Every combination of block_m, block_n, num_warps and num_stages."""
    return [
        Config(*values)
        for values in product(*(grid[name] for name in ("block_m", "block_n", "num_warps", "num_stages")))
    ]


def compile_ahead(shapes: Sequence[Shape], configs: Sequence[Config], dtype: torch.dtype) -> None:
    """Put every candidate into Triton's cache on disk, in as many processes as there are cores."""
    short = {replace(shape, n=256, batch=1, heads=shape.heads // shape.heads_k, heads_k=1) for shape in shapes}
    jobs = [(shape, kernel, config, dtype) for shape in short for kernel in PASSES for config in configs]
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        for _ in pool.map(_compile, *zip(*jobs, strict=True)):
            pass


def _compile(shape: Shape, kernel: Pass, config: Config, dtype: torch.dtype) -> None:
    try:
        _Bench(draw(shape, dtype, 0), kernel, shape.heads, None).call(config)()
    except launch.TooLarge:
        return  # said when the candidate's turn comes


def tune(
    shapes: Sequence[Shape], configs: Sequence[Config], dtype: torch.dtype, *, rounds: int, say: Callable[[str], None]
) -> Iterator[Measured]:
    """The candidates that launch and stay within the error budget, fastest first within a shape and kernel."""
    for shape in shapes:
        inputs = draw(shape, dtype, 0)
        group = shape.heads // shape.heads_k
        budget = error_budget(piece_of(inputs, group))
        for kernel in PASSES:
            bench = _Bench(inputs, kernel, group, budget)
            calls = {}
            for config in configs:
                reason = bench.refuses(config)
                if reason is None:
                    calls[config] = bench.call(config)
                else:
                    say(f"{kernel} D {shape.d} {describe(shape.mask)} {config}: {reason}")
            times = time_interleaved({str(c): call for c, call in calls.items()}, rounds=rounds, warmup=2)
            for config in sorted(calls, key=lambda c: times[str(c)].median):
                ms = times[str(config)].median
                flops = shape.flops(backward=False) * PRODUCTS[kernel] / 2
                yield Measured(kernel, shape.d, shape.n, describe(shape.mask), config, ms, flops / ms / 1e9)


class _Bench:
    """Inputs of one kernel, its outputs, and what a candidate must answer."""

    def __init__(self, inputs: Inputs, kernel: Pass, group: int, budget: Budget | None) -> None:
        self.inputs, self.kernel, self.group, self.budget = inputs, kernel, group, budget
        q, mask = inputs.q, inputs.mask
        self.problem = launch.Problem(1.0 / math.sqrt(q.shape[-1]), mask.left, mask.right, prefix=mask.prefix)
        self.out, self.dq, self.dk, self.dv = (torch.empty_like(x) for x in (q, q, inputs.k, inputs.v))
        self.lse, self.delta = (q.new_empty(q.shape[0], q.shape[2], q.shape[1], dtype=torch.float32) for _ in range(2))
        self.default()

    def default(self) -> None:
        """Fill what a later kernel reads, with the configurations of the table."""
        i = self.inputs
        launch.launch_forward(i.q, i.k, i.v, self.out, self.lse, self.problem)
        launch.launch_dq(i.do, None, i.q, i.k, i.v, self.out, self.lse, self.delta, self.dq, self.problem)

    def call(self, config: Config) -> Callable[[], None]:
        """The kernel with these blocks, as a call."""
        i = self.inputs
        if self.kernel == "fwd":
            return lambda: launch.launch_forward(i.q, i.k, i.v, self.out, self.lse, self.problem, config)
        if self.kernel == "dq":
            return lambda: launch.launch_dq(
                i.do, None, i.q, i.k, i.v, self.out, self.lse, self.delta, self.dq, self.problem, config
            )
        return lambda: launch.launch_dkdv(
            i.do, i.q, i.k, i.v, self.lse, self.delta, self.dk, self.dv, self.problem, config
        )

    def results(self) -> dict[str, Tensor]:
        """The outputs of the kernel, for the first key head of the first sequence."""
        g = self.group
        if self.kernel == "fwd":
            return {"out": self.out[0, :, :g], "lse": self.lse[0, :g].T}
        if self.kernel == "dq":
            return {"dq": self.dq[0, :, :g]}
        return {"dk": self.dk[0, :, :1], "dv": self.dv[0, :, :1]}

    def refuses(self, config: Config) -> str | None:
        """Why the candidate cannot be timed: it does not fit, or what it writes is wrong."""
        for value in self.results().values():
            value.fill_(torch.nan)
        try:
            self.call(config)()
        except launch.TooLarge as error:
            return str(error).split(".")[0]
        rows = check(self.results(), self.budget) if self.budget else []
        wrong = [row.name for row in rows if not row.ok]
        return f"outside the error budget: {', '.join(wrong)}" if wrong else None
