"""What a GPU and this process are at meanwhile: samples of nvidia-smi, kernels that the profiler saw, and memory."""

from __future__ import annotations

import re
import shutil
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

MILLISECONDS = 100
"""From one sample to the next."""
QUERY = ["nvidia-smi", "--query-gpu=utilization.gpu,memory.used", "--format=csv,noheader,nounits"]


def own_memory(pid: int | str = "self") -> float:
    """Memory that is a process's own, MiB: without the files that it has mapped."""
    found = dict(re.findall(r"Rss(\w+):\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text()))
    return (int(found["Anon"]) + int(found["Shmem"])) / 1024


@dataclass
class Watch:
    """Samples while the block runs: seconds of `time.monotonic`, share of the GPU, its MiB, own MiB of the process."""

    pid: int | str = "self"
    samples: list[tuple[float, float, float, float]] = field(default_factory=list)

    def __enter__(self) -> Watch:
        self._ended, self._flowing = threading.Event(), threading.Event()
        self._smi: Any = None
        if torch.cuda.is_available() and shutil.which("nvidia-smi"):
            # Not by its number, which is another one here where only some of the machine's are to be seen.
            own = f"--id=GPU-{torch.cuda.get_device_properties(0).uuid}"
            self._smi = subprocess.Popen([*QUERY, own, f"--loop-ms={MILLISECONDS}"], stdout=subprocess.PIPE, text=True)
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()
        self._flowing.wait(3.0)  # nvidia-smi takes a while to begin
        return self

    def __exit__(self, *failure: object) -> None:
        self._ended.set()
        if self._smi is not None:
            self._smi.terminate()
            self._smi.wait()
        self._thread.join(timeout=3.0)

    def _look(self) -> None:
        while not self._ended.is_set():
            line = "" if self._smi is None else self._smi.stdout.readline()
            if not line:
                self._ended.wait(MILLISECONDS / 1000)
            found = [float(each) if each.strip().isdigit() else float("nan") for each in line.split(",")]
            busy, used = found if len(found) == 2 else (float("nan"), float("nan"))
            try:
                self.samples.append((time.monotonic(), busy / 100, used, own_memory(self.pid)))
            except (FileNotFoundError, ProcessLookupError, KeyError):
                return  # the process has just ended
            finally:
                self._flowing.set()

    def said(self, begin: float, end: float) -> dict[str, float]:
        """Of the time from `begin` to `end`: `busy`, `gpu_mib`, own MiB by a quarter of it, and at most."""
        here = np.array([each for each in self.samples if begin <= each[0] <= end] or [[begin, *[np.nan] * 3]])
        early = here[here[:, 0] <= begin + (end - begin) / 4]
        return {
            "smi_busy": round(of(np.mean, here[:, 1]), 3),
            "gpu_mib": of(np.max, here[:, 2]),
            "host_mib_quarter": round(of(np.max, early[:, 3]), 0),
            "host_mib": round(of(np.max, here[:, 3]), 0),
        }


def of(what: Callable[[Any], Any], values: Any) -> float:
    """What is asked of those of the values that are numbers; NaN if none is."""
    known = values[np.isfinite(values)]
    return float(what(known)) if known.size else float("nan")


def profiled(function: Callable[[], Any]) -> dict[str, Any]:
    """Share of the wall time in which at least one kernel or copy was at work, how many, and which took most.

    The union of their times, from the first one's begin to the last one's end, so that a start is not counted.
    """
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        function()
        torch.cuda.synchronize()
    results: Any = seen.profiler
    spans, spent = [], Counter[str]()
    for each in results.kineto_results.events():
        if each.device_type() == torch.autograd.DeviceType.CUDA:
            spans.append((each.start_ns(), each.start_ns() + each.duration_ns()))
            spent[each.name()[:60]] += each.duration_ns()
    if not spans:
        return {"busy": float("nan"), "kernels": 0}
    order = np.array(sorted(spans))
    reached = np.maximum.accumulate(order[:, 1])
    idle = np.clip(order[1:, 0] - reached[:-1], 0, None)
    whole = reached[-1] - order[0, 0]
    return {
        "busy": round(float(1 - idle.sum() / whole), 4),
        "kernels": len(spans),
        "profiled_s": round(float(whole) / 1e9, 2),
        "longest_gap_ms": round(float(idle.max(initial=0)) / 1e6, 2),
        "ms": {name: round(ns / 1e6, 1) for name, ns in spent.most_common(12)},
    }
