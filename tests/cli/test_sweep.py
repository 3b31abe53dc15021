"""A search over settings: its trials, their count, kills, several workers, and what is refused."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from omegaconf import OmegaConf
from rich.console import Console
from small_run import SMALL, call

from quantattn import load_model
from quantattn.cli.errors import UsageError
from quantattn.cli.evaluate import trials_of
from quantattn.cli.searching import study as studies
from quantattn.cli.searching.space import read_space
from quantattn.cli.searching.study import (
    SweepSettings,
    claim_study,
    counted,
    draw,
    in_state,
    open_study,
)
from quantattn.cli.searching.worker import Search, Worker
from quantattn.learn.trainer import TrainerSettings

optuna = pytest.importorskip("optuna", reason="the extra sweep is not installed")
ROOT = Path(__file__).resolve().parents[2]
SPACE = {"optimizer.lr": {"low": 1e-4, "high": 1e-1, "log": True}, "optimizer.weight_decay": [0.01, 0.1]}
QUICK = [*SMALL, "trainer.max_steps=4", "trainer.validate_every=2", "sweep.startup=1", "sweep.sampler=random"]
QUICK += [
    "~space.optimizer.weight_decay",
    "space.optimizer.lr={low: 1.0e-3, high: 1.0e+8, log: true}",
    "sweep.seed=95",
]
"""Rates of which most are too high, so that trials fail or are pruned."""


KILLED_AFTER_A_CHECKPOINT = """
import os, signal, sys
from quantattn.cli import main
from quantattn.learn import fit

write = fit.write_checkpoint

def write_and_die(*given, **named):
    write(*given, **named)
    os.kill(os.getpid(), signal.SIGKILL)

fit.write_checkpoint = write_and_die
sys.exit(main("sweep"))
"""


def folder_of(place: Path) -> Path:
    return place / "runs" / "synthetic" / "sweep" / "study"


def account_of(place: Path) -> dict[str, Any]:
    return json.loads((folder_of(place) / "trials.json").read_text())


CLOSED: list[tuple[str, int, bool, int, list[str]]] = []
"""In `searched`: what happened, to which trial, whether its folder was held, threads, states in the account."""


def watch_closing(patch: pytest.MonkeyPatch, root: Path) -> None:
    """Write down in `CLOSED` when the database is told of a trial, and when its folder is let go."""
    tell, close = optuna.Study.tell, os.close

    def note(what: str, number: int) -> None:
        folder = os.open(root / str(number), os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            held = False
        except BlockingIOError:
            held = True
        close(folder)
        account = root / "trials.json"
        states = [each["state"] for each in json.loads(account.read_text())["each"]] if account.exists() else []
        CLOSED.append((what, number, held, threading.active_count(), states))

    def telling(study: Any, number: int, *given: Any, **named: Any) -> Any:
        note("told", number)
        return tell(study, number, *given, **named)

    def closing(file: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{file}"))
        close(file)
        if path.parent == root and path.name.isdecimal():
            note("let go", int(path.name))

    patch.setattr(optuna.Study, "tell", telling)
    patch.setattr(os, "close", closing)


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three trials by one worker that nobody has disturbed."""
    place = tmp_path_factory.mktemp("searched")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        watch_closing(patch, folder_of(place))
        assert call(patch, "sweep", *QUICK, "sweep.trials=3") == 0
    return place


def test_a_trial_is_told_and_its_sign_of_life_ended_before_its_folder_is_let_go_and_counted_after(
    searched: Path,
) -> None:
    """Let go before it is told, it would be taken up by another worker as one that somebody was killed at."""
    events = [event for event in CLOSED if event[0] == "told" or not event[2]]  # names are flushed by closing it too
    assert [(what, number, held) for what, number, held, _, _ in events] == [
        each for number in range(3) for each in (("told", number, True), ("let go", number, False))
    ]
    for told, gone in zip(events[::2], events[1::2], strict=True):
        assert told[3] == gone[3] + 1, "the thread of the sign of life"
        assert len(told[4]) == len(gone[4]) == told[1], "the account has those before it"
        assert "running" not in gone[4]


