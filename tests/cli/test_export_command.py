"""`quantattn export`: the model of a run in another runtime, on the packs of the run's own data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from small_run import SMALL, call

from quantattn import load_model
from quantattn.cli.config import compose, plain
from quantattn.cli.preparation import decisions_of
from quantattn.data.pack import plan
from quantattn.nn.export import opened
from quantattn.nn.portable import inputs_of

pytestmark = pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning")


def test_the_model_of_a_run_answers_as_the_library_on_its_own_data(
    kept_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    out = tmp_path / "out"
    given = [f"model={kept_run / 'model'}", f"out={out}", "format=torch"]
    assert call(monkeypatch, "export", *given) == 0
    said = capsys.readouterr().out
    assert "pack 5 of 5: 32 sequences, 528 tokens" in said
    assert f"model.pt2 in {out}" in said
    (told,) = json.loads((out / "export.json").read_text())["outputs"]
    assert (told["name"], told["shape"], told["classes"]) == ("prob", ["Q", 2], ["down", "up"])

    model = load_model(kept_run / "model")
    artefact = model.artefact
    assert artefact is not None
    assert (out / "vocabulary.json").read_text() == artefact.vocabulary_json
    trained = artefact.extra["data"]
    assert isinstance(trained, Mapping)
    source = plain(compose("train", [s for s in SMALL if s.startswith("data.source")]))["data"]["source"]
    work = decisions_of(source, trained, artefact, ())
    run, asked = opened("torch", (out / "model.pt2").read_bytes()), 0
    for rows in plan(work.sequences.lengths, 1320, shuffle=False):
        batch = work.sequences.pack(rows)
        found = run(inputs_of(model.encoder.config, batch))
        torch.testing.assert_close(found["prob"], model.score(batch)["prob"], rtol=0, atol=1e-6)
        asked += len(batch.keys)
    assert asked == len(work.as_of) > 100

    (out / "notes.txt").write_text("mine")
    assert call(monkeypatch, "export", *given) == 1
    assert "holds notes.txt" in capsys.readouterr().err
    assert (out / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("given", "code", "words"),
    [
        (["model=nowhere", "out=there"], 2, "model=nowhere: there is no such folder"),
        (["model=.", "out=there", "format=tflite"], 2, "format='tflite'; there is onnx, torch"),
        (["model=", "out=there"], 2, "model must name a folder, got nothing"),
        (["model=.", "out=there", "format=torch"], 1, "model folder . must hold card.md"),
        (["model=.", "out=there", "formt=torch"], 2, "did you mean 'format'?"),
        (["model=."], 2, "out is missing"),
    ],
)
def test_what_cannot_be_exported_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, given: list[str], code: int, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call(monkeypatch, "export", *given) == code
    assert words in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
