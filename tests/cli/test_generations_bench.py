"""`bench=generations` end to end: a table of results, a picture, and nothing that is wrong among them."""

from __future__ import annotations

import csv
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch

from quantattn.cli import main

pytest.importorskip("triton")
from quantattn.attention import Mask
from quantattn.attention.kernels.generations import registry
from quantattn.cli.benchmarks import generations
from quantattn.cli.benchmarks.shapes import Shape

# The interpreter computes −inf − (−inf) through numpy, which warns about a value that the kernels select away.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

ON_GPU = torch.cuda.is_available()
SMALL = [
    "bench=generations",
    "dtype=float16",
    "generations.lengths=[256,512]",
    "generations.interpreted.lengths=[16,32]",
]


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["quantattn", *arguments])
    return main("bench")


def test_one_command_writes_results_and_a_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, *SMALL, f"results={tmp_path / 'results'}") == 0
    (table,) = (tmp_path / "results").glob("generations-*.csv")
    (picture,) = (tmp_path / "results").glob("generations-*.svg")
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * 2 * len(registry.GENERATIONS)
    for row in rows:
        assert float(row["error_ratio"]) < 3
        assert float(row["written_mib"]) > 0
        assert math.isnan(float(row["ms"])) is not ON_GPU
    ElementTree.fromstring(picture.read_text())
    assert all(name in picture.read_text() for name in registry.GENERATIONS)
    if not ON_GPU:
        assert "times would not" in capsys.readouterr().out
    # The picture alone, from the table.
    moved = table.rename(tmp_path / "elsewhere.csv")
    assert call(monkeypatch, "bench=generations", f"draw={moved}") == 0
    assert moved.with_suffix(".svg").read_text() == picture.read_text()


def test_what_is_wrong_or_does_not_fit_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def zeros(call: Any) -> None:
        call.out.zero_()
        call.lse.zero_()

    def too_large(call: Any) -> None:
        raise generations.TooLarge(263184, 232448, "shared memory")

    wrong = registry.GENERATIONS | {
        "flash1": replace(registry.GENERATIONS["flash1"], launch=zeros),
        "flash2": replace(registry.GENERATIONS["flash2"], launch=too_large),
        "flash3": replace(registry.GENERATIONS["flash3"], launch=lambda call: None),
    }
    monkeypatch.setattr(generations, "GENERATIONS", wrong)
    said: list[str] = []
    shape = Shape(16, 32, 1, 1, 1, Mask(causal=True))
    rows = list(generations.benchmark([shape], torch.float16, rounds=1, seed=0, say=said.append))
    assert [row.impl for row in rows] == ["standard", "flash4"]
    assert len(said) == 3
    assert "flash1, N 32 causal: not measured, " in said[0]
    assert "is off by" in said[0]
    assert "shared memory" in said[1]
    assert "is off by inf" in said[2]


def test_long_problems_are_held_to_the_budget_by_their_last_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generations, "GATED", 16)
    shape = Shape(16, 40, 1, 1, 1, Mask(causal=True))
    said: list[str] = []
    rows = list(generations.benchmark([shape], torch.float16, rounds=1, seed=0, say=said.append))
    assert [row.impl for row in rows] == list(registry.GENERATIONS), said


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["bench=generation"], 2, "did you mean 'generations'?"),
        (
            ["bench=generations", "generations.masks=[upper]"],
            2,
            "generations.masks: expected full or causal, got 'upper'",
        ),
        (
            ["bench=generations", "draw=nowhere.csv"],
            2,
            "draw=nowhere.csv: there is no such file",
        ),
    ],
)
def test_what_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
    sentence: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call(monkeypatch, *arguments) == code
    assert sentence in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
