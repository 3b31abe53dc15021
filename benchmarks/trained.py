"""A model trained and judged on prepared data, without a run folder: what the proofs of learning are made of."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from quantattn.data.prepared import Prepared
from quantattn.evaluate import Table
from quantattn.learn.closing import judged
from quantattn.learn.datamodule import PreparedData
from quantattn.learn.fit import Progress, fit
from quantattn.learn.module import Schedule, Training
from quantattn.learn.predict import predict
from quantattn.learn.trainer import TrainerSettings
from quantattn.nn import Model, Objective


@dataclass(frozen=True)
class Recipe:
    """How a model is trained, whatever it is made of.

    Attributes:
        trainer: precision, validations, threads and so on; `max_steps` is the length of the run.
        max_tokens: budget of tokens a batch.
        lr: peak learning rate of AdamW.
        weight_decay: of weight matrices.
        seed: of the order of batches and of what is drawn in a step.
    """

    trainer: TrainerSettings
    max_tokens: int
    lr: float = 3e-3
    weight_decay: float = 0.1
    seed: int = 0

    @property
    def device(self) -> str:
        """Where the model runs."""
        return "cuda" if self.trainer.accelerator == "gpu" else "cpu"


@dataclass(frozen=True)
class Trained:
    """How training ended: the best step, its validation loss, and the seconds it took, validations included."""

    best_step: int
    valid_loss: float
    seconds: float


def train(
    model: Model,
    objective: Objective,
    prepared: Prepared,
    recipe: Recipe,
    watch: Callable[[Progress], None] | None = None,
) -> Trained:
    """Train `model` in place and leave the weights of the best validation in it."""
    steps = recipe.trainer.max_steps
    if steps is None:
        raise ValueError("trainer.max_steps must say how long the run is")
    adamw = partial(torch.optim.AdamW, lr=recipe.lr, betas=(0.9, 0.98), weight_decay=recipe.weight_decay)
    settings = recipe.trainer
    schedule = Schedule(steps, settings.warmup, settings.lr_floor, settings.schedule)
    module = Training(model, objective, optimizer=adamw, schedule=schedule, seed=recipe.seed)
    data = PreparedData(
        prepared.train, prepared.valid, max_tokens=recipe.max_tokens, seed=recipe.seed, batches=steps, step=1
    )
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        fitted = fit(module, data, Path(folder), settings, total_steps=steps, watch=watch)
    if fitted.stopped:
        raise KeyboardInterrupt
    return Trained(fitted.best_step, fitted.best_value, time.monotonic() - began)


def scores_of(model: Model, prepared: Prepared, recipe: Recipe) -> dict[str, torch.Tensor]:
    """What a trained model says of the test rows."""
    half = torch.bfloat16 if recipe.trainer.precision.startswith("bf16") else None
    return predict(model.eval(), prepared.test, recipe.max_tokens, device=recipe.device, autocast=half)


def judge(model: Model, prepared: Prepared, recipe: Recipe) -> Table:
    """The closing table that `train.py` would print of the model's test rows."""
    head = next(iter(model.decision_heads()))
    return judged(prepared, head, scores_of(model, prepared, recipe), seed=recipe.seed)[0]
