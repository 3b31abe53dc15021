"""What computes the rows of one shard, whichever process it runs in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from arro3.core import Array, DataType, list_array
from torch import Tensor

from quantattn.batch import PackedBatch
from quantattn.data.pack import plan as batches_of
from quantattn.nn import Model, check_decisions
from quantattn.score.plan import Plan, Shard, Work


@dataclass(frozen=True)
class Worker:
    """A model and the work that it scores, shard by shard.

    Attributes:
        model: what scores; moved to `device`, in evaluation mode.
        work: the decisions.
        plan: their shards.
        classes: names of the model's classes, () for none.
        max_tokens: budget of tokens a batch.
        device: where the model runs.
        autocast: dtype of products and attention; None computes in the parameters' own.
        deterministic: "batch" gives a decision the same bits whatever the batches are, so `max_tokens` and the shards
            change no score; see `Model.score`.
        embed: how states are pooled to an embedding, whatever heads the model has; None: the model's scores.
    """

    model: Model
    work: Work
    plan: Plan
    classes: tuple[str, ...]
    max_tokens: int
    device: str = "cpu"
    autocast: torch.dtype | None = None
    deterministic: bool | Literal["batch"] = True
    embed: Literal["last", "mean"] | None = None

    def __post_init__(self) -> None:
        self.model.to(self.device).eval()

    def rows(self, shard: Shard) -> dict[str, Any]:
        """Name → Arrow array, the rows that the shard adds to the table.

        Columns: entity, as_of (int64 ns UTC), key (number of the row), what `work.described` has, `prob_<class>` or
        `value` (float32) or `embedding` (a list of C float32), model_sha, plan_sha.

        Raises:
            ValueError: a decision could see its own future, or the model gives a score that is not finite.
        """
        begin, end = (int(self.work.sequences.first[s]) for s in (shard.first, shard.last))
        return columns(self.work, self.plan, begin, end, self.scores(shard), self.classes)

    def scores(self, shard: Shard) -> dict[str, Tensor]:
        """Name → scores of the shard's decisions, in the order of their keys."""
        work = self.work
        begin, end = (int(work.sequences.first[s]) for s in (shard.first, shard.last))
        lengths = work.sequences.lengths[shard.first : shard.last]
        found: dict[str, Tensor] = {}
        seen = torch.zeros(end - begin, dtype=torch.int64)
        for indices in batches_of(lengths, self.max_tokens, shuffle=False):
            batch = work.sequences.pack(indices + shard.first)
            if not len(batch.keys):
                continue
            check_decisions(batch, self.model.encoder.config)
            places = batch.keys - begin
            seen[places] += 1
            for name, rows in self._said(batch).items():
                if name not in found:
                    found[name] = torch.empty(end - begin, *rows.shape[1:])
                found[name][places] = rows.float().cpu()
        if bool((seen != 1).any()):
            key = begin + int((seen != 1).nonzero()[0])
            raise RuntimeError(f"decision {key} was scored {int(seen[key - begin])} times, expected once")
        for name, rows in found.items():
            if not bool(rows.isfinite().all()):
                key = begin + int((~rows.isfinite()).reshape(len(rows), -1).any(1).nonzero()[0])
                raise ValueError(f"the model gives {name} that is not finite for decision {key}")
        return found

    def _said(self, batch: PackedBatch) -> Mapping[str, Tensor]:
        given, how, dtype = batch.to(self.device), self.deterministic, self.autocast
        with torch.autocast(torch.device(self.device).type, dtype=dtype or torch.bfloat16, enabled=dtype is not None):
            if self.embed is None:
                return self.model.score(given, deterministic=how)
            return {"embedding": self.model.embed(given, deterministic=how, pooling=self.embed)}


def columns(
    work: Work, plan: Plan, begin: int, end: int, scores: dict[str, Tensor], classes: tuple[str, ...]
) -> dict[str, Any]:
    """The table's columns for the rows of decisions begin … end − 1, as Arrow arrays."""
    text = DataType.string()
    first, last = int(work.rows[begin]), int(work.rows[end - 1]) + 1
    made: dict[str, Any] = {
        "entity": Array([str(name) for name in work.entity[first:last]], type=text),
        "as_of": Array.from_numpy(torch.as_tensor(work.as_of[first:last]).numpy()),
        "key": Array.from_numpy(torch.arange(first, last).numpy()),
    }
    for name, given in work.described.items():
        part = given[first:last]
        made[name] = Array(list(part), type=text) if isinstance(part, tuple) else Array.from_numpy(part)
    for name, pieces in scores.items():
        values = of_rows(work, begin, end, pieces).contiguous()
        if values.ndim == 1:
            made[name] = Array.from_numpy(values.numpy())
        elif name == "embedding":
            offsets = torch.arange(0, values.numel() + 1, values.shape[1], dtype=torch.int32)
            made[name] = list_array(Array.from_numpy(offsets.numpy()), Array.from_numpy(values.flatten().numpy()))
        else:
            labels = classes if name.endswith("prob") and len(classes) == values.shape[1] else range(values.shape[1])
            for place, label in enumerate(labels):
                made[f"{name}_{label}"] = Array.from_numpy(values[:, place].contiguous().numpy())
    rows = last - first
    made["model_sha"] = Array([plan.model_sha] * rows, type=text)
    made["plan_sha"] = Array([plan.sha] * rows, type=text)
    return made


def of_rows(work: Work, begin: int, end: int, pieces: Tensor) -> Tensor:
    """(R, …) scores of rows out of (Q, …) scores of their pieces, the decisions begin … end − 1.

    The mean over the pieces of a row, weighed by the tokens that each sees, added up in float64 in the order of the
    pieces; a row of one piece keeps its bits.
    """
    if work.row is None:
        return pieces
    row = work.rows[begin:end] - work.rows[begin]
    tokens = torch.as_tensor(work.sequences.contexts[begin:end], dtype=torch.float64)
    weight = tokens.reshape(-1, *[1] * (pieces.ndim - 1))
    total = torch.zeros(int(row[-1]) + 1, *pieces.shape[1:], dtype=torch.float64)
    seen = torch.zeros(len(total), *weight.shape[1:], dtype=torch.float64)
    return (total.index_add_(0, row, weight * pieces) / seen.index_add_(0, row, weight)).float()
