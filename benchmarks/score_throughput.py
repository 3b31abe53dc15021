"""What a scoring job costs beside Lightning's `predict` and pandas on the same rows, and how busy it keeps a GPU.

    python benchmarks/score_throughput.py [--device cuda] [--size base] [--seconds 40] [--quick] [--out FILE]
        [--data uneven even] [--tokens 65536]

Data are entities of events with a decision every sixteenth, cut into sequences of at most 1,024: `uneven` entities have
from 16 to 8,192 events (log-normal, median 400), as customers and filings do, and `even` ones 8,192 each, as one
instrument's stream does, where hardly any sequence is shorter than the longest. Of each as many shards are scored as
ours, in the mode "on", needs --seconds for. Compared on these shards, each after a first run over one of them:

- ours, in the modes "on" and "batch": packs of at most --tokens tokens, a Delta table, a transaction a shard;
- `predict`: Lightning and pandas as in score_plain.py, batches of as many sequences as --tokens holds of the longest;
- `predict, loaders`: the same with 8 processes that load and pad ahead;
- `predict, sorted`: and with sequences in the order of their lengths, which leaves hardly any padding.

Weights are random, products on a GPU in bfloat16 for all. Times begin when models and data stand ready and end when the
rows are in the table or file, and rows of all are compared. `smi_busy` is the mean share of time in which nvidia-smi
saw a kernel, over the whole run; `busy` is from the profiler, over a short run of its own. Before that the command
itself is run on prepared shards, twice: `first_s` is the time from its start to its first commit.

In the end one run more and more events long shows that memory stays: --growth 100000,1000000.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import score_memory
import torch
from score_plain import predicted
from score_watch import Watch, own_memory, profiled

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

    def ours(self, mode: Any, shards: tuple[Shard, ...]) -> tuple[float, Path]:
        """Seconds from the first shard to the last commit, and the table."""
        self.runs += 1
        worker, out = self.worker(mode), self.folder / f"table-{self.runs}"
        crew = Alone(worker, out)
        repeating()
        began = time.perf_counter()
        score_with(crew, worker.plan, out, shards)
        return time.perf_counter() - began, out

    def predict(self, shards: tuple[Shard, ...], loaders: bool, ordered: bool = False) -> tuple[float, Path, int]:
        """Seconds of Lightning and pandas over the same sequences, the file, and the tokens that it computed."""
        self.runs += 1
        repeating(False)
        processes = min(8, (os.cpu_count() or 1) - 1) if loaders else 0
        out, lengths = self.folder / f"table-{self.runs}.parquet", self.work.sequences.lengths[: shards[-1].last]
        order = np.argsort(lengths, kind="stable") if ordered else np.arange(len(lengths))
        size = max(1, self.tokens // LENGTH)
        seconds, tokens = predicted(self.model, self.work, order.tolist(), size, out, self.device, processes)
        return seconds, out, tokens

    def enough(self, seconds: float) -> tuple[Shard, ...]:
        """As many shards as take ours so long, after kernels were compiled."""
        shards = self.worker(True).plan.shards
        for mode in (True, "batch"):
            self.ours(mode, shards[:1])
        self.predict(shards[:1], False)
        taken = self.ours(True, shards[:3])[0] / len(shards[:3])
        return shards[: max(1, min(len(shards), round(seconds / taken)))]


def host_pace(bench: Bench, shards: tuple[Shard, ...]) -> dict[str, float]:
    """Milliseconds of this process for a batch, without waiting for the device: packing, and all with the launch."""
    found, few = {}, np.arange(min(len(bench.work.sequences), max(1, bench.tokens // LENGTH)))
    began = time.perf_counter()
    for _ in range(10):
        bench.work.sequences.pack(few)
    found["pack_ms"] = round(1e2 * (time.perf_counter() - began), 2)
    for mode in (True, "batch"):
        began = time.perf_counter()
        fetches = list(bench.worker(mode).begin(shards[0]).launches())
        found[f"launch_ms_{mode}"] = round(1e3 * (time.perf_counter() - began) / len(fetches), 2)
        for fetch in fetches:
            fetch()
    return found


def host_waits(bench: Bench, shards: tuple[Shard, ...]) -> list[str]:
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
    return [f"{Path(each.filename).name}:{each.lineno}" for each in seen if "synchron" in str(each.message)]


def largest_difference(table: Path, other: Path, rows: int) -> float:
    """Of the probabilities in two tables of the same keys."""
    one, two = (
        (pl.read_delta(str(each)) if each.is_dir() else pl.read_parquet(each)).sort("key") for each in (table, other)
    )
    if len(one) != rows or one["key"].to_list() != two["key"].to_list():
        raise RuntimeError(f"{len(one)} and {len(two)} rows, expected the same {rows}")
    return float((one["prob_up"] - two["prob_up"]).abs().max() or 0.0)  # type: ignore[arg-type]


def compared(bench: Bench, name: str, seconds: float, tell: Callable[[dict[str, Any]], None]) -> None:
    """Everything over one set of data."""
    shards = bench.enough(seconds)
    events, tokens = bench.of(shards)
    rows = sum(shard.decisions for shard in shards)
    first, times = None, dict[str, float]()
    ways: dict[str, Callable[[], tuple[Any, ...]]] = {
        "ours, on": lambda: bench.ours(True, shards),
        "predict": lambda: bench.predict(shards, False),
        "predict, loaders": lambda: bench.predict(shards, True),
        "predict, sorted": lambda: bench.predict(shards, True, ordered=True),
        "ours, batch": lambda: bench.ours("batch", shards),
    }
    if name == "even":
        del ways["predict, sorted"]
    for what, run in ways.items():
        if bench.mixed:
            torch.cuda.reset_peak_memory_stats()
        with Watch() as watch:
            began, worked = time.monotonic(), time.process_time()
            taken, out, *padded = run()
            end, worked = time.monotonic(), time.process_time() - worked
        first = first or out
        told = {"data": name, "way": what, "shards": len(shards), "rows": rows, "seconds": round(taken, 2)}
        told["cpu_s"] = round(worked, 2)  # of this process, for machines with other work beside it
        told |= {"events_s": round(events / taken), "tokens_s": round(tokens / taken)}
        told |= {"computed": round((padded[0] if padded else tokens) / tokens, 3), **watch.said(began, end)}
        if bench.mixed:
            told["torch_mib"] = round(torch.cuda.max_memory_allocated() / 2**20)
        tell(told | {"difference": largest_difference(first, out, rows)})
        times[what] = taken
    for what in ("ours, on", "ours, batch"):
        than = {each: round(times[each] / times[what], 2) for each in times if each.startswith("predict")}
        tell({"data": name, "way": f"{what}: times as fast", **than})
    if bench.mixed:
        few = shards[: max(2, round(len(shards) * 3 / max(seconds, 3)))]
        for mode in (True, "batch"):
            seen = profiled(lambda mode=mode: bench.ours(mode, few))  # type: ignore[misc]
            tell({"data": name, "way": f"profiled, {'on' if mode is True else mode}", "shards": len(few), **seen})
        waits = host_waits(bench, shards)
        tell({"data": name, "way": "waits of the host in a shard", "count": len(waits), "where": sorted(set(waits))})
    tell({"data": name, "way": "host", **host_pace(bench, shards)})


def command(asked: argparse.Namespace, folder: Path, tell: Callable[[dict[str, Any]], None]) -> None:
    """The command itself on prepared shards, twice: when its first commit came, and how busy the GPU was from then."""
    gpu = asked.device.startswith("cuda")
    events = 1_000_000 if gpu else 100_000
    options = score_memory.make(events, EVERY, folder, True, LENGTH if gpu else 64, size=asked.size)
    options += [f"device={'cuda' if gpu else 'cpu'}", f"max_tokens_per_batch={asked.tokens}", "shard_decisions=5000"]
    options += ["precision=bf16-mixed"] if gpu else []
    for number in (1, 2):
        out = folder / f"scores-{number}"
        order = [sys.executable, "-m", "quantattn", "score", f"model={folder / 'model'}", f"out={out}", *options]
        began = time.monotonic()
        with (folder / "log").open("w") as log:
            job = subprocess.Popen(order, stdout=log, stderr=subprocess.STDOUT, env=dict(os.environ))
            first = float("nan")
            with Watch(job.pid) as watch:
                while job.poll() is None:
                    if np.isnan(first) and (out / "_delta_log" / f"{1:020d}.json").exists():
                        first = time.monotonic() - began
                    time.sleep(0.02)
        end = time.monotonic()
        if job.returncode:
            raise RuntimeError((folder / "log").read_text()[-2000:])
        seconds = round(end - began, 2)
        told = {"data": f"{events:,} events", "way": f"command, run {number}", "first_s": round(first, 2)}
        told |= {"seconds": seconds, "smi_busy_from_start": watch.said(began, end)["smi_busy"]}
        tell(told | watch.said(began + (0.0 if np.isnan(first) else first), end))


def growth(events: list[int], asked: argparse.Namespace) -> None:
    """Memory over more and more events, a process each."""
    for number in events:
        options = [sys.executable, __file__, "--step", str(number), "--size", asked.size, "--tokens", str(asked.tokens)]
        done = subprocess.run(options, capture_output=True, text=True, check=True, env=dict(os.environ))
        print(f"{number:>12,} events: {done.stdout.strip()}", flush=True)


def bench_of(asked: argparse.Namespace, events: int, uneven: bool, folder: Path) -> Bench:
    """Data and model in a folder."""
    loaded = load_model(model_in(folder / "model", asked.size), device=asked.device)
    assert loaded.artefact is not None
    return Bench(made(events, uneven, folder), loaded, loaded.artefact.sha, asked.tokens, asked.device, folder)


def main() -> int:
    """Run, tell, and write down."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--size", default="base")
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--quick", action="store_true", help="5 seconds")
    parser.add_argument("--events", type=int, help="that are made; as many as a fast GPU may need, if not given")
    parser.add_argument("--data", nargs="+", default=["uneven", "even"], choices=("uneven", "even"))
    parser.add_argument("--tokens", type=int, default=65_536)
    parser.add_argument("--out", type=Path, help="a file for a line of JSON a result")
    parser.add_argument("--growth", default="")
    parser.add_argument("--no-command", action="store_true")
    parser.add_argument("--step", type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    lines, failed, began = [], 0, time.monotonic()

    def tell(told: dict[str, Any]) -> None:
        print(f"{time.monotonic() - began:6.1f} s  " + "  ".join(f"{k} {v}" for k, v in told.items()), flush=True)
        lines.append(json.dumps(told))
        if asked.out is not None:
            asked.out.write_text("\n".join(lines) + "\n")

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if asked.step is not None:
            bench = bench_of(asked, asked.step, False, folder)
            taken, _ = bench.ours(True, bench.worker(True).plan.shards)
            print(f"{asked.step / taken:,.0f} events/s, {own_memory():,.0f} MiB of its own at the end")
            return 0
        steps: list[Callable[[], None]] = [] if asked.no_command else [lambda: command(asked, folder / "command", tell)]
        for which in asked.data:
            seconds = 5.0 if asked.quick else asked.seconds
            make = partial(bench_of, asked, asked.events or int(seconds * 800_000), which == "uneven", folder / which)
            steps.append(lambda m=make, w=which, s=seconds: compared(m(), w, s, tell))  # type: ignore[misc]
        for each in ("command", *asked.data):
            (folder / each).mkdir()
        for step in steps:  # a device is lent for minutes: what fails is told, and the rest is still measured
            try:
                step()
            except Exception:
                failed += 1
                traceback.print_exc()
    if asked.growth:
        growth([int(each) for each in asked.growth.split(",")], asked)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
