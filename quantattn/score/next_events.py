"""What a model that was trained to predict the next event says of it at each decision: its fields and its time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from arro3.core import Array, DataType
from torch import Tensor

from quantattn.batch import PackedBatch
from quantattn.data.meanings import Meaning
from quantattn.nn import EventsConfig, Model, TimeConfig, batch_invariant
from quantattn.score.outputs import Order, by_label, lists, plain
from quantattn.score.plan import Work

MOST_COLUMNS = 32
"""Values of a category that get a column each; with more there is a list alone."""


@dataclass(frozen=True)
class NextEvents:
    """The laws of the next event's fields, and of the time until it.

    Attributes:
        meanings: field → what its codes stand for; of others only the law over codes is told.
        levels: of the quantiles of the time, within (0, 1), rising.
    """

    meanings: Mapping[str, Meaning] = field(default_factory=dict)
    levels: tuple[float, ...] = (0.1, 0.5, 0.9)

    def __post_init__(self) -> None:
        rising = all(a < b for a, b in zip((0.0, *self.levels), (*self.levels, 1.0), strict=True))
        if not self.levels or not rising:
            raise ValueError(f"levels must rise within (0, 1), got {list(self.levels)}")

    @property
    def policy(self) -> Mapping[str, Any]:
        """The levels."""
        return {"next_event": list(self.levels)}

    def check(self, model: Model, streamed: bool) -> None:
        """Raise ValueError unless the model is causal and has a head over the fields of events."""
        if not model.encoder.config.causal or not isinstance(model.head_configs.get("events"), EventsConfig):
            heads = ", ".join(model.head_configs) or "none"
            raise ValueError(
                f"output=next_event needs a causal model trained with objective=next_event; the heads of this one are "
                f"{heads}, and it is {'' if model.encoder.config.causal else 'not '}causal"
            )

    def said(
        self, model: Model, batch: PackedBatch, order: Order, states: Tensor | None = None
    ) -> Mapping[str, Tensor]:
        """`next_<field>` (Q, K) float32 probabilities of its codes; `next_seconds` (Q, 1 + levels) float64.

        The first of `next_seconds` is P(no time passes), the others the quantiles.
        """
        states = model.embed(batch, deterministic=order, pooling="last") if states is None else states
        heads: Any = model.heads
        with torch.no_grad(), batch_invariant(heads, order == "batch"):
            said = {f"next_{_plain(name)}": logits.softmax(-1) for name, logits in heads["events"](states).items()}
            if isinstance(model.head_configs.get("time"), TimeConfig):
                law = heads["time"](states)
                quantiles = heads["time"].quantiles(law, self.levels)
                said["next_seconds"] = torch.cat([law[:, :1].double().sigmoid(), quantiles], dim=1)
        return said

    def columns(self, name: str, values: Tensor, work: Work, rows: Tensor) -> Mapping[str, Any]:
        """Columns of one field, or of the time; see docs/score_outputs.md."""
        if name == "next_seconds":
            named = {f"{name}_quantile_{level!r}": values[:, i + 1] for i, level in enumerate(self.levels)}
            return {"next_at_once_prob": plain(values[:, 0].float()), **{n: plain(v) for n, v in named.items()}}
        meaning = self.meanings.get(name.removeprefix("next_"))
        if meaning is None:
            return {f"{name}_code_prob": lists(values)}
        of_values = values[:, meaning.first :]
        made: dict[str, Any] = {f"{name}_unknown_prob": plain(values[:, : meaning.first].sum(1))}
        if meaning.edges is not None:
            return {f"{name}_bin_prob": lists(of_values), **made, **_median_bin(name, of_values, meaning.edges)}
        labels = meaning.labels or ()
        made[f"{name}_likeliest"] = Array([labels[i] for i in of_values.argmax(1).tolist()], type=DataType.string())
        if len(labels) <= MOST_COLUMNS:
            return {**by_label(f"{name}_prob", of_values, labels), **made}
        return {f"{name}_prob": lists(of_values), **made}


def _median_bin(name: str, values: Tensor, edges: tuple[float, ...]) -> dict[str, Any]:
    """From where to where the bin goes that holds the median of what is known; None where it has no end."""
    reached = values.double().cumsum(1) >= values.double().sum(1, keepdim=True) / 2
    place = reached.int().argmax(1).tolist()
    kind = DataType.int64() if all(isinstance(edge, int) for edge in edges) else DataType.float64()
    low = [edges[i - 1] if i else None for i in place]
    high = [edges[i] if i < len(edges) else None for i in place]
    return {f"{name}_median_from": Array(low, type=kind), f"{name}_median_below": Array(high, type=kind)}


def _plain(name: str) -> str:
    return name.removesuffix("_code")
