"""Pretrain, fine-tune, probe: three experiments, a command each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from small_run import SMALL, call

from quantattn import load_model

SHORT = [*SMALL, "trainer.max_steps=2", "trainer.validate_every=2"]


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "pretrained"
    with pytest.MonkeyPatch.context() as patch:
        assert call(patch, "train", "experiment=pretrain", *SHORT, f"paths.output_dir={folder}") == 0
    return folder


def encoders(*runs: Path) -> list[dict[str, torch.Tensor]]:
    return [dict(load_model(run / "model").encoder.state_dict()) for run in runs]


def test_a_probe_leaves_the_encoder_as_it_was_pretrained_to_the_bit(
    pretrained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    arguments = ["experiment=probe", *SHORT, f"tuning.start={pretrained}", f"paths.output_dir={run}"]
    assert call(monkeypatch, "train", *arguments) == 0
    said = capsys.readouterr().out
    assert f"weights of {pretrained}: 19 of 21 tensors taken" in said
    assert "heads.label.project.* (2) (it has no such head)" in said
    before, after = encoders(pretrained, run)
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    account = json.loads((run / "tuning.json").read_text())
    assert account["trained"] == 2 * 64 + 2
    assert "tensors taken" in (run / "report.html").read_text()


def test_fine_tuning_moves_every_layer_and_adapters_leave_a_model_like_any_other(
    pretrained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuned, adapted = tmp_path / "tuned", tmp_path / "adapted"
    start = [f"tuning.start={pretrained}", *SHORT]
    both = ["optimizer=muon", "callbacks=ema", "trainer.schedule=cooldown"]
    assert call(monkeypatch, "train", "experiment=fine_tune", *start, *both, f"paths.output_dir={tuned}") == 0
    assert call(monkeypatch, "train", "tuning=adapters", *start, f"paths.output_dir={adapted}") == 0
    before, after, merged = encoders(pretrained, tuned, adapted)
    assert not any(torch.equal(value, after[name]) for name, value in before.items() if value.ndim == 2)
    changed = {name for name, value in before.items() if not torch.equal(value, merged[name])}
    assert changed == {name for name, value in before.items() if ".blocks." in f".{name}" and value.ndim == 2}


def test_a_model_that_may_have_seen_the_test_rows_is_refused(
    pretrained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    later = ["splits.test=0.5", "splits.valid=0.1"]
    arguments = ["experiment=probe", *SHORT, *later, f"tuning.start={pretrained}", f"paths.output_dir={tmp_path / 'r'}"]
    assert call(monkeypatch, "train", *arguments) == 1
    assert "it may have seen what it would be tested on" in capsys.readouterr().err


def test_another_encoder_is_refused_by_the_setting_that_differs(
    pretrained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[Any]
) -> None:
    arguments = ["experiment=probe", *SHORT, "model.n_heads=4", f"tuning.start={pretrained}"]
    assert call(monkeypatch, "train", *arguments, f"paths.output_dir={tmp_path / 'run'}") == 1
    assert "do not fit: its encoder has n_heads=2, this one 4" in capsys.readouterr().err
