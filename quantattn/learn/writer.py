"""Writing while training goes on: a copy of the state is taken at once, a thread brings it to the disk."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

MOST_WAITING = 2
"""States that are copied and not yet written, of which each takes the memory of one: the best and the last."""


class Writer:
    """Calls `write(state, path)` in a thread, one state after the other, in the order of `save`.

    Args:
        write: what brings a state to the disk.
        before: called before each, in the same thread: what must be on the disk no later than the state.

    Attributes:
        seconds: in which callers have been held up, by copies and by waiting for the disk.
    """

    def __init__(
        self, write: Callable[[Mapping[str, Any], Path], None], before: Callable[[], None] = lambda: None
    ) -> None:
        self._write, self._before = write, before
        self._thread = ThreadPoolExecutor(1, "checkpoints")
        self._waiting: deque[Future[None]] = deque()
        self.seconds = 0.0

    def save(self, state: Mapping[str, Any], path: Path) -> None:
        """Take a copy of `state` and return; waits only while `MOST_WAITING` others are not yet written.

        Raises:
            OSError: an earlier state could not be written.
        """
        began = time.perf_counter()
        while len(self._waiting) >= MOST_WAITING:
            self._waiting.popleft().result()
        copy, copied = _copy(state), None
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            copied.record()
        self._waiting.append(self._thread.submit(self._bring, copy, copied, path))
        self.seconds += time.perf_counter() - began

    def check(self) -> None:
        """Raise what a state that is done with could not be written for; waits for none."""
        while self._waiting and self._waiting[0].done():
            self._waiting.popleft().result()

    def wait(self) -> None:
        """Return once everything is on the disk.

        Raises:
            OSError: it could not be written.
        """
        began = time.perf_counter()
        while self._waiting:
            self._waiting.popleft().result()
        self.seconds += time.perf_counter() - began

    def close(self) -> None:
        """Wait for what is being written and end the thread; `wait` tells whether it went well."""
        self._thread.shutdown()

    def _bring(self, copy: Mapping[str, Any], copied: torch.cuda.Event | None, path: Path) -> None:
        if copied is not None:
            copied.synchronize()
        self._before()
        self._write(copy, path)


def _copy(value: Any) -> Any:
    """The same tree with tensors of its own on the CPU.

    From a GPU they are copied to pinned memory in the order of its stream, so that neither this thread waits for them
    nor the next step changes them.
    """
    if isinstance(value, Tensor):
        if not value.is_cuda:
            return value.detach().clone()
        there = torch.empty(value.shape, dtype=value.dtype, pin_memory=True)
        return there.copy_(value.detach(), non_blocking=True)
    if isinstance(value, Mapping):
        return {key: _copy(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_copy(item) for item in value)
    return value
