"""Whose a run folder is, what is removed from it, and the folders of a multirun."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from small_run import SMALL, call

from quantattn import load_model
from quantattn.cli.config import run_application
from quantattn.learn.checkpoint import read_checkpoint, write_checkpoint
from quantattn.learn.folder import holding


def test_a_multirun_makes_one_folder_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = [*SMALL, "trainer.max_steps=1", "test=false", "-m", "seed=0,1"]
    assert call(monkeypatch, "train", *arguments) == 0
    (multirun,) = (tmp_path / "runs" / "synthetic" / "multirun").iterdir()
    assert sorted(path.name for path in multirun.iterdir() if path.is_dir()) == ["0", "1"]
    seeds = [(multirun / number / "config.yaml").read_text().split("seed: ")[1][0] for number in "01"]
    assert seeds == ["0", "1"]


@pytest.mark.parametrize(("code", "jobs"), [(1, [0, 1, 2]), (143, [0, 1]), (130, [0, 1])])
def test_no_further_job_of_a_multirun_begins_once_one_was_stopped(
    code: int, jobs: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    begun: list[int] = []

    def stopped_in_the_second(config: Any) -> int:
        begun.append(config.seed)
        return code if config.seed == 1 else 0

    assert run_application("train", ["-m", "seed=0,1,2"], stopped_in_the_second) == code
    assert begun == jobs


def test_a_refused_multirun_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call(monkeypatch, "train", *SMALL, "-m", "seed=-1,-2") == 2
    assert "seed must be a whole number from 0" in capsys.readouterr().err
    assert call(monkeypatch, "train", *SMALL, "ckpt_path=nowhere.ckpt") == 2
    assert "there is no such checkpoint" in capsys.readouterr().err
    assert call(monkeypatch, "train", *SMALL, "-m", "seed=1,2", "trainer.max_stepz=1") == 2
    assert "did you mean 'trainer.max_steps'?" in capsys.readouterr().err
    assert call(monkeypatch, "bench", "bench=nothing") == 2
    assert not list(tmp_path.iterdir())


def test_two_runs_never_share_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    with holding(run):
        assert call(monkeypatch, "train", *SMALL, f"paths.output_dir={run}") == 1
        assert "is in use by a run that has not ended" in capsys.readouterr().err
        assert not list(run.iterdir())
    assert not run.exists()


def test_what_a_killed_run_left_half_written_is_removed_and_nobody_else_s_hidden_files(tmp_path: Path) -> None:
    mine = (".zcompdump-host-5.8", ".notes.2024", ".history.1", "metrics.csv")
    left = ("checkpoints/.last.ckpt.123", ".config.yaml.9", ".metrics.json.my.host.12", ".report.html.5.part")
    left += (".model.77.partial/model.safetensors", "loader/sequences.json", ".loader.writing/arrays-000.npy")
    left += ("loader1/sequences.json", ".loader1.writing/arrays-000.npy")  # of rank 1
    for name in (*mine, *left, "other/loader/__init__.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).touch()
    (tmp_path / ".cache.3").mkdir()
    with holding(tmp_path), holding(tmp_path / "other"):
        there = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")}
    assert there == {"checkpoints", ".cache.3", "other", "other/loader", "other/loader/__init__.py", *mine}


def test_what_stands_half_written_in_a_run_folder_has_a_name_that_the_next_run_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every file of a run and its model, caught in the moment before it is renamed."""
    seen: set[str] = set()
    sync = os.fsync

    def look(number: int) -> None:
        seen.update(path.name for path in tmp_path.rglob(".*"))
        sync(number)

    monkeypatch.setattr(os, "fsync", look)
    assert call(monkeypatch, "train", *SMALL, f"paths.output_dir={tmp_path / 'run'}") == 0
    assert len(seen) == 10
    for name in seen:
        (tmp_path / name).touch()
    with holding(tmp_path):
        assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_no_secret_of_the_settings_is_in_any_file_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a URL carries is left out of the report and the model too."""
    run = tmp_path / "run"
    logger = f"{{_target_: lightning.pytorch.loggers.CSVLogger, save_dir: {tmp_path}, prefix: 'ftp://u:hunter3@h'}}"
    given = ["tags=[a,'https://me:hunter2@host']", f"+logger.c={logger}", f"paths.output_dir={run}"]
    assert call(monkeypatch, "train", *SMALL, "trainer.max_steps=1", *given) == 0
    files = [path for path in run.rglob("*") if path.is_file()]
    assert len(files) >= 10
    for path in files:
        assert b"hunter" not in path.read_bytes(), path
    assert "https://***@host" in (run / "report.html").read_text()


def test_train_false_evaluates_the_weights_of_the_file_that_is_named_and_of_a_run_the_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert call(monkeypatch, "train", *SMALL, "test=false", f"paths.output_dir={run}") == 0
    files = {name: run / "checkpoints" / f"{name}.ckpt" for name in ("last", "best")}
    held = {
        name: read_checkpoint(file)["state_dict"]["model.heads.label.project.weight"] for name, file in files.items()
    }
    assert not held["last"].equal(held["best"])
    for number, (given, expected) in enumerate([(files["last"], "last"), (files["best"], "best"), (run, "best")]):
        there = tmp_path / str(number)
        told = [f"ckpt_path={given}", "train=false", f"paths.output_dir={there}"]
        assert call(monkeypatch, "train", *SMALL, "test=false", *told) == 0
        assert f"evaluating {files[expected]}" in capsys.readouterr().out
        weights = dict(load_model(there / "model").named_parameters())["heads.label.project.weight"]
        assert weights.detach().equal(held[expected])
    write_checkpoint({"weights": 3}, tmp_path / "other.ckpt")
    told = [f"ckpt_path={tmp_path / 'other.ckpt'}", "train=false", f"paths.output_dir={tmp_path / 'other'}"]
    assert call(monkeypatch, "train", *SMALL, *told) == 1
    assert "other.ckpt holds no weights: it lacks state_dict" in capsys.readouterr().err
