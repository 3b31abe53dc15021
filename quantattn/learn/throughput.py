"""Where the time of a run goes, step by step: a table that a run which goes on goes on writing."""

from __future__ import annotations

import math
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import astuple
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from quantattn.learn.busy import Busy
from quantattn.learn.checkpoint import Checkpoints
from quantattn.learn.files import write_json, write_text
from quantattn.learn.operations import peak_of, tflop
from quantattn.learn.throughput_table import NAMES, Row, lines, read_rows, sentences, summary

EVERY = 60.0
"""Seconds between two writings of the summary."""


class Throughput(Callback):
    """Writes `throughput.csv`, a `Row` a step, and every minute `throughput.json`, their `summary`, printed at the end.

    Of several processes the first alone does, and takes the others to have batches like its own. A run that goes on
    drops the rows beyond its checkpoint: it is about to make these steps again.

    Args:
        folder: the run folder.
        peak_tflops: of one device, for the utilisation; None is that of `PEAKS` in 16 bits, if there is one.
        clock: seconds, of any origin.
    """

    def __init__(
        self, folder: str, peak_tflops: float | None = None, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        if peak_tflops is not None and not 0 < peak_tflops < math.inf:
            raise ValueError(f"peak_tflops must be positive, got {peak_tflops}")
        self.folder, self.peak_tflops, self.clock = Path(folder), peak_tflops, clock
        self.path = self.folder / "throughput.csv"
        self._start, self._step = 0, 0
        self._at, self._waited, self._saved = 0.0, 0.0, 0.0
        self._paused, self._validating, self._tokens, self._tflop = 0.0, 0.0, 0, 0.0
        self._told, self._busy = 0.0, Busy.unknown()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin, or go on below the rows that are there."""
        if not trainer.is_global_zero:
            return
        rows = [row for row in read_rows(self.path) if row.step <= trainer.global_step] if trainer.global_step else []
        self._start, self._step = rows[-1].start + 1 if rows else 0, trainer.global_step
        write_text(self.path, lines([NAMES, *map(astuple, rows)]))
        self._waited, self._saved, self._tokens, self._tflop, self._validating = 0.0, saving(trainer), 0, 0.0, 0.0
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.reset_peak_memory_stats()
            self._busy = Busy.of(torch.cuda.current_device())
        self._at = self._told = self.clock()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count a batch, and write the row of a step that is done."""
        if not trainer.is_global_zero:
            return
        ranks: Any = pl_module.ranks
        self._tokens += batch.n_tokens * ranks
        self._tflop += tflop(pl_module, batch) * ranks
        if trainer.global_step != self._step:
            self._step = trainer.global_step
            self._write(trainer)
            if self._at - self._told >= EVERY:  # what a kill leaves is a minute old at most
                self._told = self._at
                self._sum_up(trainer, pl_module)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Another clock runs."""
        self._paused = self.clock()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The first one goes on."""
        self._validating += self.clock() - self._paused

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Sum up."""
        self._end(trainer, pl_module)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Sum up what a run has done that fails or is told to stop."""
        self._end(trainer, pl_module)

    def _write(self, trainer: Trainer) -> None:
        now, loader, saved = self.clock(), getattr(trainer.train_dataloader, "waited", 0.0), saving(trainer)
        pauses = self._validating + saved - self._saved
        row = Row(
            step=self._step,
            start=self._start,
            seconds=now - self._at - pauses,
            waited=loader - self._waited,
            tokens=self._tokens,
            tflop=self._tflop,
            validating=self._validating,
            saving=saved - self._saved,
            graphs=graphs(),
            peak_mib=peak_mib(),
            beside_mib=beside_mib(),
            busy=self._busy.share(),
            ended=time.time(),
        )
        try:
            with self.path.open("ab") as file:
                file.write(lines([astuple(row)]).encode())
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path)) from error
        self._at, self._waited, self._saved = now, loader, saved
        self._validating, self._tokens, self._tflop = 0.0, 0, 0.0

    def _end(self, trainer: Trainer, module: LightningModule) -> None:
        if not trainer.is_global_zero or not self.path.is_file():
            return
        self._tokens, self._tflop = 0, 0.0  # of a step that was not ended
        self._write(trainer)
        print("\n".join(sentences(self._sum_up(trainer, module))), flush=True)

    def _sum_up(self, trainer: Trainer, module: LightningModule) -> dict[str, Any]:
        peak = self.peak_tflops or peak_of(module)
        found = summary(read_rows(self.path), peak, trainer.world_size)
        write_json(self.folder / "throughput.json", found)
        return found


def saving(trainer: Trainer) -> float:
    """Seconds that the callbacks which write checkpoints have taken so far."""
    return sum(each.writer.seconds for each in trainer.checkpoint_callbacks if isinstance(each, Checkpoints))


def graphs() -> int:
    """Graphs that torch has compiled in this process."""
    compiler: Any = sys.modules.get("torch._dynamo.utils")
    return int(compiler.counters["stats"]["unique_graphs"]) if compiler else 0


def peak_mib() -> float:
    """Most memory in MiB: of tensors on the GPU, or of the process where there is none."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return float(torch.cuda.max_memory_allocated() / 2**20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def beside_mib() -> float:
    """MiB of the GPU's memory that torch's tensors and their reserve do not hold: libraries, and other processes."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return math.nan
    free, total = torch.cuda.mem_get_info()
    return float((total - free - torch.cuda.memory_reserved()) / 2**20)
