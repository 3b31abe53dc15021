"""The table of results on real files: what it says follows from its intervals, and its experiments can be made."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from quantattn.cli.config import compose, plain
from quantattn.cli.instantiate import settings
from quantattn.cli.settings import TrainSettings
from quantattn.cli.train import build
from quantattn.evaluate import Interval, choose_blocks, closing_table


@pytest.fixture(scope="module")
def script() -> ModuleType:
    where = Path(__file__).resolve().parents[2] / "benchmarks" / "real_data.py"
    spec = importlib.util.spec_from_file_location("real_data", where)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["real_data"] = module
    spec.loader.exec_module(module)
    return module


def part(rows: int, seed: int) -> dict[str, Any]:
    """A fold whose encoder knows half of every answer, beside two that know nothing."""
    random = np.random.default_rng(seed)
    y = random.integers(0, 2, rows)
    known = np.where(np.arange(2) == y[:, None], 0.75, 0.25)
    methods = {"encoder": known, "majority class": np.full((rows, 2), 0.5)}
    methods["gradient boosting"] = np.where(np.arange(2) == random.integers(0, 2, rows)[:, None], 0.6, 0.4)
    names = np.asarray([f"{seed}-{row}" for row in range(rows)])
    return {"y": y, "as_of": np.arange(rows), "entity": names, "kind": "entity", "methods": methods}


def test_folds_are_one_table(script: ModuleType) -> None:
    parts = [part(40, 0), part(25, 1)]
    table, others = script.pooled(parts)
    y, as_of, names = (np.concatenate([each[key] for each in parts]) for key in ("y", "as_of", "entity"))
    prob = {name: np.concatenate([each["methods"][name] for each in parts]) for name in parts[0]["methods"]}
    blocks = choose_blocks(as_of, names, kind="entity")
    whole = closing_table(y, as_of, blocks, prob.pop("encoder"), prob)
    assert table == whole
    assert (table.decisions, table.blocks) == (65, 65)
    alone = [{**each, "methods": {"encoder": each["methods"]["encoder"]}} for each in parts]
    assert script.pooled(alone, others)[0] == whole, "baselines are those of the first seed"


def test_a_line_gives_every_figure_and_says_what_it_shows(script: ModuleType) -> None:
    task = script.Task("Coins", "coins.csv", "heads or tails", "by toss", ())
    table, _ = script.pooled([part(40, 0)])
    cells = [cell.strip() for cell in script.line(task, 120, table, [0.3, 0.31]).strip("|").split("|")]
    # −ln 0.75 = 0.288 for every toss, so that no resample changes it; ln 2 = 0.693.
    assert cells[:5] == ["Coins", "heads or tails", "120 / 40", "by toss", "0.288 (0.288 … 0.288); 0.300; 0.310"]
    assert cells[5:8] == ["0.693 (0.693 … 0.693)", "", ""]
    assert cells[-1] == "better"
    said = [script.evidence(Interval(*each)) for each in ((-0.1, -0.2, 0.1), (0.1, 0.05, 0.2), (0.1, None, None))]
    assert said == ["none", "worse", "none"]


def test_every_task_can_be_made_of_its_file(script: ModuleType, realdata: Path) -> None:
    for task in script.TASKS:
        given = compose("train", [*task.overrides, f"data.path={realdata / task.path}"])
        assert build(settings(TrainSettings, plain(given), "")), task.name
