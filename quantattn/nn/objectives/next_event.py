"""Predict the next event of the same sequence from the past: its fields, and the time until it comes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from quantattn.batch import IGNORE, PackedBatch
from quantattn.nn.config import EncoderConfig
from quantattn.nn.heads import EventsConfig, EventsHead, HeadConfig, TimeConfig, TimeHead
from quantattn.nn.model import Model
from quantattn.nn.objectives.likelihood import mean_nll
from quantattn.nn.objectives.objective import Goal, Loss, TrainingRows, head_of
from quantattn.nn.rows import starts_of_rows


@dataclass(frozen=True)
class NextEvent:
    """Predict the next event of the same sequence from the past; needs a causal encoder.

    loss = (mean over fields of the mean cross-entropy) + time_weight · (mean of −ln f(τ)), in nats, over all tokens
    that have a successor in their sequence, τ seconds later; f is the law of `TimeHead`, a mass at τ = 0 and a density
    beyond.

    Attributes:
        fields: fields of codes to predict; None is all.
        time: None, or the density of τ: "lognormal", a mixture, or "exponential".
        components: of the mixture.
        time_weight: of the time beside the fields.
        gap_mean: of ln τ over the training rows in which τ > 0.
        gap_std: standard deviation of ln τ over the same.
    """

    goal: ClassVar[Goal] = "data"
    fields: tuple[str, ...] | None = None
    time: str | None = None
    components: int = 8
    time_weight: float = 1.0
    gap_mean: float = 0.0
    gap_std: float = 1.0

    def __post_init__(self) -> None:
        if self.fields is not None:
            object.__setattr__(self, "fields", tuple(self.fields))
        if not 0 <= self.time_weight < float("inf"):
            raise ValueError(f"time_weight must be 0 or more, got {self.time_weight}")
        self._time()

    def _time(self) -> dict[str, HeadConfig]:
        if self.time is None:
            return {}
        return {"time": TimeConfig(self.time, self.components, self.gap_mean, self.gap_std)}

    def fitted(self, rows: TrainingRows) -> NextEvent:
        """The objective with mean and deviation of ln τ, so that the time begins at what is usual.

        Raises:
            ValueError: the time is to be predicted, and no two training events differ in it.
        """
        if self.time is None:
            return self
        logs = rows.gaps[rows.gaps > 0].log()
        if not len(logs):
            raise ValueError(
                f"the time to the next event has no density: {len(rows.gaps):,} training gaps are all zero"
            )
        deviation = float(logs.std()) if logs.min() < logs.max() else 0.0  # of equal numbers it may be 1e-16
        return replace(self, gap_mean=float(logs.mean()), gap_std=deviation or 1.0)

    def heads(self, encoder: EncoderConfig, classes: Sequence[str]) -> dict[str, HeadConfig]:
        """One head over the codes of the fields, and one for the time."""
        _check_causal(encoder)
        return {"events": EventsConfig(self.fields or tuple(encoder.codes)), **self._time()}

    def __call__(self, model: Model, batch: PackedBatch, *, step: int | None = None) -> Loss:
        """Logs: loss, nll_<field>, nll_time (of seconds, where it is predicted), count (tokens with a successor)."""
        _check_causal(model.encoder.config)
        head = head_of(model, "events", EventsHead)
        has_next, targets = self.targets(batch, head.config.fields)
        hidden = model.encoder(batch)
        marks = mean_nll(head, hidden, targets, has_next.sum())
        if self.time is None:
            return marks
        seconds = gaps(batch.time).where(has_next, torch.nan)
        time = head_of(model, "time", TimeHead).nll(hidden, seconds) / has_next.sum().clamp(min=1)
        loss = marks.loss + self.time_weight * time
        return Loss(loss, {**marks.logs, "loss": loss.detach(), "nll_time": time.detach()})

    @staticmethod
    def targets(batch: PackedBatch, fields: Sequence[str]) -> tuple[Tensor, dict[str, Tensor]]:
        """(T,) bool, whether a row has a successor in its sequence, and field → (T,) the successor's code or IGNORE."""
        start = starts_of_rows(batch.cu_seqlens, batch.n_tokens)
        has_next = torch.zeros_like(start, dtype=torch.bool)
        has_next[:-1] = start[1:] == start[:-1]
        return has_next, {name: batch.fields[name].roll(-1).where(has_next, IGNORE) for name in fields}


def gaps(time: Tensor) -> Tensor:
    """(T,) float64 seconds from each of the times (T,), int64 ns, to the one below it; of the last, nonsense."""
    return (time.roll(-1) - time).double() / 1e9


def _check_causal(encoder: EncoderConfig) -> None:
    if not encoder.causal:
        raise ValueError("the next event can be predicted by a causal encoder only; this one sees it")
