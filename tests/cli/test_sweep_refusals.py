"""What a sweep refuses, in one sentence, before anything is made and without a password."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_run import call

from quantattn.cli.searching.space import as_override

pytest.importorskip("optuna", reason="the extra sweep is not installed")

WRONG = [
    (["+space.modle=[tiny,small]"], "space: unknown setting 'modle'; did you mean 'model'?"),
    (
        ["+space.model=[tiny,smal]", "~space.optimizer"],
        "space: model=smal: there is no such model; did you mean 'small'?",
    ),
    (["space.optimizer.lr={low: -1, high: 1, log: false}"], "lr: -1 cannot be tried: optimizer: Invalid learning"),
    (["optimizer.lr=0.1"], "optimizer.lr is searched over and given as well"),
    (["optimized_metric=test/log_loss"], "optimized_metric=test/log_loss: trials are never compared on test rows"),
    (["trainer=ddp", "trainer.accelerator=cpu"], "a trial runs in one process, and trainer.devices=2 asks for more"),
    (["paths.output_dir=x"], "a sweep sets paths.output_dir itself"),
    (["-m", "seed=1,2"], "-m belongs to train"),
]


@pytest.mark.parametrize(("arguments", "sentence"), WRONG)
def test_what_is_wrong_is_said_in_one_sentence_before_anything_is_made(
    arguments: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call(monkeypatch, "sweep", *arguments) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("postgresql://me:hunter2@127.0.0.1:1/db", "No module named 'psycopg"),
        ("postgresql+pg8000://host/db?user=me&password=hunter2", "pg8000"),
    ],
)
def test_no_password_of_a_database_is_ever_said(
    url: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    given = ["~space.optimizer.weight_decay", f"sweep.storage={as_override(url)}"]
    assert call(monkeypatch, "sweep", *given) in (1, 2)
    said = capsys.readouterr()
    assert sentence in said.err
    assert said.err.count("\n") == 1
    assert "hunter2" not in said.out + said.err
    assert not list(tmp_path.iterdir())
