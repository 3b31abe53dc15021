"""Averaged weights: what is validated and kept is a running mean of the weights that are trained."""

from __future__ import annotations

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import EMAWeightAveraging
from torch.optim.swa_utils import AveragedModel


class WeightAverage(EMAWeightAveraging):
    """m ← decay · m + (1 − decay) · w after every optimizer step; m is validated, kept as the best weights and saved.

    Lightning's callback, with two things as this house needs them: the best weights are those that were validated, and
    a run that has ended leaves in `last.ckpt` the weights that were trained beside their mean, so that it can go on.

    Args:
        decay: in [0, 1).

    Raises:
        ValueError: the weights are cut over several processes.
    """

    def __init__(self, decay: float = 0.999) -> None:
        if not 0 <= decay < 1:
            raise ValueError(f"decay must lie in [0, 1), got {decay}")
        super().__init__(use_buffers=False, decay=decay)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Make the mean, and tell the module that it is what is to be kept."""
        if stage != "fit":
            return
        if getattr(pl_module, "device_mesh", None) is not None:
            raise ValueError(
                "a mean of the weights needs all of them in one process: leave callbacks=ema or trainer=fsdp"
            )
        self._average_model = AveragedModel(pl_module, device=pl_module.device, use_buffers=False, **self._kwargs)
        pl_module.averaged_weights = self._average_model.module.state_dict  # type: ignore[assignment]

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Nothing yet: the last state is still to be written."""

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leave the mean in the module."""
        if self._average_model is not None:
            self._copy_average_to_current(pl_module)
