"""How fast a run goes: exact on a clock of known times, and only for those who may see the machine."""

from __future__ import annotations

import csv
import math
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.loggers import CSVLogger
from toy import Recorded, model, sequences, train

from quantattn.batch import PackedBatch
from quantattn.cli.show import pace as shown
from quantattn.learn.datamodule import PlannedLoader, PreparedData
from quantattn.learn.fit import Progress, fit
from quantattn.learn.history import read_rows
from quantattn.learn.module import Schedule, Training
from quantattn.learn.pace import WINDOW, Pace
from quantattn.learn.trainer import TrainerSettings
from quantattn.nn import Outcome

NAP = 0.02


class Slow(Recorded):
    """Sequences whose batches take a while to make."""

    def pack(self, indices: Any) -> PackedBatch:
        time.sleep(NAP)
        packed: PackedBatch = super().pack(indices)
        return packed


def paced(*times: float) -> Pace:
    return Pace(clock=iter(times).__next__)


def test_tokens_over_time_and_the_share_of_it_that_was_waited() -> None:
    pace = paced(10.0, 12.0, 14.0)
    pace.passed(1.0, 100)
    assert math.isnan(pace.tokens_per_second), "one batch has no time of its own"
    pace.passed(1.5, 300)
    assert (pace.tokens_per_second, pace.loader_wait_share) == (150.0, 0.25)
    pace.passed(1.5, 500)
    assert (pace.tokens_per_second, pace.loader_wait_share) == (200.0, 0.125)


def test_the_share_of_the_peak_is_the_time_that_the_operations_need_over_the_time_that_passes() -> None:
    pace = paced(10.0, 12.0, 16.0)
    pace.passed(0.0, 100, 9.0)
    pace.passed(0.0, 100, 0.5)
    assert pace.utilisation == 0.25
    pace.passed(0.0, 100, 2.5)
    assert pace.utilisation == 0.5
    told = Progress(1, 2, 0, 0.5, None, 1.0, 1000.0, 0.01, pace.utilisation)
    assert shown(told) == "1,000 tokens/s  loader 1.0%  50.0% of peak  "
    assert shown(Progress(1, 2, 0, 0.5, None, 1.0, 1000.0, 0.01)) == "1,000 tokens/s  loader 1.0%  "


def test_the_clock_stands_still_while_a_run_validates() -> None:
    pace = paced(0.0, 3.0, 103.0, 104.0)
    pace.passed(0.0, 10)
    pace.on_validation_start(None, None)  # type: ignore[arg-type]
    pace.on_validation_end(None, None)  # type: ignore[arg-type]
    pace.passed(2.0, 40)
    assert (pace.tokens_per_second, pace.loader_wait_share) == (10.0, 0.5)


def test_what_is_long_past_is_forgotten() -> None:
    pace = paced(*range(0, 100 * (WINDOW + 1), 100), *range(100 * WINDOW + 1, 100 * WINDOW + 1 + WINDOW))
    for _ in range(WINDOW + 1):
        pace.passed(0.0, 100)
    assert pace.tokens_per_second == 1
    for _ in range(WINDOW):
        pace.passed(0.0, 100)
    assert pace.tokens_per_second == 100


def test_the_loader_counts_what_it_makes_its_reader_wait_for() -> None:
    made = sequences(4)
    slow = Slow(made.table, made.decisions, made.max_seq_len, made.layout)
    loader = PlannedLoader(slow, 5, seed=0, shuffle=False)
    seen = []
    for _ in loader:
        seen.append(loader.waited)
        time.sleep(5 * NAP)  # which the loader does not see
    assert all(waited >= NAP * (at + 1) for at, waited in enumerate(seen))
    assert len(seen) == 4


@pytest.mark.parametrize("every", [1, 2])
def test_loggers_and_the_line_are_told_but_not_the_history(tmp_path: Path, every: int) -> None:
    told: list[Progress] = []
    optimizer = partial(torch.optim.AdamW, lr=0.01)
    module = Training(model(), Outcome(), optimizer=optimizer, schedule=Schedule(4))
    data = PreparedData(sequences(12), sequences(6, seed=1), max_tokens=20, seed=1, batches=4)
    logger = CSVLogger(tmp_path / "told")
    settings = TrainerSettings(max_steps=4, log_every=every)
    fit(module, data, tmp_path / "run", settings, total_steps=4, loggers=[logger], watch=told.append)
    logger.save()
    assert math.isnan(told[0].tokens_per_second)
    assert all(at.tokens_per_second > 0 and 0 <= at.loader_wait_share <= 1 for at in told[1:])
    with (Path(logger.log_dir) / "metrics.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row.get("train/tokens_per_second")]
    assert [int(row["step"]) for row in rows] == [step for step in (2, 3, 4) if step % every == 0]
    assert all(0 <= float(row["train/loader_wait_share"]) <= 1 for row in rows)
    names = {name for _, name, _ in read_rows(tmp_path / "run" / "metrics.csv")}
    assert names >= {"train/loss", "train/lr"}
    assert not any("per_second" in name or "wait" in name for name in names)


def test_the_bytes_of_a_history_do_not_hang_on_the_pace(tmp_path: Path) -> None:
    for name in ("one", "two"):
        train(tmp_path / name, watch=lambda at: time.sleep(NAP) if at.step == 2 else None)
    assert (tmp_path / "one" / "metrics.csv").read_bytes() == (tmp_path / "two" / "metrics.csv").read_bytes()
