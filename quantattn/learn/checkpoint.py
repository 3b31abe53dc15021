"""Checkpoints: written whole or not at all, of plain types, the last one and the best one."""

from __future__ import annotations

import errno
import math
import random
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.plugins.io import CheckpointIO
from torch import nn

from quantattn.data.files import replacing
from quantattn.learn.module import Training
from quantattn.learn.restoring import require_optimizer
from quantattn.learn.writer import Writer
from quantattn.nn.folder import told
from quantattn.nn.state_file import read_state, verify_state, write_state

LAST, BEST = "last.ckpt", "best.ckpt"
RESUMED = {
    "state_dict": dict,
    "optimizer_states": list,
    "lr_schedulers": list,
    "loops": dict,
    "callbacks": dict,
    "global_step": int,
}
"""What a run needs to go on, and of which kind."""
MOST_STEPS = 1 << 48
_STEPS = "epoch_loop.automatic_optimization.optim_progress"


class Stopped(Exception):
    """The run was told to stop and has written its last state."""


def write_checkpoint(state: Mapping[str, Any], path: Path) -> None:
    """Write `state` beside `path`, flush it, read it back, and only then put it in the place of the old file.

    Raises:
        ValueError: the state holds more than tensors and plain values.
        OSError: the file could not be written, or did not come back as it was written; the old one stands.
    """
    with replacing(path, check=_verify) as file:
        write_state(state, file)


def _verify(beside: Path) -> None:
    try:
        verify_state(beside)
    except ValueError as error:
        raise OSError(errno.EIO, f"what was written did not come back from the disk ({error})") from error


def read_checkpoint(path: Path) -> dict[str, Any]:
    """The plain state in `path`, on the CPU; every byte is verified and no pickle read.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is damaged, of another format, or no checkpoint.
    """
    if not path.is_file():
        raise FileNotFoundError(2, "no such checkpoint", str(path))
    return read_state(path)


def require_resumable(path: Path) -> None:
    """Raise ValueError unless a run can go on from `path`: damaged files, alien ones and bare weights are refused."""
    state = read_checkpoint(path)
    lacking = [part for part in RESUMED if part not in state]
    if lacking:
        raise ValueError(
            f"{path} lacks {', '.join(lacking)}, so no run can go on from it; name a last.ckpt, or evaluate the "
            "weights of a best.ckpt with train=false"
        )
    for part, kind in RESUMED.items():
        if type(state[part]) is not kind:
            raise ValueError(f"{path} holds a {type(state[part]).__name__} as {part}, expected a {kind.__name__}")
    _require_weights(state["state_dict"], path)
    _require_counts(state["loops"], "loops", path)
    try:
        done = state["loops"]["fit_loop"][_STEPS]["optimizer"]["step"]["total"]["completed"]
    except (LookupError, TypeError):
        raise ValueError(
            f"{path} does not say under loops how many optimizer steps are done, so no run can go on"
        ) from None
    if done != state["global_step"]:
        raise ValueError(f"{path} counts {done} optimizer steps under loops and {state['global_step']} as global_step")


def _require_counts(node: Any, where: str, path: Path) -> None:
    """Raise ValueError unless every leaf is one that Lightning counts with: a whole number, true, false or nothing."""
    if isinstance(node, (dict, list)):
        for key, value in node.items() if isinstance(node, dict) else enumerate(node):
            _require_counts(value, f"{where}.{key}", path)
    elif node is not None and not (isinstance(node, int) and 0 <= node <= MOST_STEPS):
        raise ValueError(f"{path} holds {told(repr(node)):.80} as {told(where)}, expected a count from 0")


def _require_weights(weights: Any, path: Path) -> None:
    if not isinstance(weights, dict) or not all(isinstance(weight, torch.Tensor) for weight in weights.values()):
        raise ValueError(f"{path} must hold tensors by name as state_dict, got {told(repr(weights)[:400]):.80}")


