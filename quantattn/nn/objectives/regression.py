"""The value of each decision: its mean, its quantiles, or a Gaussian of it; errors are in standard deviations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, TypeVar

import torch
from torch import Tensor
from torch.nn import functional

from quantattn.batch import PackedBatch
from quantattn.nn.config import EncoderConfig
from quantattn.nn.heads import GaussianConfig, HeadConfig, QuantileConfig, RegressionConfig
from quantattn.nn.model import Model
from quantattn.nn.objectives.objective import Goal, Loss, TrainingRows, output_of, target_of


@dataclass(frozen=True)
class Regression:
    """Huber or squared loss of each decision's value, in standard deviations.

    Attributes:
        mean: of the target over the training rows, in its own unit.
        std: standard deviation of the target over the training rows, in its own unit.
        loss: "huber" (quadratic up to one standard deviation, then linear) or "mse".
        label: name of the target, (Q,) floating with NaN for none, and of the head.
        pooling: how the head reads the sequence.
    """

    goal: ClassVar[Goal] = "value"
    mean: float = 0.0
    std: float = 1.0
    loss: str = "huber"
    label: str = "label"
    pooling: str = "last"

    def __post_init__(self) -> None:
        if self.loss not in ("huber", "mse"):
            raise ValueError(f"loss must be huber or mse, got {self.loss!r}")

    def fitted(self, rows: TrainingRows) -> Regression:
        """The objective with mean and standard deviation of the training targets."""
        return standardised(self, rows)

    def heads(self, encoder: EncoderConfig, classes: Sequence[str]) -> dict[str, HeadConfig]:
        """One regression head that knows the target's mean and standard deviation."""
        return {self.label: RegressionConfig(self.mean, self.std, self.pooling)}

    def __call__(self, model: Model, batch: PackedBatch, *, step: int | None = None) -> Loss:
        """Logs: loss, mae (mean absolute error in the target's unit), count."""
        output = output_of(model, batch, self.label)
        target, count = _known_or(output, batch, self)
        measure = functional.huber_loss if self.loss == "huber" else functional.mse_loss
        loss = measure(output, target, reduction="sum") / count.clamp(min=1)
        return _logged(self, loss, output, target, count)


@dataclass(frozen=True)
class Quantile:
    """Pinball loss of the quantiles of each decision's value, in standard deviations (Koenker, Bassett 1978).

    loss = mean over decisions and levels of max(α e, (α − 1) e), e = y − q_α; the q_α that minimises its expectation is
    the α-quantile of y.

    Attributes:
        levels: α, rising within (0, 1), with 0.5 among them.
        mean, std, label, pooling: as in `Regression`.
    """

    goal: ClassVar[Goal] = "value"
    levels: tuple[float, ...] = (0.05, 0.25, 0.5, 0.75, 0.95)
    mean: float = 0.0
    std: float = 1.0
    label: str = "label"
    pooling: str = "last"

    def __post_init__(self) -> None:
        object.__setattr__(self, "levels", tuple(self.levels))
        QuantileConfig(self.levels, self.mean, self.std, self.pooling)

    def fitted(self, rows: TrainingRows) -> Quantile:
        """The objective with mean and standard deviation of the training targets."""
        return standardised(self, rows)

    def heads(self, encoder: EncoderConfig, classes: Sequence[str]) -> dict[str, HeadConfig]:
        """One head of quantiles."""
        return {self.label: QuantileConfig(self.levels, self.mean, self.std, self.pooling)}

    def __call__(self, model: Model, batch: PackedBatch, *, step: int | None = None) -> Loss:
        """Logs: loss, mae (of the median), count."""
        output = output_of(model, batch, self.label)  # (Q, L)
        median = output[:, self.levels.index(0.5)]
        target, count = _known_or(median, batch, self)
        known = ~torch.isnan(target_of(batch, self.label))
        total = output.new_zeros(())
        for place, level in enumerate(self.levels):
            error = torch.where(known, target - output[:, place], 0)
            total = total + torch.maximum(level * error, (level - 1) * error).sum()
        return _logged(self, total / (len(self.levels) * count.clamp(min=1)), median, target, count)


@dataclass(frozen=True)
class Gaussian:
    """Negative log-likelihood, in nats, of each decision's value under a Gaussian of its own (Nix, Weigend 1994).

    loss = mean of ½ ln 2π + ln σ + ½ ((y − μ) / σ)², with y, μ and σ in standard deviations of the training targets:
    that of values in their own unit is larger by ln std.

    Attributes:
        mean, std, label, pooling: as in `Regression`.
    """

    goal: ClassVar[Goal] = "value"
    mean: float = 0.0
    std: float = 1.0
    label: str = "label"
    pooling: str = "last"

    def fitted(self, rows: TrainingRows) -> Gaussian:
        """The objective with mean and standard deviation of the training targets."""
        return standardised(self, rows)

    def heads(self, encoder: EncoderConfig, classes: Sequence[str]) -> dict[str, HeadConfig]:
        """One head of means and deviations."""
        return {self.label: GaussianConfig(self.mean, self.std, self.pooling)}

    def __call__(self, model: Model, batch: PackedBatch, *, step: int | None = None) -> Loss:
        """Logs: loss, mae (of the mean), count."""
        center, log_deviation = output_of(model, batch, self.label).unbind(-1)
        target, count = _known_or(center, batch, self)
        known = ~torch.isnan(target_of(batch, self.label))
        each = 0.5 * math.log(2 * math.pi) + log_deviation + 0.5 * ((target - center) * (-log_deviation).exp()).square()
        return _logged(self, torch.where(known, each, 0).sum() / count.clamp(min=1), center, target, count)


OfValue = TypeVar("OfValue", Regression, Quantile, Gaussian)


def standardised(objective: OfValue, rows: TrainingRows) -> OfValue:
    """The objective with mean and standard deviation of the training targets.

    Raises:
        ValueError: there are fewer than two.
    """
    values = rows.targets[objective.label].double()
    known = values[~values.isnan()]
    if known.numel() < 2:
        raise ValueError(f"regression needs two training rows with a target or more, got {known.numel()}")
    std = float(known.std()) if known.min() < known.max() else 0.0  # of equal numbers it may be 1e-16
    return replace(objective, mean=float(known.mean()), std=std or 1.0)


def _known_or(output: Tensor, batch: PackedBatch, objective: Regression | Quantile | Gaussian) -> tuple[Tensor, Tensor]:
    """(Q,) standardised targets, that of a decision without one being the output, and () how many there are."""
    target = (target_of(batch, objective.label).float() - objective.mean) / objective.std
    known = ~torch.isnan(target)
    return target.where(known, output.detach()), known.sum()  # an error of exactly zero, whatever the output is


def _logged(
    objective: Regression | Quantile | Gaussian, loss: Tensor, output: Tensor, target: Tensor, count: Tensor
) -> Loss:
    mae = objective.std * (output.detach() - target).abs().sum() / count.clamp(min=1)
    return Loss(loss, {"loss": loss.detach(), "mae": mae, "count": count})
