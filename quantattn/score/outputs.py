"""What a scoring job says of each decision: the model's scores, its embedding, or what other modules here offer.

An output is plain values, so that any process can have it. It is called with a model and a batch on the model's device
and gives name → (Q, …) tensor, rows in the order of `batch.keys`; its `columns` says how they stand in the table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from arro3.core import Array, list_array
from torch import Tensor

from quantattn.batch import PackedBatch
from quantattn.evaluate.conformal import Conformal
from quantattn.nn import Model
from quantattn.score.plan import Work

Order = bool | Literal["batch"]


class Output(Protocol):
    """What a job says of each decision."""

    @property
    def policy(self) -> Mapping[str, Any]:
        """Plain values that tell this output from others in a plan; nothing for scores."""

    def check(self, model: Model, streamed: bool) -> None:
        """Raise ValueError unless the model can say it; `streamed`, from the states at decisions alone."""

    def said(
        self, model: Model, batch: PackedBatch, order: Order, states: Tensor | None = None
    ) -> Mapping[str, Tensor]:
        """Name → (Q, …), what the model says of the decisions of a batch; `order` and `states` as in `Model.score`."""

    def columns(self, name: str, values: Tensor, work: Work, rows: Tensor) -> Mapping[str, Any]:
        """Column → Arrow array of a shard's (R, …) values of this name, on the CPU.

        `rows` (R,) are the rows of `work.sequences.table` at which the decisions are; those of all pieces where a row
        of the work is several.
        """


@dataclass(frozen=True)
class Scores:
    """What the model's heads say, see `Model.score`.

    Attributes:
        classes: names for columns of probabilities, () for none.
        conformal: how wide the model's sets or intervals are; None for a model that has none.
    """

    classes: tuple[str, ...] = ()
    conformal: Conformal | None = None

    @property
    def policy(self) -> Mapping[str, Any]:
        """Nothing: it is what a job says if nothing else is asked for."""
        return {}

    def check(self, model: Model, streamed: bool) -> None:
        """Every model has scores."""
        if streamed:
            model.require_last()

    def said(
        self, model: Model, batch: PackedBatch, order: Order, states: Tensor | None = None
    ) -> Mapping[str, Tensor]:
        """`Model.score`."""
        return model.score(batch, deterministic=order, states=states)

    def columns(self, name: str, values: Tensor, work: Work, rows: Tensor) -> Mapping[str, Any]:
        """`prob_<class>`, `value` and the like, float32; `embedding` is a list.

        Of a model with conformal sets or intervals `set_<class>`, bool, or `low` and `high`, float64, beside them.
        """
        return {**self._said(name, values), **self._around(name, values)}

    def _around(self, name: str, values: Tensor) -> Mapping[str, Any]:
        if self.conformal is None or name != self.conformal.score:
            return {}
        if name == "prob":
            inside = torch.tensor(self.conformal.sets(values.numpy()))
            return by_label("set", inside, self._labels(inside))
        ends = self.conformal.intervals(values.numpy())
        return {where: plain(torch.tensor(each)) for where, each in zip(("low", "high"), ends, strict=True)}

    def _labels(self, values: Tensor) -> Sequence[str]:
        named = len(self.classes) == values.shape[1]
        return self.classes if named else tuple(map(str, range(values.shape[1])))

    def _said(self, name: str, values: Tensor) -> Mapping[str, Any]:
        if values.ndim == 1:
            return {name: plain(values)}
        if name == "embedding":
            return {name: lists(values)}
        numbers = tuple(map(str, range(values.shape[1])))
        return by_label(name, values, self._labels(values) if name.endswith("prob") else numbers)


@dataclass(frozen=True)
class Embeddings:
    """`Model.embed`: the state at the decision (`last`) or the mean of those up to it (`mean`)."""

    pooling: Literal["last", "mean"] = "mean"

    @property
    def policy(self) -> Mapping[str, Any]:
        """The pooling."""
        return {"embeddings": self.pooling}

    def check(self, model: Model, streamed: bool) -> None:
        """Every model has states; of a stream the newest alone."""
        if streamed and self.pooling != "last":
            raise ValueError("a mean over all states up to an event is not kept from job to job; use pooling=last")

    def said(
        self, model: Model, batch: PackedBatch, order: Order, states: Tensor | None = None
    ) -> Mapping[str, Tensor]:
        """`embedding` (Q, C) float32."""
        if states is not None:
            return {"embedding": states.float()}
        return {"embedding": model.embed(batch, deterministic=order, pooling=self.pooling)}

    def columns(self, name: str, values: Tensor, work: Work, rows: Tensor) -> Mapping[str, Any]:
        """`embedding`, lists of C float32."""
        return {name: lists(values)}


def plain(values: Tensor) -> Array:
    """An Arrow array of (R,) values."""
    return Array.from_numpy(values.contiguous().numpy())


def lists(values: Tensor, kept: Tensor | None = None) -> Any:
    """An Arrow array of R lists out of (R, K) values; given `kept` (R, K) bool, lists of those alone."""
    kept = torch.ones_like(values, dtype=torch.bool) if kept is None else kept
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), kept.sum(1).cumsum(0)]).to(torch.int32)
    return list_array(plain(offsets), plain(values[kept]))


def by_label(name: str, values: Tensor, labels: Sequence[str]) -> dict[str, Any]:
    """`<name>_<label>` → column of (R, K) values."""
    return {f"{name}_{label}": plain(values[:, place]) for place, label in enumerate(labels)}
