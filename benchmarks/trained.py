"""A model trained and judged on prepared data, without a run folder: what the proofs of learning are made of."""

from __future__ import annotations

import csv
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from quantattn.data.market.prepare import prepare_market
from quantattn.data.pack import Layout
from quantattn.data.prepared import Prepared
from quantattn.data.protocol import MidLabel
from quantattn.data.protocol.splits import WalkForward
from quantattn.data.synthetic import SyntheticMarket
from quantattn.evaluate import Table, choose_blocks, closing_table
from quantattn.learn.closing import classifiers_beside
from quantattn.learn.datamodule import PreparedData
from quantattn.learn.fit import Progress, fit
from quantattn.learn.module import Schedule, Training
from quantattn.learn.predict import predict
from quantattn.learn.trainer import TrainerSettings
from quantattn.nn import Model, Objective

FIELDS = ("kind", "side", "size", "price", "mid_move")
"""What a model reads of an event; the other fields are noise in the made market."""


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

    @staticmethod
    def of(
        device: str, steps: int, max_tokens: int, lr: float, seed: int, validations: int = 6, threads: int = 1
    ) -> Recipe:
        """`steps` steps, with `validations` on the way: in bfloat16 on "cuda", in float32 on the `threads` of a CPU.

        On a GPU sums may be taken in any order: in a fixed one the recurrent baselines take their time sorting.
        """
        gpu = device == "cuda"
        trainer = TrainerSettings(
            accelerator="gpu" if gpu else "cpu",
            precision="bf16-mixed" if gpu else "32-true",
            deterministic=not gpu,
            max_steps=steps,
            validate_every=max(steps // validations, 1),
            lr_floor=0.0,
            threads=None if gpu else threads,
        )
        return Recipe(trainer, max_tokens, lr=lr, seed=seed)

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


def judge(model: Model, prepared: Prepared, recipe: Recipe, beside: dict[str, Any] | None = None) -> Table:
    """The closing table that `train.py` would print of the model's test rows, which has classes.

    `beside` keeps the forecasts of the baselines for the next model that is judged on the same labels and rows.
    """
    head = next(iter(model.decision_heads()))
    others = {} if beside is None else beside
    if not others:
        others |= classifiers_beside(prepared, head, recipe.seed)
    assert prepared.bayes is not None
    bayes = {"log_loss": prepared.bayes.log_loss, "accuracy": prepared.bayes.accuracy}
    as_of = prepared.as_of["test"]
    blocks = choose_blocks(as_of, prepared.entity["test"], kind=prepared.block_kind)
    prob = scores_of(model, prepared, recipe)["prob"].numpy()
    y = prepared.test.decisions.targets[head]
    return closing_table(y, as_of, blocks, prob, others, bayes, seed=recipe.seed)


def market_of(market: SyntheticMarket, layout: Layout = "chunks", split: WalkForward | None = None) -> Prepared:
    """The market's decisions, whose sequences hold the marker of each and, in "chunks", all decisions of an epoch."""
    seen = int(market.distances.max()) + 1
    return prepare_market(
        market,
        label=MidLabel(horizon=1, method=0, classes=2, rule="fixed", theta=0),
        decision_kinds=[5],
        fields=FIELDS,
        layout=layout,
        min_context=seen,
        max_seq_len=seen + market.channels * market.cycle,
        split=split,
    )


def read_cells(path: Path) -> list[dict[str, str]]:
    """The rows that stand in a file of results; none where there is no file."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))
