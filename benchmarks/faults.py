"""What a training run says of each fault, and what it leaves: every one provoked for real, by the command a user gives.

    python benchmarks/faults.py [--folder runs/faults] [--only NAME …]

Full disks are file systems of memory, which only root may mount. A row says the exit code, the sentence, and whether
the run, gone on with once the fault is over, equals the one that never met it. The exit code is 1 when a row is not as
it should be.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from kills import RUN, differences

from quantattn.learn.checkpoint import read_checkpoint

ROOT = Path(__file__).resolve().parent.parent
PLAIN = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search", "--"] if os.getuid() == 0 else []
"""Takes from root the right to pass by the permissions of files."""
SECONDS = 600.0
LAST = Path("checkpoints") / "last.ckpt"
STEPS = "trainer.max_steps=12"
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "POLARS_MAX_THREADS": "1", "PYTHONPATH": str(ROOT)}
JUMPS = """
import datetime, sys, time
real, calls = time.time, iter(range(10**9))
time.time = lambda: real() + (-86400, 365 * 86400)[next(calls) % 2]
from quantattn.cli import main
sys.argv = ["quantattn", *sys.argv[1:]]
sys.exit(main("train"))
"""
"""A process whose clock stands a day back and a year ahead in turn."""


@dataclass(frozen=True)
class Met:
    """What came of a fault: exit code, the sentence, and what differs in the end from a run without it."""

    code: int
    said: str
    differs: tuple[str, ...] | None


def command(folder: Path, *more: str) -> list[str]:
    """The run in `folder`, begun or gone on with."""
    return [sys.executable, str(ROOT / "train.py"), *RUN, STEPS, f"paths.output_dir={folder}", *more]


def call(arguments: Sequence[str]) -> tuple[int, str]:
    """The exit code of a command, and the last line of what it says on stderr."""
    done = subprocess.run(arguments, env=ENVIRONMENT, capture_output=True, text=True, timeout=SECONDS)
    said = [line for line in done.stderr.splitlines() if line.strip()]
    return done.returncode, said[-1] if said else ""


def begun(folder: Path) -> Path:
    """A run of which half is done: it was told to stop."""
    process = subprocess.Popen(command(folder), env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for(lambda: (folder / LAST).exists(), process)
    process.send_signal(signal.SIGTERM)
    process.wait(SECONDS)
    return folder


def wait_for(done: Callable[[], bool], process: subprocess.Popen[Any]) -> None:
    """Return once `done` says so or the process has ended."""
    deadline = time.monotonic() + SECONDS
    while not done() and process.poll() is None:
        if time.monotonic() > deadline:
            raise TimeoutError("nothing happened")
        time.sleep(0.005)


def after(whole: Path, folder: Path, code: int, said: str) -> Met:
    """The fault is over: the run goes on to its end and is compared."""
    again, sentence = call(command(folder))
    if again:
        return Met(code, said, (f"cannot go on: {sentence}",))
    return Met(code, said, tuple(differences(whole, folder)))


@contextmanager
def memory_disk(folder: Path, size: str) -> Iterator[None]:
    """A file system of so much memory at `folder`."""
    folder.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def disk_full(whole: Path, folder: Path) -> Met:
    """A disk that holds one checkpoint, not two."""
    with memory_disk(folder, "2m"):
        code, said = call(command(folder / "run"))
        read_checkpoint(folder / "run" / LAST)
        subprocess.run(["mount", "-o", "remount,size=64m", str(folder)], check=True)
        return after(whole, folder / "run", code, said)


def disk_full_of_others(whole: Path, folder: Path) -> Met:
    """A disk that somebody else fills to the last byte while the run goes on."""
    with memory_disk(folder, "16m"):
        run = folder / "run"
        process = subprocess.Popen(
            command(run), env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        wait_for((run / LAST).exists, process)
        with (folder / "filler").open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                pass
        said = process.communicate(timeout=SECONDS)[1].strip().splitlines()[-1]
        read_checkpoint(run / LAST)
        (folder / "filler").unlink()
        return after(whole, run, process.returncode, said)


def no_permission(whole: Path, folder: Path) -> Met:
    """A folder in which nobody may write."""
    folder.mkdir(parents=True)
    folder.chmod(0o555)
    code, said = call([*PLAIN, *command(folder / "run")])
    folder.chmod(0o755)
    return after(whole, folder / "run", code, said)


def unreadable(whole: Path, folder: Path) -> Met:
    """A checkpoint that nobody may read."""
    (begun(folder) / LAST).chmod(0)
    code, said = call([*PLAIN, *command(folder)])
    (folder / LAST).chmod(0o644)
    return after(whole, folder, code, said)


def damaged(change: Callable[[bytes], bytes]) -> Callable[[Path, Path], Met]:
    """A last checkpoint of other bytes, which is put right again after."""

    def met(whole: Path, folder: Path) -> Met:
        last = begun(folder) / LAST
        before = last.read_bytes()
        last.write_bytes(change(before))
        changed = last.read_bytes()
        code, said = call(command(folder))
        assert last.read_bytes() == changed
        last.write_bytes(before)
        return after(whole, folder, code, said)

    return met


def no_best(whole: Path, folder: Path) -> Met:
    """The best weights are gone."""
    wanted = [*command(folder), "trainer.max_steps=6"]
    assert call(wanted)[0] == 0
    best = folder / "checkpoints" / "best.ckpt"
    best.rename(folder / "aside")
    code, said = call(command(folder))
    (folder / "aside").rename(best)
    return Met(code, said, None)


def another_model(whole: Path, folder: Path) -> Met:
    """The run is of a model of another size, in its own folder."""
    begun(folder)
    code, said = call(command(folder, "model=small"))
    return after(whole, folder, code, said)


def another_model_elsewhere(whole: Path, folder: Path) -> Met:
    """The checkpoint of a run with another model is taken to a new folder."""
    begun(folder)
    arguments = [each for each in command(folder.with_suffix(".new"), "model=small") if each != "ckpt_path=auto"]
    code, said = call([*arguments, f"ckpt_path={folder / LAST}"])
    return after(whole, folder, code, said)


def two_runs(whole: Path, folder: Path) -> Met:
    """Two processes, one folder."""
    process = subprocess.Popen(command(folder), env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for((folder / LAST).exists, process)
    process.send_signal(signal.SIGSTOP)  # or it might end before the second has begun
    code, said = call(command(folder))
    process.send_signal(signal.SIGCONT)
    process.wait(SECONDS)
    return Met(code, said, tuple(differences(whole, folder)))


def clock(whole: Path, folder: Path) -> Met:
    """Every look at the clock is a day before or a year after the last."""
    begun(folder)
    code, said = call([sys.executable, "-c", JUMPS, *command(folder)[2:]])
    return Met(code, said, tuple(differences(whole, folder)))


def told(number: int) -> Callable[[Path, Path], Met]:
    """A signal in the middle of training."""

    def met(whole: Path, folder: Path) -> Met:
        process = subprocess.Popen(
            command(folder), env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        wait_for((folder / LAST).exists, process)
        process.send_signal(number)
        said = process.communicate(timeout=SECONDS)[0].strip().splitlines()[-1]
        return after(whole, folder, process.returncode, said)

    return met


def out_of_memory(whole: Path, folder: Path) -> Met:
    """A batch for which there is no memory."""
    large = ["data.max_tokens_per_batch=400000", "data.source.entities=120", "trainer.max_steps=2"]
    limited = ["bash", "-c", 'ulimit -v 3000000 && exec "$@"', "bash", *command(folder, *large)]
    return Met(*call(limited), None)


def other_format(raw: bytes) -> bytes:
    """The same file, as if a later version had written it."""
    return raw.replace(b'"format": "1"', b'"format": "9"', 1)


def pickled(raw: bytes) -> bytes:
    """What torch.save makes of a state."""
    import io

    file = io.BytesIO()
    torch.save({"state_dict": {}}, file)
    return file.getvalue()


FAULTS: dict[str, tuple[str, int, Callable[[Path, Path], Met]]] = {
    "disk-full": ("the disk is full in the middle of a checkpoint", 1, disk_full),
    "disk-filled": ("the disk is filled by others", 1, disk_full_of_others),
    "permission": ("no permission to write into the folder", 1, no_permission),
    "unreadable": ("no permission to read the checkpoint", 1, unreadable),
    "bit": ("one bit of the checkpoint changed", 1, damaged(lambda raw: raw[:-9] + bytes([raw[-9] ^ 1]) + raw[-8:])),
    "half": ("half of the checkpoint is gone", 1, damaged(lambda raw: raw[: len(raw) // 2])),
    "empty": ("the checkpoint is empty", 1, damaged(lambda raw: b"")),
    "pickle": ("the checkpoint is a pickle", 1, damaged(pickled)),
    "format": ("the checkpoint is of a later version", 1, damaged(other_format)),
    "no-best": ("the best weights are gone", 1, no_best),
    "model": ("the run has another model", 2, another_model),
    "model-elsewhere": ("the checkpoint has another model", 2, another_model_elsewhere),
    "two": ("a second run on the folder", 1, two_runs),
    "clock": ("the clock jumps", 0, clock),
    "sigterm": ("SIGTERM", 143, told(signal.SIGTERM)),
    "sigusr1": ("SIGUSR1", 143, told(signal.SIGUSR1)),
    "ctrl-c": ("Ctrl-C", 130, told(signal.SIGINT)),
    "memory": ("memory is out", 1, out_of_memory),
}
"""Name → what happens, the exit code that it should have, and how it is done."""


def main() -> int:
    """Provoke them all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("runs/faults"))
    parser.add_argument("--only", nargs="*", choices=FAULTS, default=list(FAULTS))
    asked = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it, and so its children
    folder = asked.folder.resolve()
    whole = folder / "whole"
    if not (whole / "metrics.json").exists():
        call(command(whole))
    wrong = 0
    print("| fault | exit | sentence | gone on with |\n|---|---|---|---|")
    for name in asked.only:
        what, expected, provoke = FAULTS[name]
        place = folder / name
        shutil.rmtree(place, ignore_errors=True)
        met = provoke(whole, place)
        wrong += met.code != expected or bool(met.differs)
        equal = "–" if met.differs is None else ", ".join(met.differs) or "equal"
        said = met.said.removeprefix("quantattn train: ").replace(str(folder), "runs")
        print(f"| {what} | {met.code} | {said} | {equal} |", flush=True)
    print(f"{len(asked.only)} faults, {wrong} not as they should be")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
