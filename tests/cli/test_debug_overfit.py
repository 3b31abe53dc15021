"""One batch again and again: it is learnt by heart, or the run fails; and the settings as a tree."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_run import SMALL, call

from quantattn.learn.history import curves
from quantattn.learn.overfit import Overfit

DATA = [each for each in SMALL if each.startswith("data.")] + ["trainer.threads=1", "debug=overfit"]


def test_a_model_that_can_learn_knows_one_batch_by_heart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    given = [*DATA, "trainer.log_every=1", "print_config=true"]
    assert call(monkeypatch, "train", *given, f"paths.output_dir={run}") == 0
    losses = curves(run / "metrics.csv")["train/loss"][1]
    assert losses[-1] <= 0.05 < losses[-2]
    assert len(losses) < 100
    said = capsys.readouterr().out
    assert "├── seed: 0" in said
    assert "│   └── one_batch: true" in said
    assert not (run / "report.html").exists(), "the test rows are not looked at"


def test_a_model_that_cannot_learn_fails_with_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [
        *DATA,
        "optimizer.lr=1e-9",
        "trainer.max_steps=2",
        "trainer.log_every=1",
        f"paths.output_dir={tmp_path}/run",
    ]
    assert call(monkeypatch, "train", *given) == 1
    said = capsys.readouterr().err
    assert "one batch is not learnt by heart: after 2 steps its loss is 0.6931, 0.6931 at first, expected 0.05" in said
    assert said.count("\n") == 1
    assert not (tmp_path / "run" / "model").exists()
    assert call(monkeypatch, "train", *DATA, "trainer.accumulate=2", f"paths.output_dir={tmp_path}/no") == 2
    assert "trainer.one_batch=true needs trainer.max_steps and one batch a step" in capsys.readouterr().err
    with pytest.raises(ValueError, match="at_most must be a positive number, got 0"):
        Overfit(0)
