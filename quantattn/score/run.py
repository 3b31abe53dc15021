"""The loop over shards: score, write, go on where it stood."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from arro3.core import Array, DataType
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
    watch: Callable[[Progress], None] | None = None,
    stop: Callable[[], bool] = bool,
) -> bool:
    """Write one row a decision to the Delta table `out`; shards that are there already are left alone.

    Columns: entity, as_of (int64 ns UTC), key (number of the decision), `prob_<class>`, `value` or `embedding_<i>`
    (float32), model_sha, plan_sha.

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
                model, work, shard, max_tokens, device=device, autocast=autocast, deterministic=deterministic
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
            for name, rows in model.score(batch.to(device), deterministic=deterministic).items():
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
    """The table's columns for decisions begin … end − 1, as Arrow arrays."""
    text = DataType.string()
    rows = end - begin
    made: dict[str, Any] = {
        "entity": Array([str(name) for name in work.entity[begin:end]], type=text),
        "as_of": Array.from_numpy(torch.as_tensor(work.as_of[begin:end]).numpy()),
        "key": Array.from_numpy(torch.arange(begin, end).numpy()),
    }
    for name, values in scores.items():
        if values.ndim == 1:
            made[name] = Array.from_numpy(values.contiguous().numpy())
            continue
        last = classes if name.endswith("prob") and len(classes) == values.shape[1] else range(values.shape[1])
        for place, label in enumerate(last):
            made[f"{name}_{label}"] = Array.from_numpy(values[:, place].contiguous().numpy())
    made["model_sha"] = Array([plan.model_sha] * rows, type=text)
    made["plan_sha"] = Array([plan.sha] * rows, type=text)
    return made
