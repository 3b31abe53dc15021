"""Promises about bits and about memory: the same call again, the same sequence in another batch, twice the length."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from quantattn.attention.api import attention
from quantattn.attention.certificate import Finding, verdict
from quantattn.attention.checks import backend_named, not_offered, refused
from quantattn.attention.machine import dtype_name
from quantattn.attention.mask import Mask
from quantattn.attention.problems import Problem, random_problem
from quantattn.attention.testing import Backend, errors, run

MEMORY_SLOPE = 1.1
"""Peak memory may grow with so high a power of the length."""

_DENSE_SLOPE = 1.6
"""With at least so high a power grows what forms the matrix, which the measurement has to see."""


def check_repeats(name: str, backend: Backend, problem: Problem, times: int) -> Finding:
    """The same call `times` times, forward and backward: how far any result is from that of the first call."""
    first, worst = run(backend, problem), 0.0
    for _ in range(times - 1):
        again = run(backend, problem)
        if any(not torch.equal(again[x], first[x]) for x in first):
            worst = max(worst, *(errors(again[x], first[x].double())[0] for x in first))
    case = f"repeat: {times} times the same call"
    return Finding(name, case, dtype_name(problem.q.dtype), "bits", worst, 0.0, 0.0, verdict(worst == 0), "", times)


def check_batches(name: str, problem: Problem, sizes: Sequence[int], deterministic: bool | str = True) -> Finding:
    """One sequence alone and as the last of packs and of dense batches of several sizes: the same bits everywhere.

    Args:
        name: the backend's.
        problem: of one sequence, with as many keys as queries.
        sizes: of the batches, 1 and others.
        deterministic: the mode that `attention` is asked for.
    """
    backend = backend_named(name, deterministic)
    n, worst = problem.q.shape[0], 0.0
    alone = run(backend, problem)
    for size in sizes:
        several = replace(
            problem,
            q=_after_others(problem.q, size),
            k=_after_others(problem.k, size),
            v=_after_others(problem.v, size),
            do=_after_others(problem.do, size),
            cu_seqlens=problem.cu_seqlens[1] * torch.arange(size + 1, device=problem.q.device, dtype=torch.int32),
            cu_seqlens_k=problem.cu_seqlens_k[1] * torch.arange(size + 1, device=problem.q.device, dtype=torch.int32),
        )
        found = run(backend, several)
        worst = max(worst, *(errors(found[x][-n:], alone[x].double())[0] for x in alone))
    dense = []
    for size in sizes:
        batch = (_after_others(x, size).view(size, n, *x.shape[1:]) for x in (problem.q, problem.k, problem.v))
        dense.append(
            attention(*batch, mask=problem.mask, scale=problem.scale, deterministic=deterministic, backend=name)
        )
        for a, b in zip(dense[-1], dense[0], strict=True):
            worst = max(worst, errors(a[-1], b[-1].double())[0])
    case = f"repeat: batches of {', '.join(map(str, sizes))}" + (", batch mode" if deterministic == "batch" else "")
    return Finding(
        name, case, dtype_name(problem.q.dtype), "bits", worst, 0.0, 0.0, verdict(worst == 0), "", 2 * len(sizes)
    )


def check_bits(name: str, problem: Problem, times: int, sizes: Sequence[int]) -> Iterator[Finding]:
    """Repeats, batches, and batches in the mode that promises the same bits in all of them, where it is offered."""
    refusal = refused(name, problem.q, problem.mask, problem.bias)
    if refusal is not None:
        yield not_offered(name, "repeat: the same call, and batches", problem.q.dtype, refusal)
        return
    yield check_repeats(name, backend_named(name), problem, times)
    yield check_batches(name, problem, sizes)
    refusal = refused(name, problem.q, problem.mask, problem.bias, deterministic="batch")
    if refusal is None:
        yield check_batches(name, problem, sizes, "batch")
    else:
        yield not_offered(name, "repeat: batches, batch mode", problem.q.dtype, refusal)


def repeated_problem(dtype: torch.dtype, device: torch.device, *, small: bool) -> Problem:
    """A causal sequence, two query heads on one."""
    n = 37 if small else 129
    return random_problem(400, (n,), heads=2, heads_k=1, d=16 if small else 64, mask=Mask(causal=True), dtype=dtype,
                          device=device)  # fmt: skip


def check_memory(name: str, lengths: Sequence[int], dtype: torch.dtype, device: torch.device) -> Finding:
    """The power of the length with which the peak memory of a forward and backward grows, fitted to the logarithms.

    The specification is the control: it forms the N×N matrix, and the measurement has to see that.
    """
    peaks = [peak_memory(name, n, dtype, device) for n in lengths]
    slope = fitted_slope(lengths, peaks)
    note = ", ".join(f"{peak / 2**20:.3g} MiB at {n}" for n, peak in zip(lengths, peaks, strict=True))
    case = f"memory: N {lengths[0]} to {lengths[-1]}"
    ok, allowed, about = slope <= MEMORY_SLOPE, MEMORY_SLOPE, name
    if name == "exact":
        ok, allowed, about, note = slope > _DENSE_SLOPE, _DENSE_SLOPE, "control", f"what forms the matrix: {note}"
    return Finding(about, case, dtype_name(dtype), "slope", slope, 0.0, allowed, verdict(ok), note, len(peaks))


def peak_memory(name: str, n: int, dtype: torch.dtype, device: torch.device) -> int:
    """Bytes of tensors that live at once in a causal forward and backward of one head of 64, beside its inputs.

    On a GPU the allocator's own maximum; on a CPU the running sum of the allocations that torch's profiler records.
    """
    problem = random_problem(500, (n,), heads=1, d=64, mask=Mask(causal=True), dtype=dtype, device=device)

    def work() -> tuple[Tensor, ...]:
        leaves = [x.detach().requires_grad_() for x in (problem.q, problem.k, problem.v)]
        out, _ = attention(*leaves, mask=problem.mask, scale=problem.scale, backend=name)
        return torch.autograd.grad(out, leaves, problem.do)

    return _peak_of_gpu(work, device) if device.type == "cuda" else _peak_of_cpu(work)


def fitted_slope(lengths: Sequence[int], peaks: Sequence[int]) -> float:
    """Least squares through (ln N, ln peak)."""
    x, y = [math.log(n) for n in lengths], [math.log(peak) for peak in peaks]
    x_mean, y_mean = sum(x) / len(x), sum(y) / len(y)
    return sum((a - x_mean) * (b - y_mean) for a, b in zip(x, y, strict=True)) / sum((a - x_mean) ** 2 for a in x)


def check_memories(backends: Sequence[str], device: torch.device) -> Iterator[Finding]:
    """Every backend in float32, and in bfloat16 on a GPU."""
    on_gpu = device.type == "cuda"
    lengths = (4096, 8192, 16384, 32768) if on_gpu else (512, 1024, 2048, 4096)
    for name in backends:
        reach = lengths if name != "exact" else (1024, 2048, 4096) if on_gpu else (512, 1024, 2048)
        yield check_memory(name, reach, torch.bfloat16 if on_gpu else torch.float32, device)


def _peak_of_gpu(work: Callable[[], object], device: torch.device) -> int:
    work()  # what is compiled or set up once is not the length's
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    work()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


def _peak_of_cpu(work: Callable[[], object]) -> int:
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        kept = work()
    del kept
    results = recorded.profiler.kineto_results if recorded.profiler is not None else None
    if results is None:
        raise RuntimeError("torch's profiler recorded no allocations")
    events = [(event.start_ns(), event.nbytes()) for event in results.events() if event.name() == "[memory]"]
    now = peak = 0
    for _, size in sorted(events, key=lambda event: event[0]):
        now += size
        peak = max(peak, now)
    return peak


def _after_others(x: Tensor, size: int) -> Tensor:
    """`size` sequences, the last one x and the others unlike it."""
    return torch.cat([*(x.roll(i, 0) * (-1) ** i for i in range(1, size)), x])
