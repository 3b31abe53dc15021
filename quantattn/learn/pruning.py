"""Training that ends early because somebody outside, who compares runs, has seen enough of it."""

from __future__ import annotations

from collections.abc import Callable

from lightning.pytorch import Callback, LightningModule, Trainer


class Pruning(Callback):
    """Tells `judge` the figure of every validation, and ends training after it when `judge` says so.

    The run then ends as one that early stopping has ended, with everything that a run writes.

    Args:
        figure: name of what is logged at validations, "valid/loss" for instance.
        judge: takes optimizer steps done and the figure; True ends the run.

    Attributes:
        pruned: whether it did.
    """

    def __init__(self, figure: str, judge: Callable[[int, float], bool]) -> None:
        self.figure, self.judge, self.pruned = figure, judge, False

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Ask.

        Raises:
            ValueError: the run logs no such figure.
        """
        if trainer.sanity_checking:
            return
        if self.figure not in trainer.callback_metrics:
            known = sorted(name for name in trainer.callback_metrics if name.startswith("valid/"))
            raise ValueError(f"{self.figure} is not logged by this run, which has {', '.join(known)}")
        self.pruned = self.judge(trainer.global_step, float(trainer.callback_metrics[self.figure]))
        trainer.should_stop = trainer.should_stop or self.pruned
