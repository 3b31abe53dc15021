"""The command line of what a job may say: each output and unit end to end, and what does not go together."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from small_market import model, vocabulary

from quantattn.cli import main
from quantattn.cli.score_engine import _teller
from quantattn.cli.terminal import console
from quantattn.data import filed, grown_tokens
from quantattn.data.sample import write_lobster
from quantattn.data.synthetic import SyntheticMarket
from quantattn.nn import Model, NextEvent, Outcome, save_pretrained
from quantattn.score import Progress

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


def rows(out: Path) -> pl.DataFrame:
    """The table in the order of its keys, without the plan."""
    return pl.read_delta(str(out)).sort("key").drop("plan_sha")


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
        ("masked", "output=next_event", "does not say that it was trained with objective=next_event, but nothing"),
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


def test_a_job_on_prepared_shards_writes_the_rows_of_one_on_the_source(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_runs: None
) -> None:
    """Shards of 40 events, read in two runs, against the table in memory."""
    shards = tmp_path / "shards"
    monkeypatch.setattr(sys, "argv", ["quantattn", *SOURCE, f"out={shards}", "cut.rows=40"])
    assert main("prepare") == 0
    assert len(list(shards.rglob("*.parquet"))) >= 6
    given = [f"model={folder}", "unit=event", "shard_decisions=50"]
    assert call(monkeypatch, *given, *SOURCE, f"out={tmp_path / 'whole'}") == 0
    assert call(monkeypatch, *given, "data=prepared", f"data.path={shards}", f"out={tmp_path / 'out'}") == 0
    assert rows(tmp_path / "out").equals(rows(tmp_path / "whole"))
    assert rows(tmp_path / "out").height == 192


@pytest.fixture
def small_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grown_tokens, "RUN", 100)
    monkeypatch.setattr(filed, "BLOCK", 11)


def test_without_ray_nothing_is_read(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert call(monkeypatch, f"model={folder}", *SOURCE, f"out={tmp_path / 'out'}", "engine=ray") == 2
    said = capsys.readouterr()
    assert "engine=ray needs the package ray: pip install 'quantattn[ray]'" in said.err
    assert (said.out, list(tmp_path.iterdir())) == ("", [])


def test_shards_beyond_the_last_one_are_said(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [f"model={folder}", *SOURCE, f"out={tmp_path / 'out'}", "shard_decisions=20"]
    assert call(monkeypatch, *given, "shards=1:99") == 0
    assert "note: shards=1:99 goes beyond the last one; the plan has 0:3, so 1:3 are done" in capsys.readouterr().out
    keys = pl.read_delta(str(tmp_path / "out"))["key"].sort().to_list()
    assert keys == list(range(keys[0], 64)) != list(range(64))
    assert call(monkeypatch, *given, "shards=0:3") == 0
    assert "goes beyond" not in capsys.readouterr().out
    assert rows(tmp_path / "out")["key"].to_list() == list(range(64))


def test_progress_tells_rate_time_left_and_failures(capsys: pytest.CaptureFixture[str]) -> None:
    """Whichever the engine: all of them tell where they stand by the same `Progress`."""
    for at in (
        Progress(0, 500, 0, 0.0),
        Progress(500, 500, 100, 8.0, share=1.0),
        Progress(500, 500, 0, 10.0, lost=2, refused=3, said="worker 0 was killed", share=1.0),
    ):
        _teller(console())(at)
    assert capsys.readouterr().out.splitlines() == [
        "0/500 decisions, no failures",
        "500/500 decisions, 100 were there  50/s, 0:00 left, no failures",
        "worker 0 was killed; another one takes its place",
        "500/500 decisions  50/s, 0:00 left, 2 workers lost, 3 without a score",
    ]


def test_a_cluster_goes_on_from_kept_states(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two jobs of a Ray cluster, the second of events that came later, against one from scratch."""
    pytest.importorskip("ray", reason="Ray is not installed; it is too heavy for every test run")
    monkeypatch.chdir(tmp_path)
    whole = SyntheticMarket(2, 96, channels=2, marker_distance=24, events_per_session=64).source().frame.collect()
    for name, frame in (("first", whole.filter(pl.col("seq") < 60)), ("whole", whole)):
        write_lobster(frame, tmp_path / name)
    given = [f"model={folder}", "data=lobster", "unit=event", "shard_decisions=16"]
    ray = ["engine=ray", "workers=2", "incremental=states"]
    assert call(monkeypatch, *given, "data.path=first", *ray, "out=a") == 0
    assert call(monkeypatch, *given, "data.path=whole", *ray, "out=b") == 0
    assert call(monkeypatch, *given, "data.path=whole", "out=scratch") == 0
    parts = pl.concat([rows(tmp_path / name).drop("key") for name in ("a", "b")]).sort("entity", "place")
    assert (rows(tmp_path / "a").height, rows(tmp_path / "b").height) == (120, 72)
    assert parts.equals(rows(tmp_path / "scratch").drop("key").select(parts.columns))
