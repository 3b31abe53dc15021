"""Rows of the tables for Hopper beside their neighbours, each of which differs in one setting by one step.

A table is right where no neighbour of its rows is faster; what is wrong on poisoned outputs or does not fit gets no
time.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from quantattn.attention.kernels.hopper import launch
from quantattn.attention.kernels.hopper.compat import REFUSALS
from quantattn.attention.kernels.hopper.configs import (
    BACKWARD,
    BackwardConfig,
    ForwardConfig,
    forward_config,
    padded_head,
)
from quantattn.attention.kernels.launch import Problem
from quantattn.attention.testing import Budget, check, error_budget
from quantattn.cli.benchmarks.attention import draw
from quantattn.cli.benchmarks.gate import piece_of
from quantattn.cli.benchmarks.peers import Inputs
from quantattn.cli.benchmarks.results import write_rows
from quantattn.cli.benchmarks.shapes import Shape, describe
from quantattn.cli.benchmarks.timing import time_interleaved
from quantattn.cli.errors import DONE, UsageError

Config = ForwardConfig | BackwardConfig
PASSES = ("forward", "backward")
KEY = ("kernel", "d", "n", "mask", "setting")
TABLE = "table"
"""What a row is called that stands in the table."""
_REGISTERS = {1: (232, 24), 2: (240, 24), 3: (160, 32)}
"""Warpgroups → registers of a thread that multiplies, and of one that loads."""


@dataclass(frozen=True)
class TuneRow:
    """One configuration.

    Attributes:
        kernel: forward or backward.
        d: head size.
        n: tokens of a sequence.
        mask: full, causal, or the window's bounds.
        setting: what differs from the table, or "table".
        ms: median of the whole pass, milliseconds.
        tflops: 10¹² floating-point operations a second, by the FlashAttention convention.
        table_takes: the table's median over this one's.
    """

    kernel: str
    d: int
    n: int
    mask: str
    setting: str
    ms: float
    tflops: float
    table_takes: float


def sentence(row: TuneRow) -> str:
    """What the terminal says of a row."""
    return (
        f"{row.kernel} D {row.d} N {row.n} {row.mask}: {row.setting} {row.ms:.3f} ms, {row.tflops:.0f} TFLOP/s, "
        f"the table takes {row.table_takes:.2f} times as long"
    )


def run(shapes: Sequence[Shape], dtype: torch.dtype, settings: Mapping[str, Any], say: Callable[[str], None]) -> int:
    """bench=tune tune.table=hopper."""
    if torch.cuda.get_device_capability() != (9, 0):
        raise ValueError("tune.table=hopper needs a GPU of compute capability 9.0; tune.table=portable does not")
    if dtype == torch.float32:
        raise UsageError("tune.table=hopper: these kernels take float16 and bfloat16, got float32")
    compile_ahead(shapes, dtype)
    rows, folder, device = [], Path(settings["results"]), torch.cuda.get_device_name()
    for row in tune(shapes, dtype, rounds=settings["rounds"], say=say):
        rows.append(row)
        say(sentence(row))
        path = write_rows(rows, folder, "tune", device, key=KEY)  # after each, so that a run that is stopped leaves it
    say(f"written: {path}")
    return DONE


def neighbours(config: Config) -> dict[str, Config]:
    """What is changed → the configuration with that change."""
    if isinstance(config, BackwardConfig):
        near: dict[str, Config] = {f"stages {n}": replace(config, stages=n) for n in _beside(config.stages, 1, 6)}
        for name in ("defer", "hold", "early"):
            near[f"{name} {not getattr(config, name)}"] = replace(config, **{name: not getattr(config, name)})
        return near
    near = {f"stages {n}": replace(config, stages=n) for n in _beside(config.stages, 1, 6)}
    near[f"block_n {192 - config.block_n}"] = replace(config, block_n=192 - config.block_n)  # 64 or 128
    for name in ("overlap", "shares", *(("turns",) if config.groups > 1 else ())):
        near[f"{name} {not getattr(config, name)}"] = replace(config, **{name: not getattr(config, name)})
    for groups in _beside(config.groups, 1, 3):
        registers, spare = _REGISTERS[groups]
        turns = config.turns and groups > 1
        near[f"groups {groups}"] = replace(
            config, groups=groups, registers=registers, spare=spare, turns=turns, programs=1 if groups > 1 else 2
        )
    if config.groups == 1:
        near |= {f"programs {n}": replace(config, programs=n) for n in _beside(config.programs, 1, 4)}
    return near


def _beside(value: int, least: int, most: int) -> list[int]:
    return [n for n in (value - 1, value + 1) if least <= n <= most]


def candidates(shape: Shape, kernel: str) -> dict[str, Config]:
    """The table's configuration for a shape and its neighbours; none where the kernel has nothing to choose."""
    columns = padded_head(shape.d)
    if kernel == "backward":
        return {} if columns not in BACKWARD else {TABLE: BACKWARD[columns], **neighbours(BACKWARD[columns])}
    left, right = shape.mask.left, shape.mask.right
    own = forward_config(columns, shape.n, shape.n, left, right)
    return {TABLE: own, **neighbours(own)}


