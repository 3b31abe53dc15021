"""What computes the rows of a shard, whichever process it runs in."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch
from arro3.core import Array, DataType
from torch import Tensor

from quantattn.batch import PackedBatch
from quantattn.data.filed import release
from quantattn.data.pack import Ints
from quantattn.data.pack import plan as batches_of
from quantattn.nn import Model, check_decisions
from quantattn.nn.memory import scoring
from quantattn.score.incremental import Stream
from quantattn.score.outputs import Output, Scores
from quantattn.score.plan import Plan, Shard, Work, costs


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

    def begin(self, shard: Shard, refused: dict[int, str] | None = None) -> Begun:
        """Begin with a shard.

        Where `refused` is given, a decision without a score ends nothing: its key and the reason are added there, and
        what stands in its place means nothing.
        """
        return Begun(self, shard, refused)

    def rows(self, shard: Shard) -> dict[str, Any]:
        """`Begun.rows` of a shard, one batch after the other."""
        begun = self.begin(shard)
        for fetch in begun.launches():
            fetch()
        return begun.rows()

    def answers(self, indices: Ints, refused: dict[int, str] | None) -> Iterator[tuple[Tensor, Mapping[str, Tensor]]]:
        """Keys and what is said of them, for the sequences of these numbers in one batch.

        Where what is refused may be kept apart, a batch that is refused is halved, down to the sequence that is.
        """
        batch = self.work.sequences.pack(indices)
        if not len(batch.keys):
            return
        try:
            check_decisions(batch, self.model.encoder.config)
            with scoring(batch, "max_tokens_per_batch"):
                keys, said = self._said(batch, indices)
        except ValueError as error:
            if refused is None:
                raise
            if len(indices) == 1:
                refused.update(dict.fromkeys(batch.keys.tolist(), str(error)))
                return
            half = len(indices) // 2
            yield from self.answers(indices[:half], refused)
            yield from self.answers(indices[half:], refused)
            return
        yield keys, said

    def _said(self, batch: PackedBatch, indices: Ints) -> tuple[Tensor, Mapping[str, Tensor]]:
        keys, dtype = batch.keys, self.autocast
        with torch.autocast(torch.device(self.device).type, dtype=dtype or torch.bfloat16, enabled=dtype is not None):
            if self.stream is not None:
                numbers = indices.tolist()
                keys, said = self.stream.said(self.model, self.work, batch, numbers, self.output, self.device)
            else:
                said = self.output.said(self.model, self._moved(batch), self.deterministic)
        half = (torch.float16, torch.bfloat16)
        return keys, {name: rows.float() if rows.dtype in half else rows for name, rows in said.items()}

    def _moved(self, batch: PackedBatch) -> PackedBatch:
        """On the device; a copy out of pageable memory would wait until a GPU has done everything before it."""
        on_gpu = torch.device(self.device).type == "cuda"
        return batch.pin_memory().to(self.device, non_blocking=True) if on_gpu else batch.to(self.device)


class Begun:
    """A shard that is computed, batch after batch.

    What is said of a batch can be fetched once later ones were given to the device: a GPU need not wait for the host.

    Args:
        worker: what computes it.
        shard: which one.
        refused: see `Worker.begin`.
    """

    def __init__(self, worker: Worker, shard: Shard, refused: dict[int, str] | None = None) -> None:
        self.worker, self.shard, self.refused = worker, shard, refused
        first = worker.work.sequences.first
        self.first, self.last = int(first[shard.first]), int(first[shard.last])
        self._found: dict[str, Tensor] = {}
        self._seen = torch.zeros(self.last - self.first, dtype=torch.int64)
        self._cost = 0

    def launches(self) -> Iterator[Callable[[], None]]:
        """For each batch, once the device was given it, what waits for its scores and keeps them."""
        sequences, shard = self.worker.work.sequences, self.shard
        lengths = sequences.stop[shard.first : shard.last] - sequences.start[shard.first : shard.last]
        each = costs(lengths)
        for indices in even_batches(lengths, self.worker.max_tokens):
            cost = int(each[indices].sum())
            for keys, said in self.worker.answers(indices + shard.first, self.refused):
                self._cost += cost
                cost = 0  # of a batch that was halved, with its first part
                yield partial(self._keep, keys, on_their_way(said))

    @property
    def share(self) -> float:
        """What the device was given of it, between 0 and 1, by its cost; a CPU has computed that."""
        return min(self._cost / self.shard.cost, 1.0) if self.shard.cost else 0.0

    def _keep(self, keys: Tensor, said: Callable[[], Mapping[str, Tensor]]) -> None:
        places = keys - self.first
        self._seen[places] += 1
        for name, rows in said().items():
            if name not in self._found:
                self._found[name] = torch.zeros(len(self._seen), *rows.shape[1:], dtype=rows.dtype)
            self._found[name][places] = rows

    def scores(self) -> dict[str, Tensor]:
        """Name → scores of the shard's decisions, in the order of their keys, once all were fetched.

        Raises:
            ValueError: the model gives one that is not finite.
        """
        self._seen[[key - self.first for key in self.refused or ()]] += 1
        if bool((self._seen != 1).any()):
            place = int((self._seen != 1).nonzero()[0])
            times = int(self._seen[place])
            raise RuntimeError(f"decision {self.first + place} was scored {times} times, expected once")
        for name, rows in self._found.items():
            finite = rows.isfinite().reshape(len(rows), -1).all(1)
            for key in (self.first + (~finite).nonzero().flatten()).tolist():
                if self.refused is None:
                    raise ValueError(f"the model gives {name} that is not finite for decision {key}")
                self.refused[key] = f"the model gives {name} that is not finite"
        return self._found

    def rows(self) -> dict[str, Any]:
        """Name → Arrow array, the rows that the shard adds to the table, once all were fetched.

        Columns: entity, as_of (int64 ns UTC), key (number of the row), what `work.described` has, those of the output,
        model_sha, plan_sha.

        Raises:
            ValueError: see `scores`.
        """
        worker, scores = self.worker, self.scores()
        if worker.stream is not None:
            worker.stream.keep(worker.work, worker.plan, self.shard)
        made = columns(worker.work, worker.plan, self.first, self.last, scores, worker.output)
        release()
        return made


def even_batches(lengths: Ints, max_tokens: int) -> list[Ints]:
    """Runs of sequences of at most `max_tokens` tokens, as few as there can be, and nearly as many tokens in each.

    Filled one after the other, the last one of a shard would be left with a few tokens, over which a GPU has computed
    before the host has launched the next batch.

    Raises:
        ValueError: a sequence has more than `max_tokens`.
    """
    full = batches_of(lengths, max_tokens, shuffle=False)
    if len(full) < 2:
        return full
    share = -(-int(lengths.sum()) // len(full)) + int(lengths.max())
    even = batches_of(lengths, min(share, max_tokens), shuffle=False)
    return even if len(even) == len(full) else full


def repeating(on: bool = True) -> None:
    """Let torch refuse, in this process from now on, whatever might give other bits when it is run again.

    cuBLAS repeats its bits with a workspace of a fixed size alone, which it is told of before its first product. That
    torch fills memory before something is written to it is left out: it takes time, and no result hangs on it.
    """
    if on:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(on)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def on_their_way(said: Mapping[str, Tensor]) -> Callable[[], Mapping[str, Tensor]]:
    """What waits for these tensors and gives them on the CPU; from a GPU they are copied behind what computes them."""
    if not any(rows.is_cuda for rows in said.values()):
        return lambda: said
    copies = {name: torch.empty_like(rows, device="cpu", pin_memory=True) for name, rows in said.items()}
    for name, rows in said.items():
        copies[name].copy_(rows, non_blocking=True)
    done = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
    done.record(torch.cuda.current_stream(next(rows.device for rows in said.values() if rows.is_cuda)))

    def arrived() -> Mapping[str, Tensor]:
        done.synchronize()
        return copies

    return arrived


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
