"""What is to be scored, cut into shards, under a name that changes when anything about it does."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from quantattn.data.pack import SequenceSet


@dataclass(frozen=True)
class Work:
    """Q decisions to score, R rows of the table that they become; R is Q unless `row` says otherwise.

    Attributes:
        sequences: every decision in exactly one of them.
        as_of: (R,) int64 ns UTC.
        entity: (R,) names.
        hashes: what → hash of the data.
        settings: plain values that decided how sequences were made.
        row: (Q,) int64, from 0 to R − 1 in steps of at most one: the row that each decision is a piece of, whose score
            is the mean over its pieces, weighed by the tokens that they see; None: every decision is a row.
        described: name → (R,) further columns: a tuple of texts, None where there is none, or an int64 array.
        notes: sentences about what is not in it.
    """

    sequences: SequenceSet
    as_of: Any
    entity: Sequence[str]
    hashes: Mapping[str, str]
    settings: Mapping[str, Any]
    row: Any | None = None
    described: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        q, rows = len(self.sequences.decisions), self.rows
        if len(rows) != q or (q and (int(rows[0]) != 0 or bool(((rows.diff() != 0) & (rows.diff() != 1)).any()))):
            got = rows.tolist()[:8]
            raise ValueError(f"rows of {q} decisions must go up from 0 in steps of at most one, got {got} …")
        r = int(rows[-1]) + 1 if q else 0
        for name, column in {"as_of": self.as_of, "entity": self.entity, **self.described}.items():
            if len(column) != r:
                raise ValueError(f"{q} decisions make {r} rows, but {name} has {len(column)}")

    @property
    def rows(self) -> Tensor:
        """(Q,) int64, the row that each decision is a piece of."""
        return torch.arange(len(self.sequences.decisions)) if self.row is None else torch.as_tensor(self.row)


@dataclass(frozen=True)
class Shard:
    """Sequences first … last − 1, written in one transaction under `name`."""

    name: str
    first: int
    last: int


@dataclass(frozen=True)
class Plan:
    """Shards in order, the model's sha and the plan's own, which names model, data, settings, policy and shard size."""

    shards: tuple[Shard, ...]
    model_sha: str
    sha: str


def make_plan(work: Work, model_sha: str, shard_decisions: int, policy: Mapping[str, Any] | None = None) -> Plan:
    """Cut the sequences of `work` into shards of at least `shard_decisions` decisions (the last one may have fewer).

    No row is cut: its pieces are in one shard.

    Args:
        work: the decisions.
        model_sha: of what scores them.
        shard_decisions: size of a shard.
        policy: plain values that decide the bits of a score beside model and data (how batches are made, where they
            are computed), so that a table cannot go on under another one.

    Raises:
        ValueError: nothing to score, or a shard size below 1.
    """
    if shard_decisions < 1:
        raise ValueError(f"a shard holds at least one decision, got {shard_decisions}")
    if not len(work.sequences.decisions):
        raise ValueError("there are no decisions to score in this data")
    described = {
        "model": model_sha,
        "hashes": dict(work.hashes),
        "settings": dict(work.settings),
        "decisions": len(work.sequences.decisions),
        "shard_decisions": shard_decisions,
        "policy": dict(policy or {}),
        "format": 2,
    }
    sha = hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()
    first, rows = work.sequences.first.tolist(), work.rows.tolist()
    shards: list[Shard] = []
    begin = 0
    for s in range(len(work.sequences)):
        end = first[s + 1]
        goes_on = 0 < end < len(rows) and rows[end - 1] == rows[end]
        if end - first[begin] >= shard_decisions and not goes_on:
            shards.append(Shard(f"shard-{len(shards):06d}", begin, s + 1))
            begin = s + 1
    if first[-1] > first[begin]:
        shards.append(Shard(f"shard-{len(shards):06d}", begin, len(work.sequences)))
    return Plan(tuple(shards), model_sha, sha)
