"""The benchmark of loaders: its control gets the same tokens, and what differs ends it."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from quantattn.batch import PackedBatch
from quantattn.cli import main
from quantattn.cli.benchmarks import loader
from quantattn.data.mapped import write_sequences
from quantattn.data.pack import plan


def test_padded_batches_hold_what_packs_hold(tmp_path: Path) -> None:
    cut = loader.make(3, 30, 2_000, 2, 1)
    assert 3 <= int(cut.lengths.min()) < int(cut.lengths.max()) <= 30
    mapped, batches = write_sequences(cut, tmp_path / "set"), plan(cut.lengths, 200, seed=loader.SEED)
    both = list(zip(loader.packed(mapped, batches), loader.padded(loader.Records(mapped), batches), strict=True))
    assert len(both) == len(batches)
    for one, other in both:
        left, right = loader.content(one), loader.content(other)
        assert left.keys() == right.keys() == {"f0_code", "f1_code", "f0_value", "time", "lengths"}
        assert all(torch.equal(left[name], right[name]) for name in left)
        fields, lengths = other
        assert fields["time"].shape == (len(lengths), int(lengths.max()))
    one = both[0][0]
    other_token = PackedBatch(**{**vars(one), "time": one.time + 1})
    assert not torch.equal(loader.content(other_token)["time"], loader.content(both[0][1])["time"])


def test_a_table_and_a_file_come_out(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    here: Callable[..., object],
) -> None:
    """Each loader runs in this process, which is all that differs."""
    monkeypatch.setattr(loader, "apart", here)
    own = ["loader.lengths=[[5,40]]", "loader.tokens=4000", "loader.budget=400", "loader.turns=1", "loader.rounds=1"]
    monkeypatch.setattr(sys, "argv", ["quantattn", "bench=loader", f"results={tmp_path}", *own])
    assert main("bench") == 0
    assert "equal contents" in capsys.readouterr().out
    with (tmp_path / "loader-cpu.csv").open(newline="") as file:
        padded, packed = csv.DictReader(file)
    assert (padded["impl"], packed["impl"]) == ("padded", "packed")
    assert padded["sha256"] == packed["sha256"]
    assert float(padded["padding"]) > 0.2
    assert float(packed["padding"]) == 0
    assert float(padded["times"]) == 1
