"""The loop: Lightning's trainer around a training module, with this house's checkpoints, history and ways to stop."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
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
from quantattn.learn.module import Training
from quantattn.learn.optimisers import SHAPES
from quantattn.learn.parallel import SHARING, STRATEGIES, SameSteps, World, naming_the_lost
from quantattn.learn.quiet import lightning_quiet
from quantattn.learn.signals import StopFlag
from quantattn.learn.strategies import strategy_of
from quantattn.learn.writer import Writer
from quantattn.nn import Encoder, Model
from quantattn.nn.encoder import share_rows

PRECISIONS = {"32-true": torch.float32, "bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}
"""Precision, as Lightning spells it → dtype in which attention is computed; parameters are float32 in all of them."""
KINDS: Mapping[str, type] = {"callbacks": Callback, "logger": Logger}
"""Group of the configuration → of what class its entries must be."""
MOST_THREADS = 1024
ALONE = World()


@dataclass(frozen=True)
class TrainerSettings:
    """How a run is trained.

    Attributes:
        accelerator: "cpu" or "gpu".
        devices: how many of them on each machine, with a process each.
        nodes: machines; more than one under torchrun or srun.
        strategy: "single", or what several processes share: "ddp" a step's batches, "fsdp" parameters and optimizer
            states too, "context" the rows of every batch.
        precision: a key of `PRECISIONS`; 16-mixed is for GPUs.
        deterministic: refuse operations whose result differs from run to run.
        max_steps: optimizer steps; None leaves it to max_epochs.
        max_epochs: passes over the training set; None leaves it to max_steps. The smaller of the two wins.
        validate_every: optimizer steps between validations.
        checkpoint_every: optimizer steps between writes of the last state, beside those after validations; 0 for none.
        accumulate: batches an optimizer step, of all processes; None is one for each that shares them. Losses and order
            are the same however many processes share them.
        gradient_clip: largest norm of the gradient; 0 does not clip.
        warmup: share of the steps over which the learning rate rises.
        lr_floor: share of the peak learning rate at the end.
        schedule: how the learning rate comes down, a key of `quantattn.learn.optimisers.SHAPES`.
        log_every: optimizer steps between rows of the history.
        threads: CPU threads; None leaves torch its choice.
        workers: processes that make training batches ahead; they change no bit.
    """

    accelerator: str = "cpu"
    devices: int = 1
    nodes: int = 1
    strategy: str = "single"
    precision: str = "32-true"
    deterministic: bool = True
    max_steps: int | None = 1000
    max_epochs: int | None = None
    validate_every: int = 100
    checkpoint_every: int = 0
    accumulate: int | None = 1
    gradient_clip: float = 1.0
    warmup: float = 0.05
    lr_floor: float = 0.05
    schedule: str = "cosine"
    log_every: int = 10
    threads: int | None = None
    workers: int = 0

    def __post_init__(self) -> None:
        if self.accelerator not in ("cpu", "gpu"):
            raise ValueError(f"trainer.accelerator must be cpu or gpu, got {self.accelerator!r}")
        if self.strategy not in STRATEGIES:
            raise ValueError(f"trainer.strategy must be one of {', '.join(STRATEGIES)}, got {self.strategy!r}")
        if self.accelerator == "gpu" and not torch.cuda.is_available():
            raise ValueError("trainer=gpu needs an NVIDIA GPU and a CUDA build of torch, and there is none here")
        if self.max_steps is None and self.max_epochs is None:
            raise ValueError("one of trainer.max_steps and trainer.max_epochs must be given")
        at_least_1 = (
            "devices",
            "nodes",
            "max_steps",
            "max_epochs",
            "validate_every",
            "accumulate",
            "log_every",
            "threads",
        )
        for name in at_least_1:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"trainer.{name} must be at least 1, got {value}")
        for name in ("checkpoint_every", "gradient_clip", "workers"):
            if getattr(self, name) < 0:
                raise ValueError(f"trainer.{name} must be 0 or more, got {getattr(self, name)}")
        for name in ("threads", "workers"):
            # The system's limit on threads and processes is met by a crash of the whole process.
            if (getattr(self, name) or 0) > MOST_THREADS:
                raise ValueError(f"trainer.{name} must be at most {MOST_THREADS}, got {getattr(self, name)}")
        if self.schedule not in SHAPES:
            raise ValueError(f"trainer.schedule must be one of {', '.join(SHAPES)}, got {self.schedule!r}")
        if self.precision not in PRECISIONS:
            raise ValueError(f"trainer.precision must be one of {', '.join(PRECISIONS)}, got {self.precision!r}")
        if self.precision == "16-mixed" and self.accelerator == "cpu":
            raise ValueError("trainer.precision=16-mixed needs trainer=gpu: Lightning would take bfloat16 on a CPU")
        self._check_ranks()

    def _check_ranks(self) -> None:
        asked = f"trainer.devices={self.devices} and trainer.nodes={self.nodes}"
        if self.ranks > 1 and self.strategy == "single":
            raise ValueError(f"{asked} make {self.ranks} processes: choose trainer=ddp, fsdp or context for them")
        if self.accelerator == "gpu" and self.devices > torch.cuda.device_count():
            raise ValueError(f"trainer.devices={self.devices}, but there are {torch.cuda.device_count()} GPUs here")
        if self.batches_a_step % self.sharing:
            raise ValueError(
                f"trainer.accumulate={self.accumulate} batches a step cannot be shared by {self.ranks} processes; "
                f"give a multiple of {self.ranks}"
            )

    @property
    def ranks(self) -> int:
        """Processes of the run."""
        return self.devices * self.nodes

    @property
    def sharing(self) -> int:
        """How many processes share the batches of a step."""
        return self.ranks if self.strategy in SHARING else 1

    @property
    def batches_a_step(self) -> int:
        """Batches an optimizer step, of all processes."""
        return self.sharing if self.accumulate is None else self.accumulate

    @property
    def attention_dtype(self) -> torch.dtype:
        """The dtype in which attention is computed in training."""
        return PRECISIONS[self.precision]


@dataclass(frozen=True)
class Progress:
    """Where a run stands: optimizer steps done and in all, the latest losses, and seconds since it began or resumed."""

    step: int
    total: int
    started_at: int
    train_loss: float
    valid_loss: float | None
    seconds: float

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

    def __init__(self, watch: Callable[[Progress], None], total: int) -> None:
        self.watch, self.total = watch, total
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
        self.watch(Progress(trainer.global_step, self.total, self.first, loss, self.valid, seconds))

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Remember the validation loss for the next step."""
        figure = trainer.callback_metrics.get("valid/loss")
        self.valid = None if figure is None else float(figure)


