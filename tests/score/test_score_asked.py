"""The command line of what a job may say: each output and unit end to end, and what does not go together."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from small_market import model, vocabulary

from quantattn.cli import main
from quantattn.nn import Model, NextEvent, Outcome, save_pretrained

SOURCE = ["data=synthetic", "data.source.entities=2", "data.source.events_per_entity=96", "data.source.channels=2"]
SOURCE += ["data.source.marker_distance=24", "data.source.events_per_session=64"]
DATA: dict[str, Any] = {
    "kind": "market",
    "source": {"_target_": "quantattn.data.synthetic.SyntheticMarket"},
    "prepare": {"layout": "chunks", "min_context": 12, "decision_every": 3},
    "max_seq_len": 32,
    "max_tokens_per_batch": 64,
}
NEXT = {"_target_": "quantattn.nn.NextEvent", "time": "exponential"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of outcomes and of the next event."""
    encoder = model().encoder
    heads = {
        **Outcome().heads(encoder.config, ("down", "up")),
        **NextEvent(time="exponential").heads(encoder.config, ()),
    }
    place = tmp_path_factory.mktemp("models") / "causal"
    extra = {"data": DATA, "classes": ["down", "up"], "objective": {"_target_": "X", "parts": {"a": NEXT}}}
    save_pretrained(Model(encoder, heads), place, vocabulary_json=vocabulary(), extra=extra)
    save_pretrained(
        Model(encoder, heads), place.with_name("masked"), vocabulary_json=vocabulary(), extra={"data": DATA}
    )
    both = Model(model(False).encoder, Outcome().heads(model(False).encoder.config, ("down", "up")))
    save_pretrained(both, place.with_name("bidirectional"), vocabulary_json=vocabulary(), extra=extra)
    return place


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["quantattn", *arguments])
    return main("score")


def test_every_output_goes_from_the_command_line_to_a_table(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = {
        "output=embeddings unit=event": (192, {"event_time", "place", "rows", "embedding"}),
        "output=embeddings unit=sequence": (6, {"event_time", "place", "since", "events", "rows", "embedding"}),
        "output=next_event levels=[0.5]": (64, {"next_kind_prob_1", "next_at_once_prob", "next_seconds_quantile_0.5"}),
        "output=attention top=2 head=0": (64, {"attended_weight", "attended_kind", "attended_rest"}),
    }
    for number, (asked, (rows, columns)) in enumerate(expected.items()):
        out = tmp_path / str(number)
        assert call(monkeypatch, f"model={folder}", *SOURCE, f"out={out}", *asked.split()) == 0, capsys.readouterr().err
        table = pl.read_delta(str(out))
        assert table.height == rows
        assert columns | {"entity", "as_of", "key", "model_sha", "plan_sha"} <= set(table.columns)
    (tmp_path / "asks.csv").write_text("entity,as_of\nSYN000001,2024-01-02T18:00:00Z\nXYZ,5\n")
    asked = [f"model={folder}", *SOURCE, f"as_of={tmp_path / 'asks.csv'}", f"out={tmp_path / 'asked'}"]
    assert call(monkeypatch, *asked) == 0
    assert "left out: 1 of 2 moments of asks.csv, the entity is not in these data" in capsys.readouterr().out
    assert pl.read_delta(str(tmp_path / "asked"))["entity"].to_list() == ["SYN000001"]
    (tmp_path / "asks.csv").write_text("entity,as_of\nSYN000001,2024-01-02T18:00:01Z\n")
    assert call(monkeypatch, *asked) == 1, "another question is another plan"


def test_incremental_ends_with_nothing_new_and_its_rows_are_those_of_any_job(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [f"model={folder}", *SOURCE, "unit=event"]
    states = f"incremental={tmp_path / 'states'}"
    assert call(monkeypatch, *given, states, f"out={tmp_path / 'new'}") == 0
    assert "states of 2 entities" in capsys.readouterr().out
    assert call(monkeypatch, *given, f"out={tmp_path / 'whole'}") == 0
    one, other = (pl.read_delta(str(tmp_path / name)).sort("key").drop("plan_sha") for name in ("new", "whole"))
    assert one.equals(other.select(one.columns))
    assert call(monkeypatch, *given, states, f"out={tmp_path / 'again'}") == 0
    assert "192 decisions are known from" in capsys.readouterr().out
    assert not (tmp_path / "again").exists()
    assert call(monkeypatch, *given, states, f"out={tmp_path / 'b'}", "output=next_event") == 1
    assert "were made otherwise (policy.next_event none" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("which", "asked", "sentence"),
    [
        ("causal", "unit=item", "unit=item, but data is market, whose units are decision, event and sequence"),
        ("causal", "as_of=no.csv", "as_of=no.csv: there is no such file"),
        ("causal", "output=attention layer=7", "layer must lie in -2 … 1, got 7"),
        ("masked", "output=next_event", "does not say that it was trained with objective=next_event, but null"),
        ("bidirectional", "incremental=states", "its model must be causal"),
        ("causal", "incremental=states unit=sequence", "is another one when it has grown; give unit=event"),
        ("causal", "incremental=states output=embeddings", "use pooling=last"),
        ("causal", "incremental=states on_bad=quarantine", "so on_bad=stop is needed"),
    ],
)
def test_what_does_not_go_together_is_refused_in_a_sentence(
    which: str,
    asked: str,
    sentence: str,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    given = [f"model={folder.with_name(which)}", *SOURCE, "out=out", *asked.split()]
    assert call(monkeypatch, *given) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1
    assert not list(tmp_path.iterdir())
