"""Three proofs on a small market of known law: the skill is found, only the visible part of it, and none where none is.

The runs of full size are commands in docs/log.md, with their figures.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from quantattn.cli import main
from quantattn.data.synthetic import SyntheticMarket

MARKET = {
    "entities": 16,
    "events_per_entity": 8192,
    "marker_distance": 24,
    "channels": 1,
    "flow_events": 4,
    "cycle": 8,
}
SETTINGS = [
    *(f"data.source.{name}={value}" for name, value in MARKET.items()),
    "data.prepare.min_context=48",
    "data.max_tokens_per_batch=3072",
    "trainer.max_steps=150",
    "trainer.validate_every=50",
    "trainer.threads=1",
    "optimizer.lr=5e-3",
]


def closing(folder: Path, *arguments: str) -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["quantattn", *SETTINGS, *arguments, f"paths.output_dir={folder}"])
        assert main("train") == 0
    table: dict[str, Any] = json.loads((folder / "metrics.json").read_text())["table"]
    return table


def loss(table: dict[str, Any], method: str) -> dict[str, float]:
    (row,) = [row for row in table["rows"] if row["method"] == method]
    figure: dict[str, float] = row["figures"]["log_loss"]
    return figure


def test_the_skill_is_found(tmp_path: Path) -> None:
    table = closing(tmp_path / "run", "data.max_seq_len=96")
    assert table["skill"]["low"] > 0.3
    assert table["gap_closed"]["value"] > 0.75
    assert loss(table, "encoder")["high"] > loss(table, "Bayes bound")["value"], (
        "nobody beats the bound by more than chance"
    )


def test_a_context_that_ends_before_the_marker_costs_what_theory_says(tmp_path: Path) -> None:
    table = closing(tmp_path / "run", "data.max_seq_len=16")
    with_marker, without = (SyntheticMarket(**MARKET).bayes(context).log_loss for context in (None, 16))  # type: ignore[arg-type]
    found = loss(table, "encoder")
    assert without - with_marker > 0.2
    assert found["low"] < without + 0.02, "the part that is visible is found"
    assert found["low"] > with_marker + 0.2, "the rest is not"
    assert found["high"] > without


def test_nothing_is_found_in_permuted_labels(tmp_path: Path) -> None:
    table = closing(tmp_path / "run", "data.max_seq_len=96", "data.shuffle_labels=true")
    skill = table["skill"]
    assert skill["low"] <= 0 <= skill["high"] or skill["high"] < 0
    assert table["gap_closed"] is None
    assert abs(loss(table, "encoder")["value"] - 0.6931) < 0.03
