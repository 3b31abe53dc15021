"""What a scoring job costs beside Lightning's `predict` and pandas on the same rows, and how busy it keeps a GPU.

    python benchmarks/score_throughput.py [--device cuda] [--size base] [--seconds 40] [--rounds 2] [--quick]
        [--data uneven even] [--tokens 65536] [--limit 600] [--out FILE]

Data are entities of events with a decision every sixteenth, cut into sequences of at most 1,024: `uneven` entities have
from 16 to 8,192 events (log-normal, median 400), as customers and filings do, and `even` ones 8,192 each, as one
instrument's stream does, where hardly any sequence is shorter than the longest. Of each as many shards are scored as
ours, in the mode "on", needs --seconds for. Compared on these shards, in turn, --rounds times (windows and "batch"
once) after a first run over one; `first_s` of ours is until its first commit, `steady_events_s` the pace from there on:

- ours, in the modes "on" and "batch": packs of at most --tokens tokens, a Delta table, a transaction a shard;
- `predict, sequences`: Lightning and pandas as in score_plain.py, every sequence once for all its decisions, batches of
  as many as --tokens holds of the longest;
- `…, loaders`: the same with 8 processes that load and pad ahead;
- `…, sorted`: and with sequences in the order of their lengths, which leaves hardly any padding;
- `predict, windows`: what a data set of one row a decision gives, the history of each computed anew. It takes so much
  longer that it is compared over the first shard alone, on which ours stands beside it.

Weights are random, products on a GPU in bfloat16 for all. Times begin when models and data stand ready and end when the
rows are in the table or file, and rows of all are compared. `smi_busy` is the mean share of time in which nvidia-smi
saw a kernel, over the whole run; `busy` is from the profiler, over a short run of its own. Then the command itself is
run on prepared shards, twice: `first_s` is the time from its start to its first commit.

A way that fails is a row with what it said, and after --limit seconds no further one is begun: each row is written when
it is there. In the end one run more and more events long shows that memory stays: --growth 1000000,10000000.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import score_memory
import torch
from score_bench import EVERY, LENGTH, Bench, Ran, bench_of, host_pace, host_waits
from score_plain import windows
from score_watch import Watch, profiled

from quantattn.score import Shard


def largest_difference(table: Path, other: Path, rows: int, most: float) -> float:
    """Of the probabilities in two tables of the same keys, refused where it is above `most`."""
    one, two = (
        (pl.read_delta(str(each)) if each.is_dir() else pl.read_parquet(each)).sort("key") for each in (table, other)
    )
    if len(one) != rows or one["key"].to_list() != two["key"].to_list():
        raise RuntimeError(f"{len(one)} and {len(two)} rows, expected the same {rows}")
    found = float((one["prob_up"] - two["prob_up"]).abs().max() or 0.0)  # type: ignore[arg-type]
    if not found <= most:
        raise RuntimeError(f"probabilities differ by up to {found}, expected at most {most}")
    return found


@dataclass
class Comparison:
    """The ways over one set of data."""

    bench: Bench
    name: str
    asked: argparse.Namespace
    tell: Callable[[dict[str, Any]], None]
    began: float
    first: dict[int, Path] = field(default_factory=dict)
    times: dict[str, float] = field(default_factory=dict)

    def step(self, way: str, shards: tuple[Shard, ...], does: Callable[[], Any]) -> None:
        """What a way gives, told; or what it failed by. A device is lent for minutes: the rest is still measured."""
        about = {"data": self.name, "way": way, "shards": len(shards)}
        if (late := time.monotonic() - self.began) > self.asked.limit:
            self.tell(about | {"failed": f"not begun after {late:.0f} s, --limit {self.asked.limit:.0f}"})
            return
        try:
            self.tell(about | does())
        except Exception as error:
            traceback.print_exc()
            self.tell(about | {"failed": f"{type(error).__name__}: {error}"[:400]})

    def timed(self, way: str, shards: tuple[Shard, ...], run: Callable[[], Ran]) -> dict[str, Any]:
        """One run of one way, watched, its rows compared to those of the first way over these shards."""
        bench, (events, tokens), rows = self.bench, self.bench.of(shards), sum(each.decisions for each in shards)
        if bench.mixed:
            torch.cuda.reset_peak_memory_stats()
        with Watch() as watch:
            began, worked = time.monotonic(), time.process_time()
            ran = run()
            end, worked = time.monotonic(), time.process_time() - worked
        told: dict[str, Any] = {"rows": rows, "seconds": round(ran.seconds, 2), "cpu_s": round(worked, 2)}
        told |= {"events_s": round(events / ran.seconds), "tokens_s": round(tokens / ran.seconds)}
        told |= {"computed": round(ran.tokens / tokens, 3), **ran.beside, **watch.said(began, end)}
        if bench.mixed:
            told["torch_mib"] = round(torch.cuda.max_memory_allocated() / 2**20)
        first = self.first.setdefault(len(shards), ran.out)
        told["difference"] = largest_difference(first, ran.out, rows, 0.05 if bench.mixed else 1e-5)
        self.times[way] = min(ran.seconds, self.times.get(way, ran.seconds))
        return told

    def run(self) -> None:
        """All of it."""
        bench, asked = self.bench, self.asked
        shards = bench.enough(asked.seconds)
        one = shards[:1]
        self.step("predict, first run", one, lambda: {"seconds": bench.predict(bench.sequences(one)).seconds})
        whole, ordered = bench.sequences(shards), bench.sequences(shards, ordered=True)
        ways: dict[str, tuple[tuple[Shard, ...], Callable[[], Ran]]] = {
            "ours, on": (shards, lambda: bench.ours(True, shards)),
            "predict, sequences": (shards, lambda: bench.predict(whole)),
            "predict, sequences, loaders": (shards, lambda: bench.predict(whole, loaders=True)),
            "predict, sequences, sorted": (shards, lambda: bench.predict(ordered)),
            "ours, batch": (shards, lambda: bench.ours("batch", shards)),
            "ours, on, one shard": (one, lambda: bench.ours(True, one)),
            "predict, windows, one shard": (
                one,
                lambda: bench.predict(windows(bench.work.sequences, one[0].decisions)),
            ),
        }
        if self.name == "even":
            del ways["predict, sequences, sorted"]
        for again in range(asked.rounds):
            for way, (over, does) in ways.items():
                if not again or ("windows" not in way and "batch" not in way):  # those take longest
                    self.step(way, over, partial(self.timed, way, over, does))
        self.ratios()
        if bench.mixed:
            few = shards[: max(2, round(len(shards) * 1.5 / asked.seconds))]
            profiles: dict[str, Callable[[], Any]] = {
                "on": lambda: bench.ours(True, few),
                "batch": lambda: bench.ours("batch", few),
                "predict, sequences": lambda: bench.predict(bench.sequences(few)),
            }
            for way, does in profiles.items():
                self.step(f"profiled, {way}", few, partial(profiled, does))
            self.step("waits of the host", one, lambda: {"where": host_waits(bench, one)})
        self.step("host", one, lambda: host_pace(bench, one))

    def ratios(self) -> None:
        """How many times as fast ours is, the fastest round of each."""
        for ours in ("ours, on", "ours, batch", "ours, on, one shard"):
            alike = [
                way for way in self.times if way.startswith("predict") and way.endswith("shard") == ("shard" in ours)
            ]
            if ours in self.times:
                than = {way: round(self.times[way] / self.times[ours], 2) for way in alike}
                self.tell({"data": self.name, "way": f"{ours}: times as fast", **than})


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
                    if math.isnan(first) and (out / "_delta_log" / f"{1:020d}.json").exists():
                        first = time.monotonic() - began
                    time.sleep(0.02)
        end = time.monotonic()
        if job.returncode:
            raise RuntimeError((folder / "log").read_text()[-2000:])
        seconds = round(end - began, 2)
        told = {"data": f"{events:,} events", "way": f"command, run {number}", "first_s": round(first, 2)}
        told |= {"seconds": seconds, "smi_busy_from_start": watch.said(began, end)["smi_busy"]}
        tell(told | watch.said(began + (0.0 if math.isnan(first) else first), end))


def growth(asked: argparse.Namespace, tell: Callable[[dict[str, Any]], None]) -> None:
    """Memory over more and more events, a process each."""
    for number in map(int, asked.growth.split(",")):
        options = ["--step", str(number), "--size", asked.size, "--tokens", str(asked.tokens), "--device", asked.device]
        done = subprocess.run(
            [sys.executable, __file__, *options], capture_output=True, text=True, check=False, env=dict(os.environ)
        )
        failed = {"failed": done.stderr.strip()[-400:]}
        tell({"data": "even", "way": f"{number:,} events", **(failed if done.returncode else json.loads(done.stdout))})


def one_step(asked: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """A job over so many events, watched: its pace and its memory, by a quarter of it and at most."""
    bench = bench_of(asked, asked.step, False, folder)
    shards = bench.worker(True).plan.shards
    with Watch() as watch:
        began = time.monotonic()
        ran = bench.ours(True, shards)
        end = time.monotonic()
    told = {"rows": sum(each.decisions for each in shards), "seconds": round(ran.seconds, 1)}
    return told | {"events_s": round(asked.step / ran.seconds), **ran.beside, **watch.said(began, end)}


def arguments() -> argparse.Namespace:
    """Of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--size", default="base")
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="2 seconds")
    parser.add_argument("--events", type=int, help="that are made; as many as a fast GPU may need, if not given")
    parser.add_argument("--data", nargs="*", default=["uneven", "even"], choices=("uneven", "even"))
    parser.add_argument("--tokens", type=int, default=65_536)
    parser.add_argument("--limit", type=float, default=600.0, help="seconds after which nothing further is begun")
    parser.add_argument("--out", type=Path, help="a file for a line of JSON a result")
    parser.add_argument("--growth", default="")
    parser.add_argument("--no-command", action="store_true")
    parser.add_argument("--step", type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    asked.seconds = 2.0 if asked.quick else asked.seconds
    return asked


def main() -> int:
    """Run, tell, and write down."""
    asked, failed, began = arguments(), 0, time.monotonic()
    if asked.out is not None:
        asked.out.write_text("")

    def tell(told: dict[str, Any]) -> None:
        nonlocal failed
        failed += "failed" in told
        print(f"{time.monotonic() - began:6.1f} s  " + "  ".join(f"{k} {v}" for k, v in told.items()), flush=True)
        if asked.out is not None:
            with asked.out.open("a") as file:
                print(json.dumps(told), file=file)

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if asked.step is not None:
            print(json.dumps(one_step(asked, folder)))
            return 0
        steps: dict[str, Callable[[], None]] = {}
        for which in asked.data:
            made_of = asked.events or int(asked.seconds * 1_200_000), which == "uneven", folder / which
            steps[which] = lambda m=made_of, w=which: Comparison(bench_of(asked, *m), w, asked, tell, began).run()  # type: ignore[misc]
        if not asked.no_command:
            steps["command"] = lambda: command(asked, folder / "command", tell)
        for which, does in steps.items():
            (folder / which).mkdir()
            try:
                if time.monotonic() - began < asked.limit:
                    does()
                else:
                    tell({"data": which, "failed": f"not begun, --limit {asked.limit:.0f}"})
            except Exception as error:  # the rest is still measured
                traceback.print_exc()
                tell({"data": which, "failed": f"{type(error).__name__}: {error}"[:400]})
    if asked.growth:
        growth(asked, tell)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
