"""Several objectives at once, each with a weight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from quantattn.batch import PackedBatch
from quantattn.nn.config import EncoderConfig
from quantattn.nn.heads import HeadConfig
from quantattn.nn.model import Model
from quantattn.nn.objectives.objective import Goal, Loss, Objective, TrainingRows


@dataclass(frozen=True)
class Several:
    """loss = Σ_n weight_n · loss_n, with a forward of the encoder for each part.

    Attributes:
        parts: name → objective, in the order in which they are computed; at most one of them may predict labels.
        weights: name → weight, positive; a part that is not named has 1.

    Raises:
        ValueError: no part, two that predict labels, or a weight that is not positive or of no part.
    """

    parts: Mapping[str, Objective]
    weights: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if unknown := sorted(set(self.weights) - set(self.parts)):
            raise ValueError(f"weights names {unknown}, the parts are {', '.join(self.parts) or 'none'}")
        for name, weight in self.weights.items():
            if not 0 < weight < float("inf"):
                raise ValueError(f"weights.{name} must be positive, got {weight}; leave a part out with parts")
        labelled = [name for name, part in self.parts.items() if part.goal != "data"]
        if not self.parts or len(labelled) > 1:
            raise ValueError(f"several objectives are one or more, at most one of them with labels, got {labelled}")

    @property
    def goal(self) -> Goal:
        """That of the part that predicts labels, if there is one."""
        return next((part.goal for part in self.parts.values() if part.goal != "data"), "data")

    def fitted(self, rows: TrainingRows) -> Several:
        """Each part fitted."""
        return replace(self, parts={name: part.fitted(rows) for name, part in self.parts.items()})

    def heads(self, encoder: EncoderConfig, classes: Sequence[str]) -> dict[str, HeadConfig]:
        """The heads of all parts.

        Raises:
            ValueError: two parts need a head of the same name.
        """
        found: dict[str, HeadConfig] = {}
        owner: dict[str, str] = {}
        for part, objective in self.parts.items():
            for name, config in objective.heads(encoder, classes).items():
                if name in found:
                    raise ValueError(f"parts {owner[name]} and {part} both need the head {name!r}: take one of them")
                found[name], owner[name] = config, part
        return found

    def __call__(self, model: Model, batch: PackedBatch, *, step: int | None = None) -> Loss:
        """Logs: loss, <part>_<log> of each part, and count, that of the part with labels, or of the first."""
        total = torch.zeros((), device=batch.time.device)
        logs: dict[str, Tensor] = {}
        counts: dict[str, Tensor] = {}
        for name, part in self.parts.items():
            scored = part(model, batch, step=step)
            total = total + self.weights.get(name, 1.0) * scored.loss
            counts[name] = scored.logs["count"]
            logs |= {f"{name}_{what}": value for what, value in scored.logs.items() if what != "count"}
        counted = next((name for name, part in self.parts.items() if part.goal != "data"), next(iter(self.parts)))
        return Loss(total, {"loss": total.detach(), **logs, "count": counts[counted]})
