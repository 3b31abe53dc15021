"""What a model is trained for: objectives take a model and a batch and give a loss and figures to log.

Every loss is a sum divided by the number of terms that were counted, and 0 with gradients 0 when there was none.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from quantattn.batch import IGNORE, PackedBatch
from quantattn.nn.config import MASKED, EncoderConfig
from quantattn.nn.heads import ClassificationConfig, EventsConfig, EventsHead, HeadConfig, RegressionConfig
from quantattn.nn.model import Model
from quantattn.nn.rows import starts_of_rows


class Loss(NamedTuple):
    """A loss to differentiate, and detached scalars to log; `count` is how many terms the loss averages."""

    loss: Tensor
    logs: dict[str, Tensor]


class Objective(Protocol):
    """A training objective. It names the heads it needs, and is called once a step."""

    def heads(self, encoder: EncoderConfig, classes: Sequence[str]) -> dict[str, HeadConfig]:
        """Heads that a model needs for this objective; `classes` are the names of the data's classes, if any."""
        ...

    def __call__(self, model: Model, batch: PackedBatch, *, step: int | None = None) -> Loss:
        """The loss of one batch; `step` is the number of the training step, for objectives that draw at random."""
        ...


@dataclass(frozen=True)
class Outcome:
    """Cross-entropy, in nats, of each decision's class.

    loss = Σ_i w[y_i] · −ln p_i[y_i] / Σ_i w[y_i] over the decisions that have a label.

    Attributes:
        class_weights: w, one weight a class; None is 1 for each.
        label: name of the target, (Q,) integers with `IGNORE` for none, and of the head.
        pooling: how the head reads the sequence.
    """

    class_weights: tuple[float, ...] | None = None
    label: str = "label"
    pooling: str = "last"

    def __post_init__(self) -> None:
        if self.class_weights is None:
            return
        object.__setattr__(self, "class_weights", tuple(map(float, self.class_weights)))
        if not all(0 <= weight < float("inf") for weight in self.class_weights):
            raise ValueError(f"class weights must be finite and not negative, got {self.class_weights}")

    def heads(self, encoder: EncoderConfig, classes: Sequence[str]) -> dict[str, HeadConfig]:
        """One classification head with the data's classes."""
        self._check(len(classes))
        return {self.label: ClassificationConfig(tuple(classes), self.pooling)}

    def __call__(self, model: Model, batch: PackedBatch, *, step: int | None = None) -> Loss:
        """Logs: loss, accuracy (unweighted), count."""
        target = _target(batch, self.label).long()
        logits = _output(model, batch, self.label)
        self._check(logits.shape[-1])
        nll = functional.cross_entropy(logits, target, ignore_index=IGNORE, reduction="none")  # (Q,)
        known = target != IGNORE
        weight = known.to(nll.dtype)
        # Numbers go to the device as arguments of kernels: a tensor made of them would have to be waited for.
        for code, value in enumerate(self.class_weights or ()):
            weight = weight.masked_fill(target == code, value)
        mass, count = weight.sum(), known.sum()
        loss = (weight * nll).sum() / torch.where(mass > 0, mass, 1)
        right = (logits.argmax(dim=-1) == target).sum()
        return Loss(loss, {"loss": loss.detach(), "accuracy": right / count.clamp(min=1), "count": count})

    def _check(self, n_classes: int) -> None:
        if self.class_weights is not None and len(self.class_weights) != n_classes:
            raise ValueError(f"{len(self.class_weights)} class weights were given for {n_classes} classes")


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

    mean: float = 0.0
    std: float = 1.0
    loss: str = "huber"
    label: str = "label"
    pooling: str = "last"

    def __post_init__(self) -> None:
        if self.loss not in ("huber", "mse"):
            raise ValueError(f"loss must be huber or mse, got {self.loss!r}")

    def heads(self, encoder: EncoderConfig, classes: Sequence[str]) -> dict[str, HeadConfig]:
        """One regression head that knows the target's mean and standard deviation."""
        return {self.label: RegressionConfig(self.mean, self.std, self.pooling)}

    def __call__(self, model: Model, batch: PackedBatch, *, step: int | None = None) -> Loss:
        """Logs: loss, mae (mean absolute error in the target's unit), count."""
        target = (_target(batch, self.label).float() - self.mean) / self.std
        output = _output(model, batch, self.label)
        known = ~torch.isnan(target)
        target = target.where(known, output.detach())  # an error of exactly zero, whatever the output is
        measure = functional.huber_loss if self.loss == "huber" else functional.mse_loss
        count = known.sum()
        loss = measure(output, target, reduction="sum") / count.clamp(min=1)
        mae = self.std * (output.detach() - target).abs().sum() / count.clamp(min=1)
        return Loss(loss, {"loss": loss.detach(), "mae": mae, "count": count})


