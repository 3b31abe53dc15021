"""Processes that a command starts are alike but for their rank, hear signals, and never outlive a failure."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from quantattn.cli import launch as launching
from quantattn.cli.config import compose, plain
from quantattn.cli.errors import UsageError
from quantattn.cli.instantiate import settings
from quantattn.cli.launch import LAUNCHED, end_with_launcher, launch
from quantattn.cli.settings import TrainSettings
from quantattn.cli.team import world_of
from quantattn.learn.parallel import World
from quantattn.learn.trainer import TrainerSettings

GOES_ON = "ckpt_path=auto goes on"


def script(folder: Path, *lines: str) -> Sequence[str]:
    """A command that runs these lines, knowing its `rank` and a folder in which to leave its process number."""
    head = f"import os, signal, sys, time; rank = int(os.environ['RANK']); folder = {str(folder)!r}"
    mark = "open(f'{folder}/{rank}', 'w').write(f'{os.getpid()}\\n')"
    return [sys.executable, "-S", "-c", "\n".join((head, mark, *lines))]


def nobody_is_left(folder: Path) -> bool:
    return not any(Path(f"/proc/{path.read_text().strip()}").exists() for path in folder.iterdir())


@pytest.fixture(autouse=True)
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launching, "GRACE", 0.5)


def test_processes_are_told_what_torchrun_tells_them(tmp_path: Path) -> None:
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    told = f"import json; open(f'{{folder}}/{{rank}}', 'w').write(json.dumps([os.environ[n] for n in {names!r}]))"
    assert launch(script(tmp_path, told), 3, GOES_ON) == 0
    found = [json.loads((tmp_path / str(rank)).read_text()) for rank in range(3)]
    port = found[0][4]
    assert found == [[str(rank), str(rank), "3", "127.0.0.1", port] for rank in range(3)]


@pytest.mark.parametrize("killed", [0, 1])
def test_all_end_when_one_is_killed_and_the_sentence_names_it(tmp_path: Path, killed: int) -> None:
    lines = (f"if rank == {killed}: os.kill(os.getpid(), signal.SIGKILL)", "time.sleep(600)")
    began = time.monotonic()
    with pytest.raises(RuntimeError, match=f"process {killed} of 2 was killed by SIGKILL, .* were ended; {GOES_ON}"):
        launch(script(tmp_path, *lines), 2, GOES_ON)
    assert time.monotonic() - began < 10
    assert nobody_is_left(tmp_path)


def test_one_that_fails_is_heard_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The first process speaks for all; another is heard with what the first has not said."""
    lines = (
        "print('all say this', file=sys.stderr, flush=True)",
        "if rank == 1: time.sleep(0.3); sys.exit('only one says this')",
        "time.sleep(600)",
    )
    assert launch(script(tmp_path, *lines), 3, GOES_ON) == 1
    said = capfd.readouterr().err.splitlines()
    assert said == ["all say this", "process 1: only one says this"]
    assert nobody_is_left(tmp_path)


def test_a_process_that_ends_by_itself_after_another_has_failed_may_say_why(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    lines = ("if rank: sys.exit(3)", "time.sleep(0.2)", "sys.exit('lost the other')")
    assert launch(script(tmp_path, *lines), 2, GOES_ON) == 3
    assert capfd.readouterr().err == "lost the other\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_signals_reach_every_process(tmp_path: Path, number: signal.Signals) -> None:
    def tell_once_all_are_there() -> None:
        while sum((tmp_path / f"ready{rank}").exists() for rank in range(2)) < 2:
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    handle = f"signal.signal({int(number)}, lambda *_: os._exit(143))"
    teller = threading.Thread(target=tell_once_all_are_there)
    teller.start()
    lines = (handle, "open(f'{folder}/ready{rank}', 'w').write('0')", "time.sleep(600)")
    before = signal.getsignal(number)
    assert launch(script(tmp_path, *lines), 2, GOES_ON) == 143
    teller.join()
    assert signal.getsignal(number) == before


def test_a_process_is_told_to_stop_when_its_launcher_is_gone() -> None:
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(write)
        os.dup2(read, 0)
        os.environ[LAUNCHED] = "1"
        signal.signal(signal.SIGTERM, lambda *_: os._exit(143))
        end_with_launcher()
        time.sleep(600)
        os._exit(0)
    os.close(read)
    time.sleep(0.2)
    assert os.waitpid(child, os.WNOHANG) == (0, 0)  # it does not stop while the launcher is there
    os.close(write)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 143


def test_processes_are_as_many_as_asked_for_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    one = settings(TrainSettings, plain(compose("train", [])), "")
    two, alone = (
        replace(one, trainer=TrainerSettings(strategy="ddp", devices=2, accumulate=4), train=t) for t in (True, False)
    )
    far = replace(one, trainer=TrainerSettings(strategy="ddp", nodes=2, accumulate=4))
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "SLURM_STEP_NUM_TASKS"):
        monkeypatch.delenv(name, raising=False)
    assert (world_of(one), world_of(two), world_of(alone)) == (World(), None, World())  # None: yet to be started
    with pytest.raises(UsageError, match=r"nodes=2: torchrun or srun starts the processes of several machines"):
        world_of(far)
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    assert world_of(two) == world_of(far) == World(1, 2, 1)
    with pytest.raises(UsageError, match=r"2 processes were started, but trainer\.devices=1 and .* ask for 1"):
        world_of(one)
    with pytest.raises(UsageError, match="ask for 2, and train=false is for one"):
        world_of(alone)
