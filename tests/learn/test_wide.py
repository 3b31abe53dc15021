"""The wide table of figures: unbroken over kills, one row a call, one column a figure."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from quantattn.learn.wide import WideCSV


def train(folder: Path, first: int, last: int) -> None:
    """What Lightning logs of the optimizer steps after `first` up to `last`, and somebody's pace beside it."""
    logger = WideCSV(str(folder))
    logger.rewind(first)
    for step in range(first, last):
        if (step + 1) % 2 == 0:
            logger.log_metrics({"pace": 100.0 + step}, step + 1)  # who logs directly counts from 1
        logger.log_metrics({"train/loss": 1 / (step + 1), "epoch": 0}, step)
        if (step + 1) % 3 == 0:
            logger.log_metrics({"valid/loss": 2 / (step + 1), "epoch": 0}, step)


@pytest.mark.parametrize("at", range(7))
@pytest.mark.parametrize("beyond", [0, 1, 2])
def test_a_run_that_goes_on_leaves_the_table_of_one_that_was_never_stopped(
    at: int, beyond: int, tmp_path: Path
) -> None:
    """Killed in the middle of a line, `beyond` steps after the checkpoint of step `at`."""
    train(tmp_path / "whole", 0, 9)
    train(tmp_path / "parts", 0, at + beyond)
    if (tmp_path / "parts").exists():
        with (tmp_path / "parts" / "metrics.csv").open("ab") as file:
            file.write(b"9,0,0.1")
    train(tmp_path / "parts", at, 9)
    whole, parts = (pl.read_csv(tmp_path / name / "metrics.csv") for name in ("whole", "parts"))
    assert parts.select(sorted(parts.columns)).equals(whole.select(sorted(whole.columns)))
    assert whole["train/loss"].drop_nulls().to_list() == [1 / step for step in range(1, 10)]
    assert whole["valid/loss"].drop_nulls().to_list() == [2 / 3, 2 / 6, 2 / 9]
    assert whole["pace"].drop_nulls().to_list() == [101, 103, 105, 107]


def test_what_is_no_such_table_is_refused_and_kept(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match="is not a table of figures"):
        WideCSV(str(tmp_path)).rewind(0)
    assert (tmp_path / "metrics.csv").read_text() == "a,b\n1,2\n"
