"""What a report says that a model looked at: which decisions, which events, when these were, and how much."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from quantattn.batch import IGNORE
from quantattn.data.pack import Decisions, SequenceSet, TokenTable
from quantattn.evaluate.report import Cell, ReportData
from quantattn.learn.looking import with_attention
from quantattn.learn.predict import predict
from quantattn.nn import Encoder, Model, Outcome, Regression
from quantattn.nn.attended import attended

MINUTE = 60 * 10**9
EVENTS, EVERY = 40, 4
ROWS = np.concatenate([np.arange(3, EVENTS, EVERY), EVENTS + np.arange(3, EVENTS, EVERY)])


def made(target: np.ndarray, classes: tuple[str, ...] = ("down", "up")) -> tuple[Any, Model]:
    """Two entities with an event a minute and a decision every fourth, several to a sequence; and a model of them."""
    rng = np.random.default_rng(0)
    table = TokenTable(
        {"code": rng.integers(2, 6, 2 * EVENTS), "size_value": rng.normal(size=2 * EVENTS).astype(np.float32)},
        np.arange(2 * EVENTS) * MINUTE,
        np.array([0, EVENTS, 2 * EVENTS]),
        ("A", "B"),
    )
    test = SequenceSet(table, Decisions(ROWS, {"label": target}), 20, "chunks", 8)
    prepared = SimpleNamespace(
        test=test, classes=classes, as_of={"test": table.time[ROWS]}, entity={"test": np.repeat(["A", "B"], 10)}
    )
    torch.manual_seed(0)
    small = {"n_layers": 2, "width": 8, "n_heads": 2, "hidden": 8, "causal": True}
    encoder = Encoder("tiny", codes={"code": 6}, values=("size_value",), **small)
    objective = Outcome() if classes else Regression()
    return prepared, Model(encoder, objective.heads(encoder.config, classes))


def table_of(prepared: Any, model: Model, said: dict[str, Any]) -> list[tuple[Cell, ...]]:
    """The rows of the table that a report is given."""
    bare = ReportData("a run", "what comes", table=None)  # type: ignore[arg-type]
    report = with_attention(bare, model, prepared, "label", said)
    return list(report.sheets[-1].rows) if report.sheets else []


def test_weights_are_those_of_the_whole_pack_and_dates_those_of_their_events() -> None:
    prepared, model = made(np.arange(20) % 2)
    test = prepared.test
    test.decisions.targets["label"].flags.writeable = False  # as those of a mapped file are
    assert max(np.diff(test.first)) > 1, "several decisions share a sequence"
    rows = table_of(prepared, model, predict(model, test, 1000))
    batch = test.pack(np.arange(len(test)))
    weights, back = attended(model.encoder, batch, top=3)
    for decision, _, came, *looked, seen in rows:
        key = int(np.flatnonzero(prepared.as_of["test"] == int(decision.sort))[0])
        assert decision.text.startswith(f"{'AB'[key // 10]}, 1970-01-01 0")
        assert came.text == ("down", "up")[key % 2]
        assert int(seen.text) == test.contexts[key]
        for cell, weight, distance in zip(looked, weights[key].tolist(), back[key].tolist(), strict=True):
            assert float(cell.sort) == pytest.approx(weight, abs=1e-6)
            date = str(np.datetime64(int(ROWS[key] - distance) * MINUTE, "ns").astype("datetime64[s]"))
            assert cell.between == f"{date.replace('T', ' ')}, {distance:,} before"
    assert len({tuple(cell.between for cell in row[3:6]) for row in rows}) > 1


def test_the_surest_that_came_true_and_the_surest_that_did_not_are_shown() -> None:
    label = np.arange(20) % 2
    label[5] = IGNORE
    prepared, model = made(label)
    sure = np.linspace(0.51, 0.99, 20)
    prob = torch.as_tensor(np.column_stack([1 - sure, sure]))  # always "up"
    rows = table_of(prepared, model, {"prob": prob})
    minutes = [int(row[0].sort) // MINUTE for row in rows]
    assert minutes == ROWS[[19, 17, 15, 18, 16, 14]].tolist()
    assert [row[1].text for row in rows][:2] == ["up, 99%", "up, 94%"]
    assert [row[2].text for row in rows] == ["up"] * 3 + ["down"] * 3
    prob[5] = torch.tensor([0.0, 1.0])  # surest of all, and nobody knows what came
    assert table_of(prepared, model, {"prob": prob}) == rows
    prepared.test.decisions.targets["label"][:] = IGNORE
    assert table_of(prepared, model, {"prob": prob}) == []


def test_of_values_the_highest_and_the_lowest_are_shown_each_once() -> None:
    outcome = np.full(20, np.nan)
    outcome[[2, 4, 7, 9]] = [1.5, -2, 0, 3]
    prepared, model = made(outcome, ())
    rows = table_of(prepared, model, {"value": torch.arange(20.0)})
    assert [(row[1].text, row[2].text) for row in rows] == [("9", "3"), ("7", "0"), ("4", "-2"), ("2", "1.5")]
