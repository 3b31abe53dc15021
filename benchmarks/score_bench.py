"""Data, model and the runs of score_throughput.py: ours over shards, and Lightning's over sequences or windows."""

from __future__ import annotations

import argparse
import os
import time
import warnings
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from score_plain import predicted, sequences

from quantattn.data.mapped import write_sequences
from quantattn.data.pack import Decisions, SequenceSet, TokenTable
from quantattn.nn import Encoder, Model, Outcome, load_model, save_pretrained
from quantattn.score import Shard, Work, Worker, make_plan
from quantattn.score.crew import Alone
from quantattn.score.outputs import Scores
from quantattn.score.run import score_with
from quantattn.score.share import share
from quantattn.score.worker import repeating

LENGTH, EVERY, SHARD = 1024, 16, 10_000
CODES = ("kind", "size", "price")
CLASSES = ("down", "up")


def made(events: int, uneven: bool, folder: Path) -> Work:
    """So many events, or a few more, as mapped files."""
    rng = np.random.default_rng(0)
    sizes = np.full(-(-events // 8192), 8192)
    if uneven:
        sizes = np.clip(np.exp(rng.normal(np.log(400), 1.0, events // 200)), 16, 8192).astype(np.int64)
        sizes = sizes[: int(np.searchsorted(np.cumsum(sizes), events)) + 1]
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    rows = int(offsets[-1])
    fields = {name: rng.integers(2, 64, rows, np.uint16) for name in CODES}
    names = tuple(f"E{i:06d}" for i in range(len(sizes)))
    table = TokenTable(fields, np.arange(rows) * 1000, offsets, names)
    row = np.flatnonzero((np.arange(rows) - np.repeat(offsets[:-1], sizes)) % EVERY == EVERY - 1)
    cut = write_sequences(SequenceSet(table, Decisions(row), LENGTH, "chunks"), folder / "cut")
    entity = np.asarray(names, object)[table.entity_of(row)]
    return share(Work(cut, np.asarray(table.time[row]), tuple(entity), {"made": "0"}, {}), folder)


def model_in(folder: Path, size: str) -> Path:
    """A causal model of this size with random weights, in its folder."""
    torch.manual_seed(0)
    encoder = Encoder(size, codes=dict.fromkeys(CODES, 64), causal=True)
    both = Model(encoder, Outcome().heads(encoder.config, CLASSES))
    for parameter in both.heads.parameters():
        torch.nn.init.normal_(parameter, std=0.05)
    save_pretrained(both, folder, vocabulary_json="{}")
    return folder


@dataclass(frozen=True)
class Ran:
    """Seconds, the table or file, tokens that were computed, and what else is told."""

    seconds: float
    out: Path
    tokens: int
    beside: dict[str, float] = field(default_factory=dict)


@dataclass
class Bench:
    """One set of data and what is run over it."""

    work: Work
    model: Model
    sha: str
    tokens: int
    device: str
    folder: Path
    runs: int = 0

    @property
    def mixed(self) -> bool:
        """Whether products are in bfloat16."""
        return self.device.startswith("cuda")

    def worker(self, mode: Any) -> Worker:
        """Ours in one mode."""
        policy = {"deterministic": str(mode), "run": self.runs}
        plan = make_plan(self.work, self.sha, SHARD, policy)
        half = torch.bfloat16 if self.mixed else None
        said = Scores(CLASSES)
        return Worker(self.model, self.work, plan, self.tokens, self.device, half, mode, said)

    def of(self, shards: tuple[Shard, ...]) -> tuple[int, int]:
        """Events, each counted once, and tokens of the first so many shards."""
        cut, last = self.work.sequences, shards[-1].last
        ends = cut.stop[:last]
        return int(ends[-1]), int((ends - cut.start[:last]).sum())

    def ours(self, mode: Any, shards: tuple[Shard, ...]) -> Ran:
        """From the first shard to the last commit."""
        self.runs += 1
        worker, out = self.worker(mode), self.folder / f"table-{self.runs}"
        crew, seen = Alone(worker, out), list[tuple[float, int]]()
        repeating()
        began = time.perf_counter()
        score_with(crew, worker.plan, out, shards, watch=lambda now: seen.append((time.perf_counter(), now.done)))
        seconds = time.perf_counter() - began
        commits = {done: at for at, done in reversed(seen) if done}  # when so many were there first
        (some, first), (every, last) = min(commits.items()), max(commits.items())
        steady = {"first_s": round(first - began, 2)}
        if every > some:
            steady["steady_events_s"] = round((every - some) * EVERY / (last - first))
        return Ran(seconds, out, self.of(shards)[1], steady)

    def predict(self, items: Any, loaders: bool = False) -> Ran:
        """Lightning and pandas over sequences or windows, see score_plain.py."""
        self.runs += 1
        repeating(False)
        processes = min(8, (os.cpu_count() or 1) - 1) if loaders else 0
        out, size = self.folder / f"table-{self.runs}.parquet", max(1, self.tokens // LENGTH)
        seconds, tokens = predicted(self.model, self.work, items, size, out, self.device, processes)
        return Ran(seconds, out, tokens)

    def sequences(self, shards: tuple[Shard, ...], ordered: bool = False) -> Any:
        """The items of `predict` that are whole sequences, of the first so many shards."""
        cut = self.work.sequences
        lengths = cut.lengths[: shards[-1].last]
        return sequences(cut, np.argsort(lengths, kind="stable") if ordered else np.arange(len(lengths)))

    def enough(self, seconds: float) -> tuple[Shard, ...]:
        """As many shards as take ours so long, after kernels were compiled."""
        shards = self.worker(True).plan.shards
        for mode in (True, "batch"):
            self.ours(mode, shards[:1])
        taken = self.ours(True, shards[:5]).seconds / len(shards[:5])
        return shards[: max(1, min(len(shards), round(seconds / taken)))]


def host_pace(bench: Bench, shards: tuple[Shard, ...]) -> dict[str, float]:
    """Milliseconds of this process for a batch, without waiting for the device: packing, and all with the launch."""
    found, few = {}, np.arange(min(len(bench.work.sequences), max(1, bench.tokens // LENGTH)))
    began = time.perf_counter()
    for _ in range(10):
        bench.work.sequences.pack(few)
    found["pack_ms"] = round(1e2 * (time.perf_counter() - began), 2)
    for mode in (True, "batch"):
        begun = bench.worker(mode).begin(shards[0])
        began = time.perf_counter()
        fetches = list(begun.launches())
        found[f"launch_ms_{'on' if mode is True else mode}"] = round(
            1e3 * (time.perf_counter() - began) / len(fetches), 2
        )
        for fetch in fetches:
            fetch()
    return found


def host_waits(bench: Bench, shards: tuple[Shard, ...]) -> dict[str, int]:
    """Where the host waits for the GPU while a shard is computed, but for the fetch of its scores."""
    worker = bench.worker("batch")
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            fetches = list(worker.begin(shards[0]).launches())
        finally:
            torch.cuda.set_sync_debug_mode("default")
    for fetch in fetches:
        fetch()
    where = Counter(f"{Path(each.filename).name}:{each.lineno}" for each in seen if "synchron" in str(each.message))
    return dict(where)


def bench_of(asked: argparse.Namespace, events: int, uneven: bool, folder: Path) -> Bench:
    """Data and model in a folder."""
    loaded = load_model(model_in(folder / "model", asked.size), device=asked.device)
    assert loaded.artefact is not None
    return Bench(made(events, uneven, folder), loaded, loaded.artefact.sha, asked.tokens, asked.device, folder)
