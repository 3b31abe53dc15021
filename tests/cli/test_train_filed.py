"""A market with filings among its events from the configuration to scores, and the leak that ends the run."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
from small_run import call

from quantattn import load_model

SMALL = [
    *("experiment=filed_market", "data.source.entities=3", "data.source.events_per_entity=2048"),
    *("trainer.max_steps=2", "trainer.validate_every=2", "trainer.threads=1"),
]
LEAK = '''
from dataclasses import replace
import polars as pl
from quantattn.data.filings.filed_market import FiledMarket
from quantattn.data.market.filed import with_filings

def accepted(seed=0):
    """Filings join the market when EDGAR accepts them, a quarter of an hour before they are public."""
    market = FiledMarket(entities=3, events_per_entity=2048)
    honest = market.vectors()
    early = replace(honest, frame=honest.frame.with_columns(available_time="event_time"))
    joined = with_filings(market.events(), early)
    public = pl.lit(honest.frame["available_time"]).gather(pl.col("filing").cast(pl.UInt32))
    return replace(joined, frame=joined.frame.with_columns(filing_available_time=public))
'''


def test_from_the_configuration_to_scores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "run"
    assert call(monkeypatch, "train", *SMALL, f"paths.output_dir={run}") == 0
    table = json.loads((run / "metrics.json").read_text())["table"]
    bound = next(row for row in table["rows"] if row["method"] == "Bayes bound")
    assert bound["figures"]["log_loss"]["value"] == pytest.approx(0.3198, abs=1e-4)
    model = load_model(run / "model")
    assert {name: len(scale) for name, scale in model.encoder.config.vectors.items()} == {"filing": 64}
    given = [f"model={run / 'model'}", "data=synthetic_filed", "data.source.entities=3"]
    assert call(monkeypatch, "score", *given, "data.source.events_per_entity=2048", f"out={tmp_path / 'out'}") == 0
    assert pl.read_delta(str(tmp_path / "out")).height > 100


def test_the_control_reads_no_filing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "run"
    assert call(monkeypatch, "train", *SMALL, "data.source.read=false", "test=false", f"paths.output_dir={run}") == 0
    assert load_model(run / "model").encoder.config.vectors == {}


def test_a_filing_before_it_was_public_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "leaking_market.py").write_text(LEAK)
    monkeypatch.syspath_prepend(tmp_path)
    arguments = [*SMALL[:1], *SMALL[3:], "~data.source", "+data.source={_target_: leaking_market.accepted}"]
    run = tmp_path / "run"
    code = call(monkeypatch, "train", *arguments, "allow_targets=[leaking_market.]", f"paths.output_dir={run}")
    assert code == 1
    assert "feature later than the decision: row" in capsys.readouterr().err
    assert not (run / "model").exists()