def test_every_trial_is_counted_and_has_its_folder_and_its_end(searched: Path) -> None:
    account, root = account_of(searched), folder_of(searched)
    states = [each["state"] for each in account["each"]]
    assert account["trials"] == len(states) == 3
    assert {"complete", "pruned", "failed"} == set(states), "the space is made for it"
    assert account["states"] == {state: states.count(state) for state in set(states)}
    for each in account["each"]:
        folder = root / str(each["number"])
        config = OmegaConf.load(folder / "config.yaml")
        assert repr(config.optimizer.lr) == each["settings"]["optimizer.lr"]
        assert config.test is False
        names = {path.name for path in folder.iterdir()}
        if each["state"] == "failed":
            assert "the loss became" in each["why"] or "the gradient became" in each["why"]
            continue
        assert {"config.yaml", "metrics.csv", "metrics.json", "model", "checkpoints", "data.json"} <= names
        assert "report.html" not in names, "no trial looks at the test rows"
        figures = json.loads((folder / "metrics.json").read_text())["figures"]
        assert not [name for name in figures if name.startswith("test/")]
        if each["state"] == "complete":
            assert each["value"] == figures["valid/loss"]
    best = min((each for each in account["each"] if each["state"] == "complete"), key=lambda each: each["value"])
    assert account["best"] == best["number"]


def test_the_best_trial_is_evaluated_with_the_count_in_its_report_and_its_model(searched: Path) -> None:
    best = folder_of(searched) / "best"
    assert "chosen from 3 trials" in (best / "report.html").read_text()
    artefact = load_model(best / "model").artefact
    assert artefact is not None
    assert artefact.extra["trials"] == 3
    trained, kept = (
        load_model(folder_of(searched) / name / "model") for name in (str(account_of(searched)["best"]), "best")
    )
    assert all((trained.state_dict()[name] == value).all() for name, value in kept.state_dict().items())
    table = pl.LazyFrame({"score": [1.0]})
    for said in (folder_of(searched), best, best / "model"):
        assert trials_of(str(said), table) == 3
    assert trials_of("7", table) == 7
    assert trials_of(None, table) is None
    carried = pl.LazyFrame({"score": [1.0, 2.0], "trials": [3, 3]})  # as score.py writes for such a model
    assert trials_of(None, carried) == 3
    with pytest.raises(UsageError, match="was chosen from 3 trials"):
        trials_of("2", carried)
    with pytest.raises(UsageError, match="neither a number nor a folder"):
        trials_of("few", table)
    page = (folder_of(searched) / "sweep.html").read_text()
    assert page.count("<svg") == 1
    assert f"Trial {account_of(searched)['best']} is the best of 3." in page


def test_a_killed_worker_s_trial_goes_on_under_its_number_and_nothing_is_counted_twice(
    searched: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [*QUICK, "sweep.trials=1", "trainer.checkpoint_every=1"]
    command = [sys.executable, "-c", KILLED_AFTER_A_CHECKPOINT, *given]
    paths = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env={**os.environ, **paths}, stdout=subprocess.DEVNULL, timeout=600)
    assert done.returncode == -signal.SIGKILL
    assert (folder_of(tmp_path) / "0" / "checkpoints" / "last.ckpt").is_file()
    monkeypatch.chdir(tmp_path)
    assert call(monkeypatch, "sweep", *given) == 0
    assert "trial 0: goes on" in capsys.readouterr().out
    whole, parts = account_of(searched), account_of(tmp_path)
    same = ("number", "state", "value", "settings", "why")
    assert [[each[name] for name in same] for each in parts["each"]] == [
        [each[name] for name in same] for each in whole["each"][:1]
    ]
    assert parts["trials"] == 1
    assert call(monkeypatch, "sweep", *given) == 0
    said = capsys.readouterr().out
    assert "best of 1 trial by" in said
    assert "run folder" not in said, "nothing is left to do, and the test rows are not read again"


