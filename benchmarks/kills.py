"""What a training run loses by SIGKILL: real runs, killed at random instants and gone on with, beside one never killed.

    python benchmarks/kills.py [--kills 60] [--folder runs/kills] [--seed 0] [--out benchmarks/results/kills-cpu.csv]

A case is one run folder. `train.py … ckpt_path=auto` is started there, killed, and started again by the same command
with another number of loader workers, one to four times; then it may end. Of each kill an instant is drawn: while the
process starts, in any step, while a checkpoint is being written, in a validation, or after the first epoch. Where it
was the process itself says, in a few bytes of mapped memory that outlive it. In the end everything that training leaves
must equal that of the run never killed: losses of every step, weights, optimizer, schedule, loops, the best weights and
the model folder. The exit code is 1 when anything differs.
"""

from __future__ import annotations

import argparse
import csv
import mmap
import os
import random
import signal
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch

from quantattn.learn.checkpoint import read_checkpoint
from quantattn.nn.folder import read_folder
from quantattn.nn.pretrained import CARD, CONFIG, VOCABULARY, WEIGHTS

STEPS, EPOCH = 40, 17
"""Optimizer steps of a run, and of an epoch."""
RUN = [
    *("data.source.entities=3", "data.source.events_per_entity=4096", "data.source.channels=2"),
    *("data.max_seq_len=330", "data.max_tokens_per_batch=1320", "data.prepare.n_bins=8", "model.dropout=0.1"),
    *(f"trainer.max_steps={STEPS}", "trainer.validate_every=5", "trainer.checkpoint_every=2", "trainer.log_every=1"),
    *("trainer.threads=1", "test=false", "ckpt_path=auto"),
]
INSTANTS = ("starting", "step", "saving", "validation", "later epoch", "step", "saving", "validation")
"""Where kills are aimed at, in turn."""
MARKS = struct.Struct("<BBI")
STARTING, STEP, VALIDATION, CLOSING = range(4)
SECONDS = 600.0


@dataclass(frozen=True)
class Kill:
    """One kill: where it was aimed, where it fell, how often the case was killed before, and with how many workers."""

    case: int
    nth: int
    workers: int
    aimed: str
    fell: str
    step: int
    epoch: int
    half_written: int


def marked(marks: mmap.mmap) -> tuple[int, bool, int]:
    """Phase, whether a checkpoint is being written, and optimizer steps done."""
    phase, saving, step = MARKS.unpack_from(marks)
    return phase, bool(saving), step


def child(marks_file: str, overrides: list[str]) -> int:
    """`train.py` with these overrides, in a process that marks where it stands."""
    from quantattn.cli import main
    from quantattn.learn.module import Training
    from quantattn.learn.writer import Writer

    with open(marks_file, "r+b") as file:
        marks = mmap.mmap(file.fileno(), MARKS.size)

    def before(cls: type, name: str, mark: Any, after: Any = None) -> None:
        plain = getattr(cls, name)

        def wrapped(self: Any, *given: Any, **named: Any) -> Any:
            mark(self)
            try:
                return plain(self, *given, **named)
            finally:
                if after is not None:
                    after()

        setattr(cls, name, wrapped)

    def at(phase: int) -> Any:
        def mark(module: Training) -> None:
            marks[0] = phase
            struct.pack_into("<I", marks, 2, module.global_step)

        return mark

    def saving(now: int) -> None:
        marks[1] = now

    before(Training, "on_train_batch_start", at(STEP))
    before(Training, "on_validation_batch_start", at(VALIDATION))
    before(Training, "on_train_end", at(CLOSING))
    before(Writer, "_bring", lambda _: saving(1), lambda: saving(0))
    sys.argv = ["quantattn", *overrides]
    return main("train")


