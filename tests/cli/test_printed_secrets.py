"""What Hydra prints of the settings, and what it writes of a multirun, has no password in it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from omegaconf import DictConfig, OmegaConf
from small_run import call

from quantattn.cli.config import NOTE, run_application
from quantattn.cli.errors import UsageError

GIVEN = ["+logger.wandb.api_key=hunter2", "data.path=s3://me:hunter2@bucket/a"]


@pytest.mark.parametrize(
    "flags", [["--cfg", "job"], ["--cfg", "all"], ["--cf", "job"], ["--help"], ["--info", "config"]]
)
def test_settings_are_printed_without_passwords(
    flags: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with suppress(SystemExit):  # by which Hydra leaves after --help
        call(monkeypatch, "train", *flags, *GIVEN)
    said = capsys.readouterr().out
    assert "hunter2" not in said
    assert "s3://***@bucket/a" in said
    assert "'***'" in said
    assert "task_name" in said or "max_seq_len" in said


NESTED = ["+logger.wandb.api_key=hunter2", "+logger.wandb.token={a: hunter2, b: [hunter2]}"]


@pytest.mark.parametrize(
    "flags",
    [
        "-p logger.wandb.api_key",
        "-plogger.wandb.api_key",
        "--package=logger.wandb.api_key",
        "--pack logger.wandb.api_key",
        "-p logger.wandb.token",
        "-p logger.wandb.token.b[0]",
    ],
)
def test_a_secret_alone_is_printed_as_little_as_among_others(
    flags: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "train", "--cfg", "job", *flags.split(), *NESTED) == 0
    assert capsys.readouterr().out == "'***'\n"


@pytest.mark.parametrize(("name", "said"), [("seed", "0\n"), ("none.secret", "")])
def test_what_is_no_secret_is_printed_alone(
    name: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with suppress(SystemExit):  # where there is no such setting
        call(monkeypatch, "train", "--cfg", "job", "-p", name)
    assert capsys.readouterr().out == said


def test_what_is_printed_are_settings_still(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "train", "--cfg", "job", *GIVEN, NESTED[1]) == 0
    printed = OmegaConf.create(capsys.readouterr().out)
    assert dict(printed.logger.wandb) == {"api_key": "***", "token": "***"}
    assert (printed.data.path, printed.seed, printed.model.size) == ("s3://***@bucket/a", 0, "tiny")


def test_a_multirun_is_written_down_without_passwords_and_runs_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    seen = []

    def job(config: DictConfig) -> int:
        (note,) = tmp_path.rglob(NOTE)
        seen.append((config.seed, config.logger.wandb.api_key, config.data.path, note.read_text()))
        print("as it goes")
        assert "as it goes" in capsys.readouterr().out
        (note.parent / "begun").touch()
        return 0

    assert run_application("train", ["-m", "seed=1,2", *GIVEN], job) == 0
    assert [each[:3] for each in seen] == [(seed, "hunter2", "s3://me:hunter2@bucket/a") for seed in (1, 2)]
    for *_, note in seen:
        assert "hunter2" not in note
        assert "s3://***@bucket/a" in note


def test_no_sentence_says_a_password(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def run(arguments: list[str]) -> int:
        raise UsageError("no s3://me:hunter2@bucket/a")

    monkeypatch.setattr("quantattn.cli.doctor.run", run)
    assert call(monkeypatch, "doctor") == 2
    assert capsys.readouterr().err == "quantattn doctor: no s3://***@bucket/a\n"
