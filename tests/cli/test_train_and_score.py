"""From a command line to a run folder, and from there to a table of scores."""

from __future__ import annotations

import csv
import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from small_run import SMALL, call

from quantattn import load_model
from quantattn.attention import machine
from quantattn.attention.certificate import Certificate, Finding
from quantattn.cli import certify
from quantattn.cli import score as score_command
from quantattn.cli import train as train_command
from quantattn.learn.checkpoint import read_checkpoint
from quantattn.nn import save_pretrained

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "whole"
    with pytest.MonkeyPatch.context() as patch:
        assert call(patch, "train", *SMALL, "seed=0", "tags=[a,b]", f"paths.output_dir={folder}") == 0
    return folder


def test_a_run_folder_holds_everything_that_is_needed_to_trace_a_number(finished: Path) -> None:
    names = {path.name for path in finished.iterdir()}
    assert names == {
        "certificate.json",
        "checkpoints",
        "config.yaml",
        "data.json",
        "environment.json",
        "metrics.csv",
        "metrics.json",
        "model",
        "report.html",
        "tuning.json",
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
    certificate = json.loads((finished / "certificate.json").read_text())
    assert certificate["ok"]
    assert {f["backend"] for f in certificate["findings"]} == {"sdpa"}
    assert {f["dtype"] for f in certificate["findings"]} == {"float32"}
    page = (finished / "report.html").read_text()
    assert "sdpa in float32 is within" in page
    assert page.count(load_model(finished / "model").artefact.sha) == 1
    checks = page.split("<h2>Checks</h2>")[1].split("</ul>")[0]
    idle = [check for check in data["audit"]["checks"] if check["verdict"] == "not run"]
    assert idle
    assert checks.count("<span>not run</span>") == len(idle)
    assert checks.count("<span>passed</span>") == len(data["audit"]["checks"]) - len(idle) + 1
    assert "<svg" in page
    assert "http://" not in page.replace("http://www.w3.org", "")


def test_the_model_folder_loads_and_keeps_how_its_data_were_made(finished: Path) -> None:
    model = load_model(finished / "model")
    assert model.artefact is not None
    assert model.artefact.extra["data"]["max_seq_len"] == 330  # type: ignore[index]
    assert model.artefact.extra["classes"] == ["down", "up"]
    certificate = Certificate.from_json((finished / "certificate.json").read_text())
    assert model.artefact.extra["certificate"] == certificate.sha
    certified: Any = model.artefact.extra["certified"]
    assert certified["versions"] == {name: v for name, v in certificate.versions.items() if name != "python"}
    assert certified["sources"] == certificate.sources


@pytest.mark.parametrize(
    "certified", [None, 3, {"versions": [1]}, {"versions": {"torch": 3}, "sources": {"kernels": 4}}]
)
def test_a_folder_may_say_anything_of_its_certificate(certified: object) -> None:
    said = certify.expired({"certified": certified})
    assert said is None or said.startswith("the certificate is for torch 3 and torch is ")


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


def test_a_killed_run_goes_on_and_ends_where_the_whole_one_did(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGTERM in the middle of training: exit code 143 after saving; `ckpt_path=auto` does the rest, bit for bit."""
    folder = tmp_path / "parts"
    given = [*SMALL, "seed=0", f"paths.output_dir={folder}", "ckpt_path=auto"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    slow = [sys.executable, str(ROOT / "train.py"), *given, "trainer.checkpoint_every=1"]
    process = subprocess.Popen(slow, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 600
    while not (folder / "checkpoints" / "last.ckpt").exists() and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    said, complained = process.communicate(timeout=600)
    # A run of six steps may have ended before the signal reached it.
    assert process.returncode in (0, 143), complained
    if process.returncode == 143:
        assert b"goes on" in said
        assert not (folder / "metrics.json").exists()
        monkeypatch.chdir(tmp_path)
        assert call(monkeypatch, "train", *given) == 0
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
    certified: Any = load_model(finished / "model").artefact.extra["certified"]  # type: ignore[union-attr]
    monkeypatch.setattr(machine, "sources", lambda: certified["sources"])  # whoever edits them while the tests run
    assert call(monkeypatch, "score", *arguments) == 0
    table = pl.read_delta(str(tmp_path / "scores")).sort("key")
    assert table["key"].to_list() == list(range(table.height))
    assert set(table["entity"]) == {"SYN000000", "SYN000001"}
    assert (table["prob_down"] + table["prob_up"] - 1).abs().max() < 1e-6
    assert table["model_sha"].n_unique() == table["plan_sha"].n_unique() == 1
    assert call(monkeypatch, "score", *arguments) == 0
    on = [*arguments, f"out={tmp_path / 'on'}"]
    assert call(monkeypatch, "score", *on, "deterministic=on") == 0
    assert call(monkeypatch, "score", *on, "deterministic=true") == 0, "what a YAML file makes of a bare on"
    capsys.readouterr()
    assert call(monkeypatch, "score", *arguments, "deterministic=on") == 1
    assert "(policy.deterministic batch → on, policy.max_tokens none → 32768)" in capsys.readouterr().err
    assert pl.read_delta(str(tmp_path / "scores")).height == table.height
    assert "certified" not in capsys.readouterr().out
    monkeypatch.setattr(machine, "versions", lambda: {"torch": "9.9", "triton": "9", "quantattn": "9"})
    assert call(monkeypatch, "score", *arguments) == 0
    assert "the model's attention is not certified for this installation" in capsys.readouterr().out
    assert call(monkeypatch, "score", f"model={tmp_path / 'no'}", *arguments[1:]) == 2
    assert "no: there is no such folder" in capsys.readouterr().err
    assert call(monkeypatch, "score", *arguments, "data.source.seed=8") == 1
    assert "name another folder with out=DIR" in capsys.readouterr().err


def test_a_place_where_no_scores_can_go_is_refused_before_anything_is_loaded(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(score_command, "load_model", lambda *given, **named: pytest.fail("the model was loaded"))
    assert call(monkeypatch, "score", f"model={finished / 'model'}", f"out={tmp_path / 'file'}") == 1
    assert "file is no folder; name another with out=DIR" in capsys.readouterr().err
    monkeypatch.chdir(tmp_path)
    assert call(monkeypatch, "score", f"model={finished / 'model'}", "out=") == 2
    assert "out must name a folder, got nothing" in capsys.readouterr().err
    assert call(monkeypatch, "score", "model=", "out=scores") == 2
    assert "model must name a folder, got nothing" in capsys.readouterr().err


def test_a_job_that_is_stopped_before_it_scores_leaves_with_143(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(score_command, "load_model", lambda *given, **named: os.kill(os.getpid(), signal.SIGTERM))
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit, match="143"):
        call(monkeypatch, "score", f"model={finished / 'model'}", f"out={tmp_path / 'out'}")
    assert signal.getsignal(signal.SIGTERM) is before


def test_by_batch_the_budget_of_tokens_changes_no_score(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = [f"model={finished / 'model'}", "data=synthetic", "data.source.entities=2", "data.source.seed=9"]
    arguments += ["data.source.events_per_entity=768", "deterministic=batch"]
    tables = []
    for tokens in (330, 4000):
        out = tmp_path / str(tokens)
        assert call(monkeypatch, "score", *arguments, f"out={out}", f"max_tokens_per_batch={tokens}") == 0
        tables.append(pl.read_delta(str(out)).sort("key").select("key", "prob_down", "prob_up"))
    assert tables[0].equals(tables[1])
    assert tables[0].height > 20, "decisions that stand alone in the small budget share a batch in the large one"
    assert call(monkeypatch, "score", *arguments[:-1], "deterministic=maybe", f"out={tmp_path / 'no'}") == 2


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"prepare": [1]}, "data.prepare must be a group of settings"),
        ({"max_seq_len": "x"}, "data.max_seq_len must be"),
    ],
)
def test_a_model_folder_that_tells_nonsense_of_its_data_is_refused(
    change: dict[str, object],
    sentence: str,
    finished: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = load_model(finished / "model")
    assert model.artefact is not None
    extra = {**model.artefact.extra, "data": {**model.artefact.extra["data"], **change}}  # type: ignore[dict-item]
    save_pretrained(model, tmp_path / "model", vocabulary_json=model.artefact.vocabulary_json, extra=extra)
    assert call(monkeypatch, "score", f"model={tmp_path / 'model'}", f"out={tmp_path / 'out'}") == 2
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_attention_that_fails_its_certificate_fails_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = Finding("sdpa", "random", "float32", "forward", 1.0, 1e-6, 2e-6, "fail")
    monkeypatch.setattr(certify, "_validated", lambda *asked: Certificate("cpu", {}, (wrong,)))
    run = tmp_path / "run"
    assert call(monkeypatch, "train", *SMALL, f"paths.output_dir={run}") == 1
    said = capsys.readouterr().err
    assert "Not certified: 1 of 1 checks failed" in said
    assert said.count("\n") == 1
    assert not json.loads((run / "certificate.json").read_text())["ok"]
    assert not (run / "model").exists()


PRETRAINING = {
    "masked_events": ["model.causal=false"],
    "next_event": ["model.causal=true"],
}


@pytest.mark.parametrize("objective", PRETRAINING)
def test_pretraining_on_a_market_ends_with_a_report_beside_what_frequencies_give(
    objective: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    given = [*SMALL, f"objective={objective}", "labels=none", "data.prepare.layout=windows", *PRETRAINING[objective]]
    assert call(monkeypatch, "train", *given, "trainer.max_steps=2", f"paths.output_dir={run}") == 0
    model = load_model(run / "model")
    assert model.decision_heads() == {}
    table = json.loads((run / "metrics.json").read_text())["table"]
    losses = {row["method"]: row["figures"]["log_loss"]["value"] for row in table["rows"]}
    assert list(losses) == ["encoder", "unigram", "uniform"]
    fields = model.head_configs["events"].fields  # type: ignore[union-attr]
    expected = sum(math.log(model.encoder.config.codes[name]) for name in fields) / len(fields)
    assert losses["uniform"] == pytest.approx(expected, rel=1e-5)
    assert losses["unigram"] < losses["encoder"] < losses["uniform"] * 1.01, "two steps teach next to nothing"
    page = (run / "report.html").read_text()
    assert "what is predicted are events of the data themselves, in the fields " in page
    assert "does the next trade lift the price" not in page.split("Settings")[0]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["model.causal=false"], "a bidirectional encoder would see what follows"),
        (["labels=none"], "labels=none goes with objectives that predict the data"),
        (["objective=next_event", "labels=none"], "use data.prepare.layout=windows"),
        (["objective=next_event", "model.causal=false"], "objective=next_event needs model.causal=true"),
        (["attention.backend=triton", "trainer.precision=bf16-mixed"], "attention.backend 'triton' cannot run this"),
        (
            ["trainer.precision=64-true"],
            "must be one of 32-true, bf16-mixed, 16-mixed, got '64-true'",
        ),
        (["trainer.precision=16-mixed"], "trainer.precision=16-mixed needs trainer=gpu"),
    ],
)
def test_goals_that_do_not_go_with_the_data_are_refused_before_any_are_read(
    arguments: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(train_command, "prepare", lambda *given: pytest.fail("data were read"))
    assert call(monkeypatch, "train", *SMALL, *arguments, f"paths.output_dir={tmp_path / 'run'}") == 2
    assert sentence in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