def require_fits(state: Mapping[str, Any], module: nn.Module, path: Path) -> None:
    """Raise ValueError, naming the first weight that differs, unless the weights in `state` are those of `module`."""
    _require_weights(state["state_dict"], path)
    found, expected = (
        {name: tuple(weight.shape) for name, weight in weights.items()}
        for weights in (state["state_dict"], module.state_dict())
    )
    names = sorted(name for name in {*found, *expected} if found.get(name) != expected.get(name))
    if names:
        is_now, wanted = (shapes.get(names[0], "not there") for shapes in (found, expected))
        raise ValueError(
            f"{path} is of another model: {names[0]} is {is_now}, expected {wanted}; {len(names)} of {len(expected)} "
            "weights differ"
        )


def load_weights(module: nn.Module, path: Path | None) -> None:
    """Put the weights of a checkpoint into the module.

    Raises:
        ValueError: there is none, it holds no weights, or those of another model.
    """
    if path is None:
        raise ValueError("a run that does not train needs a checkpoint")
    state = read_checkpoint(path)
    if "state_dict" not in state:
        raise ValueError(f"{path} holds no weights: it lacks state_dict")
    require_fits(state, module, path)
    module.load_state_dict(state["state_dict"])


class PlainCheckpointIO(CheckpointIO):
    """Lightning's way to the disk: written by `writer` while training goes on, read for `module` alone."""

    def __init__(self, writer: Writer, module: Training) -> None:
        self.writer, self.module = writer, module

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        """Have `checkpoint` written to `path`; there are no storage options."""
        if storage_options is not None:
            raise ValueError(f"checkpoints take no storage options, got {storage_options!r}")
        self.writer.save(checkpoint, Path(path))

    def load_checkpoint(
        self, path: str | Path, map_location: Any = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Read `path`; always plain values, always on the CPU first.

        Raises:
            ValueError: it is damaged, or of another model.
        """
        state = read_checkpoint(Path(path))
        require_fits(state, self.module, Path(path))
        device = self.module.trainer.strategy.root_device
        require_optimizer(state["optimizer_states"], self.module, device, Path(path))
        return state

    def remove_checkpoint(self, path: str | Path) -> None:
        """Delete `path`."""
        Path(path).unlink()


class Checkpoints(Checkpoint):
    """Keeps `last.ckpt`, from which a run goes on bit for bit, and `best.ckpt`, the weights with the best validation.

    `last.ckpt` is written after every validation, every `every_n_steps` optimizer steps in between, and when the run
    ends or is told to stop. `best.ckpt` holds {"step", "metric", "value", "state_dict"}. Both are copied at once and
    written while training goes on, the best before the last; what could not be written ends the run at its next step.

    Args:
        folder: where both files go.
        writer: writes them.
        monitor: name of the logged figure.
        mode: "min" or "max".
        every_n_steps: optimizer steps between two writes of the last state; 0 writes it after validations alone.
        stop: asked after every batch; once it answers True the last state is written and `Stopped` raised.
    """

    def __init__(
        self,
        folder: str | Path,
        writer: Writer,
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
        self.writer, self.stop = writer, stop
        self.best: float | None = None
        self.best_step = -1
        self.saved_step = -1
        self._generators: dict[str, Any] | None = None

    def state_dict(self) -> dict[str, Any]:
        """Plain values, kept in `last.ckpt`."""
        return {"best": self.best, "best_step": self.best_step, "generators": generators()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take up what `state_dict` returned."""
        best = state_dict["best"]
        if not (best is None or isinstance(best, float)):
            raise TypeError(f"the best figure must be a number, got {best!r:.40}")
        self.best, self.best_step = best, state_dict["best_step"]
        self._generators = state_dict["generators"]

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Of a run that goes on: take its best weights along; what stands here needs no writing until its next step.

        Raises:
            ValueError: they do not lie beside the checkpoint.
        """
        if trainer.ckpt_path is None:
            return
        if self._generators is not None:
            set_generators(self._generators)
        resumed = Path(trainer.ckpt_path)
        if resumed.resolve() == (self.folder / LAST).resolve():
            self.saved_step = trainer.global_step
        if self.best is not None:
            self._take_best(resumed.with_name(BEST), trainer)

    def _take_best(self, beside: Path, trainer: Trainer) -> None:
        state = read_checkpoint(beside) if beside.is_file() else {}
        step = state.get("step", -1)
        if step > trainer.global_step:
            # The run was killed between its two writes: this step is yet to come again, and is the best when it does.
            self.best, self.best_step = None, -1
        elif step != self.best_step:
            found = f"holds the weights of step {step}" if state else "is not there"
            raise ValueError(f"{beside} {found}, but the run's best validation is that of step {self.best_step}")
        elif trainer.is_global_zero and beside.resolve() != (self.folder / BEST).resolve():
            write_checkpoint(state, self.folder / BEST)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Write the last state when it is due and no validation follows, which would write it anyway."""
        self.writer.check()
        between_steps = (batch_idx + 1) % trainer.accumulate_grad_batches == 0
        if validation_follows(trainer, batch_idx) or not between_steps:
            return
        step = trainer.global_step
        if self._told(trainer):
            self.save_last(trainer)
            self._settle(trainer)
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
        if improves(value, self.best, self.mode):
            self.best, self.best_step = value, trainer.global_step
            averaged: Any = getattr(pl_module, "averaged_weights", None)
            weights = averaged() if averaged else trainer.strategy.lightning_module_state_dict()
            if trainer.is_global_zero:
                state = {"step": self.best_step, "metric": self.monitor, "value": value, "state_dict": weights}
                self.writer.save(state, self.folder / BEST)
        self.save_last(trainer)
        if self._told(trainer):
            self._settle(trainer)
            raise Stopped

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the last state of a run that ends between two validations, and wait for the disk."""
        if self.saved_step != trainer.global_step:
            self.save_last(trainer)
        self._settle(trainer)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """What had been copied before a failure is written."""
        self.writer.wait()

    def _told(self, trainer: Trainer) -> bool:
        """Whether one of the processes was told to stop: all of them stop at the same step."""
        return bool(trainer.strategy.reduce_boolean_decision(self.stop(), all=False))

    def _settle(self, trainer: Trainer) -> None:
        """Wait until everything is on the disk, in all processes."""
        self.writer.wait()
        trainer.strategy.barrier("checkpoints")

    def save_last(self, trainer: Trainer) -> None:
        """Write everything that the run needs to go on."""
        self.saved_step = trainer.global_step
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*`weights_only` was not set.*")
            trainer.save_checkpoint(self.folder / LAST, weights_only=False)


def improves(value: float, best: float | None, mode: str) -> bool:
    """Whether a figure is better than the best so far; any is better than none, and any number than NaN."""
    if best is None or math.isnan(best):
        return best is None or not math.isnan(value)
    return value < best if mode == "min" else value > best


def generators() -> dict[str, Any]:
    """The state of every generator of random numbers that a callback may draw from; each batch has its own stream."""
    return {
        "python": random.getstate(),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else [],  # type: ignore[no-untyped-call]
    }


def set_generators(state: Mapping[str, Any]) -> None:
    """Put the generators where `generators` found them; a GPU that is no longer there is left out."""
    random.setstate(state["python"])
    torch.set_rng_state(state["torch"])
    for number, each in enumerate(state["cuda"][: torch.cuda.device_count()]):
        torch.cuda.set_rng_state(each, number)


def validation_follows(trainer: Trainer, batch_idx: int) -> bool:
    """Whether Lightning validates right after training batch `batch_idx`."""
    every = trainer.val_check_batch
    return bool(trainer.enable_validation and every and (batch_idx + 1) % every == 0)
