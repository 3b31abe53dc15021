"""What an objective is, and what the objectives share.

Every loss is a sum divided by the number of terms that were counted, and 0 with gradients 0 when there was none.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor, nn

from quantattn.batch import PackedBatch
from quantattn.nn.config import EncoderConfig
from quantattn.nn.heads import HeadConfig
from quantattn.nn.model import Model

Goal = Literal["classes", "value", "data"]
"""What an objective predicts: the class of a decision, its value, or the data themselves."""
H = TypeVar("H", bound=nn.Module)


class Loss(NamedTuple):
    """A loss to differentiate, and detached scalars to log; `count` is how many terms the loss averages."""

    loss: Tensor
    logs: dict[str, Tensor]


@dataclass(frozen=True)
class TrainingRows:
    """What objectives may be fitted to.

    Attributes:
        targets: name → (Q,) targets of the training decisions.
        classes: names of the classes, if any.
        gaps: (G,) float64 seconds between the events of training sequences that follow on each other.
    """

    targets: Mapping[str, Tensor]
    classes: tuple[str, ...]
    gaps: Tensor


class Objective(Protocol):
    """A training objective. It names the heads it needs, and is called once a step."""

    @property
    def goal(self) -> Goal:
        """What it predicts."""
        ...

    def fitted(self, rows: TrainingRows) -> Objective:
        """The objective with what it takes from training rows: a mean, weights of classes; or itself."""
        ...

    def heads(self, encoder: EncoderConfig, classes: Sequence[str]) -> dict[str, HeadConfig]:
        """Heads that a model needs for this objective; `classes` are the names of the data's classes, if any."""
        ...

    def __call__(self, model: Model, batch: PackedBatch, *, step: int | None = None) -> Loss:
        """The loss of one batch; `step` is the number of the training step, for objectives that draw at random."""
        ...


def target_of(batch: PackedBatch, name: str) -> Tensor:
    """The batch's target of that name; ValueError when there is none."""
    if name not in batch.targets:
        raise ValueError(f"the batch has no target {name!r}; it has {', '.join(batch.targets) or 'none'}")
    return batch.targets[name]


def output_of(model: Model, batch: PackedBatch, name: str) -> Tensor:
    """The output of the model's decision head of that name; ValueError when there is none."""
    if name not in model.decision_heads():
        raise ValueError(f"the model has no decision head {name!r}; its heads are {', '.join(model.heads) or 'none'}")
    outputs: dict[str, Any] = model(batch)
    return outputs[name]  # type: ignore[no-any-return]


def head_of(model: Model, name: str, kind: type[H]) -> H:
    """The model's head of that name; ValueError when there is none, or it is of another kind."""
    head = dict(model.heads.items()).get(name)
    if not isinstance(head, kind):
        raise ValueError(f"the model has no {name} head; its heads are {', '.join(model.heads) or 'none'}")
    return head


def generator_of(what: str, step: int | None) -> torch.Generator | None:
    """The generator for what is drawn in a step, a function of the text `what`; without a step, torch's global one."""
    if step is None:
        return None
    digest = hashlib.sha256(what.encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little", signed=True))
