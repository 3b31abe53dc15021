"""A trace of a few training steps by torch's own profiler."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch.profiler import ProfilerActivity, profile, schedule

from quantattn.learn.files import write_text

ROWS = 40


class Profile(Callback):
    """Writes `profile/trace.json`, for chrome://tracing or Perfetto, and `profile/operations.txt`, the longest ones.

    Args:
        folder: the run folder.
        skip: batches before the first that is recorded; what is compiled and allocated once falls among them.
        record: batches that are recorded.
    """

    def __init__(self, folder: str, skip: int = 2, record: int = 3) -> None:
        if skip < 0 or record < 1:
            raise ValueError(f"skip must be 0 or more and record 1 or more, got {skip} and {record}")
        self.folder, self.skip, self.record = Path(folder) / "profile", skip, record
        self._profiler: Any = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin; rank 0 alone."""
        if not trainer.is_global_zero:
            return
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
        plan = schedule(wait=0, warmup=self.skip, active=self.record, repeat=1)
        self._profiler = profile(activities=activities, schedule=plan, on_trace_ready=self._write)
        self._profiler.start()

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *given: Any) -> None:
        """One batch more."""
        if self._profiler is not None:
            self._profiler.step()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """End, also when the run is shorter than what was to be recorded."""
        self._end()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """End with what a run has done that fails or is told to stop."""
        self._end()

    def _end(self) -> None:
        if self._profiler is not None:
            profiler, self._profiler = self._profiler, None
            profiler.stop()

    def _write(self, recorded: Any) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        trace, beside = self.folder / "trace.json", self.folder / ".trace.json"
        recorded.export_chrome_trace(str(beside))
        if not beside.is_file():  # torch prints a line of its own, leaves what it has written and goes on
            beside.with_name(f"{beside.name}.tmp").unlink(missing_ok=True)
            self._profiler = None
            raise OSError(errno.EIO, "the trace could not be written; is the disk full?", str(trace))
        beside.replace(trace)
        by = "self_cuda_time_total" if torch.cuda.is_available() else "self_cpu_time_total"
        write_text(self.folder / "operations.txt", recorded.key_averages().table(sort_by=by, row_limit=ROWS) + "\n")
