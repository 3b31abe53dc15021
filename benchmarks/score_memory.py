"""What memory and time a scoring job takes over more and more events: the command itself, on prepared shards.

    python benchmarks/score_memory.py [--events 100000,1000000,10000000] [--every 100] [--unit decision] [--workers 1]
        [--mode batch] [--source shards] [--device cpu] [--size base] [--folder DIR]
        [--out benchmarks/results/score_memory-cpu.csv]

The data are one synthetic stock of 100,000 events, repeated under other names, ten to a stretch of days and then the
next days, as `quantattn prepare` writes them; with --source repeated they are read from one file again and again. The
model is one layer of width 8 unless there is a --size, so that what is measured is everything around it. Of the job and
its workers together, looked at every 20 ms: the most memory that is their own (RssAnon and RssShmem), and the most with
the pages of files that they have mapped, which the system takes back when it needs them.
"""

from __future__ import annotations

import argparse
import csv
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import polars as pl
import torch

from quantattn.data.shards import pieces_of, prepare_shards
from quantattn.data.sources.source import Source, SourceReport
from quantattn.data.synthetic import SyntheticMarket
from quantattn.data.tokens import Tokenizer
from quantattn.nn import Encoder, Model, Outcome, save_pretrained

HERE = str(Path(__file__).parent)
EVENTS, NAMES, LENGTH = 100_000, 10, 32
DAYS = 70 * 86_400 * 10**9
"""Ns from one stretch of days to the next."""


def stock() -> Source:
    """100,000 events."""
    return SyntheticMarket(1, EVENTS, events_per_session=2048).source()


def repeated(events: int, file: str) -> Source:
    """So many events, read from one file again and again."""
    made, copies = stock(), max(events // EVENTS, 1)
    made.frame.collect().write_parquet(file)
    names = min(copies, NAMES)
    frames = []
    for name in range(names):
        for nth in range(copies // names):
            later = [(pl.col(time) + nth * DAYS) for time in ("event_time", "available_time")]
            frame = pl.scan_parquet(file).with_columns(pl.lit(f"E{name:03d}").alias("entity"), *later)
            frames.append(frame.with_columns(seq=pl.col("seq") + nth * EVENTS))
    instruments = tuple(type(made.instruments[0])(f"E{name:03d}") for name in range(names))
    return Source(pl.concat(frames), instruments, SourceReport(events, files={"stock": "0"}))


def make(
    events: int, every: int, folder: Path, shards: bool, length: int = LENGTH, size: str | None = None
) -> list[str]:
    """The model, and the shards where they are asked for; the options that name the data."""
    file = str(folder / "stock.parquet")
    data: dict[str, Any] = {
        "kind": "market",
        "source": {"_target_": "quantattn.data.shards.scan_prepared"},
        "prepare": {"layout": "chunks", "min_context": length // 2, "decision_every": every},
        "max_seq_len": length,
        "max_tokens_per_batch": 8192,
    }
    rest = dict.fromkeys(("decision_kinds", "fields", "n_bins", "joint", "merges", "calendar", "fold"))
    training = data | {"prepare": data["prepare"] | rest}
    options = ["~data.source", f"+data.source={{_target_:score_memory.repeated,events:{events},file:{file}}}"]
    options.append("allow_targets=[score_memory]")
    if shards:
        source = repeated(events, file)
        prepare_shards(pieces_of(stock, {}, lambda _: source), folder / "shards", training=training)
        options = ["data=prepared", f"data.path={folder / 'shards'}"]
    one = stock()
    tokenizer = Tokenizer.fit(one.frame, one.instruments, fitted_until=2**62, n_bins=8)
    torch.manual_seed(0)
    small = {} if size else {"n_layers": 1, "width": 8, "n_heads": 2, "hidden": 8}
    encoder = Encoder(size or "tiny", codes=tokenizer.codes, values=tokenizer.values, causal=True, **small)
    heads = Outcome().heads(encoder.config, ("down", "up"))
    extra = {"data": data, "classes": ["down", "up"]}
    save_pretrained(Model(encoder, heads), folder / "model", vocabulary_json=tokenizer.to_json(), extra=extra)
    return options


def family(pid: int) -> list[int]:
    """The process and its children."""
    found = [pid]
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        found += family(int(child))
    return found


def memory(pid: int) -> tuple[float, float]:
    """Of the process and its children, MiB: what is their own, and with the files that they have mapped."""
    own = whole = 0
    for each in family(pid):
        found = dict(re.findall(r"Rss(\w+):\s+(\d+) kB", Path(f"/proc/{each}/status").read_text()))
        own += int(found["Anon"]) + int(found["Shmem"])
        whole += sum(map(int, found.values()))
    return own / 1024, whole / 1024


def measured(folder: Path, options: list[str]) -> dict[str, Any]:
    """One job; its peaks and when its first line with a plan came."""
    command = [
        sys.executable,
        "-u",
        "-m",
        "quantattn",
        "score",
        f"model={folder / 'model'}",
        f"out={folder / 'scores'}",
    ]
    command += options
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    log = folder / "log"
    with log.open("w") as file:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([HERE, os.environ.get("PYTHONPATH", "")])}
        job = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env=environment)
        own = whole = planned = 0.0
        while job.poll() is None:
            try:
                now = memory(job.pid)
            except (FileNotFoundError, ProcessLookupError, KeyError):
                continue  # a process that has just ended
            own, whole = max(own, now[0]), max(whole, now[1])
            planned = planned or (time.monotonic() - began if ", plan " in log.read_text() else 0.0)
            time.sleep(0.02)
    seconds, spent = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if job.returncode:
        raise RuntimeError(log.read_text()[-2000:])
    said = re.search(r"([\d,]+) decisions in (\d+) shards", log.read_text())
    assert said is not None
    decisions = int(said[1].replace(",", ""))
    return {
        "decisions": decisions,
        "plan_s": round(planned, 1),
        "seconds": round(seconds, 1),
        "cpu_s": round(spent.ru_utime + spent.ru_stime - before.ru_utime - before.ru_stime, 1),
        "own_mib": round(own),
        "with_files_mib": round(whole),
    }


def main() -> None:
    """Make, score, tell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", default="100000,1000000,10000000")
    parser.add_argument("--every", type=int, default=100, help="of the events, which are decisions")
    parser.add_argument("--unit", default="decision", choices=("decision", "event"))
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--mode", default="batch", choices=("batch", "on"))
    parser.add_argument("--source", default="shards", choices=("shards", "repeated"))
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--size", help="of the model, by name")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    options = [f"workers={asked.workers}", f"unit={asked.unit}", f'deterministic="{asked.mode}"']
    options += [f"device={asked.device}", *(["precision=bf16-mixed"] if asked.device == "cuda" else [])]
    rows: list[dict[str, Any]] = []
    for events in map(int, asked.events.split(",")):
        with tempfile.TemporaryDirectory(dir=asked.folder) as name:
            data = make(events, asked.every, Path(name), asked.source == "shards", size=asked.size)
            found = measured(Path(name), [*data, *options])
        own = {
            "events": events,
            "source": asked.source,
            "unit": asked.unit,
            "every": asked.every,
            "mode": asked.mode,
            "workers": asked.workers,
            "device": asked.device,
            "size": asked.size or "width 8",
        }
        rows.append({**own, **found, "cpu_us_an_event": round(1e6 * found["cpu_s"] / events, 2)})
        print(rows[-1], flush=True)
    if asked.out is not None:
        with asked.out.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
