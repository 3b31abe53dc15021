"""The whole line on a table: transactions and outcomes as CSV, a classifier, a report, scores of other clients."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
from small_run import call

from quantattn import load_model

TABLE = [
    "data.source.id=who",
    "data.source.time=day",
    "data.source.time_format=day",
    "data.source.columns={kind: category, amount: decimal2}",
]


def test_train_then_score(bank: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run = bank / "run"
    labels = ["labels=outcome", f"labels.path={bank / 'outcomes.csv'}", "labels.label=group"]
    steps = ["trainer.max_steps=2", "trainer.validate_every=1", "trainer.threads=1", f"paths.output_dir={run}"]
    steps += ["model.value_bins=4", "model.value_frequencies=2"]
    given = ["experiment=sberbank", "data=table", f"data.path={bank / 'events.csv'}", *TABLE, *labels, *steps]
    assert call(monkeypatch, "train", *given) == 0
    printed = capsys.readouterr().out
    assert "decisions: train 24, valid 8, test 8" in printed
    assert "model: 2 blocks of width 64 with 2 heads, all see everything; " in printed
    assert "day numbers are counted from 1970-01-01" in printed
    table = json.loads((run / "metrics.json").read_text())["table"]
    methods = [row["method"] for row in table["rows"]]
    assert methods[:3] == ["encoder", "majority class", "logistic regression"]
    assert (table["block_kind"], table["blocks"]) == ("entity", 8)
    assert json.loads((run / "data.json").read_text())["audit"]["passed"]
    encoder = load_model(run / "model").encoder
    held = [f"{sum(p.numel() for p in part.parameters()):,}" for part in (encoder.embedding, encoder.blocks)]
    assert f"; {held[0]} parameters in the embedding, {held[1]} in the blocks" in printed
    edges = encoder.config.value_edges
    assert {name: len(found) for name, found in edges.items()} == {"amount_value": 5, "gap_value": 5}
    assert "same history in two parts" in (run / "report.html").read_text()

    (bank / "new.csv").write_text("who,day,kind,amount\nx,3,games,1.00\nx,5,food,2.00\ny,4,never seen,\n")
    scoring = [
        "data=table",
        f"data.path={bank / 'new.csv'}",
        *TABLE,
        f"out={bank / 'scores'}",
        f"model={run / 'model'}",
    ]
    assert call(monkeypatch, "score", *scoring) == 0
    scores = pl.read_delta(str(bank / "scores")).sort("entity")
    assert scores["entity"].to_list() == ["x", "y"]
    assert scores["as_of"].to_list() == [5 * 86_400 * 10**9, 4 * 86_400 * 10**9]
    assert scores.select(pl.sum_horizontal("prob_old", "prob_young")).to_series().to_list() == pytest.approx([1, 1])
    other = [each.replace("decimal2", "decimal3") for each in scoring]
    capsys.readouterr()
    assert call(monkeypatch, "score", *other) == 1
    assert "column 'amount' is decimal3, but the tokens were fitted on decimal2" in capsys.readouterr().err
