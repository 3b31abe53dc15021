"""A problem so small that a whole run of it takes a fraction of a second."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback

from quantattn.batch import PackedBatch
from quantattn.data.pack import Decisions, SequenceSet, TokenTable
from quantattn.learn.datamodule import PreparedData
from quantattn.learn.fit import ALONE, Fitted, Progress, fit
from quantattn.learn.module import Schedule, Training
from quantattn.learn.parallel import World
from quantattn.learn.trainer import TrainerSettings
from quantattn.nn import Encoder, Model, Outcome


class Recorded(SequenceSet):
    """A sequence set that remembers which sequences were asked for."""

    def pack(self, indices: Any) -> PackedBatch:
        self.__dict__.setdefault("asked", []).append(tuple(int(i) for i in indices))
        return super().pack(indices)


def sequences(n: int, seed: int = 0, length: int = 5) -> Recorded:
    """n entities of `length` tokens whose class is the parity of the first token's code."""
    rng = np.random.default_rng(seed)
    code = rng.integers(2, 6, (n, length))
    table = TokenTable(
        {"code": code.ravel(), "size_value": rng.normal(size=n * length).astype(np.float32)},
        np.arange(n * length, dtype=np.int64),
        np.arange(n + 1, dtype=np.int64) * length,
        tuple(f"E{i}" for i in range(n)),
    )
    decisions = Decisions(np.arange(1, n + 1) * length - 1, {"label": code[:, 0] % 2})
    return Recorded(table, decisions, length, "document")


def model(dropout: float = 0.2) -> Model:
    """An encoder of a few hundred parameters."""
    torch.manual_seed(0)
    encoder = Encoder(
        "tiny", codes={"code": 6}, values=("size_value",), n_layers=1, width=8, n_heads=2, hidden=8, dropout=dropout
    )
    return Model(encoder, Outcome().heads(encoder.config, ("even", "odd")))


def train(
    folder: Path,
    *,
    steps: int = 6,
    seed: int = 3,
    objective: Outcome | None = None,
    watch: Callable[[Progress], None] | None = None,
    resume: Path | None = None,
    callbacks: Sequence[Callback] = (),
    monitor: str = "valid/loss",
    mode: str = "min",
    world: World = ALONE,
    made: Callable[[], Model] = model,
    **settings: Any,
) -> tuple[Fitted, Training, list[tuple[int, ...]]]:
    """Train the toy for `steps` steps: how it ended, the module, and the batches that were asked for."""
    trained, chosen = sequences(12), sequences(6, seed=1)
    trainer = TrainerSettings(max_steps=steps, log_every=1, **settings)
    optimizer = functools.partial(torch.optim.AdamW, lr=0.01, weight_decay=0.1)
    share = {"rank": world.rank if trainer.sharing > 1 else 0}
    module = Training(
        made(),
        objective or Outcome(),
        optimizer=optimizer,
        schedule=Schedule(steps),
        seed=seed,
        ranks=trainer.sharing,
        **share,
    )
    step = trainer.batches_a_step
    data = PreparedData(
        trained, chosen, max_tokens=20, seed=1, batches=steps * step, step=step, world=trainer.sharing, **share
    )
    found = fit(
        module,
        data,
        folder,
        trainer,
        total_steps=steps,
        monitor=monitor,
        mode=mode,
        callbacks=callbacks,
        watch=watch,
        resume=resume,
        world=world,
    )
    return found, module, trained.__dict__.get("asked", [])