def compile_ahead(shapes: Sequence[Shape], dtype: torch.dtype) -> None:
    """Put every candidate into Triton's cache on disk, in as many processes as there are cores."""
    jobs: dict[tuple[Shape, str, Config, torch.dtype], None] = {}
    for shape in shapes:
        small = replace(shape, n=200, batch=1, heads=shape.heads // shape.heads_k, heads_k=1)
        for kernel in PASSES:
            jobs |= {(small, kernel, config, dtype): None for config in candidates(shape, kernel).values()}
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        for _ in pool.map(_compile, *zip(*jobs, strict=True)):
            pass


def _compile(shape: Shape, kernel: str, config: Config, dtype: torch.dtype) -> None:
    with contextlib.suppress(*REFUSALS), _quiet():  # said when the candidate's turn comes
        _Bench(draw(shape, dtype, 0), kernel, 1, None).call(config)()


def _quiet() -> contextlib.redirect_stdout[io.StringIO]:
    """Triton prints a program that it cannot assemble, all of it."""
    return contextlib.redirect_stdout(io.StringIO())


def tune(shapes: Sequence[Shape], dtype: torch.dtype, *, rounds: int, say: Callable[[str], None]) -> Iterator[TuneRow]:
    """The candidates that fit and stay within the error budget, fastest first within a shape and pass."""
    for shape in shapes:
        inputs = draw(shape, dtype, 0)
        group = shape.heads // shape.heads_k
        budget = error_budget(piece_of(inputs, group))
        for kernel in PASSES:
            bench, calls = _Bench(inputs, kernel, group, budget), {}
            for setting, config in candidates(shape, kernel).items():
                reason = bench.refuses(config)
                if reason is None:
                    calls[setting] = bench.call(config)
                else:
                    say(f"{kernel} {shape} {setting}: {reason}")
            times = time_interleaved(calls, rounds=rounds, warmup=2) if calls else {}
            flops = shape.flops(backward=kernel == "backward")
            for setting in sorted(calls, key=lambda name: times[name].median):
                ms = times[setting].median
                takes = times[TABLE].median / ms if TABLE in times else math.nan
                yield TuneRow(kernel, shape.d, shape.n, describe(shape.mask), setting, ms, flops / ms / 1e9, takes)


class _Bench:
    """Inputs of one pass, its outputs, and what a candidate must answer."""

    def __init__(self, inputs: Inputs, kernel: str, group: int, budget: Budget | None) -> None:
        self.inputs, self.kernel, self.group, self.budget = inputs, kernel, group, budget
        q, mask = inputs.q, inputs.mask
        self.problem = Problem(1.0 / math.sqrt(q.shape[-1]), mask.left, mask.right)
        self.out, self.dq, self.dk, self.dv = (torch.empty_like(x) for x in (q, q, inputs.k, inputs.v))
        self.lse = q.new_empty(q.shape[0], q.shape[2], q.shape[1], dtype=torch.float32)
        if kernel == "backward":
            launch.launch_forward(q, inputs.k, inputs.v, self.out, self.lse, self.problem)

    def call(self, config: Config) -> Callable[[], None]:
        """The pass with this configuration, as a call."""
        i = self.inputs
        if isinstance(config, ForwardConfig):
            return lambda: launch.launch_forward(i.q, i.k, i.v, self.out, self.lse, self.problem, config)
        return lambda: launch.launch_backward(
            i.do, None, i.q, i.k, i.v, self.out, self.lse, self.dq, self.dk, self.dv, self.problem, config
        )

    def results(self) -> dict[str, Tensor]:
        """The outputs of the pass, for the first key head of the first sequence."""
        g = self.group
        if self.kernel == "forward":
            return {"out": self.out[0, :, :g], "lse": self.lse[0, :g].T}
        return {"dq": self.dq[0, :, :g], "dk": self.dk[0, :, :1], "dv": self.dv[0, :, :1]}

    def refuses(self, config: Config) -> str | None:
        """Why the candidate cannot be timed: it does not fit, or what it writes is wrong."""
        for value in self.results().values():
            value.fill_(torch.nan)
        try:
            with _quiet():
                self.call(config)()
        except REFUSALS as error:
            return f"does not fit ({type(error).__name__})"
        rows = check(self.results(), self.budget) if self.budget else []
        wrong = [row.name for row in rows if not row.ok]
        return f"outside the error budget: {', '.join(wrong)}" if wrong else None
