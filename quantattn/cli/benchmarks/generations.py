"""The generations of attention kernels against length: time, bytes moved and memory, behind the error budget.

Batch and heads stay the same at every length, so that a line's slope is its growth with N. Bytes moved are the formulas
that the tests hold against every load and store; a GPU adds time and peak memory. Without one the kernels run in
Triton's interpreter at small lengths: results and bytes count there, times would mean nothing and are left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from quantattn.attention import Mask
from quantattn.attention.kernels.generations.call import Call, Moved
from quantattn.attention.kernels.generations.registry import GENERATIONS, attend, prepare
from quantattn.attention.kernels.launch import TooLarge
from quantattn.attention.problems import Problem
from quantattn.attention.testing import Budget, check, error_budget
from quantattn.cli.benchmarks.attention import Say
from quantattn.cli.benchmarks.results import Row
from quantattn.cli.benchmarks.shapes import Shape, describe
from quantattn.cli.benchmarks.timing import peak_mib, time_interleaved

MIB = 1 << 20
SPARE = 0.8
"""Share of the free device memory that a call may take."""
GATED = 8192
"""Queries that are held to the error budget at most; the truth forms their scores in float64."""


@dataclass(frozen=True)
class GenerationRow(Row):
    """A row of results with what one call moves and allocates.

    Attributes:
        block_m: queries of a tile.
        block_n: keys of a block.
        read_mib: what the kernels ask of memory, MiB; also what a cache answers.
        written_mib: what they write, MiB.
        workspace_mib: allocated beyond inputs and outputs, by the formula, MiB.
        expected_peak_mib: outputs and workspace together, which `peak_mib` is to be, MiB.
    """

    block_m: int
    block_n: int
    read_mib: float
    written_mib: float
    workspace_mib: float
    expected_peak_mib: float


def benchmark(
    shapes: Sequence[Shape], dtype: torch.dtype, *, rounds: int, seed: int, say: Say
) -> Iterator[GenerationRow]:
    """One row a shape and generation that fits into memory and stays within the error budget."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for shape in shapes:
        causal = shape.mask == Mask(causal=True)
        rng = torch.Generator(device).manual_seed(seed)
        size = (shape.batch, shape.n, shape.heads, shape.d)
        q, k, v = (torch.randn(size, generator=rng, device=device).to(dtype) for _ in range(3))
        budget = error_budget(_piece(q, k, v, shape.mask), backward=False)
        ratios = {}
        for name in GENERATIONS:
            found = _ratio(name, prepare(name, q, k, v, causal=causal), budget)
            if isinstance(found, str):
                say(f"{name}, N {shape.n} {describe(shape.mask)}: not measured, {found}")
            else:
                ratios[name] = found
        calls = {name: partial(attend, name, q, k, v, causal=causal) for name in ratios}
        times = time_interleaved(calls, rounds=rounds, warmup=1) if device == "cuda" else {}
        for name, ratio in ratios.items():
            ms = times[name].median if times else math.nan
            peak = peak_mib(calls[name]) if times else math.nan
            yield _row(name, shape, prepare(name, q, k, v, causal=causal), ms, peak, ratio)
        del q, k, v, calls
        if device == "cuda":
            torch.cuda.empty_cache()


def _piece(q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> Problem:
    """The first head of the first sequence, its last queries and all of its keys, for the error budget.

    A causal mask is aligned bottom-right, so the last queries alone see what they see among all.
    """
    q, k, v = q[0, -GATED:, :1], k[0, :, :1], v[0, :, :1]
    rows, keys = (torch.tensor([0, x.shape[0]], dtype=torch.int32, device=q.device) for x in (q, k))
    return Problem(q, k, v, rows, keys, mask, None, 1.0 / math.sqrt(q.shape[-1]), torch.zeros_like(q))


def _ratio(name: str, call: Call, budget: Budget) -> float | str:
    """Error over that of standard attention in the dtype, or why the generation is not measured."""
    needed = GENERATIONS[name].workspace(call.shape)
    if call.q.is_cuda:
        torch.cuda.empty_cache()
        free = torch.cuda.mem_get_info()[0]
        if needed > SPARE * free:
            return f"it would allocate {needed / MIB:,.0f} MiB of {free / MIB:,.0f} that are free"
    call.out.fill_(torch.nan)
    call.lse.fill_(torch.nan)
    try:
        GENERATIONS[name].launch(call)
    except (TooLarge, ValueError, RuntimeError) as reason:
        return str(reason).splitlines()[0]
    rows = check({"out": call.out[0, -GATED:, :1], "lse": call.lse[0, :1, -GATED:].T}, budget)
    wrong = [row for row in rows if not row.ok]
    if wrong:
        worst = max(wrong, key=lambda row: row.ratio)
        return f"{worst.name} is off by {worst.worst:.3g} where {worst.allowed:.3g} is allowed"
    return max(row.ratio for row in rows)


def _row(name: str, shape: Shape, call: Call, ms: float, peak: float, ratio: float) -> GenerationRow:
    sizes, blocks, generation = call.shape, call.blocks, GENERATIONS[name]
    moved = generation.traffic(sizes, blocks.block_m, blocks.block_n).values()
    total = Moved(sum(part.read for part in moved), sum(part.written for part in moved))
    workspace = generation.workspace(sizes)
    return GenerationRow(
        impl=name,
        dtype=str(call.q.dtype).removeprefix("torch."),
        D=shape.d,
        N=shape.n,
        batch=shape.batch,
        heads=shape.heads,
        mask=describe(shape.mask),
        stage="forward",
        ms=round(ms, 4),
        tflops=round(shape.flops(backward=False) / ms / 1e9, 1),
        peak_mib=round(peak, 3),
        error_ratio=round(ratio, 3),
        block_m=blocks.block_m,
        block_n=blocks.block_n,
        read_mib=round(total.read / MIB, 6),
        written_mib=round(total.written / MIB, 6),
        workspace_mib=round(workspace / MIB, 6),
        expected_peak_mib=round((workspace + sizes.rows_of_queries() + sizes.vector()) / MIB, 6),
    )
