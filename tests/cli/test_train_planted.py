"""Made filings from the configuration to the closing table, which has the best that is possible."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from quantattn.cli import main
from quantattn.data.filings.planted import PlantedFilings

LAW = PlantedFilings()


@pytest.mark.parametrize("window", [2_048, 512])
def test_the_closing_table_has_the_known_optimum(
    window: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    given = ["data.source.filings=30", "data.source.companies=10", "data.source.distance=600", "data.source.copies=4"]
    few = ["trainer.max_steps=2", "trainer.validate_every=2", "trainer.threads=1", "data.max_tokens_per_batch=4096"]
    arguments = ["experiment=planted_filings", *given, *few, f"data.max_seq_len={window}", f"paths.output_dir={run}"]
    monkeypatch.setattr(sys, "argv", ["quantattn", *arguments])
    assert main("train") == 0
    table = json.loads((run / "metrics.json").read_text())["table"]
    rows = {row["method"]: row["figures"] for row in table["rows"]}
    assert rows["Bayes bound"]["log_loss"]["value"] == pytest.approx(LAW.bayes().log_loss)
    assert set(rows) >= {"encoder", "majority class", "persistence", "logistic regression"}
    said = capsys.readouterr().out.replace("\n", " ")
    assert (
        f"{'100.0' if window > 1_000 else '0.0'}% of the test sequences hold what Item 1A says and what Item 7" in said
    )
    assert "Bayes bound" in (run / "report.html").read_text()
