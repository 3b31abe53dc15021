"""What computes the rows of one shard, whichever process it runs in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from arro3.core import Array, DataType
from torch import Tensor

from quantattn.batch import PackedBatch
from quantattn.data.filed import release
from quantattn.data.pack import Ints
from quantattn.data.pack import plan as batches_of
from quantattn.nn import Model, check_decisions
from quantattn.score.incremental import Stream
from quantattn.score.outputs import Output, Scores
from quantattn.score.plan import Plan, Shard, Work


@dataclass(frozen=True)
class Worker:
    """A model and the work that it scores, shard by shard.

    Attributes:
        model: what scores; moved to `device`, in evaluation mode.
        work: the decisions.
        plan: their shards.
        max_tokens: budget of tokens a batch.
        device: where the model runs.
        autocast: dtype of products and attention; None computes in the parameters' own.
        deterministic: "batch" gives a decision the same bits whatever the batches are, so `max_tokens` and the shards
            change no score; see `Model.score`.
        output: what is said of each decision.
        stream: what sequences go on from, and where their states are kept; needs a causal model and "batch".
    """

    model: Model
    work: Work
    plan: Plan
    max_tokens: int
    device: str = "cpu"
    autocast: torch.dtype | None = None
    deterministic: bool | Literal["batch"] = True
    output: Output = field(default_factory=Scores)
    stream: Stream | None = None

    def __post_init__(self) -> None:
        self.model.to(self.device).eval()

    def rows(self, shard: Shard, refused: dict[int, str] | None = None) -> dict[str, Any]:
        """Name → Arrow array, the rows that the shard adds to the table.

        Columns: entity, as_of (int64 ns UTC), key (number of the row), what `work.described` has, those of the output,
        model_sha, plan_sha.

        Raises:
            ValueError: a decision could see its own future, or the model gives a score that is not finite.
        """
        begin, end = (int(self.work.sequences.first[s]) for s in (shard.first, shard.last))
        scores = self.scores(shard, refused)
        if self.stream is not None:
            self.stream.keep(self.work, self.plan, shard)
        made = columns(self.work, self.plan, begin, end, scores, self.output)
        release()
        return made

    def scores(self, shard: Shard, refused: dict[int, str] | None = None) -> dict[str, Tensor]:
        """Name → scores of the shard's decisions, in the order of their keys.

        Where `refused` is given, a decision without a score ends nothing: its key and the reason are added there, and
        what stands in its place means nothing.
        """
        work = self.work
        begin, end = (int(work.sequences.first[s]) for s in (shard.first, shard.last))
        here = slice(shard.first, shard.last)
        lengths = work.sequences.stop[here] - work.sequences.start[here]
        found: dict[str, Tensor] = {}
        seen = torch.zeros(end - begin, dtype=torch.int64)
        for indices in batches_of(lengths, self.max_tokens, shuffle=False):
            for keys, said in self._answers(indices + shard.first, refused):
                places = keys - begin
                seen[places] += 1
                for name, rows in said.items():
                    if name not in found:
                        found[name] = torch.zeros(end - begin, *rows.shape[1:], dtype=rows.dtype)
                    found[name][places] = rows.cpu()
        seen[[key - begin for key in refused or ()]] += 1
        if bool((seen != 1).any()):
            key = begin + int((seen != 1).nonzero()[0])
            raise RuntimeError(f"decision {key} was scored {int(seen[key - begin])} times, expected once")
        for name, rows in found.items():
            finite = rows.isfinite().reshape(len(rows), -1).all(1)
            for key in (begin + (~finite).nonzero().flatten()).tolist():
                if refused is None:
                    raise ValueError(f"the model gives {name} that is not finite for decision {key}")
                refused[key] = f"the model gives {name} that is not finite"
        return found

    def _answers(self, indices: Ints, refused: dict[int, str] | None) -> Iterator[tuple[Tensor, Mapping[str, Tensor]]]:
        """Keys and what is said of them, for the sequences of these numbers in one batch.

        Where what is refused may be kept apart, a batch that is refused is halved, down to the sequence that is.
        """
        batch = self.work.sequences.pack(indices)
        if not len(batch.keys):
            return
        try:
            check_decisions(batch, self.model.encoder.config)
            keys, said = self._said(batch, indices)
        except ValueError as error:
            if refused is None:
                raise
            if len(indices) == 1:
                refused.update(dict.fromkeys(batch.keys.tolist(), str(error)))
                return
            half = len(indices) // 2
            yield from self._answers(indices[:half], refused)
            yield from self._answers(indices[half:], refused)
            return
        yield keys, said

    def _said(self, batch: PackedBatch, indices: Ints) -> tuple[Tensor, Mapping[str, Tensor]]:
        keys, dtype = batch.keys, self.autocast
        with torch.autocast(torch.device(self.device).type, dtype=dtype or torch.bfloat16, enabled=dtype is not None):
            if self.stream is not None:
                numbers = indices.tolist()
                keys, said = self.stream.said(self.model, self.work, batch, numbers, self.output, self.device)
            else:
                said = self.output.said(self.model, batch.to(self.device), self.deterministic)
        half = (torch.float16, torch.bfloat16)
        return keys, {name: rows.float() if rows.dtype in half else rows for name, rows in said.items()}


def columns(
    work: Work, plan: Plan, begin: int, end: int, scores: Mapping[str, Tensor], output: Output
) -> dict[str, Any]:
    """The table's columns for the rows of decisions begin … end − 1, as Arrow arrays."""
    text = DataType.string()
    first, last = work.span(begin, end)
    made: dict[str, Any] = {
        "entity": Array([str(name) for name in work.entity[first:last]], type=text),
        "as_of": Array.from_numpy(torch.as_tensor(work.as_of[first:last]).numpy()),
        "key": Array.from_numpy(torch.arange(first, last).numpy()),
    }
    for name, given in work.described.items():
        part = given[first:last]
        made[name] = Array(list(part), type=text) if isinstance(part, tuple) else Array.from_numpy(part)
    copies = None if work.copies is None else torch.as_tensor(work.copies[begin:end])
    tokens = torch.tensor(work.sequences.decisions.row[begin:end])  # a copy: files that are mapped are read-only
    for name, pieces in scores.items():
        values = of_rows(work, begin, end, pieces)
        if copies is None:
            made |= output.columns(name, values, work, tokens)
        else:
            values, at = (x.repeat_interleave(copies, 0) for x in (values, tokens))
            made |= output.columns(name, values, work, at)
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
    row = work.rows_of(begin, end) - work.rows_of(begin, begin + 1)
    tokens = torch.as_tensor(work.sequences.contexts[begin:end], dtype=torch.float64)
    weight = tokens.reshape(-1, *[1] * (pieces.ndim - 1))
    total = torch.zeros(int(row[-1]) + 1, *pieces.shape[1:], dtype=torch.float64)
    seen = torch.zeros(len(total), *weight.shape[1:], dtype=torch.float64)
    return (total.index_add_(0, row, weight * pieces) / seen.index_add_(0, row, weight)).float()