@dataclass(frozen=True)
class MaskedEvents:
    """Hide whole events from the encoder and predict their fields (Devlin et al. 2019, arXiv 1810.04805).

    At round(rate · T) tokens of the batch every field to be predicted gets the code `MASKED` and every float field
    becomes missing; the loss is the mean over fields of the mean cross-entropy, in nats, at those tokens. Event times
    stay visible. Which tokens are hidden is a function of (seed, step, T) alone, on every device; a call without a step
    draws them from torch's global CPU generator, as dropout does.

    Attributes:
        rate: share of tokens that are hidden, in (0, 1].
        fields: fields to hide and predict; None is every field of codes.
        seed: of the choice of tokens.
    """

    rate: float = 0.3
    fields: tuple[str, ...] | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.rate <= 1:
            raise ValueError(f"rate must be in (0, 1], got {self.rate}")
        if self.fields is not None:
            object.__setattr__(self, "fields", tuple(self.fields))

    def heads(self, encoder: EncoderConfig, classes: Sequence[str]) -> dict[str, HeadConfig]:
        """One head over the codes of the fields."""
        return {"events": EventsConfig(self.fields or tuple(encoder.codes))}

    def __call__(self, model: Model, batch: PackedBatch, *, step: int | None = None) -> Loss:
        """Logs: loss, nll_<field>, count (tokens hidden)."""
        head = _events_head(model)
        rows = self.rows(batch.n_tokens, step).to(batch.time.device, non_blocking=True)
        hidden = model.encoder(self.hide(batch, rows, head.config.fields, model.encoder.config.values))
        targets = {name: batch.fields[name][rows] for name in head.config.fields}
        return _mean_nll(head, hidden[rows], targets, rows.new_full((), rows.shape[0]))

    def rows(self, n_tokens: int, step: int | None) -> Tensor:
        """(R,) ascending int64 rows to hide, on the CPU; at least one when there are tokens."""
        count = max(1, round(self.rate * n_tokens)) if n_tokens else 0
        generator = None
        if step is not None:
            digest = hashlib.sha256(f"masked events, seed {self.seed}, step {step}".encode()).digest()
            generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little", signed=True))
        return torch.randperm(n_tokens, generator=generator)[:count].sort().values

    @staticmethod
    def hide(batch: PackedBatch, rows: Tensor, codes: Sequence[str], values: Sequence[str]) -> PackedBatch:
        """The batch with those rows masked in the fields of codes and missing in the float fields."""
        hidden: dict[str, Tensor] = {name: batch.fields[name].index_fill(0, rows, MASKED) for name in codes}
        hidden |= {name: batch.fields[name].index_fill(0, rows, torch.nan) for name in values}
        return replace(batch, fields={**batch.fields, **hidden})


def MaskedLanguage(rate: float = 0.3, seed: int = 0, field: str = "token") -> MaskedEvents:
    """Masked-language modelling: masked events whose one field is the token."""
    return MaskedEvents(rate, (field,), seed)


@dataclass(frozen=True)
class NextEvent:
    """Predict the fields of the next event of the same sequence from the past; needs a causal encoder.

    The loss is the mean over fields of the mean cross-entropy, in nats, over all tokens that have a successor in
    their sequence. `fields` are those to predict; None is every field of codes.
    """

    fields: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if self.fields is not None:
            object.__setattr__(self, "fields", tuple(self.fields))

    def heads(self, encoder: EncoderConfig, classes: Sequence[str]) -> dict[str, HeadConfig]:
        """One head over the codes of the fields."""
        _check_causal(encoder)
        return {"events": EventsConfig(self.fields or tuple(encoder.codes))}

    def __call__(self, model: Model, batch: PackedBatch, *, step: int | None = None) -> Loss:
        """Logs: loss, nll_<field>, count (tokens with a successor)."""
        _check_causal(model.encoder.config)
        head = _events_head(model)
        has_next, targets = self.targets(batch, head.config.fields)
        return _mean_nll(head, model.encoder(batch), targets, has_next.sum())

    @staticmethod
    def targets(batch: PackedBatch, fields: Sequence[str]) -> tuple[Tensor, dict[str, Tensor]]:
        """(T,) bool, whether a row has a successor in its sequence, and field → (T,) the successor's code or IGNORE."""
        start = starts_of_rows(batch.cu_seqlens, batch.n_tokens)
        has_next = torch.zeros_like(start, dtype=torch.bool)
        has_next[:-1] = start[1:] == start[:-1]
        return has_next, {name: batch.fields[name].roll(-1).where(has_next, IGNORE) for name in fields}


def _mean_nll(head: EventsHead, hidden: Tensor, targets: Mapping[str, Tensor], count: Tensor) -> Loss:
    nll = head.nll(hidden, targets) / count.clamp(min=1)  # (F,)
    loss = nll.mean()
    logs = {f"nll_{name}": nll[i].detach() for i, name in enumerate(head.config.fields)}
    return Loss(loss, {"loss": loss.detach(), **logs, "count": count})


def _target(batch: PackedBatch, name: str) -> Tensor:
    if name not in batch.targets:
        raise ValueError(f"the batch has no target {name!r}; it has {', '.join(batch.targets) or 'none'}")
    return batch.targets[name]


def _output(model: Model, batch: PackedBatch, name: str) -> Tensor:
    if name not in model.decision_heads():
        raise ValueError(f"the model has no decision head {name!r}; its heads are {', '.join(model.heads) or 'none'}")
    outputs: dict[str, Any] = model(batch)
    return outputs[name]  # type: ignore[no-any-return]


def _events_head(model: Model) -> EventsHead:
    head = dict(model.heads.items()).get("events")
    if not isinstance(head, EventsHead):
        raise ValueError(f"the model has no events head; its heads are {', '.join(model.heads) or 'none'}")
    return head


def _check_causal(encoder: EncoderConfig) -> None:
    if not encoder.causal:
        raise ValueError("the next event can be predicted by a causal encoder only; this one sees it")
