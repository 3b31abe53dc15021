"""Models of one shape that were trained apart, as one model: its scores are the mean of theirs, with how far they lie
apart (Lakshminarayanan et al. 2017, 1612.01474)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from quantattn.batch import PackedBatch
from quantattn.nn.model import Model

MOST_MEMBERS = 1000
SPREAD = "spread_"
"""Before the name of a score, its standard deviation between members."""


class Ensemble(Model):
    """Scores like a model, by its members; it cannot be trained, embed or go on with a stream.

    Its parameters are those of the first member, and of the others below `others.<n>`.

    Args:
        members: models with the same encoder and the same heads, over decisions.

    Raises:
        ValueError: no members, too many, or members that differ; the sentence says in what.
    """

    def __init__(self, members: Sequence[Model]) -> None:
        if not 1 <= len(members) <= MOST_MEMBERS:
            raise ValueError(f"an ensemble has 1 to {MOST_MEMBERS} members, got {len(members)}")
        first, *others = members
        if any(isinstance(member, Ensemble) for member in members):
            raise ValueError("an ensemble of ensembles would weigh its models unequally; give their members")
        if not first.decision_heads():
            raise ValueError("an ensemble averages what heads say of decisions, and these models have no such head")
        for place, other in enumerate(others, start=2):
            if (what := _apart(first, other)) is not None:
                raise ValueError(f"members must be alike: model {place} differs from the first in {what}")
        super().__init__(first.encoder)
        self.heads = first.heads
        self.others = nn.ModuleList(others)

    @property
    def members(self) -> tuple[Model, ...]:
        """The models, in order; they share their parameters with the ensemble."""
        first = Model(self.encoder)
        first.heads = self.heads
        return (first, *self.others)

    def forward(self, batch: PackedBatch) -> dict[str, Tensor]:
        """Refused: outputs to which losses are applied are a member's."""
        raise TypeError("an ensemble scores and is not trained; take one of its members")

    @torch.no_grad()
    def score(
        self, batch: PackedBatch, *, deterministic: bool | Literal["batch"] = True, states: Tensor | None = None
    ) -> dict[str, Tensor]:
        """The mean of what the members say, and `spread_<name>`, their standard deviation (divisor: their number).

        Of M members with probabilities p_m the mean p̄ is told, and beside it `disagreement` (Q,), in nats,

            H(p̄) − (1/M) Σ H(p_m) ≥ 0,

        what the outcome and the choice of the member say of each other: 0 where all members say the same. A Gaussian's
        `deviation` is that of the mixture, √(mean σ_m² + var μ_m). Sums are taken in float64.

        Raises:
            ValueError: as scoring with a member does; `states`, which are of one encoder.
        """
        if states is not None:
            self.require_last()
        return mean_scores([member.score(batch, deterministic=deterministic) for member in self.members])

    def require_last(self) -> None:
        """Refused: the states of a stream are those of one encoder."""
        raise ValueError("an ensemble has an encoder a member, and a stream goes on with the states of one")

    def embed(
        self,
        batch: PackedBatch,
        *,
        deterministic: bool | Literal["batch"] = True,
        pooling: Literal["last", "mean"] = "last",
    ) -> Tensor:
        """Refused: every member has coordinates of its own, whose mean says nothing."""
        raise ValueError("embeddings of different models have no mean; take one member of the ensemble")


def mean_scores(said: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """See `Ensemble.score`; name → (Q, …) float32 of each member in, the same of the ensemble out."""
    whole: dict[str, Tensor] = {}
    for name in said[0]:
        each = torch.stack([scores[name].double() for scores in said])  # (M, Q, …)
        prefix, what = name[: name.rfind("_") + 1] if name.endswith(("_prob", "_deviation")) else "", name
        mean = each.mean(dim=0)
        if what.endswith("deviation"):
            values = torch.stack([scores[f"{prefix}value"].double() for scores in said])
            whole[name] = (each.square().mean(dim=0) + values.var(dim=0, correction=0)).sqrt().float()
            continue
        whole[name] = mean.float()
        whole[f"{SPREAD}{name}"] = each.std(dim=0, correction=0).float()
        if what.endswith("prob"):
            apart = torch.special.entr(mean).sum(-1) - torch.special.entr(each).sum(-1).mean(dim=0)
            whole[f"{prefix}disagreement"] = apart.clamp(min=0).float()
    return whole


def _apart(first: Model, other: Model) -> str | None:
    """The first thing in which two models differ beside their weights, in words."""
    one, two = (model.encoder.config.to_dict() for model in (first, other))
    for key in one:
        if one[key] != two.get(key):
            return f"its encoder's {key} ({_short(one[key])}, {_short(two.get(key))})"
    if first.head_configs != other.head_configs:
        return f"its heads ({_short(first.head_configs)}, {_short(other.head_configs)})"
    mine, theirs = first.artefact, other.artefact
    if mine is not None and theirs is not None and mine.vocabulary_json != theirs.vocabulary_json:
        return "its vocabulary: they were trained on different data"
    return None


def _short(value: Any) -> str:
    return f"{value!s:.80}"
