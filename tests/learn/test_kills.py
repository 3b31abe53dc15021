"""SIGKILL at random instants: what is left is always a run that goes on, and ends as the one that was never killed."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import torch
from forked import fork
from test_resume import LAST, same
from toy import train

from quantattn.learn.checkpoint import BEST, read_checkpoint
from quantattn.learn.folder import holding

STEPS, KILLS = 12, 8
SETTINGS = {"steps": STEPS, "validate_every": 3, "checkpoint_every": 1}


def written(folder: Path) -> int:
    """Bytes of the history so far."""
    path = folder / "metrics.csv"
    return path.stat().st_size if path.is_file() else 0


def test_a_run_killed_at_random_instants_ends_as_the_one_never_killed(tmp_path: Path) -> None:
    """Two epochs of six batches; the process is a real one, and so are the signal and the files it leaves."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # threads do not survive a fork
    rng, folder = random.Random(0), tmp_path / "parts"

    def go_on() -> None:
        with holding(folder):
            resume = folder / LAST
            train(folder, resume=resume if resume.is_file() else None, **SETTINGS)

    train(tmp_path / "whole", **SETTINGS)
    history = (tmp_path / "whole" / "metrics.csv").read_bytes()
    fell = []
    for kill in range(1, KILLS + 1):
        process = fork(go_on)
        wanted = len(history) * kill // (KILLS + 2)
        ended = 0
        while not ended and written(folder) < wanted:
            ended, status = os.waitpid(process, os.WNOHANG)
        time.sleep(rng.uniform(0, 0.02))
        if not ended:
            os.kill(process, signal.SIGKILL)
            _, status = os.waitpid(process, 0)
        fell.append(os.waitstatus_to_exitcode(status))
    assert os.waitstatus_to_exitcode(os.waitpid(fork(go_on), 0)[1]) == 0
    torch.set_num_threads(threads)
    assert fell.count(-signal.SIGKILL) >= KILLS - 1  # the last one may come too late
    for name in (LAST.name, BEST):
        one, other = (read_checkpoint(tmp_path / run / "checkpoints" / name) for run in ("whole", "parts"))
        for part in {*one, *other} - {"callbacks"}:
            assert same(one.get(part), other.get(part)), (name, part)
    assert history == (folder / "metrics.csv").read_bytes()
    assert sorted(path.name for path in folder.rglob("*")) == ["best.ckpt", "checkpoints", "last.ckpt", "metrics.csv"]
