"""The loop over shards: score, write, go on where it stood."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from arro3.core import Array, DataType, list_array
from torch import Tensor

from quantattn.data.pack import plan as batches_of
from quantattn.nn import Model, check_decisions
from quantattn.score.plan import Plan, Shard, Work
from quantattn.score.sink import DeltaSink


@dataclass(frozen=True)
class Progress:
    """Decisions written so far and in all, those of them that stood there already, and seconds since the start."""

    done: int
    total: int
    found: int
    seconds: float

    @property
    def seconds_left(self) -> float:
        """An estimate from the pace so far."""
        fresh = self.done - self.found
        return self.seconds / fresh * (self.total - self.done) if fresh else float("nan")


def score(
    model: Model,
    work: Work,
    plan: Plan,
    out: Path,
    *,
    classes: tuple[str, ...],
    max_tokens: int,
    device: str = "cpu",
    autocast: torch.dtype | None = None,
    deterministic: bool | Literal["batch"] = True,
    embed: Literal["last", "mean"] | None = None,
    watch: Callable[[Progress], None] | None = None,
    stop: Callable[[], bool] = bool,
) -> bool:
    """Write one row a decision to the Delta table `out`; shards that are there already are left alone.

    Columns: entity, as_of (int64 ns UTC), key (number of the row), what `work.described` has, `prob_<class>` or `value`
    (float32) or `embedding` (a list of C float32), model_sha, plan_sha.

    Args:
        model: what scores.
        work: the decisions.
        plan: their shards.
        out: folder of the table.
        classes: names of the model's classes, () for none.
        max_tokens: budget of tokens a batch.
        device: where the model runs.
        autocast: dtype of products and attention; None computes in the parameters' own.
        deterministic: "batch" gives a decision the same bits whatever the batches are, so `max_tokens` and the shards
            change no score; see `Model.score`.
        embed: how states are pooled to an embedding, whatever heads the model has; None: the model's scores.
        watch: told where the run stands after each shard.
        stop: asked before each shard.

    Returns:
        Whether every shard is in the table: False when `stop` said so.

    Raises:
        ValueError: `out` holds scores of another plan, a decision could see its own future, or the model gives a score
            that is not finite.
    """
    sink, began = DeltaSink(out, plan.sha), time.monotonic()
    model = model.to(device).eval()
    first = work.sequences.first.tolist()
    done = found = 0
    for shard in plan.shards:
        if stop():
            return False
        begin, end = first[shard.first], first[shard.last]
        if sink.has(shard.name):
            found += end - begin
        else:
            scores = score_shard(
                model,
                work,
                shard,
                max_tokens,
                device=device,
                autocast=autocast,
                deterministic=deterministic,
                embed=embed,
            )
            sink.write(shard.name, columns(work, plan, begin, end, scores, classes))
        done += end - begin
        if watch is not None:
            watch(Progress(done, len(work.sequences.decisions), found, time.monotonic() - began))
    return True


def score_shard(
    model: Model,
    work: Work,
    shard: Shard,
    max_tokens: int,
    *,
    device: str,
    autocast: torch.dtype | None,
    deterministic: bool | Literal["batch"] = True,
    embed: Literal["last", "mean"] | None = None,
) -> dict[str, Tensor]:
    """Name → scores of the shard's decisions, in the order of their keys."""
    begin, end = (int(work.sequences.first[s]) for s in (shard.first, shard.last))
    lengths = work.sequences.lengths[shard.first : shard.last]
    found: dict[str, Tensor] = {}
    seen = torch.zeros(end - begin, dtype=torch.int64)
    with torch.autocast(torch.device(device).type, dtype=autocast or torch.bfloat16, enabled=autocast is not None):
        for indices in batches_of(lengths, max_tokens, shuffle=False):
            batch = work.sequences.pack(indices + shard.first)
            if not len(batch.keys):
                continue
            check_decisions(batch, model.encoder.config)
            places = batch.keys - begin
            seen[places] += 1
            given = batch.to(device)
            if embed is None:
                made = model.score(given, deterministic=deterministic)
            else:
                made = {"embedding": model.embed(given, deterministic=deterministic, pooling=embed)}
            for name, rows in made.items():
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
