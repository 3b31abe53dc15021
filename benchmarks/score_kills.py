"""What a scoring job loses by SIGKILL: real jobs, killed at named points and at random, beside one never killed.

    python benchmarks/score_kills.py [--kills 100] [--rounds 50] [--folder runs/score_kills] [--seed 0]
        [--out benchmarks/results/score_kills-cpu.csv]

A case is one folder of scores. `score.py … out=FOLDER` is started there, killed, and started again by the same command
until it ends by itself. Three are killed: a job of one process, a worker of a job of two, and the parent of those two;
each before the plan is made, while a shard is computed, between that and its commit, at a random instant of the commit,
after it, and at any time. At a named point the process kills itself or its parent, so no kill misses. In the end the
rows must have the bytes of the table never killed and every key once, no file may be left that the table does not name,
and no worker may outlive its parent. Then two whole jobs are started at once on one folder, again and again, and held
to the same. The exit code is 1 when anything differs.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import polars as pl
from deltalake import DeltaTable

import quantattn.cli
from quantattn.cli import score as command
from quantattn.score import sink
from quantattn.score.worker import Begun, Worker

MODEL = [
    *("data.source.entities=3", "data.source.events_per_entity=4096", "data.source.channels=2"),
    *("data.max_seq_len=330", "data.max_tokens_per_batch=1320", "data.prepare.n_bins=8"),
    *("trainer.max_steps=2", "trainer.threads=1", "test=false"),
]
JOB = [
    *("data.source.entities=4", "data.source.events_per_entity=16384", "data.source.channels=2"),
    *("data.source.seed=9", "shard_decisions=20"),
]
POINTS = ("before plan", "computing", "before commit", "committing", "after commit", "any time")
VICTIMS = ("job", "worker", "parent")
AIM = "QUANTATTN_KILL"
COMMIT = 0.03
"""Seconds that a commit takes at most, as a rule."""
SECONDS = 600.0


@dataclass(frozen=True)
class Kill:
    """One kill: of whom and where, which of its case, and what stood in the folder then."""

    case: int
    nth: int
    victim: str
    point: str
    shards: int
    files_left: int
    outlived: int


def aimed() -> None:
    """In a process of a job: let it, or its parent, be killed where the environment says, once in all processes."""
    folder, victim, point, passes = os.environ[AIM].split("|")
    worker = __name__ == "__mp_main__"
    (Path(folder) / ("worker" if worker else "job")).with_suffix(f".{os.getpid()}").touch()
    left = [int(passes)]

    def at(here: str) -> None:
        mine = not worker if here == "before plan" else worker == (victim != "job")
        if here != point or not mine:
            return
        left[0] -= 1
        if left[0] == 0:
            try:
                os.close(os.open(Path(folder) / "killed", os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return
            pid = os.getppid() if worker and victim == "parent" else os.getpid()
            after = random.uniform(0, COMMIT) if here == "committing" else 0.0
            threading.Timer(after, os.kill, (pid, signal.SIGKILL)).start() if after else os.kill(pid, signal.SIGKILL)

    def around(owner: Any, name: str, before: str, behind: str | None = None) -> None:
        plain = getattr(owner, name)

        def wrapped(*given: Any, **named: Any) -> Any:
            at(before)
            made = plain(*given, **named)
            if behind is not None:
                at(behind)
            return made

        setattr(owner, name, wrapped)

    around(command, "make_plan", "before plan")
    around(Worker, "begin", "computing")
    around(Begun, "rows", "fetched", "before commit")
    around(sink, "write_deltalake", "committing", "after commit")


def trained(folder: Path) -> int:
    """Train a model into a folder; the exit code."""
    sys.argv = ["quantattn", *MODEL, f"paths.output_dir={folder}"]
    return quantattn.cli.main("train")


def started(folder: Path, workers: int, aim: str | None = None) -> int:
    """The job in a process of its own, forked from this one, which has imported what it needs; its process id."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        log = os.open(folder.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        if aim is not None:
            os.environ[AIM] = aim
            aimed()
        sys.argv = [
            "quantattn",
            f"model={folder.parent / 'run' / 'model'}",
            f"out={folder}",
            *JOB,
            f"workers={workers}",
        ]
        code = quantattn.cli.main("score")
        sys.stdout.flush()
    finally:
        os._exit(code)


