"""From a command line to a run folder, and from there to a table of scores."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pytest

from quantattn import load_model
from quantattn.cli import main
from quantattn.learn.checkpoint import read_checkpoint

ROOT = Path(__file__).resolve().parents[2]
SMALL = [
    "data.source.entities=3",
    "data.source.events_per_entity=4096",
    "data.source.channels=2",
    "data.max_seq_len=330",
    "data.max_tokens_per_batch=1320",
    "data.prepare.n_bins=8",
    "trainer.max_steps=6",
    "trainer.validate_every=3",
    "trainer.log_every=1",
    "trainer.threads=1",
]


def call(monkeypatch: pytest.MonkeyPatch, command: str, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["quantattn", *arguments])
    return main(command)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "whole"
    with pytest.MonkeyPatch.context() as patch:
        assert call(patch, "train", *SMALL, "seed=0", "tags=[a,b]", f"paths.output_dir={folder}") == 0
    return folder


def test_a_run_folder_holds_everything_that_is_needed_to_trace_a_number(finished: Path) -> None:
    names = {path.name for path in finished.iterdir()}
    assert names == {
        "checkpoints",
        "config.yaml",
        "data.json",
        "environment.json",
        "metrics.csv",
        "metrics.json",
        "model",
        "report.html",
    }
    data = json.loads((finished / "data.json").read_text())
    assert data["audit"]["passed"]
    assert data["hashes"]
    environment = json.loads((finished / "environment.json").read_text())
    assert {"commit", "packages", "gpu", "argv"} <= set(environment)
    metrics = json.loads((finished / "metrics.json").read_text())
    assert metrics["figures"]["test/log_loss"] > 0
    with (finished / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["step"]) for row in rows if row["metric"] == "train/loss"] == [1, 2, 3, 4, 5, 6]
    page = (finished / "report.html").read_text()
    assert "<svg" in page
    assert "http://" not in page.replace("http://www.w3.org", "")


def test_the_model_folder_loads_and_keeps_how_its_data_were_made(finished: Path) -> None:
    model = load_model(finished / "model")
    assert model.artefact is not None
    assert model.artefact.extra["data"]["max_seq_len"] == 330  # type: ignore[index]
    assert model.artefact.extra["classes"] == ["down", "up"]


def test_a_folder_that_holds_a_run_is_not_trained_over(
    finished: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (finished / "metrics.csv").read_bytes()
    assert call(monkeypatch, "train", *SMALL, f"paths.output_dir={finished}") == 1
    assert "holds a run already; ckpt_path=auto goes on with it" in capsys.readouterr().err
    arguments = [*SMALL, f"paths.output_dir={finished}", "ckpt_path=auto"]
    assert call(monkeypatch, "train", *arguments, "optimizer.lr=0.5") == 2
    assert "begun with another optimizer.lr (0.003, now 0.5)" in capsys.readouterr().err
    assert (finished / "metrics.csv").read_bytes() == before


def test_a_killed_run_goes_on_and_ends_where_the_whole_one_did(finished: Path, tmp_path: Path) -> None:
    """SIGTERM in the middle of training: exit code 143 after saving; `ckpt_path=auto` does the rest, bit for bit."""
    folder = tmp_path / "parts"
    command = [sys.executable, str(ROOT / "train.py"), *SMALL, "seed=0", f"paths.output_dir={folder}", "ckpt_path=auto"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    slow = [*command, "trainer.checkpoint_every=1"]
    process = subprocess.Popen(slow, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 90
    while not (folder / "checkpoints" / "last.ckpt").exists() and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    said, complained = process.communicate(timeout=90)
    # A run of six steps may have ended before the signal reached it.
    assert process.returncode in (0, 143), complained
    if process.returncode == 143:
        assert b"goes on" in said
        assert not (folder / "metrics.json").exists()
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, timeout=90)
        assert done.returncode == 0, done.stderr
    one, other = (read_checkpoint(path / "checkpoints" / "last.ckpt") for path in (finished, folder))
    assert one["global_step"] == other["global_step"] == 6
    assert all((one["state_dict"][name] == other["state_dict"][name]).all() for name in one["state_dict"])
    assert (finished / "metrics.csv").read_text() == (folder / "metrics.csv").read_text()
    assert not list(tmp_path.glob("runs"))


def test_scores_come_from_the_saved_vocabulary_one_row_a_decision(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [f"model={finished / 'model'}", f"out={tmp_path / 'scores'}", "shard_decisions=20"]
    arguments += [
        "data=synthetic",
        "data.source.entities=2",
        "data.source.events_per_entity=2048",
        "data.source.seed=9",
    ]
    assert call(monkeypatch, "score", *arguments) == 0
    table = pl.read_delta(str(tmp_path / "scores")).sort("key")
    assert table["key"].to_list() == list(range(table.height))
    assert set(table["entity"]) == {"SYN000000", "SYN000001"}
    assert (table["prob_down"] + table["prob_up"] - 1).abs().max() < 1e-6
    assert table["model_sha"].n_unique() == table["plan_sha"].n_unique() == 1
    assert call(monkeypatch, "score", *arguments) == 0
    assert pl.read_delta(str(tmp_path / "scores")).height == table.height
    capsys.readouterr()
    assert call(monkeypatch, "score", *arguments, "data.source.seed=8") == 1
    assert "name another folder with out=DIR" in capsys.readouterr().err


def test_a_multirun_makes_one_folder_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = [*SMALL, "trainer.max_steps=1", "test=false", "-m", "seed=0,1"]
    assert call(monkeypatch, "train", *arguments) == 0
    (multirun,) = (tmp_path / "runs" / "synthetic" / "multirun").iterdir()
    assert sorted(path.name for path in multirun.iterdir() if path.is_dir()) == ["0", "1"]
    seeds = [(multirun / number / "config.yaml").read_text().split("seed: ")[1][0] for number in "01"]
    assert seeds == ["0", "1"]


def test_pretraining_by_masked_events_leaves_a_model_and_a_test_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = [*SMALL, "objective=masked_events", "model.causal=false", "data.prepare.layout=windows"]
    assert call(monkeypatch, "train", *arguments, "trainer.max_steps=2", f"paths.output_dir={tmp_path / 'run'}") == 0
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["figures"]["test/loss"] > 0
    assert load_model(tmp_path / "run" / "model").decision_heads() == {}
