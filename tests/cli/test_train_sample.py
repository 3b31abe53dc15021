"""The committed sample through the LOBSTER experiment: what the source noted reaches the terminal and the report."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from quantattn.cli import main

ROOT = Path(__file__).resolve().parents[2]


def test_notes_of_the_source_are_printed_and_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["experiment=lobster", f"data.path={ROOT / 'data' / 'sample'}", f"paths.output_dir={tmp_path / 'run'}"]
    quick = [
        "data.max_seq_len=64",
        "data.max_tokens_per_batch=512",
        "data.prepare.decision_every=40",
        "labels.horizon=5",
    ]
    steps = ["trainer.max_steps=1", "trainer.validate_every=1", "trainer.threads=1"]
    monkeypatch.setattr(sys, "argv", ["quantattn", *given, *quick, *steps])
    assert main("train") == 0
    printed = capsys.readouterr().out
    noted = "stops at millisecond 53989083, its name promises data to 57600000"
    assert f"note: SAMPLE_2024-01-02_34200000_57600000_message_1.csv.gz {noted}" in printed
    assert noted in (tmp_path / "run" / "report.html").read_text()
