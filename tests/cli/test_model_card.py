"""The card of a model says what the files of its run say, number by number."""

from __future__ import annotations

import datetime as dt
import json
import re
from pathlib import Path
from typing import Any

import pytest
from small_run import SMALL, call

from quantattn import load_model
from quantattn.learn.card import Card


def sections(text: str) -> dict[str, str]:
    return {part.split("\n")[0]: part for part in text.split("\n## ")[1:]}


def rows_of(section: str) -> list[list[str]]:
    lines = [line for line in section.split("\n") if line.startswith("| ")]
    return [[cell.replace("\\|", "|") for cell in re.split(r"(?<!\\) \| ", line[2:-2])] for line in lines]


def interval(cell: str) -> dict[str, float | None]:
    numbers = [float(number) for number in re.findall(r"-?[\d.]+(?:e-?\d+)?", cell)]
    return dict(zip(("value", "low", "high"), [*numbers, None, None], strict=False))


def nanoseconds(cell: str) -> int:
    whole, _, rest = cell.partition(".")
    at = dt.datetime.strptime(whole, "%Y-%m-%d %H:%M:%S").replace(tzinfo=dt.UTC)
    return int(at.timestamp()) * 1_000_000_000 + int(rest or 0)


def near(figure: dict[str, Any], cell: str) -> None:
    for name, shown in interval(cell).items():
        assert shown == (figure[name] if figure[name] is None else pytest.approx(figure[name], rel=5e-6))


def test_every_number_of_a_card_is_that_of_the_run_s_files(kept_run: Path) -> None:
    text = (kept_run / "model" / "card.md").read_text()
    files = {p.stem: json.loads(p.read_text()) for p in kept_run.glob("*.json")}
    data, table, figures = files["data"], files["metrics"]["table"], files["metrics"]["figures"]
    found = sections(text)
    assert list(found) == ["Figures", "Data", "Limits", "Hashes", "Use"]

    head, *methods = rows_of(found["Figures"])
    assert head[1:] == [metric["title"] for metric in table["metrics"]]
    assert [row[0] for row in methods] == [row["method"] for row in table["rows"]]
    assert len(methods) >= 4
    for row, told in zip(methods, table["rows"], strict=True):
        for cell, metric in zip(row[1:], table["metrics"], strict=True):
            if (figure := told["figures"].get(metric["name"])) is None or figure["value"] is None:
                assert cell == "–"
            else:
                near(figure, cell)
    said = dict(re.findall(r"^- (.+?)[: ]{1,2}(-?[\d.]+(?:e-?\d+)?(?: \[.+?\])?)$", found["Figures"], re.MULTILINE))
    near(table["skill"], said[f"skill against {table['best_baseline']}, the best baseline"])
    near(table["gap_closed"], said["of the way from there to the best that is possible"])
    assert float(said["best validation loss"]) == pytest.approx(figures["valid/loss"], rel=5e-6)
    assert "- chosen from 7 trials" in found["Figures"]
    assert (
        f"On {table['decisions']} test decisions, {table['unlabelled']} more without a label; 95%" in found["Figures"]
    )
    assert f"resampling {table['blocks']} blocks ({table['block_kind']})" in found["Figures"]

    _, *parts = rows_of(found["Data"])
    assert [row[0].split(",")[0] for row in parts] == ["train", "valid", "test"]
    for row, part in zip(parts, data["parts"].values(), strict=True):
        assert (int(row[1]), int(row[2])) == (part["decisions"], part["entities"])
        assert [nanoseconds(cell) for cell in row[3:]] == [part["first"], part["last"]]
        assert part["first"] <= part["last"]
    assert sum(part["decisions"] for part in data["parts"].values()) == data["counts"]["decisions"]
    assert f"- {data['universe']['entities']} entities: {', '.join(data['universe']['names'])}" in found["Data"]
    assert "- licence: made data, free for any use" in found["Data"]
    passed = [check for check in data["audit"]["checks"] if check["verdict"] == "passed"]
    assert f"that passed, of {len(data['audit']['checks'])}: {len(passed)}" in found["Data"]

    hashes = dict(row for row in rows_of(found["Hashes"])[1:])
    assert {name: hashes[f"data: {name}"] for name in data["hashes"]} == data["hashes"]
    assert hashes["code: commit"] == files["environment"]["commit"]
    assert hashes["code: torch"] == files["environment"]["packages"]["torch"]
    assert hashes["certificate of the attention"] == files["certificate"]["sha"]
    assert {name: hashes[f"source of {name}"] for name in files["certificate"]["sources"]} == files["certificate"][
        "sources"
    ]

    assert "at most 330 tokens" in found["Limits"]
    assert files["certificate"]["headline"] in found["Limits"]
    assert f"had not seen: {data['parts']['test']['new_entities']}" in found["Limits"]
    artefact = load_model(kept_run / "model").artefact
    assert artefact is not None
    assert artefact.card == text


