"""Attention beside its peers: time, throughput, peak memory, behind the error budget; and memory against length."""

from __future__ import annotations

import math
import os
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from itertools import repeat
from multiprocessing import get_context
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from quantattn.attention import Mask, attention
from quantattn.cli.benchmarks.gate import Gate
from quantattn.cli.benchmarks.peers import BACKWARD_ALONE, COMPILED, PEERS, Calls, Inputs
from quantattn.cli.benchmarks.results import Row
from quantattn.cli.benchmarks.shapes import Case, Shape, describe
from quantattn.cli.benchmarks.timing import Call, Timing, event, peak_mib, time_interleaved

Say = Callable[[str], None]

OURS = "quantattn"
NOT_BEGUN = "not begun"
"""How a note begins where the limit is the reason."""
KEY = ("impl", "dtype", "D", "N", "batch", "heads", "heads_k", "mask", "kind", "tokens", "pass")
"""Columns that name a row: measured again, it takes the place of the old one."""
MOST_S = 1.0
"""Seconds that the timed calls of one implementation take, about; a slow one takes part in fewer rounds."""
_SHORT = 2048
"""Our kernels choose their blocks by the number of keys, the longest of few being this one."""


@dataclass(frozen=True)
class AttentionRow(Row):
    """A row of results; NaN where it was not measured, and then `note` says why.

    Attributes:
        heads_k: key heads.
        kind: dense, or in what the shape differs (`Shape.kind`); N and batch of a pack are its longest sequence and
            their number.
        tokens: queries of all sequences.
        note: why it was not measured.
    """

    heads_k: int
    kind: str
    tokens: int
    note: str = ""

    @property
    def failed(self) -> bool:
        """Whether ours was not measured, and not for lack of time."""
        return self.impl == OURS and bool(self.note) and not self.note.startswith(NOT_BEGUN)


def completed(row: Mapping[str, str]) -> dict[str, str]:
    """A line of a file, with what files lack that were written before there were other shapes than dense ones."""
    older = {"heads_k": row["heads"], "kind": "dense", "tokens": str(int(row["N"]) * int(row["batch"])), "note": ""}
    return older | dict(row)


def benchmark(
    cases: Sequence[Case], dtype: torch.dtype, *, rounds: int, warmup: int, seed: int, say: Say,
    ends: float = math.inf,
) -> Iterator[AttentionRow]:  # fmt: skip
    """One row a shape, implementation and pass, measured or with the reason why not.

    What exceeds the error budget gets no time. Nothing further is begun once `time.perf_counter()` is past `ends`.
    """
    for case in cases:
        if perf_counter() > ends:
            say(f"{case.shape}: {NOT_BEGUN}, the limit was reached")
            continue
        yield from _of_case(case, dtype, rounds, warmup, seed, ends)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def _of_case(
    case: Case, dtype: torch.dtype, rounds: int, warmup: int, seed: int, ends: float
) -> Iterator[AttentionRow]:
    """The rows of one shape, the ones with a reason first."""
    admitted, refused = _admit(case, draw(case.shape, dtype, seed), ends)
    for (name, stage), reason in refused.items():
        yield _row(case.shape, dtype, name, stage, note=reason)
    for stage in case.shape.passes:
        calls = {name: call for (name, of), (call, _) in admitted.items() if of == stage}
        for name, found in _timed(calls, rounds, warmup).items():
            if isinstance(found, str):
                yield _row(case.shape, dtype, name, stage, note=found)
            else:
                yield _row(case.shape, dtype, name, stage, *found, ratio=admitted[name, stage][1])


