"""The events that each decision attends to most, in one layer: when they were, of what kind, and their weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from quantattn.batch import PackedBatch
from quantattn.nn import Model
from quantattn.nn.attended import attended, check_place
from quantattn.nn.ensemble import Ensemble
from quantattn.score.outputs import Order, lists, plain
from quantattn.score.plan import Work


@dataclass(frozen=True)
class AttendedKeys:
    """The `top` largest weights of each decision.

    Attributes:
        top: how many.
        layer: from 0, or from −1 for the last.
        head: from 0; None is the mean over heads.
    """

    top: int = 8
    layer: int = -1
    head: int | None = None

    @property
    def policy(self) -> Mapping[str, Any]:
        """Which weights."""
        return {"attention": {"top": self.top, "layer": self.layer, "head": "mean" if self.head is None else self.head}}

    def check(self, model: Model, streamed: bool) -> None:
        """Raise ValueError unless the model has the layer and head, and all keys are there."""
        if isinstance(model, Ensemble):
            raise ValueError("output=attention is that of one encoder; take one member of the ensemble")
        check_place(model.encoder, self.layer, self.head, self.top)
        if streamed:
            raise ValueError(
                "output=attention looks at all keys, and of a stream that goes on the newest alone are here"
            )

    def said(
        self, model: Model, batch: PackedBatch, order: Order, states: Tensor | None = None
    ) -> Mapping[str, Tensor]:
        """`attended_weight` (Q, top) float32, `attended_back` (Q, top) int64, `attended_rest` (Q,) float32."""
        place: dict[str, Any] = {"layer": self.layer, "head": self.head, "top": self.top}
        weights, back = attended(model.encoder, batch, **place, by_batch=order == "batch")
        rest = (1 - weights.double().sum(1)).clamp(min=0).float()
        return {"attended_weight": weights, "attended_back": back, "attended_rest": rest}

    def columns(self, name: str, values: Tensor, work: Work, rows: Tensor) -> Mapping[str, Any]:
        """Lists, the largest weight first: `attended_weight`, and of the same events what is known of them.

        `attended_back` is how many places before the decision they are, `attended_available_time` when they were known.
        """
        if name == "attended_rest":
            return {name: plain(values)}
        if name == "attended_weight":
            return {name: lists(values, values > 0)}
        kept = values >= 0
        at = (rows[:, None] - values.clamp(min=0)).numpy()
        told = {"available_time": work.sequences.table.time, **work.events}
        events = {f"attended_{what}": lists(torch.as_tensor(column[at]).long(), kept) for what, column in told.items()}
        return {name: lists(values, kept), **events}