def ended(pid: int) -> int:
    """Wait for a process; its exit code, or minus the signal that killed it."""
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(pid, signal.SIGKILL)
    raise RuntimeError(f"process {pid} hung for {SECONDS:.0f} seconds")


def alive(pid: int) -> bool:
    """Whether a process runs."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def killed(folder: Path, marks: Path, victim: str, point: str, rng: random.Random) -> int | None:
    """Start the job, kill it or one of its processes there, and count workers that outlive it; None: no kill fell."""
    for old in marks.iterdir():
        old.unlink()
    workers = 1 if victim == "job" else 2
    pid = started(folder, workers, f"{marks}|{victim}|{point}|{rng.randint(1, 4 if point != 'before plan' else 1)}")
    if point == "any time" or (point == "before plan" and victim == "worker"):
        strike(pid, marks, victim, rng)
    code = ended(pid)
    if not (marks / "killed").exists():
        return None
    if victim == "worker" and code not in (0, -signal.SIGKILL):
        raise RuntimeError(f"the job ended with {code}: {folder.with_suffix('.log').read_text()[-500:]}")
    until = time.monotonic() + 10
    while any(map(alive, workers_of(marks))) and time.monotonic() < until:
        time.sleep(0.01)
    return sum(map(alive, workers_of(marks)))


def strike(pid: int, marks: Path, victim: str, rng: random.Random) -> None:
    """Kill the job or a worker of it at any time."""
    while victim == "worker" and alive(pid) and not workers_of(marks):
        time.sleep(0.01)
    time.sleep(rng.uniform(0, 4.0))
    target = rng.choice([each for each in workers_of(marks) if alive(each)] or [0]) if victim == "worker" else pid
    if target and alive(target):
        (marks / "killed").touch()
        os.kill(target, signal.SIGKILL)


def workers_of(marks: Path) -> list[int]:
    """Process ids of all workers that the job has started."""
    return [int(each.suffix[1:]) for each in marks.glob("worker.*")]


def apart(function: Callable[..., Any], *given: Any) -> Any:
    """What a function says in a process of its own: what reads tables starts threads, and then none may be forked."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if not pid:
        said = {"error": "it failed"}
        try:
            said = {"said": function(*given)}
        except Exception as error:
            said = {"error": str(error)}
        finally:
            os.write(theirs, json.dumps(said).encode())
            os._exit(0)
    os.close(theirs)
    ended(pid)
    with os.fdopen(ours, "rb") as pipe:
        said = json.loads(pipe.read())
    if "error" in said:
        raise RuntimeError(said["error"])
    return said["said"]


def standing(folder: Path) -> tuple[int, int]:
    """Commits with rows in the folder, and files that none of them names."""
    files = {path.name for path in folder.glob("*.parquet")}
    if not DeltaTable.is_deltatable(str(folder)):
        return 0, len(files)
    named = [Path(uri).name for uri in DeltaTable(folder).file_uris()]
    return len(named), len(files - set(named))


def rows_sha(folder: Path) -> str:
    """Sha256 of the rows in the order of their keys.

    Raises:
        RuntimeError: a key is missing or twice.
    """
    table = pl.read_delta(str(folder)).sort("key")
    if table["key"].to_list() != list(range(table.height)):
        raise RuntimeError(f"{folder} has {table.height} rows of {table['key'].n_unique()} keys")
    return hashlib.sha256(table.write_csv(float_precision=17).encode()).hexdigest()


def case(number: int, folder: Path, aims: Sequence[tuple[str, str]], rng: random.Random) -> list[Kill]:
    """One folder of scores, its job killed at these points and then gone on with to its end."""
    kills: list[Kill] = []
    marks = folder.with_suffix(".marks")
    marks.mkdir()
    for victim, point in aims:
        outlived = killed(folder, marks, victim, point, rng)
        if outlived is not None:
            kills.append(Kill(number, len(kills) + 1, victim, point, *apart(standing, folder), outlived))
    code = ended(started(folder, rng.choice((1, 1, 2))))
    if code:
        raise RuntimeError(f"the job ended with {code}: {folder.with_suffix('.log').read_text()[-500:]}")
    return kills


