"""From one multirun over seeds to one model, its report beside its members, and its scores with their spread."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from small_run import SMALL, call

from quantattn import load_model
from quantattn.nn import Ensemble


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a multirun over two seeds."""
    place = tmp_path_factory.mktemp("seeds")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        assert call(patch, "train", *SMALL, "trainer.max_steps=3", "conformal=0.8", "test=false", "-m", "seed=1,2") == 0
        (multirun,) = (place / "runs" / "synthetic" / "multirun").iterdir()
        assert call(patch, "ensemble", str(multirun), "--out", str(place / "ensemble")) == 0
    return multirun


def test_a_multirun_becomes_one_model_that_is_judged_beside_its_members(seeds: Path) -> None:
    folder = seeds.parents[3] / "ensemble"
    names = {path.name for path in folder.iterdir()}
    assert names == {"config.yaml", "data.json", "environment.json", "metrics.json", "model", "report.html"}
    metrics = json.loads((folder / "metrics.json").read_text())
    rows = {row["method"]: row["figures"]["log_loss"]["value"] for row in metrics["table"]["rows"]}
    assert list(rows)[:3] == ["ensemble", "seed 1 (0)", "seed 2 (1)"]
    assert {"majority class", "Bayes bound"} <= set(rows)
    mean = (rows["seed 1 (0)"] + rows["seed 2 (1)"]) / 2
    assert rows["ensemble"] < mean == pytest.approx(metrics["figures"]["members/log_loss"], rel=1e-12)
    model = load_model(folder / "model")
    assert isinstance(model, Ensemble)
    for place, member in enumerate(model.members):
        alone = load_model(seeds / str(place) / "model").state_dict()
        assert all((alone[name] == value).all() for name, value in member.state_dict().items())
    assert model.artefact is not None
    first = load_model(seeds / "0" / "model").artefact
    assert first is not None
    own: Any = model.artefact.extra["conformal"]
    assert dict(model.artefact.extra) == {**first.extra, "members": ["seed 1 (0)", "seed 2 (1)"], "conformal": own}
    assert own["radius"] != first.extra["conformal"]["radius"], "it is the mean that is calibrated"  # type: ignore[index]
    assert own["rows"] == 11
    figures = metrics["figures"]
    assert figures["test/coverage_low"] <= figures["test/coverage"] <= figures["test/coverage_high"]
    assert "Conformal coverage" in (folder / "report.html").read_text()


def test_its_scores_have_their_spread_beside_them(seeds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = ["data=synthetic", "data.source.entities=1", "data.source.events_per_entity=2048"]
    tables = []
    for name in ("0", "1", "ensemble"):
        model = (seeds.parents[3] if name == "ensemble" else seeds) / name / "model"
        assert call(monkeypatch, "score", *given, f"model={model}", f"out={tmp_path / name}") == 0
        tables.append(pl.read_delta(str(tmp_path / name)).sort("key"))
    one, two, whole = tables
    assert whole["prob_up"].equals(((one["prob_up"].cast(float) + two["prob_up"].cast(float)) / 2).cast(pl.Float32))
    apart = (one["prob_up"] - two["prob_up"]).abs() / 2
    assert (whole["spread_prob_up"] - apart).abs().max() < 1e-6
    assert whole["disagreement"].min() >= 0
    kept: Any = load_model(seeds.parents[3] / "ensemble" / "model").artefact.extra["conformal"]  # type: ignore[union-attr]
    for name in ("down", "up"):
        assert whole[f"set_{name}"].to_list() == [1 - p <= kept["radius"] for p in whole[f"prob_{name}"].to_list()]
    assert "trials" not in whole.columns


def test_what_makes_no_ensemble_is_refused_and_leaves_nothing(
    seeds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    shutil.copytree(seeds / "1", other)
    (tmp_path / "empty").mkdir()
    out, first = tmp_path / "out", str(seeds / "0")

    def refused(code: int, sentence: str, *runs: str) -> None:
        assert call(monkeypatch, "ensemble", *runs, "--out", str(out)) == code
        said = capsys.readouterr().err
        assert sentence in said
        assert said.count("\n") == 1
        assert not out.exists()

    refused(2, "a run is named twice", first, first)
    assert call(monkeypatch, "train", *SMALL, "conformal=0.99", f"paths.output_dir={out}") == 1
    assert "conformal=0.99 needs 99 validation rows with an outcome or more, there are 11" in capsys.readouterr().err
    assert not (out / "checkpoints").exists(), "before anything is trained"
    shutil.rmtree(out)
    assert call(monkeypatch, "train", *SMALL, "conformal=90", f"paths.output_dir={out}") == 2
    assert "conformal must be a share between 0 and 1, such as 0.9, got 90" in capsys.readouterr().err
    refused(2, "empty is no run that has ended", first, str(tmp_path / "empty"))
    config = (other / "config.yaml").read_text()
    (other / "config.yaml").write_text(config.replace("n_bins: 8", "n_bins: 9"))
    refused(2, "was run with another data.prepare.n_bins (8, now 9)", first, str(other))
    (other / "config.yaml").write_text(config)
    data = json.loads((other / "data.json").read_text())
    name = next(iter(data["hashes"]))
    (other / "data.json").write_text(json.dumps({**data, "hashes": {**data["hashes"], name: "0"}}))
    refused(1, f"the data have changed since {other} was run: {name} is not what it was", first, str(other))
    assert call(monkeypatch, "ensemble", first, "--out", str(seeds / "1")) == 2
    assert "holds a run or an ensemble already" in capsys.readouterr().err
    assert (
        call(monkeypatch, "train", *SMALL, f"tuning.start={seeds.parents[3] / 'ensemble'}", f"paths.output_dir={out}")
        == 1
    )
    assert "tuning.start names an ensemble" in capsys.readouterr().err
