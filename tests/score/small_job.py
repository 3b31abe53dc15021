"""A small job: some work, a model of one layer in its folder, and what any process needs to score it."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch

from quantattn.data.pack import Decisions, SequenceSet, TokenTable
from quantattn.nn import Encoder, Model, Outcome, load_model, save_pretrained
from quantattn.score import Work, make_plan
from quantattn.score.crew import Recipe
from quantattn.score.outputs import Scores

N, LENGTH = 40, 7
CLASSES = ("down", "up")


def work(**changes: Any) -> Work:
    """Three decisions for each of N entities, on average."""
    rng = np.random.default_rng(0)
    codes = {"code": rng.integers(2, 6, N * LENGTH)}
    time, offsets = np.arange(N * LENGTH, dtype=np.int64) * 10, np.arange(N + 1, dtype=np.int64) * LENGTH
    table = TokenTable(codes, time, offsets, tuple(f"E{i:02d}" for i in range(N)))
    row = np.sort(rng.permutation(N * LENGTH)[: 3 * N]).astype(np.int64)
    names = tuple(table.entities[e] for e in table.entity_of(row))
    given = {"sequences": SequenceSet(table, Decisions(row), LENGTH, "each"), "as_of": table.time[row], "entity": names}
    return Work(**(given | {"hashes": {"file": "a"}, "settings": {}} | changes))


def save_model(folder: Path) -> Path:
    """A model with random weights."""
    torch.manual_seed(1)
    encoder = Encoder("tiny", codes={"code": 6}, n_layers=1, width=8, n_heads=2, hidden=8)
    made = Model(encoder, Outcome().heads(encoder.config, CLASSES))
    for parameter in made.heads.parameters():
        torch.nn.init.normal_(parameter)
    save_pretrained(made, folder, vocabulary_json="{}")
    return folder


def recipe(model: Path, out: Path, given: Work | None = None, shard: int = 10, **options: Any) -> Recipe:
    """The job that writes the work into `out`."""
    given = work() if given is None else given
    artefact = load_model(model).artefact
    assert artefact is not None
    plan = make_plan(given, artefact.sha, shard, {"deterministic": str(options.get("deterministic", "batch"))})
    rest = {"max_tokens": 40, "deterministic": "batch", "output": Scores(CLASSES)} | options
    return Recipe(str(model), None, {"work": given, "plan": plan, **rest}, out)


def rows(out: Path) -> pl.DataFrame:
    """The table in the order of its keys, without the plan, which knows the size of shards."""
    return pl.read_delta(str(out)).sort("key").drop("plan_sha")


def sha(out: Path) -> str:
    """Sha256 of the rows, once each key was seen to stand there once."""
    table = rows(out)
    assert table["key"].to_list() == list(range(3 * N))
    return hashlib.sha256(table.write_csv(float_precision=17).encode()).hexdigest()
