"""Attention beside its peers: time, throughput, peak memory, behind the error budget; and memory against length."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from quantattn.attention import Mask, attention
from quantattn.attention.problems import Problem
from quantattn.attention.testing import check, error_budget
from quantattn.cli.benchmarks.peers import PEERS, Calls, Inputs
from quantattn.cli.benchmarks.results import Row
from quantattn.cli.benchmarks.timing import Timing, event, peak_mib, time_interleaved

Say = Callable[[str], None]


@dataclass(frozen=True)
class Shape:
    """B sequences of N tokens, H heads of size D, Hkv of them for keys."""

    d: int
    n: int
    batch: int
    heads: int
    heads_k: int
    mask: Mask

    def flops(self, backward: bool) -> float:
        """Floating-point operations by the FlashAttention convention; a mask counts the pairs that it shows."""
        pairs = float(self.n) ** 2
        if self.mask == Mask(causal=True):
            pairs /= 2
        elif self.mask != Mask():
            shown = (self.mask.key_ranges(i, i + 1, self.n, self.n) for i in range(self.n))
            pairs = float(sum(stop - start for ranges in shown for start, stop in ranges))
        return (10.0 if backward else 4.0) * self.batch * self.heads * pairs * self.d


def benchmark(
    shapes: Sequence[Shape], peers: Sequence[str], dtype: torch.dtype, *, rounds: int, warmup: int, seed: int, say: Say
) -> Iterator[Row]:
    """One row a shape, implementation and pass. What exceeds the error budget gets no time; reasons go to `say`."""
    for shape in shapes:
        inputs = draw(shape, dtype, seed)
        calls, ratios = _admitted(inputs, peers, say)
        for backward in (False, True):
            timed = {name: c.backward if backward else c.forward for name, c in calls.items()}
            times = time_interleaved(timed, rounds=rounds, warmup=warmup)
            for name, timing in times.items():
                yield _row(shape, dtype, name, backward, timing, peak_mib(timed[name]), ratios[name])
        del calls, inputs
        torch.cuda.empty_cache()


def draw(shape: Shape, dtype: torch.dtype, seed: int) -> Inputs:
    """Standard-normal q, k, v and do on the GPU."""
    rng = torch.Generator("cuda").manual_seed(seed)

    def normal(heads: int) -> Tensor:
        return torch.randn(shape.batch, shape.n, heads, shape.d, generator=rng, device="cuda").to(dtype)

    return Inputs(normal(shape.heads), normal(shape.heads_k), normal(shape.heads_k), normal(shape.heads), shape.mask)


def _admitted(inputs: Inputs, peers: Sequence[str], say: Say) -> tuple[dict[str, Calls], dict[str, float]]:
    """Calls of the peers that run here and stay within the error budget, and their error ratios."""
    calls: dict[str, Calls] = {}
    ratios: dict[str, float] = {}
    heads = inputs.q.shape[2] // inputs.k.shape[2]  # the first key head and those that share it, of sequence 0
    budget = error_budget(piece_of(inputs, heads))
    for name in peers:
        try:
            made = PEERS[name](inputs)
            out, grads = made.forward(), made.backward()
        except (ValueError, RuntimeError) as reason:
            say(f"{name}: skipped, {str(reason).splitlines()[0]}")
            continue
        results = {
            "out": out[0, :, :heads],
            "dq": grads[0][0, :, :heads],
            "dk": grads[1][0, :, :1],
            "dv": grads[2][0, :, :1],
        }
        rows = check(results, budget)
        if not all(row.ok for row in rows):
            worst = max((row for row in rows if not row.ok), key=lambda row: row.ratio)
            say(f"{name}: not timed, {worst.name} is off by {worst.worst:.3g} where {worst.allowed:.3g} is allowed")
            continue
        calls[name], ratios[name] = made, max(row.ratio for row in rows)
    return calls, ratios


def piece_of(inputs: Inputs, heads: int) -> Problem:
    """The first key head of the first sequence and the query heads that share it, for the error budget."""
    n = inputs.q.shape[1]
    offsets = torch.tensor([0, n], dtype=torch.int32, device=inputs.q.device)
    q, k, v, do = (x[0, :, :h] for x, h in ((inputs.q, heads), (inputs.k, 1), (inputs.v, 1), (inputs.do, heads)))
    scale = 1.0 / math.sqrt(q.shape[-1])
    return Problem(q, k, v, offsets, offsets, inputs.mask, None, scale, do)


def _row(shape: Shape, dtype: torch.dtype, name: str, backward: bool, timing: Timing, peak: float, ratio: float) -> Row:
    return Row(
        impl=name,
        dtype=str(dtype).removeprefix("torch."),
        D=shape.d,
        N=shape.n,
        batch=shape.batch,
        heads=shape.heads,
        mask=describe(shape.mask),
        stage="backward" if backward else "forward",
        ms=round(timing.median, 4),
        tflops=round(shape.flops(backward) / timing.median / 1e9, 1),
        peak_mib=round(peak, 1),
        error_ratio=round(ratio, 3),
    )


def describe(mask: Mask) -> str:
    """full, causal, or the window's bounds, and a prefix."""
    if mask == Mask():
        return "full"
    prefix = f", prefix {mask.prefix}" if mask.prefix else ""
    return "causal" if mask == Mask(causal=True) else f"window {mask.left}:{mask.right}{prefix}"


def memory(lengths: Sequence[int], d: int, heads: int, dtype: torch.dtype, say: Say) -> tuple[list[Row], float]:
    """Peak memory of forward and backward of one causal sequence at each length, and the log-log slope over lengths."""
    rows = []
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
        row = _row(shape, dtype, "quantattn", True, timing, peak_mib(step), math.nan)
        rows.append(replace(row, stage="both", tflops=round(3.5 / 2.5 * row.tflops, 1)))
        say(f"N = {n}: {rows[-1].peak_mib:.1f} MiB, {rows[-1].ms:.1f} ms")
    x = [math.log(row.N) for row in rows]
    y = [math.log(row.peak_mib) for row in rows]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    slope = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / sum((a - mean_x) ** 2 for a in x)
    return rows, slope
