"""Each implementation in a process of its own, so that peak memory, imports and threads are its own."""

from __future__ import annotations

import math
import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

THREADS = ("POLARS_MAX_THREADS", "OMP_NUM_THREADS")
"""Variables by which a process is told on how many threads to compute."""


def apart(name: str, target: Callable[..., None], *arguments: object, threads: int = 1) -> Any:
    """What `target(*arguments, answer)` sends through the pipe `answer`, in a new process with so many threads.

    Raises:
        RuntimeError: the process ended without an answer.
    """
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    child = context.Process(target=target, args=(*arguments, there))
    before = {key: os.environ.get(key) for key in THREADS}
    os.environ.update(dict.fromkeys(THREADS, str(threads)))
    try:
        child.start()
    finally:
        for key, value in before.items():
            if value is None:
                del os.environ[key]
            else:
                os.environ[key] = value
    there.close()
    try:
        return here.recv()
    except EOFError:
        child.join()
        raise RuntimeError(f"the process of {name} ended with exit code {child.exitcode}") from None
    finally:
        child.join()


def resident(which: str) -> float:
    """MiB of this process that are in memory (VmRSS), or were at most (VmHWM); NaN where the system does not tell."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.is_file() else []
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith(which)), math.nan)


def peak_since_here() -> float:
    """Let peak memory count from now on: what was taken before is forgotten. MiB that are in memory now."""
    if Path("/proc/self/clear_refs").is_file():
        Path("/proc/self/clear_refs").write_text("5")
    return resident("VmRSS")