class StopAgain(Callback):
    """Ends at once a run that goes on from a checkpoint at which early stopping had ended it."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Every callback has its state back by now."""
        stoppers = trainer.early_stopping_callbacks
        trainer.should_stop = any(each.wait_count >= each.patience for each in stoppers)


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
    flag, history = StopFlag(), History(folder, settings.log_every)
    writer = Writer(write_checkpoint, before=history.flush)
    keeper = Checkpoints(
        folder / "checkpoints", writer, monitor, mode, settings.checkpoint_every, lambda: flag.received is not None
    )
    began = time.monotonic()
    watching = [Watch(watch, total_steps)] if watch is not None else []
    each = settings.batches_a_step // settings.sharing
    # Under FSDP the module's own parameters stay cut; the first process puts the best weights into a copy.
    whole = copy.deepcopy(module.model) if world.rank == 0 and settings.strategy == "fsdp" else None
    if settings.strategy == "context" and world.size > 1:
        share_rows(module)
    with lightning_quiet(), naming_the_lost(world):
        trainer = Trainer(
            accelerator=settings.accelerator,
            devices=settings.devices,
            num_nodes=settings.nodes,
            strategy=strategy_of(settings.strategy, world),
            use_distributed_sampler=False,
            precision=settings.precision,  # type: ignore[arg-type]
            deterministic=settings.deterministic,
            max_steps=total_steps,
            max_epochs=-1,
            val_check_interval=settings.validate_every * each,
            check_val_every_n_epoch=None,
            num_sanity_val_steps=0,
            accumulate_grad_batches=each,
            gradient_clip_val=settings.gradient_clip or None,
            log_every_n_steps=settings.log_every,
            logger=list(loggers),
            callbacks=[
                flag,
                *watching,
                *callbacks,
                StopAgain(),
                SameSteps(settings.batches_a_step, settings.sharing),
                history,
                keeper,
            ],
            plugins=[PlainCheckpointIO(writer, module), *([] if world.size == 1 else [TorchElasticEnvironment()])],
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=folder,
        )
        try:
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
    for encoder in (part for part in module.modules() if isinstance(part, Encoder)):
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