def together(number: int, folder: Path, rng: random.Random) -> None:
    """Two jobs at once on one folder, the second up to half a second later."""
    first = started(folder, 1)
    time.sleep(rng.choice((0.0, 0.0, rng.uniform(0, 0.5))))
    for pid in (first, started(folder, 1 + number % 10 // 9)):
        if code := ended(pid):
            raise RuntimeError(f"a job of two ended with {code}: {folder.with_suffix('.log').read_text()[-500:]}")


def table(kills: Sequence[Kill], wrong: int, cases: int) -> str:
    """Kills by whom and where, and what came of them."""
    counts = Counter((kill.victim, kill.point) for kill in kills)
    lines = [f"{'':14}" + "".join(f"{victim:>8}" for victim in VICTIMS)]
    lines += [f"{point:14}" + "".join(f"{counts[victim, point]:8}" for victim in VICTIMS) for point in POINTS]
    lines.append(f"{sum(kill.files_left > 0 for kill in kills)} times a file was left that no commit names")
    lines.append(f"{sum(kill.outlived for kill in kills)} workers outlived their parent by ten seconds")
    return "\n".join([*lines, f"{len(kills)} kills in {cases} folders, {wrong} of them wrong in the end"])


def main() -> int:
    """Kill, go on, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--folder", type=Path, default=Path("runs/score_kills"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/score_kills-cpu.csv"))
    asked = parser.parse_args()
    folder: Path = asked.folder.absolute()
    if folder.exists() and any(folder.iterdir()):
        parser.error(f"{folder} is not empty; name another folder")
    folder.mkdir(parents=True, exist_ok=True)
    apart(trained, folder / "run")
    if ended(started(folder / "whole", 1)):
        raise RuntimeError(f"the job that nobody kills failed, see {folder / 'whole.log'}")
    expected, rng = "", random.Random(asked.seed)
    kills: list[Kill] = []
    cases = wrong = 0
    began = time.monotonic()
    while len(kills) < asked.kills:
        aims = [
            (VICTIMS[(len(kills) + i) % 3], POINTS[(len(kills) + i) // 3 % len(POINTS)])
            for i in range(rng.randint(1, 4))
        ]
        place = folder / f"{cases:03d}"
        kills += case(cases, place, aims[: asked.kills - len(kills)], rng)
        found, expected = apart(rows_sha, place), expected or apart(rows_sha, folder / "whole")
        left = apart(standing, place)[1]
        wrong += found != expected or left > 0
        cases += 1
        seconds = (time.monotonic() - began) / max(len(kills), 1) * (asked.kills - len(kills))
        said = "equal" if found == expected and not left else f"DIFFERENT: {found[:12]}, {left} files left"
        print(f"{len(kills)}/{asked.kills} kills, {seconds:.0f} s left: {said}", flush=True)
    wrong_rounds = 0
    expected = expected or apart(rows_sha, folder / "whole")
    for number in range(asked.rounds):
        place = folder / f"two-{number:03d}"
        together(number, place, rng)
        equal = (apart(rows_sha, place), apart(standing, place)[1]) == (expected, 0)
        wrong_rounds += not equal
        print(f"round {number + 1}/{asked.rounds} of two jobs: {'equal' if equal else 'DIFFERENT'}", flush=True)
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    with asked.out.open("w", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Kill)])
        writer.writeheader()
        writer.writerows(map(asdict, kills))
    print(table(kills, wrong, cases))
    print(f"{asked.rounds} rounds of two jobs at once on one folder, {wrong_rounds} of them wrong in the end")
    return int(wrong + wrong_rounds > 0 or any(kill.outlived for kill in kills))


if AIM in os.environ and __name__ == "__mp_main__":
    aimed()
if __name__ == "__main__":
    sys.exit(main())
