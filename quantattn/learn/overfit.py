"""Can a model learn one batch by heart? One that cannot has a mistake that no amount of data will mend."""

from __future__ import annotations

import math
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer


class NotLearntError(RuntimeError):
    """A batch that was seen at every step is not known by heart."""


class Overfit(Callback):
    """Ends training once its loss is small, and fails a run that ends before.

    Args:
        at_most: the training loss that counts as near zero, in its own unit.

    Raises:
        ValueError: a bound that is not positive.
    """

    def __init__(self, at_most: float = 0.05) -> None:
        if not 0 < at_most < math.inf:
            raise ValueError(f"at_most must be a positive number, got {at_most}")
        self.at_most = at_most
        self.first = self.last = math.nan

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Look at the loss of the step."""
        self.last = float(trainer.callback_metrics["train/loss"])
        self.first = self.last if math.isnan(self.first) else self.first
        trainer.should_stop = trainer.should_stop or self.last <= self.at_most

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Judge.

        Raises:
            NotLearntError: the loss is still larger.
        """
        if not self.last <= self.at_most:
            raise NotLearntError(
                f"one batch is not learnt by heart: after {trainer.global_step} steps its loss is {self.last:.4g}, "
                f"{self.first:.4g} at first, expected {self.at_most:g} or less; look at labels, loss and optimizer.lr"
            )
