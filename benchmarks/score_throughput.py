"""What scoring costs beside Lightning's `predict` and a writer of Parquet, on the same rows; and what memory it takes.

    python benchmarks/score_throughput.py [--events 100000] [--size tiny] [--device cpu] [--workers 1]
        [--growth 100000,1000000] [--repeats 3]

Both read the same mapped sequences in batches of the same size, in the order of their lengths, and write every row:
ours as a Delta table with a transaction a shard, in the mode "batch" and in the mode "on"; Lightning's with
`trainer.predict` on a loader, whose predictions a callback writes as one Parquet file through pandas. Times are medians
and begin when models and data stand ready. With --growth ours is run, in the mode "on", over more and more events in
processes of their own, and the largest resident memory of each is told.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from quantattn.data.mapped import open_sequences, write_sequences
from quantattn.data.pack import Decisions, SequenceSet, TokenTable
from quantattn.data.pack import plan as batches_of
from quantattn.nn import Encoder, Model, Outcome, load_model, save_pretrained
from quantattn.score import Work, make_plan
from quantattn.score.crew import Alone, Crew, Recipe
from quantattn.score.outputs import Scores
from quantattn.score.processes import Processes
from quantattn.score.run import score_with
from quantattn.score.share import share

LENGTH, EVERY, SHARD = 256, 16, 4000


def made(events: int, folder: Path) -> None:
    """Events of entities of 4,096 each, a decision every sixteenth, as mapped files."""
    rng = np.random.default_rng(0)
    rows = -(-events // 4096) * 4096
    fields = {name: rng.integers(2, 64, rows, np.uint16) for name in ("kind", "size", "price")}
    offsets = np.arange(0, rows + 1, 4096)
    names = tuple(f"E{i:06d}" for i in range(len(offsets) - 1))
    table = TokenTable(fields, np.arange(rows) * 1000, offsets, names)
    write_sequences(SequenceSet(table, Decisions(np.arange(EVERY - 1, rows, EVERY)), LENGTH, "chunks"), folder / "cut")


def work_of(folder: Path) -> Work:
    """The events as work; texts and times as they come from a source."""
    cut = open_sequences(folder / "cut")
    row = cut.decisions.row
    entity = cut.table.entity_of(row)
    names = np.asarray(cut.table.entities, object)[entity]
    return Work(cut, cut.table.time[row], tuple(names), {"made": "0"}, {})


def model_in(folder: Path, size: str) -> Path:
    """A causal model of this size with random weights."""
    torch.manual_seed(0)
    encoder = Encoder(size, codes=dict.fromkeys(("kind", "size", "price"), 64), causal=True)
    save_pretrained(Model(encoder, Outcome().heads(encoder.config, ("down", "up"))), folder / "m", vocabulary_json="{}")
    return folder / "m"


def ours(folder: Path, out: Path, tokens: int, mode: Any, devices: list[str]) -> float:
    """Seconds from a crew that stands ready to the last commit."""
    work, model = share(work_of(folder), folder), folder / "m"
    loaded = load_model(model)
    assert loaded.artefact is not None
    plan = make_plan(work, loaded.artefact.sha, SHARD, {"deterministic": str(mode)})
    given = {"work": work, "plan": plan, "max_tokens": tokens, "deterministic": mode, "output": Scores(("down", "up"))}
    recipe = Recipe(str(model), None, given, out)
    crew: Crew = Alone(recipe.worker(devices[0]), out) if len(devices) == 1 else Processes(recipe, devices)
    began: list[float] = []

    def watch(at: Any) -> None:
        began.append(time.perf_counter())

    score_with(crew, plan, out, watch=watch)
    return time.perf_counter() - began[0]


def lightning(folder: Path, out: Path, tokens: int, device: str) -> float:
    """Seconds of `trainer.predict` with a pandas writer behind it."""
    import lightning.pytorch as pl
    import pandas as pd

    cut, model, work = open_sequences(folder / "cut"), load_model(folder / "m", device=device), work_of(folder)

    class Scoring(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def predict_step(self, batch: Any, number: int) -> Any:
            return batch.keys, self.model.score(batch)["prob"].cpu()

    class Writing(pl.callbacks.BasePredictionWriter):
        def write_on_epoch_end(self, trainer: Any, module: Any, predictions: Any, batches: Any) -> None:
            keys = np.concatenate([each[0].cpu().numpy() for each in predictions])
            prob = np.concatenate([each[1].numpy() for each in predictions])
            order = np.argsort(keys)
            columns = {"entity": list(work.entity), "as_of": work.as_of, "key": keys[order]}
            columns |= {"prob_down": prob[order, 0], "prob_up": prob[order, 1]}
            pd.DataFrame(columns).to_parquet(out)

    loader = torch.utils.data.DataLoader(
        cut, sampler=list(batches_of(cut.lengths, tokens, shuffle=False)), batch_size=None
    )
    trainer = pl.Trainer(
        accelerator="gpu" if device.startswith("cuda") else "cpu",
        devices=1,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[Writing("epoch")],
    )
    module = Scoring()
    began = time.perf_counter()
    trainer.predict(module, loader, return_predictions=False)
    return time.perf_counter() - began


def resident() -> float:
    """Largest resident memory of this process so far, MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def growth(events: list[int], size: str, tokens: int) -> None:
    """Memory over more and more events, a process each."""
    for number in events:
        options = ["--events", str(number), "--size", size, "--tokens", str(tokens)]
        with tempfile.TemporaryDirectory() as name:
            for step in ("make", "run"):
                done = subprocess.run(
                    [sys.executable, __file__, "--step", step, "--folder", name, *options],
                    capture_output=True,
                    text=True,
                    check=True,
                    env=dict(os.environ),
                )
            print(f"{number:>12,} events: {done.stdout.strip()}", flush=True)


def main() -> None:
    """Time both, then let ours grow."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--size", default="tiny")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--growth", default="")
    parser.add_argument("--step", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.step == "make":
        made(asked.events, asked.folder)
        model_in(asked.folder, asked.size)
        return
    if asked.step == "run":
        seconds = ours(asked.folder, asked.folder / "out", asked.tokens, True, [asked.device])
        print(f"{asked.events / seconds:,.0f} events/s, at most {resident():,.0f} MiB resident")
        return
    gpu = asked.device.startswith("cuda")
    devices = [f"cuda:{i}" if gpu else "cpu" for i in range(asked.workers)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        made(asked.events, folder)
        model_in(folder, asked.size)
        times: dict[str, list[float]] = {}
        for turn in range(asked.repeats):
            for what, mode in (("ours, batch", "batch"), ("ours, on", True)):
                times.setdefault(what, []).append(ours(folder, folder / f"{what}{turn}", asked.tokens, mode, devices))
            times.setdefault("lightning", []).append(
                lightning(folder, folder / f"l{turn}.parquet", asked.tokens, asked.device)
            )
        for what, seconds in times.items():
            middle = statistics.median(seconds)
            ratio = statistics.median(times["lightning"]) / middle
            print(f"{what:12} {middle:8.2f} s  {asked.events / middle:10,.0f} events/s  {ratio:5.2f} × lightning")
    if asked.growth:
        growth([int(each) for each in asked.growth.split(",")], asked.size, asked.tokens)


if __name__ == "__main__":
    main()
