"""How fast a run goes: tokens a second, and the share of the time in which it waits for batches."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

WINDOW = 50
"""Batches over which the pace is taken."""


class Pace(Callback):
    """The pace of the last batches, for whoever shows it and for the loggers.

    Neither figure goes to metrics.csv, whose bytes are a function of the settings and not of the machine.

    Attributes:
        tokens_per_second: of training, of all processes, each taken to have batches like this one's; NaN before the
            second batch. Validations are left out, writes of checkpoints are not.
        loader_wait_share: share of the same time in [0, 1] in which the loop waited for its loader; without worker
            processes that is the making of batches itself.

    Args:
        every: optimizer steps between what the loggers are told.
        clock: seconds, of any origin.
    """

    def __init__(self, every: int = 10, clock: Callable[[], float] = time.perf_counter) -> None:
        self.every, self.clock = every, clock
        self.tokens_per_second = self.loader_wait_share = float("nan")
        self._seen: deque[tuple[float, float, int]] = deque(maxlen=WINDOW + 1)  # clock, waited, tokens so far
        self._paused, self._began, self._told = 0.0, 0.0, -1

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Forget what an earlier training left, but for the step that it had reached."""
        self._seen.clear()
        self._paused, self._told = 0.0, trainer.global_step

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """One batch more."""
        loader: Any = trainer.train_dataloader
        self.passed(loader.waited, batch.n_tokens * pl_module.ranks)
        step = trainer.global_step
        if step % self.every == 0 and step != self._told and len(self._seen) > 1:
            self._told = step
            figures = {
                "train/tokens_per_second": self.tokens_per_second,
                "train/loader_wait_share": self.loader_wait_share,
            }
            for logger in trainer.loggers:
                logger.log_metrics(figures, step)

    def passed(self, waited: float, tokens: int) -> None:
        """A batch of so many tokens has been trained on, and `waited` seconds in all have been spent in the loader."""
        before = self._seen[-1][2] if self._seen else 0
        self._seen.append((self.clock() - self._paused, waited, before + tokens))
        (first, idle, done), (last, idle_now, done_now) = self._seen[0], self._seen[-1]
        if last > first:
            self.tokens_per_second = (done_now - done) / (last - first)
            self.loader_wait_share = min((idle_now - idle) / (last - first), 1.0)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The clock stands still."""
        self._began = self.clock()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """It goes on."""
        self._paused += self.clock() - self._began
