"""One optimizer step: an objective, an optimizer, a schedule; and the reasons to stop."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from quantattn.batch import PackedBatch
from quantattn.learn.guard import ALWAYS, bad_sequence, check_monitors, watched_of, whereabouts
from quantattn.learn.optimisers import Schedule, gradient_norm, parameter_groups
from quantattn.learn.parallel import of_all_ranks, rows_of_all_ranks
from quantattn.learn.strategies import cut
from quantattn.learn.tuning import depth_of
from quantattn.nn import Model, Objective

OptimizerFactory = Callable[[Iterable[dict[str, Any]]], Optimizer]


class LossError(RuntimeError):
    """The loss or its gradient is not a number; nothing was changed since the last optimizer step."""


def step_seed(seed: int, stream: int, index: int) -> int:
    """A seed for everything random in one batch, so that a resumed run draws what the unbroken one would have."""
    mixed = (seed * 0x9E3779B97F4A7C15 + stream * 0xBF58476D1CE4E5B9 + index * 0x94D049BB133111EB) & (2**64 - 1)
    mixed = (mixed ^ (mixed >> 31)) * 0xD6E8FEB86659FD93 & (2**64 - 1)
    return (mixed ^ (mixed >> 32)) & (2**63 - 1)


class Training(LightningModule):
    """Trains a model by an objective.

    Args:
        model: the encoder with its head.
        objective: `objective(model, batch)` gives the loss and figures to log.
        optimizer: makes the optimizer from parameter groups; its weight decay goes to the matrices.
        schedule: learning rate over the run.
        seed: of dropout and masking; each batch draws from its own stream.
        layer_decay: learning rate of a layer as a share of that of the layer above it.
        frozen: parts of the model that stay as they are, and in evaluation mode.
        rank: number of this process among those that share the batches of a step.
        ranks: how many they are. Batch i of rank r is batch i · ranks + r of the run, which decides what it draws.
    """

    def __init__(
        self,
        model: Model,
        objective: Objective,
        *,
        optimizer: OptimizerFactory,
        schedule: Schedule,
        seed: int = 0,
        layer_decay: float = 1.0,
        frozen: Sequence[nn.Module] = (),
        rank: int = 0,
        ranks: int = 1,
    ) -> None:
        super().__init__()
        self.model = model
        self.objective = objective
        self.make_optimizer = optimizer
        self.schedule = schedule
        self.seed = seed
        self.layer_decay, self.frozen = layer_decay, tuple(frozen)
        self.averaged_weights: Callable[[], dict[str, Tensor]] | None = None  # of a callback that validates a mean
        self.rank, self.ranks = rank, ranks
        self._losses: list[float] = []
        self._validated: list[dict[str, Tensor]] = []

    def configure_model(self) -> None:
        """Under FSDP, cut the parameters over the ranks."""
        if self.device_mesh is not None:
            strategy: Any = self.trainer.strategy
            cut(self.model, self.device_mesh["data_parallel"], strategy.blocks)

    def configure_optimizers(self) -> Any:
        """The optimizer, and the schedule stepped once an optimizer step."""
        depth = partial(depth_of, n_layers=self.model.encoder.config.n_layers)
        optimizer = self.make_optimizer(parameter_groups(self, depth, self.layer_decay))
        for group in optimizer.param_groups:
            group["lr"] *= group["lr_scale"]
        # A function, of which a checkpoint keeps nothing: a run that goes on follows the schedule of its own settings.
        scheduler = {"scheduler": LambdaLR(optimizer, lambda step: self.schedule(step)), "interval": "step"}
        return {"optimizer": optimizer, "lr_scheduler": scheduler}

    def on_fit_start(self) -> None:
        """Where a callback watches an objective's own figure, see before the first step that it is there.

        Raises:
            ValueError: a callback watches something else.
        """
        callbacks = self.trainer.callbacks  # type: ignore[attr-defined]
        if not any(watched_of(each) not in ALWAYS for each in callbacks):
            return
        loader = self.trainer.datamodule.val_dataloader()  # type: ignore[attr-defined]
        batch = self.trainer.strategy.batch_to_device(next(iter(loader)))
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            logged = self.model.measured(self.objective, batch, -1).logs
        check_monitors(callbacks, logged)

    def train(self, mode: bool = True) -> Training:
        """Training mode, but for the parts that are frozen."""
        super().train(mode)
        for part in self.frozen:
            part.eval()
        return self

    def on_train_batch_start(self, batch: PackedBatch, batch_idx: int) -> None:
        """Give the batch its own random stream."""
        torch.manual_seed(step_seed(self.seed, 0, self._number(batch_idx)))

    def on_validation_batch_start(self, batch: PackedBatch, batch_idx: int, dataloader_idx: int = 0) -> None:
        """The same random stream at every validation, so that figures of one run compare."""
        torch.manual_seed(step_seed(self.seed, 1, self._number(batch_idx)))

    def training_step(self, batch: PackedBatch, batch_idx: int) -> Tensor:
        """The loss of one batch; logged is the mean over the batches of its step so far, of all ranks.

        Raises:
            LossError: it is NaN or infinite, on every rank alike. The weights are those of the last good step.
        """
        scored = self.model.measured(self.objective, batch, self._number(batch_idx))
        losses = of_all_ranks(scored.loss.detach(), self.ranks)
        for rank, value in enumerate(losses):
            if not math.isfinite(value):
                where = self._described(batch, rank, self._number(batch_idx))
                raise LossError(
                    f"the loss became {value} at step {self.global_step} ({where}); the last checkpoint holds the "
                    "weights before it; lower optimizer.lr or trainer.gradient_clip"
                )
        if batch_idx % self.trainer.accumulate_grad_batches == 0:
            self._losses.clear()
        self._losses += losses
        self.log("train/loss", math.fsum(self._losses) / len(self._losses), prog_bar=True, batch_size=1)
        return scored.loss  # type: ignore[no-any-return]

    def _described(self, batch: PackedBatch, rank: int, number: int) -> str:
        if rank != self.rank:
            return f"in the batch of rank {rank}"
        said = f"batch {number} of the run, {batch.n_sequences} sequences, {batch.n_tokens} tokens"
        if self.device_mesh is not None or self.trainer.world_size > self.ranks:
            return said  # the others would have to take part in looking for the sequence
        bad = bad_sequence(self.model, self.objective, batch, number)
        return f"{said}; {'of no sequence alone' if bad is None else whereabouts(batch, bad)}"

    def _number(self, batch_idx: int) -> int:
        """The batch's number among those of all ranks."""
        return batch_idx * self.ranks + self.rank

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        """Log the learning rate of the step and the norm of the gradient, before it is clipped.

        Raises:
            LossError: the norm is NaN or infinite, on every rank alike. The weights are those of the last good step.
        """
        norm = float(gradient_norm(self.parameters()))
        if not math.isfinite(norm) and self.trainer.precision != "16-mixed":  # whose scaler passes such a step over
            raise LossError(
                f"the gradient became {norm} at step {self.global_step}, with losses {self._losses}; the last "
                "checkpoint holds the weights before it; lower optimizer.lr, or see which rows are far from all others"
            )
        self.log("train/grad_norm", norm, batch_size=1)
        self.log("train/lr", max(group["lr"] for group in optimizer.param_groups), batch_size=1)

    def on_validation_epoch_start(self) -> None:
        """Begin anew."""
        self._validated.clear()

    def validation_step(self, batch: PackedBatch, batch_idx: int) -> None:
        """Keep the loss and the objective's own figures of one batch."""
        # Steps of training count upwards from 0, so these draws are nobody else's.
        scored = self.model.measured(self.objective, batch, -1 - self._number(batch_idx))
        figures = {**scored.logs, "loss": scored.loss.detach()}
        self._validated.append({name: figures[name].double() for name in sorted(figures)})

    def on_validation_epoch_end(self) -> None:
        """Log their means over the validation set, every batch by how many of its terms count."""
        names = list(self._validated[0])
        own = torch.stack([torch.stack(list(figures.values())) for figures in self._validated])  # (batches, figures)
        rows = rows_of_all_ranks(own, self.ranks).tolist()
        weights = [row[names.index("count")] for row in rows]
        for at, name in enumerate(names):
            if name != "count":
                weighed = (weight * row[at] for weight, row in zip(weights, rows, strict=True) if weight)
                mean = math.fsum(weighed) / (math.fsum(weights) or math.nan)
                self.log(f"valid/{name}", mean, prog_bar=name == "loss")
