"""How fast a run goes: tokens a second, and the shares of the time that waiting and the model's operations need."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from quantattn.learn.operations import peak_of, tflop

WINDOW = 50
"""Batches over which the pace is taken."""


class Pace(Callback):
    """The pace of the last batches, for whoever shows it and for the loggers.

    None of the figures goes to metrics.csv, whose bytes are a function of the settings and not of the machine.

    Attributes:
        tokens_per_second: of training, of all processes, each taken to have batches like this one's; NaN before the
            second batch. Validations are left out, writes of checkpoints are not.
        loader_wait_share: share of the same time in [0, 1] in which the loop waited for its loader; without worker
            processes that is the making of batches itself.
        utilisation: operations of the model in that time over what its devices could do, as in `operations`; NaN where
            that is not known.

    Args:
        every: optimizer steps between what the loggers are told.
        clock: seconds, of any origin.
    """

    def __init__(self, every: int = 10, clock: Callable[[], float] = time.perf_counter) -> None:
        self.every, self.clock = every, clock
        self.tokens_per_second = self.loader_wait_share = self.utilisation = float("nan")
        self._seen: deque[tuple[float, float, int, float]] = deque(maxlen=WINDOW + 1)  # clock, waited, sums so far
        self._peak: float | None = None
        self._paused, self._began, self._told = 0.0, 0.0, -1

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Forget what an earlier training left, but for the step that it had reached."""
        self._seen.clear()
        self._paused, self._told, self._peak = 0.0, trainer.global_step, peak_of(pl_module)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """One batch more."""
        loader: Any = trainer.train_dataloader
        used = 0.0 if self._peak is None else tflop(pl_module, batch) / self._peak
        self.passed(loader.waited, batch.n_tokens * pl_module.ranks, used)
        step = trainer.global_step
        if step % self.every == 0 and step != self._told and len(self._seen) > 1:
            self._told = step
            figures = {
                "train/tokens_per_second": self.tokens_per_second,
                "train/loader_wait_share": self.loader_wait_share,
            }
            if self._peak is not None:
                figures["train/utilisation"] = self.utilisation
            for logger in trainer.loggers:
                logger.log_metrics(figures, step)

    def passed(self, waited: float, tokens: int, used: float = 0.0) -> None:
        """A batch of so many tokens has been trained on, and `waited` seconds in all have been spent in the loader.

        `used` is how many seconds its operations would have taken a device that does nothing else.
        """
        before, spent = self._seen[-1][2:] if self._seen else (0, 0.0)
        self._seen.append((self.clock() - self._paused, waited, before + tokens, spent + used))
        (first, idle, done, _), (last, idle_now, done_now, _) = self._seen[0], self._seen[-1]
        if last > first:
            self.tokens_per_second = (done_now - done) / (last - first)
            self.loader_wait_share = min((idle_now - idle) / (last - first), 1.0)
            self.utilisation = (self._seen[-1][3] - self._seen[0][3]) / (last - first) or float("nan")

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The clock stands still."""
        self._began = self.clock()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """It goes on."""
        self._paused += self.clock() - self._began
