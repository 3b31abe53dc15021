"""The class of each decision: cross-entropy, with weights of classes, focal, or for classes that have an order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from quantattn.batch import IGNORE, PackedBatch
from quantattn.nn.config import EncoderConfig
from quantattn.nn.heads import ClassificationConfig, HeadConfig, OrdinalConfig
from quantattn.nn.model import Model
from quantattn.nn.objectives.objective import Goal, Loss, TrainingRows, output_of, target_of

BALANCED = "balanced"
_SMALLEST_SHARE = 1e-12


@dataclass(frozen=True)
class Outcome:
    """Cross-entropy, in nats, of each decision's class, or what is made of it.

        loss = Σ_i w[y_i] · (1 − p_i[y_i])^γ · −ln p_i[y_i] / Σ_i w[y_i] over the decisions that have a label.

    Attributes:
        class_weights: w, one weight a class; None is 1 for each; "balanced" is n / (K · n_k) of the n training rows
            that have a label, n_k of which are of class k of K, so that every class has the same say.
        focal: γ ≥ 0: how much less a decision counts the surer the model is of its class (Lin et al. 2017, arXiv
            1708.02002); 0 is cross-entropy.
        ordinal: the classes have an order and are read off one score a decision (`OrdinalHead`).
        label: name of the target, (Q,) integers with `IGNORE` for none, and of the head.
        pooling: how the head reads the sequence.
    """

    goal: ClassVar[Goal] = "classes"
    class_weights: tuple[float, ...] | str | None = None
    focal: float = 0.0
    ordinal: bool = False
    label: str = "label"
    pooling: str = "last"

    def __post_init__(self) -> None:
        if not 0 <= self.focal < float("inf"):
            raise ValueError(f"focal must be 0 or more, got {self.focal}")
        weights = self.class_weights
        if isinstance(weights, str):
            if weights != BALANCED:
                raise ValueError(f"class_weights must be numbers, {BALANCED} or null, got {weights!r}")
        elif weights is not None:
            numbers = tuple(map(float, weights))
            if not all(0 <= weight < float("inf") for weight in numbers):
                raise ValueError(f"class weights must be finite and not negative, got {numbers}")
            object.__setattr__(self, "class_weights", numbers)

    def fitted(self, rows: TrainingRows) -> Outcome:
        """The objective with the weights that balance the classes of the training rows, if it is to have them.

        Raises:
            ValueError: a class of which there is no training row.
        """
        if self.class_weights != BALANCED:
            return self
        label = rows.targets[self.label].long()
        counts = torch.bincount(label[label != IGNORE], minlength=len(rows.classes)).double()
        if not bool((counts > 0).all()):
            never = rows.classes[int((counts == 0).nonzero()[0])]
            raise ValueError(f"class_weights={BALANCED} needs a training row of every class, {never!r} has none")
        return replace(self, class_weights=tuple((counts.sum() / (len(counts) * counts)).tolist()))

    def heads(self, encoder: EncoderConfig, classes: Sequence[str]) -> dict[str, HeadConfig]:
        """One head with the data's classes."""
        self._check(len(classes))
        config = OrdinalConfig if self.ordinal else ClassificationConfig
        return {self.label: config(tuple(classes), self.pooling)}

    def __call__(self, model: Model, batch: PackedBatch, *, step: int | None = None) -> Loss:
        """Logs: loss, accuracy (unweighted), log_loss (unweighted, where the loss is another), count."""
        target = target_of(batch, self.label).long()
        logits = output_of(model, batch, self.label)
        self._check(logits.shape[-1])
        nll = functional.cross_entropy(logits, target, ignore_index=IGNORE, reduction="none")  # (Q,)
        known = target != IGNORE
        weight = known.to(nll.dtype)
        # Numbers go to the device as arguments of kernels: a tensor made of them would have to be waited for.
        weights = () if isinstance(self.class_weights, str) else self.class_weights or ()
        for code, value in enumerate(weights):
            weight = weight.masked_fill(target == code, value)
        mass, count = weight.sum(), known.sum()
        loss = (weight * self._focused(nll)).sum() / torch.where(mass > 0, mass, 1)
        right = (logits.argmax(dim=-1) == target).sum()
        logs = {"loss": loss.detach(), "accuracy": right / count.clamp(min=1), "count": count}
        if self.class_weights is not None or self.focal:
            logs["log_loss"] = nll.detach().sum() / count.clamp(min=1)
        return Loss(loss, logs)

    def _focused(self, nll: Tensor) -> Tensor:
        if not self.focal:
            return nll
        # Where the model is sure to the last bit the power has no derivative for γ < 1, and nothing is to be learned.
        return (-torch.expm1(-nll)).clamp(min=_SMALLEST_SHARE) ** self.focal * nll

    def _check(self, n_classes: int) -> None:
        if self.class_weights == BALANCED:
            raise ValueError(f"class_weights={BALANCED} come from training rows: fit the objective to them first")
        if self.class_weights is not None and len(self.class_weights) != n_classes:
            raise ValueError(f"{len(self.class_weights)} class weights were given for {n_classes} classes")