def started(folder: Path, workers: int, marks: Path) -> subprocess.Popen[bytes]:
    """The run in `folder`, begun or gone on with."""
    marks.write_bytes(bytes(MARKS.size))
    command = [sys.executable, __file__, "--child", str(marks), *RUN, f"paths.output_dir={folder}"]
    command.append(f"trainer.workers={workers}")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "POLARS_MAX_THREADS": "1"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def killed(process: subprocess.Popen[bytes], marks: Path, aim: str, rng: random.Random) -> tuple[int, bool, int] | None:
    """Kill the process at an instant of this kind and say where it was; None when it had ended before."""
    with marks.open("r+b") as file:
        seen = mmap.mmap(file.fileno(), MARKS.size)
    deadline = time.monotonic() + SECONDS
    if aim == "starting":
        time.sleep(rng.uniform(0, 6))
    else:
        begin: int | None = None
        while process.poll() is None and time.monotonic() < deadline:
            phase, saving, step = marked(seen)
            if phase == STARTING:
                time.sleep(0.01)
                continue
            if begin is None:
                begin, wanted = step, step + rng.randint(1, max((STEPS - step) // 2, 1))
                wanted = max(wanted, EPOCH + 1) if aim == "later epoch" else wanted
            there = {"saving": saving, "validation": phase == VALIDATION}.get(aim, True)
            if step >= wanted and there:
                time.sleep(rng.uniform(0, 0.004 if aim == "saving" else 0.03))
                break
            time.sleep(0.0002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stderr.close()  # type: ignore[union-attr]
    return marked(seen) if process.returncode == -signal.SIGKILL else None


def finish(folder: Path, workers: int, marks: Path) -> None:
    """Go on with the run in `folder` to its end."""
    process = started(folder, workers, marks)
    said = process.communicate(timeout=SECONDS)[1]
    if process.returncode:
        raise RuntimeError(f"the run in {folder} ended with {process.returncode}: {said.decode().strip()}")


def where(phase: int, saving: bool) -> str:
    """The phase in words."""
    return "saving" if saving else ("starting", "step", "validation", "closing")[phase]


def case(number: int, folder: Path, most: int, aims: Iterator[str], rng: random.Random) -> list[Kill]:
    """One run, killed up to `most` times, and then gone on with to its end."""
    kills: list[Kill] = []
    marks = folder.with_suffix(".marks")
    while len(kills) < most:
        workers, aim = rng.choice((0, 0, 0, 1)), next(aims)
        found = killed(started(folder, workers, marks), marks, aim, rng)
        if found is None:
            break
        phase, saving, step = found
        half = len([*folder.glob(".*"), *folder.glob("checkpoints/.*")])
        fell = where(phase, saving)
        kills.append(Kill(number, len(kills) + 1, workers, aim, fell, step, step // EPOCH + 1, half))
    finish(folder, rng.choice((0, 0, 1)), marks)
    return kills


def differences(one: Path, other: Path) -> list[str]:
    """What of the two finished runs differs, by name."""
    found = []
    if (one / "metrics.csv").read_bytes() != (other / "metrics.csv").read_bytes():
        found.append("metrics.csv")
    for name in ("last", "best"):
        a, b = (read_checkpoint(folder / "checkpoints" / f"{name}.ckpt") for folder in (one, other))
        found += [f"{name}.ckpt {part}" for part in sorted({*a, *b}) if not same(a.get(part), b.get(part))]
    largest = dict.fromkeys((WEIGHTS, CONFIG, VOCABULARY, CARD), 1 << 30)
    a, b = (read_folder(folder / "model", largest)[0] for folder in (one, other))
    return found + [f"model/{name}" for name in a if a[name] != b[name]]


def same(a: Any, b: Any) -> bool:
    """Whether two trees of plain values and tensors are equal to the bit."""
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


def table(kills: Sequence[Kill], differing: int, cases: int) -> str:
    """Kills by where they fell, and what came of them."""
    lines = ["kills  fell while"]
    lines += [f"{number:5}  {what}" for what, number in Counter(kill.fell for kill in kills).most_common()]
    lines += [f"{sum(kill.epoch > 1 for kill in kills):5}  after the first epoch"]
    lines += [f"{sum(kill.nth > 1 for kill in kills):5}  of a run that had been killed before"]
    lines += [f"{sum(kill.workers > 0 for kill in kills):5}  with a process that makes batches"]
    lines += [f"{sum(kill.half_written > 0 for kill in kills):5}  left a half-written file behind"]
    return "\n".join([*lines, f"{len(kills)} kills in {cases} runs, {differing} runs differ"])


def main() -> int:
    """Kill, go on, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--folder", type=Path, default=Path("runs/kills"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/kills-cpu.csv"))
    asked = parser.parse_args()
    if asked.folder.exists() and any(asked.folder.iterdir()):
        parser.error(f"{asked.folder} is not empty; name another folder")
    asked.folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(asked.seed)
    aims = (INSTANTS[i % len(INSTANTS)] for i in range(10**9))
    finish(asked.folder / "whole", 0, asked.folder / "whole.marks")
    kills: list[Kill] = []
    cases = differing = 0
    began = time.monotonic()
    while len(kills) < asked.kills:
        folder = asked.folder / f"{cases:03d}"
        kills += case(cases, folder, min(rng.randint(1, 4), asked.kills - len(kills)), aims, rng)
        found = differences(asked.folder / "whole", folder)
        differing += bool(found)
        cases += 1
        left = (time.monotonic() - began) / len(kills) * (asked.kills - len(kills)) if kills else float("nan")
        print(f"{len(kills)}/{asked.kills} kills, {left:.0f} s left: {', '.join(found) or 'equal'}", flush=True)
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    with asked.out.open("w", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Kill)])
        writer.writeheader()
        writer.writerows(map(asdict, kills))
    print(table(kills, differing, cases))
    return int(differing > 0)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        sys.exit(child(sys.argv[2], sys.argv[3:]))
    sys.exit(main())
