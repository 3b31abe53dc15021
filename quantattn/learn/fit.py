"""The loop: Lightning's trainer around a training module, with this house's checkpoints, history and ways to stop."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import Logger

from quantattn.learn.checkpoint import (
    BEST,
    LAST,
    Checkpoints,
    PlainCheckpointIO,
    Stopped,
    read_checkpoint,
    write_checkpoint,
)
from quantattn.learn.datamodule import PreparedData
from quantattn.learn.history import History
from quantattn.learn.loop import trainer_of
from quantattn.learn.module import Training
from quantattn.learn.pace import Pace
from quantattn.learn.parallel import World, naming_the_lost
from quantattn.learn.quiet import lightning_quiet
from quantattn.learn.restoring import Restored, naming_the_checkpoint
from quantattn.learn.signals import StopFlag
from quantattn.learn.trainer import TrainerSettings
from quantattn.learn.writer import Writer
from quantattn.nn import Encoder, Model
from quantattn.nn.encoder import share_rows

KINDS: Mapping[str, type] = {"callbacks": Callback, "logger": Logger}
"""Group of the configuration → of what class its entries must be."""
ALONE = World()


@dataclass(frozen=True)
class Progress:
    """Where a run stands.

    Attributes:
        step: optimizer steps done.
        total: of the whole run.
        started_at: step at which it began or was resumed.
        train_loss: the latest.
        valid_loss: the latest; None before the first validation.
        seconds: since it began or was resumed.
        tokens_per_second: see `Pace`; NaN before there is one.
        loader_wait_share: see `Pace`.
        utilisation: see `Pace`.
    """

    step: int
    total: int
    started_at: int
    train_loss: float
    valid_loss: float | None
    seconds: float
    tokens_per_second: float = math.nan
    loader_wait_share: float = math.nan
    utilisation: float = math.nan

    @property
    def seconds_left(self) -> float:
        """An estimate from the pace so far."""
        done = self.step - self.started_at
        return self.seconds / done * (self.total - self.step) if done else float("nan")


@dataclass(frozen=True)
class Fitted:
    """How a run ended: the step it reached, the best step and its figure, whether a signal stopped it, and which."""

    step: int
    best_step: int
    best_value: float
    stopped: bool
    signal: int | None
    seconds: float


class Watch(Callback):
    """Tells `watch` where the run stands, after every optimizer step and every validation."""

    def __init__(self, watch: Callable[[Progress], None], total: int, pace: Pace) -> None:
        self.watch, self.total, self.pace = watch, total, pace
        self.valid: float | None = None
        self.began, self.first = time.monotonic(), 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the clock."""
        self.began, self.first = time.monotonic(), trainer.global_step

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """One more step."""
        loss = float(trainer.callback_metrics["train/loss"])
        seconds = time.monotonic() - self.began
        pace = (self.pace.tokens_per_second, self.pace.loader_wait_share, self.pace.utilisation)
        self.watch(Progress(trainer.global_step, self.total, self.first, loss, self.valid, seconds, *pace))

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Remember the validation loss for the next step."""
        figure = trainer.callback_metrics.get("valid/loss")
        self.valid = None if figure is None else float(figure)


def fit(
    module: Training,
    data: PreparedData,
    folder: Path,
    settings: TrainerSettings,
    *,
    total_steps: int,
    monitor: str = "valid/loss",
    mode: str = "min",
    callbacks: Sequence[Callback] = (),
    loggers: Sequence[Logger] = (),
    watch: Callable[[Progress], None] | None = None,
    resume: Path | None = None,
    world: World = ALONE,
) -> Fitted:
    """Train `module`, leaving `checkpoints/` and `metrics.csv` in `folder` and the best weights in the module.

    Args:
        module: what to train; its schedule spans `total_steps`.
        data: batches.
        folder: the run folder.
        settings: how.
        total_steps: optimizer steps of the whole run.
        monitor: figure by which the best weights are chosen.
        mode: "min" or "max".
        callbacks: more callbacks of Lightning.
        loggers: loggers of Lightning, beside the history that every run keeps.
        watch: told where the run stands.
        resume: checkpoint to go on from.
        world: which process of the run this is; all of them call this, and the first one alone gets the best weights.

    Raises:
        LossError: the loss became NaN or infinite; the checkpoints stand.
        LostRank: another process of the run has ended.
        ValueError: `resume` is no checkpoint, or `monitor` is not logged.
    """
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    flag, restored, history = StopFlag(), Restored(), History(folder, settings.log_every)
    writer = Writer(write_checkpoint, before=history.flush)
    keeper = Checkpoints(
        folder / "checkpoints", writer, monitor, mode, settings.checkpoint_every, lambda: flag.received is not None
    )
    began = time.monotonic()
    pace = Pace(settings.log_every)
    watching = [pace, *([Watch(watch, total_steps, pace)] if watch is not None else [])]
    # Under FSDP the module's own parameters stay cut; the first process puts the best weights into a copy.
    whole = copy.deepcopy(module.model) if world.rank == 0 and settings.strategy == "fsdp" else None
    if settings.strategy == "context" and world.size > 1:
        share_rows(module)
    with lightning_quiet(), naming_the_lost(world):
        trainer = trainer_of(
            settings,
            world,
            folder,
            total_steps,
            callbacks=[flag, *watching, *callbacks, restored, history, keeper],
            loggers=loggers,
            checkpoints=PlainCheckpointIO(writer, module),
        )
        try:
            with naming_the_checkpoint(resume, restored):
                stopped = _is_stopped(trainer, module, data, resume)
        finally:
            writer.close()
            flag.release()
    if world.rank == 0 and not stopped:
        _take_weights(module, whole, folder / "checkpoints" / (LAST if keeper.best is None else BEST))
    return Fitted(
        step=trainer.global_step,
        best_step=keeper.best_step,
        best_value=float("nan") if keeper.best is None else keeper.best,
        stopped=stopped,
        signal=flag.received,
        seconds=time.monotonic() - began,
    )


def _take_weights(module: Training, whole: Model | None, checkpoint: Path) -> None:
    """Put the weights of a checkpoint into the module, whose model is cut when there is a `whole` one."""
    if whole is not None:
        module.model = whole
    for encoder in (part for part in module.modules() if isinstance(part, Encoder) and part.ranks is not None):
        encoder.ranks = None  # what follows is for one process
    module.load_state_dict(read_checkpoint(checkpoint)["state_dict"])


def _is_stopped(trainer: Trainer, module: Training, data: PreparedData, resume: Path | None) -> bool:
    """Train to the end, or until a signal stops it."""
    try:
        trainer.fit(module, data, ckpt_path=resume, weights_only=True)
    except Stopped:
        return True
    except SystemExit as left:
        if isinstance(left.__context__, KeyboardInterrupt):  # Lightning leaves with 1 at a second Ctrl-C
            raise left.__context__ from None
        raise
    return False


def resume_point(folder: Path) -> Path | None:
    """The checkpoint that a run in `folder` goes on from, or None when there is none."""
    last = folder / "checkpoints" / LAST
    return last if last.is_file() else None
