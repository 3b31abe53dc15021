"""Time on the device: interleaved, after a warm-up, with the cache cleared, median of many."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter

import torch

Call = Callable[[], object]

_CLEAR_S = 6e-5
"""Seconds of overwriting 256 MiB on a device of 4.3 TB/s; a slower one takes longer, and is ahead all the more."""
_MOST_CLEARS = 16
"""A call of whose launch the host needs more than this covers is a long one, which covers the next launch itself."""


@dataclass(frozen=True)
class Timing:
    """Milliseconds of one call: median, and the 10th and 90th percentiles of the calls that were timed."""

    median: float
    low: float
    high: float
    calls: int


def time_interleaved(
    calls: Mapping[str, Call], *, rounds: int, warmup: int, most_s: float = math.inf
) -> dict[str, Timing]:
    """Time every call once a round, in turn, so that a change of the clock meets all of them.

    Between calls the second-level cache is overwritten, as in a model where other layers run in between. Without a GPU
    the host's clock is read, which serves to compare the calls of one run. A call that would take more than `most_s`
    seconds by its last warm-up is left out of some rounds, evenly, but not of more than all but three.
    """
    if not torch.cuda.is_available():
        return _on_host(calls, rounds, warmup)
    scratch = torch.empty(256 << 20, dtype=torch.int8, device="cuda")
    turns, clears = {}, {}
    for name, call in calls.items():
        start, stop, asking = event(), event(), 0.0
        for _ in range(warmup):
            start.record()
            began = perf_counter()
            call()
            asking = perf_counter() - began
            stop.record()
        torch.cuda.synchronize()
        once = start.elapsed_time(stop) / 1e3 if warmup else 0.0
        turns[name], clears[name] = _turns(rounds, once, most_s), _clears(asking)
    events: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {name: [] for name in calls}
    # Nothing waits until the end: the host runs ahead, and no call is charged for the time that its launch takes, as
    # long as the device has work in the meantime, which for short calls is more clearing.
    for turn in range(rounds):
        for name, call in calls.items():
            if turn not in turns[name]:
                continue
            for _ in range(clears[name]):
                scratch.zero_()
            start, stop = event(), event()
            start.record()
            call()
            stop.record()
            events[name].append((start, stop))
    torch.cuda.synchronize()
    taken = {name: [start.elapsed_time(stop) for start, stop in pairs] for name, pairs in events.items()}
    return {name: _summary(values) for name, values in taken.items()}


def _turns(rounds: int, once: float, most_s: float) -> set[int]:
    """Rounds in which a call of `once` seconds takes part: all, or as many as fit into `most_s`, evenly spread."""
    fitting = rounds if once * rounds <= most_s else min(rounds, max(3, int(most_s / once)))
    return {turn for turn in range(rounds) if (turn + 1) * fitting // rounds > turn * fitting // rounds}


def _clears(asking: float) -> int:
    """How often the cache is overwritten before a call that the host takes `asking` seconds to launch."""
    return min(_MOST_CLEARS, max(1, math.ceil(1.5 * asking / _CLEAR_S)))


def _on_host(calls: Mapping[str, Call], rounds: int, warmup: int) -> dict[str, Timing]:
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(warmup + rounds):
        for name, call in calls.items():
            start = perf_counter()
            call()
            if turn >= warmup:
                taken[name].append(1e3 * (perf_counter() - start))
    return {name: _summary(values) for name, values in taken.items()}


def event() -> torch.cuda.Event:
    """A point on the device's time line."""
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _summary(values: list[float]) -> Timing:
    ordered = sorted(values)
    last = len(ordered) - 1
    return Timing(statistics.median(ordered), ordered[round(0.1 * last)], ordered[round(0.9 * last)], len(ordered))


def peak_mib(call: Call) -> float:
    """Peak device memory of one call above what was allocated before it, MiB; NaN without a GPU."""
    if not torch.cuda.is_available():
        return math.nan
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    result = call()
    torch.cuda.synchronize()
    del result
    return (torch.cuda.max_memory_allocated() - before) / 2**20
