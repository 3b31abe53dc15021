"""Every objective from its command to its report."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
import torch
from small_run import SMALL, call

from quantattn import load_model
from quantattn.learn.checkpoint import read_checkpoint

WINDOWS = ["labels=none", "data.prepare.layout=windows"]


def train(monkeypatch: pytest.MonkeyPatch, folder: Path, *arguments: str) -> dict[str, float]:
    """The figures of a run of two steps."""
    steps = ["trainer.max_steps=2", "trainer.validate_every=2"]
    assert call(monkeypatch, "train", *SMALL, *steps, *arguments, f"paths.output_dir={folder}") == 0
    figures: dict[str, float] = json.loads((folder / "metrics.json").read_text())["figures"]
    return figures


def test_the_time_of_the_next_event_is_reported_beside_one_law_for_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(monkeypatch, tmp_path / "run", "objective=next_event", "objective.time=lognormal", *WINDOWS)
    model = load_model(tmp_path / "run" / "model")
    assert [config.kind for config in model.head_configs.values()] == ["events", "time"]
    assert model.head_configs["time"].mean != 0  # type: ignore[union-attr]
    page = (tmp_path / "run" / "report.html").read_text()
    assert "The time until the next event: the encoder" in page
    assert "nll_time" in (tmp_path / "run" / "metrics.csv").read_text()


def test_quantiles_of_a_value_reach_the_model_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = train(monkeypatch, tmp_path / "run", "objective=quantile", "labels=realised_volatility")
    assert figures["test/mse"] > 0
    (config,) = load_model(tmp_path / "run" / "model").head_configs.values()
    assert config.levels == (0.05, 0.25, 0.5, 0.75, 0.95)  # type: ignore[union-attr]


def test_several_objectives_are_trained_at_once_and_the_labelled_one_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = train(
        monkeypatch, tmp_path / "run", "objective=several", "objective.parts.outcome.class_weights=balanced"
    )
    assert figures["test/log_loss"] > 0
    history = (tmp_path / "run" / "metrics.csv").read_text()
    assert "valid/outcome_accuracy" in history
    assert "valid/next_event_nll_kind_code" in history


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["objective=several", "objective.weights.outcome=0"], "weights.outcome must be positive"),
        (["objective=several", "model.causal=false"], "objective=next_event needs model.causal=true"),
        (["objective=several", "labels=none"], "labels=none goes with objectives that predict the data themselves"),
        (["objective=quantile"], "is classes, so objective=outcome is needed"),
        (["calibrate=true", "objective=ordinal", "labels=mid_move"], "it goes with objective=outcome or focal"),
        (["objective=coles", *WINDOWS], "have no closing table of their own: give test=false"),
        (["objective=focal", "objective.focal=-1"], "focal must be 0 or more, got -1"),
        (["objective=next_event", "objective.time=gamma", *WINDOWS], "density must be one of lognormal, exponential"),
        (["objective=masked_events", "objective.span=0", *WINDOWS], "span must be a whole number of tokens from 1"),
        (
            ["objective.class_weight=balanced"],
            "unknown setting 'objective.class_weight'; did you mean 'objective.class",
        ),
    ],
)
def test_objectives_that_cannot_be_are_refused_before_any_data(
    arguments: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert call(monkeypatch, "train", *SMALL, *arguments, f"paths.output_dir={tmp_path / 'run'}") == 2
    assert sentence in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_temperature_of_the_validation_rows_is_folded_into_the_model_that_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = train(monkeypatch, tmp_path / "run", "objective=focal", "calibrate=true")
    trained = read_checkpoint(tmp_path / "run" / "checkpoints" / "best.ckpt")["state_dict"]
    kept = load_model(tmp_path / "run" / "model").state_dict()
    for name, value in kept.items():
        scaled = trained[f"model.{name}"] / figures["temperature"] if name.startswith("heads.") else None
        assert torch.equal(value, trained[f"model.{name}"] if scaled is None else scaled)
    assert figures["temperature"] != 1


@pytest.mark.filterwarnings("default")  # MLflow's own, of what its database layer is about to drop
def test_mlflow_keeps_the_figures_and_settings_of_a_run_in_one_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow", reason="MLflow is not here (pip install 'quantattn[mlflow]')")
    train(monkeypatch, tmp_path / "run", "logger=mlflow", "test=false", f"paths.log_dir={tmp_path}")
    with closing(sqlite3.connect(tmp_path / "mlflow.db")) as database:
        kept = dict(database.execute("select key, value from metrics where key like 'valid/%'").fetchall())
        settings = dict(database.execute("select key, value from params").fetchall())
        (status,) = database.execute("select status from runs").fetchone()
    rows = [line.split(",") for line in (tmp_path / "run" / "metrics.csv").read_text().splitlines()[1:]]
    assert kept == {name: pytest.approx(float(value)) for _, name, value in rows if name.startswith("valid/")}
    assert (settings["trainer.max_steps"], settings["objective.focal"], status) == ("2", "0.0", "FINISHED")