def test_a_model_whose_evaluation_fails_is_kept_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    def fail(*_: Any) -> None:
        raise ValueError("no figure today")

    monkeypatch.setattr("quantattn.learn.run.evaluate", fail)
    run = tmp_path / "run"
    assert call(monkeypatch, "train", *SMALL, "trainer.max_steps=1", f"paths.output_dir={run}") == 1
    assert "no figure today" in capsys.readouterr().err
    artefact = load_model(run / "model").artefact
    assert artefact is not None
    assert "There are no figures of the test rows" in artefact.card
    assert "- licence: unknown" in artefact.card
    assert not (run / "metrics.json").exists()
    assert call(monkeypatch, "train", *SMALL, "licence=''", f"paths.output_dir={tmp_path / 'other'}") == 2
    assert "licence must be one line in words, got ''" in capsys.readouterr().err


DATA: dict[str, Any] = {
    "parts": {
        "train": {"decisions": 1200, "entities": 2, "new_entities": 0, "first": 0, "last": 1_000_000_000},
        "valid": {"decisions": 0, "entities": 0, "new_entities": 0, "first": None, "last": None},
        "test": {"decisions": 3, "entities": 1, "new_entities": 1, "first": 2_000_000_001, "last": 2_000_000_001},
    },
    "universe": {"entities": 3, "names": ["A|B", "C\nD", "E"]},
    "dropped": {"halted": 1234},
    "hashes": {"a|b": "f0"},
    "audit": {"checks": [{"name": "times", "verdict": "not run", "sentence": "no clock"}]},
}


def card(**changes: Any) -> str:
    given: dict[str, Any] = {
        "title": "T",
        "question": "Q?",
        "licence": "unknown",
        "settings": {},
        "causal": False,
        "data": DATA,
        "metrics": {"figures": {}, "table": None},
        "environment": {"commit": "unknown", "packages": {"torch": "2"}},
    }
    return Card(**(given | changes)).text()


def test_a_card_worked_by_hand_says_what_is_not_known() -> None:
    found = sections(card())
    assert "There are no figures of the test rows: nothing says how good it is." in found["Figures"]
    assert rows_of(found["Data"])[1:] == [
        ["train, fitted on", "1,200", "2", "1970-01-01 00:00:00", "1970-01-01 00:00:01"],
        ["valid, chosen by", "0", "0", "–", "–"],
        ["test, reported on", "3", "1", "1970-01-01 00:00:02.000000001", "1970-01-01 00:00:02.000000001"],
    ]
    assert "- 3 entities: A|B, C D, E\n- left out, halted: 1,234\n" in found["Data"]
    assert "- licence: unknown" in found["Data"]
    assert "- not run: times (no clock)\n- its attention was not certified" in found["Limits"]
    assert "tested on" not in found["Limits"]
    assert ["data: a|b", "f0"] in rows_of(found["Hashes"])


def test_a_figure_that_is_not_finite_is_shown_as_none() -> None:
    one = {"value": 0.25, "low": None, "high": None}
    table = {
        "metrics": [{"name": "mse", "title": "MSE"}],
        "rows": [
            {"method": "encoder", "figures": {"mse": one}},
            {"method": "mean", "figures": {"mse": {"value": None, "low": None, "high": None}}},
            {"method": "bound", "figures": {}},
        ],
        "best_baseline": "mean",
        "skill": {"value": -0.5, "low": -1.0, "high": 1e-7},
        "gap_closed": None,
        "decisions": 3,
        "unlabelled": 0,
        "level": 0.9,
        "blocks": 2,
        "block_kind": "day",
    }
    found = sections(card(metrics={"figures": {"valid/loss": 0.1}, "table": table}))
    assert rows_of(found["Figures"]) == [["method", "MSE"], ["encoder", "0.25"], ["mean", "–"], ["bound", "–"]]
    assert "- skill against mean, the best baseline: -0.5 [-1, 1e-07]" in found["Figures"]
    assert "- tested on 1 entities from 1970-01-01 00:00:02.000000001 to" in found["Limits"]
    assert "training had not seen: 1" in found["Limits"]
