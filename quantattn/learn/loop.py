"""Lightning's trainer, made of the settings of a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.loggers import Logger
from lightning.pytorch.plugins.io import CheckpointIO

from quantattn.learn.parallel import SameSteps, World
from quantattn.learn.strategies import strategy_of
from quantattn.learn.trainer import TrainerSettings


def trainer_of(
    settings: TrainerSettings,
    world: World,
    folder: Path,
    total_steps: int,
    *,
    callbacks: Sequence[Callback],
    loggers: Sequence[Logger],
    checkpoints: CheckpointIO,
) -> Trainer:
    """Lightning's trainer for one process of a run."""
    each = settings.batches_a_step // settings.sharing
    # Deterministic algorithms would fill with NaN whatever is allocated. Here nothing is read before it is written:
    # kernels are tested on results that were NaN.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    return Trainer(
        accelerator=settings.accelerator,
        devices=settings.devices,
        num_nodes=settings.nodes,
        strategy=strategy_of(settings.strategy, world, settings.fsdp_blocks),
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
        callbacks=[SameSteps(settings.batches_a_step, settings.sharing), *callbacks],
        plugins=[checkpoints, *([] if world.size == 1 else [TorchElasticEnvironment()])],
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )
