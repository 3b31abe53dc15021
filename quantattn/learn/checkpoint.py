"""Checkpoints: written whole or not at all, of plain types, the last one and the best one."""

from __future__ import annotations

import errno
import pickle
import shutil
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.plugins.io import CheckpointIO

from quantattn.data.files import replacing

LAST, BEST = "last.ckpt", "best.ckpt"
RESUMED = ("state_dict", "optimizer_states", "lr_schedulers", "loops", "callbacks", "global_step")
"""What a run needs to go on."""


class Stopped(Exception):
    """The run was told to stop and has written its last state."""


def write_checkpoint(state: Mapping[str, Any], path: Path) -> None:
    """Write `state` beside `path`, read it back, and only then put it in the place of the old file.

    Raises:
        ValueError: the state holds something that `torch.load(weights_only=True)` refuses.
        OSError: the file could not be written; the old one stands.
    """
    with replacing(path, check=read_checkpoint) as file:
        try:
            torch.save(dict(state), file)
        except RuntimeError as error:
            # torch names neither the file nor the cause, which is a full disk as a rule.
            free = shutil.disk_usage(path.parent).free
            raise OSError(errno.EIO, f"could not be written, its disk has {free:,} bytes left", str(path)) from error


def read_checkpoint(path: Path) -> dict[str, Any]:
    """The plain state in `path`, on the CPU; runs no code from it.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is damaged or holds more than tensors and plain values.
    """
    if not path.is_file():
        raise FileNotFoundError(2, "no such checkpoint", str(path))
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ValueError(
            f"{path} is not a checkpoint of plain values: it names code, which was not run, or is damaged"
        ) from error
    except Exception as error:
        first = str(error).strip().split(". ")[0] or type(error).__name__
        raise ValueError(f"{path} is not a checkpoint of plain values, or is damaged: {first}") from error
    return state


def require_resumable(path: Path) -> None:
    """Raise ValueError unless a run can go on from `path`: damaged files, alien ones and bare weights are refused."""
    state = read_checkpoint(path)
    lacking = [part for part in RESUMED if part not in state] if isinstance(state, dict) else list(RESUMED)
    if lacking:
        raise ValueError(
            f"{path} lacks {', '.join(lacking)}, so no run can go on from it; name a last.ckpt, or evaluate the "
            "weights of a best.ckpt with train=false"
        )


class PlainCheckpointIO(CheckpointIO):
    """Lightning's way to the disk, through `write_checkpoint` and `read_checkpoint`."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        """Write `checkpoint` to `path`; there are no storage options."""
        if storage_options is not None:
            raise ValueError(f"checkpoints take no storage options, got {storage_options!r}")
        write_checkpoint(checkpoint, Path(path))

    def load_checkpoint(
        self, path: str | Path, map_location: Any = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Read `path`; always plain values, always on the CPU first."""
        return read_checkpoint(Path(path))

    def remove_checkpoint(self, path: str | Path) -> None:
        """Delete `path`."""
        Path(path).unlink()


class Checkpoints(Checkpoint):
    """Keeps `last.ckpt`, from which a run goes on bit for bit, and `best.ckpt`, the weights with the best validation.

    `last.ckpt` is written after every validation, every `every_n_steps` optimizer steps in between, and when the run
    ends or is told to stop. `best.ckpt` holds {"step", "metric", "value", "state_dict"}.

    Args:
        folder: where both files go.
        monitor: name of the logged figure.
        mode: "min" or "max".
        every_n_steps: optimizer steps between two writes of the last state; 0 writes it after validations alone.
        stop: asked after every batch; once it answers True the last state is written and `Stopped` raised.
    """

    def __init__(
        self,
        folder: str | Path,
        monitor: str = "valid/loss",
        mode: str = "min",
        every_n_steps: int = 0,
        stop: Callable[[], bool] = bool,
    ) -> None:
        if mode not in ("min", "max"):
            raise ValueError(f"mode must be 'min' or 'max', got {mode!r}")
        if every_n_steps < 0:
            raise ValueError(f"every_n_steps must be 0 or more, got {every_n_steps}")
        super().__init__()
        self.folder, self.monitor, self.mode, self.every_n_steps = Path(folder), monitor, mode, every_n_steps
        self.stop = stop
        self.best: float | None = None
        self.best_step = -1
        self.saved_step = -1

    def state_dict(self) -> dict[str, Any]:
        """Plain values, kept in `last.ckpt`."""
        return {"best": self.best, "best_step": self.best_step}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take up what `state_dict` returned."""
        self.best, self.best_step = state_dict["best"], state_dict["best_step"]

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Of a run that goes on: take its best weights along; what stands here needs no writing until its next step.

        Raises:
            ValueError: they do not lie beside the checkpoint.
        """
        if trainer.ckpt_path is None:
            return
        resumed = Path(trainer.ckpt_path)
        if resumed.resolve() == (self.folder / LAST).resolve():
            self.saved_step = trainer.global_step
        if self.best is not None:
            self._take_best(resumed.with_name(BEST), trainer.global_step)

    def _take_best(self, beside: Path, resumed_step: int) -> None:
        state = read_checkpoint(beside) if beside.is_file() else {}
        step = state.get("step", -1)
        if step > resumed_step:
            # The run was killed between its two writes: this step is yet to come again, and is the best when it does.
            self.best, self.best_step = None, -1
        elif step != self.best_step:
            found = f"holds the weights of step {step}" if state else "is not there"
            raise ValueError(f"{beside} {found}, but the run's best validation is that of step {self.best_step}")
        elif beside.resolve() != (self.folder / BEST).resolve():
            write_checkpoint(state, self.folder / BEST)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Write the last state when it is due and no validation follows, which would write it anyway."""
        between_steps = (batch_idx + 1) % trainer.accumulate_grad_batches == 0
        if validation_follows(trainer, batch_idx) or not between_steps:
            return
        step = trainer.global_step
        if self.stop():
            self.save_last(trainer)
            raise Stopped
        if self.every_n_steps and step % self.every_n_steps == 0 and step != self.saved_step:
            self.save_last(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the best weights if the figure improved, then the last state."""
        if trainer.sanity_checking or trainer.state.fn != "fit":
            return
        figure = trainer.callback_metrics.get(self.monitor)
        if figure is None:
            known = sorted(trainer.callback_metrics)
            raise ValueError(f"checkpoints watch {self.monitor!r}, which is not logged; there is {', '.join(known)}")
        value = float(figure)
        better = self.best is None or (value < self.best if self.mode == "min" else value > self.best)
        if better:
            self.best, self.best_step = value, trainer.global_step
            weights = {name: tensor.detach().cpu() for name, tensor in pl_module.state_dict().items()}
            state = {"step": self.best_step, "metric": self.monitor, "value": value, "state_dict": weights}
            write_checkpoint(state, self.folder / BEST)
        self.save_last(trainer)
        if self.stop():
            raise Stopped

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the last state of a run that ends between two validations."""
        if self.saved_step != trainer.global_step:
            self.save_last(trainer)

    def save_last(self, trainer: Trainer) -> None:
        """Write everything that the run needs to go on."""
        self.saved_step = trainer.global_step
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*`weights_only` was not set.*")
            trainer.save_checkpoint(self.folder / LAST, weights_only=False)


def validation_follows(trainer: Trainer, batch_idx: int) -> bool:
    """Whether Lightning validates right after training batch `batch_idx`."""
    every = trainer.val_check_batch
    return bool(trainer.enable_validation and every and (batch_idx + 1) % every == 0)