def draw(shape: Shape, dtype: torch.dtype, seed: int) -> Inputs:
    """Standard-normal q, k, v and do, on the GPU where there is one."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    rng = torch.Generator(device).manual_seed(seed)
    batch, n_k = (1, shape.tokens) if shape.lengths else (shape.batch, shape.n)
    n_q = shape.queries or n_k

    def normal(n: int, heads: int) -> Tensor:
        return torch.randn(batch, n, heads, shape.d, generator=rng, device=device).to(dtype)

    q, k, v, do = (normal(n_q, shape.heads), *(normal(n_k, shape.heads_k) for _ in range(2)), normal(n_q, shape.heads))
    return Inputs(q, k, v, do, shape.mask, shape.lengths)


Admitted = dict[tuple[str, str], tuple[Call, float]]
"""(peer, pass) → its call and the error ratio."""


def _admit(case: Case, inputs: Inputs, ends: float) -> tuple[Admitted, dict[tuple[str, str], str]]:
    """Calls that run here and stay within the error budget; and why the others are not timed, by peer and pass."""
    admitted: Admitted = {}
    refused: dict[tuple[str, str], str] = {}
    try:
        gate = Gate(inputs, "backward" in case.shape.passes)
    except Exception as reason:
        sentence = f"no error budget, {_sentence(reason)}"
        return {}, {(name, stage): sentence for name in case.peers for stage in case.shape.passes}
    for name in case.peers:
        stages = [stage for stage in case.shape.passes if stage == "backward" or name not in BACKWARD_ALONE]
        if not stages:
            continue
        if perf_counter() > ends:
            refused |= dict.fromkeys(((name, stage) for stage in stages), f"{NOT_BEGUN}, the limit was reached")
            continue
        stage = stages[0]
        try:
            calls = PEERS[name](inputs)
            ratio = gate.forward(calls.forward())
            for stage in stages:
                if stage == "forward":
                    admitted[name, stage] = calls.forward, ratio
                else:
                    admitted[name, stage] = calls.backward, gate.backward(calls.backward())
        except Exception as reason:  # whatever a peer's code raises, its row says it
            refused |= dict.fromkeys(((name, left) for left in stages[stages.index(stage) :]), _sentence(reason))
    return admitted, refused


def _timed(calls: Mapping[str, Call], rounds: int, warmup: int) -> dict[str, tuple[Timing, float] | str]:
    """Time and peak memory of each call, in turn; alone where one of them raises, which then says why."""
    try:
        times = time_interleaved(calls, rounds=rounds, warmup=warmup, most_s=MOST_S)
        return {name: (timing, peak_mib(calls[name])) for name, timing in times.items()}
    except Exception as reason:
        if len(calls) == 1:
            return dict.fromkeys(calls, _sentence(reason))
    found: dict[str, tuple[Timing, float] | str] = {}
    for name, call in calls.items():
        found |= _timed({name: call}, rounds, warmup)
    return found


def _sentence(reason: BaseException) -> str:
    """The first line of what was raised, cut; and its kind where the line alone would not say that."""
    line = textwrap.shorten((str(reason).strip().splitlines() or ["no reason given"])[0], 160, placeholder=" …")
    return line if isinstance(reason, (ValueError, RuntimeError)) else f"{type(reason).__name__}: {line}"


def _row(
    shape: Shape, dtype: torch.dtype, name: str, stage: str, timing: Timing | None = None, peak: float = math.nan,
    ratio: float = math.nan, note: str = "",
) -> AttentionRow:  # fmt: skip
    ms = timing.median if timing else math.nan
    return AttentionRow(
        impl=name,
        dtype=str(dtype).removeprefix("torch."),
        D=shape.d,
        N=shape.n,
        batch=len(shape.lengths) or shape.batch,
        heads=shape.heads,
        mask=describe(shape.mask),
        stage=stage,
        ms=round(ms, 4),
        tflops=round(shape.flops(stage == "backward") / ms / 1e9, 1),
        peak_mib=round(peak, 1),
        error_ratio=round(ratio, 3),
        heads_k=shape.heads_k,
        kind=shape.kind,
        tokens=shape.tokens,
        note=note,
    )


def sentence(row: AttentionRow) -> str:
    """What is printed as soon as a row is known."""
    kind = "" if row.kind == "dense" else f", {row.kind}"
    what = f"{row.impl:24} D {row.D} N {row.N} {row.mask}{kind} {row.stage}"
    return f"{what}: {row.note}" if row.note else f"{what}: {row.ms:.3f} ms, {row.tflops} TFLOP/s"


def compile_ahead(cases: Sequence[Case], dtype: torch.dtype, processes: int, say: Say) -> None:
    """Let so many processes compile what the peers need into the caches on disk, each peer once a sort of problem.

    FlexAttention compiles for every shape, the others for a head size, mask and layout. What fails here is said, and
    tried again when its turn comes.
    """
    os.environ.setdefault("FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED", "1")
    jobs: dict[Any, tuple[Shape, str]] = {}
    for case in cases:
        s = case.shape
        sort = (s.d, s.mask, s.kind, s.n <= _SHORT)
        for name in case.peers:
            if name in COMPILED:
                jobs.setdefault((name, s if name == "flex" else sort), (s, name))
    try:
        with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
            for failed in pool.map(_compile, *zip(*jobs.values(), strict=True), repeat(dtype)):
                if failed:
                    say(f"compiling ahead: {failed}")
    except BrokenProcessPool as reason:
        say(f"compiling ahead has ended, what is left compiles in its turn: {reason}")


def _compile(shape: Shape, name: str, dtype: torch.dtype) -> str | None:
    """Run a peer once; the sentence when it cannot."""
    sentence = None
    try:
        _run(PEERS[name](draw(shape, dtype, 0)), shape)
    except Exception as reason:
        sentence = f"{name}, {shape}: {_sentence(reason)}"
    if torch.cuda.is_available():
        torch.cuda.empty_cache()  # the other processes need it
    return sentence


def _run(calls: Calls, shape: Shape) -> None:
    calls.forward()
    if "backward" in shape.passes:
        calls.backward()
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def memory(lengths: Sequence[int], d: int, heads: int, dtype: torch.dtype, say: Say) -> tuple[list[Row], float]:
    """Peak memory of forward and backward of one causal sequence at each length, and the log-log slope over lengths."""
    rows: list[Row] = []
    for n in lengths:
        shape = Shape(d, n, 1, heads, heads, Mask(causal=True))
        inputs = draw(shape, dtype, 0)

        def step(inputs: Inputs = inputs) -> Sequence[Tensor]:
            leaves = [x.detach().requires_grad_() for x in (inputs.q, inputs.k, inputs.v)]
            out = attention(*leaves, mask=inputs.mask).out
            return torch.autograd.grad(out, leaves, inputs.do)

        step()
        start, stop = event(), event()
        start.record()
        step()
        stop.record()
        torch.cuda.synchronize()
        timing = Timing(start.elapsed_time(stop), 0.0, 0.0, 1)
        row = _row(shape, dtype, OURS, "backward", timing, peak_mib(step))
        rows.append(replace(row, stage="both", tflops=round(3.5 / 2.5 * row.tflops, 1)))
        say(f"N = {n}: {rows[-1].peak_mib:.1f} MiB, {rows[-1].ms:.1f} ms")
    x = [math.log(row.N) for row in rows]
    y = [math.log(row.peak_mib) for row in rows]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    slope = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / sum((a - mean_x) ** 2 for a in x)
    return rows, slope
