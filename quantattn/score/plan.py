"""What is to be scored, cut into shards, under a name that changes when anything about it does."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quantattn.data.pack import SequenceSet


@dataclass(frozen=True)
class Work:
    """Decisions to score.

    Attributes:
        sequences: every decision in exactly one of them.
        as_of: (Q,) int64 ns UTC of the decisions.
        entity: (Q,) names.
        hashes: what → hash of the data.
        settings: plain values that decided how sequences were made.
    """

    sequences: SequenceSet
    as_of: Any
    entity: Sequence[str]
    hashes: Mapping[str, str]
    settings: Mapping[str, Any]

    def __post_init__(self) -> None:
        q = len(self.sequences.decisions)
        if len(self.as_of) != q or len(self.entity) != q:
            raise ValueError(f"{q} decisions but {len(self.as_of)} times and {len(self.entity)} entities")


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
    first = work.sequences.first.tolist()
    shards: list[Shard] = []
    begin = 0
    for s in range(len(work.sequences)):
        if first[s + 1] - first[begin] >= shard_decisions:
            shards.append(Shard(f"shard-{len(shards):06d}", begin, s + 1))
            begin = s + 1
    if first[-1] > first[begin]:
        shards.append(Shard(f"shard-{len(shards):06d}", begin, len(work.sequences)))
    return Plan(tuple(shards), model_sha, sha)