def test_another_space_or_setting_in_the_same_study_is_refused(
    searched: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(searched)
    assert call(monkeypatch, "sweep", *QUICK, "sweep.trials=3", "seed=5") == 2
    said = capsys.readouterr().err
    assert "another settings.seed (0, now 5)" in said
    assert said.count("\n") == 1
    study, space = optuna.create_study(), read_space(SPACE, "valid/loss")
    claim_study(study, "s", "sqlite:///s.db", space, {"pruner": "median"})
    claim_study(study, "s", "sqlite:///s.db", space, {"pruner": "median"})
    with pytest.raises(UsageError, match=r"another pruner \('median', now 'none'\)"):
        claim_study(study, "s", "sqlite:///s.db", space, {"pruner": "none"})
    other = read_space(SPACE | {"optimizer.lr": {"low": 1e-4, "high": 1.0, "log": True}}, "valid/loss")
    with pytest.raises(UsageError, match=r"another space\.optimizer\.lr\.high \(0\.1, now 1\.0\)"):
        claim_study(study, "s", "sqlite:///s.db", other, {"pruner": "median"})
    fewer = read_space({"optimizer.lr": SPACE["optimizer.lr"]}, "valid/loss")
    with pytest.raises(UsageError, match=r"another space\.optimizer\.weight_decay \(\['0\.01', '0\.1'\], now None\)"):
        claim_study(study, "s", "sqlite:///s.db", fewer, {"pruner": "median"})


def study_at(place: Path, **how: Any) -> tuple[Any, Search]:
    asked = SweepSettings(**{"name": "study", "trials": 12, **how})
    study = open_study(f"sqlite:///{place / 'study.db'}", "study", "valid/loss", asked, TrainerSettings())
    return study, Search(read_space(SPACE, "valid/loss"), "valid/loss", (), (), place, asked)


def work_without_training(place: Path, say: int) -> None:
    """Take trials until there are enough, and tell of each a value that its draw decides."""
    study, like = study_at(place)
    worker = Worker(study, like, Console(quiet=True))
    while (held := worker.take()) is not None:
        with held:
            os.write(say, b"%d\n" % held.number)
            study.tell(held.number, float(draw(study, held.trial, like.space, like.asked)["optimizer.lr"]))


def test_three_workers_on_one_file_make_each_trial_once_and_no_more_than_were_asked_for(tmp_path: Path) -> None:
    study_at(tmp_path)
    read, write = os.pipe()
    workers = []
    for _ in range(3):
        if (pid := os.fork()) == 0:
            code = 1
            try:
                work_without_training(tmp_path, write)
                code = 0
            finally:
                os._exit(code)
        workers.append(pid)
    os.close(write)
    with os.fdopen(read) as file:
        numbers = [int(line) for line in file]
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in workers] == [0, 0, 0]
    study, _ = study_at(tmp_path)
    assert sorted(numbers) == [trial.number for trial in counted(study)]
    assert len(numbers) == len(in_state(study, "COMPLETE")) == 12
    assert len({trial.params["optimizer.lr"] for trial in counted(study)}) == 12, "no two workers draw the same"


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_the_same_seed_and_one_worker_draw_the_same_trials(sampler: str) -> None:
    space, drawn = read_space(SPACE, "valid/loss"), []
    for seed, killed_at in ((0, None), (0, 6), (1, None)):
        asked, study = SweepSettings("study", 9, sampler=sampler, startup=3, seed=seed), optuna.create_study()
        for number in range(9):
            if number == killed_at:  # who comes after a killed worker knows the study and nothing else
                known, study = study.trials, optuna.create_study()
                study.add_trials(known)
            trial = study.ask()
            study.tell(trial, float(draw(study, trial, space, asked)["optimizer.lr"]))
        drawn.append([trial.params for trial in study.trials])
    assert drawn[0] == drawn[1] != drawn[2]


def test_a_silent_trial_of_another_machine_is_given_up_and_counted_once(tmp_path: Path) -> None:
    study, like = study_at(tmp_path, trials=2)
    for silent in (studies.SILENT - 60, studies.SILENT + 60):
        trial = study.ask()
        trial.set_user_attr("machine", "elsewhere")
        trial.set_user_attr("folder", str(tmp_path / str(trial.number)))
        trial.set_user_attr("alive", time.time() - silent)
    assert Worker(study, like, Console(quiet=True)).take() is None, "both count"
    assert [trial.state.name for trial in counted(study)] == ["RUNNING", "FAIL"]
    assert "no sign of life" in counted(study)[1].user_attrs["why"]


def test_a_trial_in_another_folder_of_this_machine_is_left_to_whoever_has_it(tmp_path: Path) -> None:
    study, like = study_at(tmp_path, trials=1)
    first = Worker(study, like, Console(quiet=True)).take()
    assert first is not None
    with first:
        assert Worker(study, like, Console(quiet=True)).take() is None, "its folder is held"
        other = Search(**{**vars(like), "root": tmp_path / "other"})
        assert Worker(study, other, Console(quiet=True)).take() is None, "and this one is not its folder"
        first.trial.set_user_attr("alive", time.time() - 2 * studies.SILENT)  # its database was away, say
        assert Worker(study, like, Console(quiet=True)).take() is None
        assert [trial.state.name for trial in counted(study)] == ["RUNNING"], "here the lock says who is alive"
    again = Worker(study, like, Console(quiet=True)).take()
    assert again is not None
    with again:
        assert again.again
        assert again.number == first.number == 0
