"""`quantattn prepare` from outside: training on the shards is training on the source, and refusals are one sentence."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from quantattn.cli import main
from quantattn.cli.config import compose, plain

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ["data.source.entities=4", "data.source.events_per_entity=3072", "data.source.events_per_session=512"]
CUT = ["data.max_seq_len=96", "data.max_tokens_per_batch=384", "data.prepare.n_bins=8"]
STEPS = ["trainer.max_steps=2", "trainer.validate_every=1", "trainer.threads=1", "model.n_layers=1", "model.width=16"]
STEPS += ["model.n_heads=2", "model.hidden=16"]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Any:
    """Runs a command: its exit code, and what it said on stdout and on stderr."""

    def run(command: str, *arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["quantattn", *arguments])
        return main(command), *capfd.readouterr()

    return run


def test_training_on_shards_is_training_on_the_source(tmp_path: Path, call: Any) -> None:
    code, out, _ = call("prepare", *SOURCE, *CUT, f"out={tmp_path / 'shards'}", "cut.rows=200")
    assert code == 0
    assert f"{tmp_path / 'shards'}: 12,288 rows in 72 shards" in out
    assert f"train on it: python train.py data=prepared data.path={tmp_path / 'shards'}" in out
    assert call("train", *SOURCE, *CUT, *STEPS, f"paths.output_dir={tmp_path / 'raw'}")[0] == 0
    of_shards = ["data=prepared", f"data.path={tmp_path / 'shards'}"]
    # A worker process makes the batches of one of the two.
    assert call("train", *of_shards, *STEPS, "trainer.workers=1", f"paths.output_dir={tmp_path / 'again'}")[0] == 0
    assert not (tmp_path / "again" / "loader").exists()
    raw, again = ({p.name: p for p in (tmp_path / name).rglob("*") if p.is_file()} for name in ("raw", "again"))
    for name in ("metrics.csv", "vocabulary.json", "model.safetensors"):
        assert raw[name].read_bytes() == again[name].read_bytes(), name
    one, other = (json.loads(files["data.json"].read_text()) for files in (raw, again))
    manifest = other["hashes"].pop("manifest.json")
    assert len(manifest) == 64
    assert one == other


def test_a_run_may_read_its_source_through_shards(tmp_path: Path, call: Any) -> None:
    own = [*SOURCE, *CUT, *STEPS, "trainer.max_steps=1", f"shards={tmp_path / 'shards'}"]
    assert call("train", *own, f"paths.output_dir={tmp_path / 'one'}")[0] == 0
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "shards").rglob("*.parquet")}
    assert len(files) == 24
    assert call("train", *own, f"paths.output_dir={tmp_path / 'other'}")[0] == 0
    assert files == {path: path.stat().st_mtime_ns for path in (tmp_path / "shards").rglob("*.parquet")}
    one, other = ((tmp_path / name / "metrics.csv").read_bytes() for name in ("one", "other"))
    assert one == other


def test_settings_come_from_the_shards_and_the_command_line_beats_them(tmp_path: Path, call: Any) -> None:
    lobster = ["experiment=lobster", f"data.path={ROOT / 'data' / 'sample'}", "data.max_seq_len=64"]
    code, out, _ = call("prepare", *lobster, f"out={tmp_path}")
    assert code == 0
    assert "SAMPLE: 8,192 rows, 2024-01-02 to 2024-01-03; prices in 10^-4, tick 100, sizes in 10^0" in out
    assert "note: SAMPLE_2024-01-02_34200000_57600000_message_1.csv.gz stops at millisecond 53989083" in out
    given = ["experiment=lobster", "data=prepared", f"data.path={tmp_path}"]
    raw, own = (plain(compose("train", each))["data"] for each in (lobster, given))
    assert {**own, "source": raw["source"], "path": raw["path"]} == raw
    assert plain(compose("train", [*given, "data.prepare.n_bins=5"]))["data"]["prepare"] == {
        **raw["prepare"],
        "n_bins": 5,
    }
    _, out, _ = call("prepare", *lobster, "data.prepare.n_bins=7", f"out={tmp_path}")
    assert "shards written 0, left as they stood 2, removed 0" in out
    assert plain(compose("train", given))["data"]["prepare"]["n_bins"] == 7


TABLE = ["experiment=sberbank", "data.path=.", "labels.path=."]
FILINGS = ["experiment=filings", "data.path=.", "labels=none", "objective=masked_language"]
REFUSED = [
    (["prepare", "data=synthetic"], 2, "out is missing: give out=…"),
    (["prepare", "out=x", "cut.period=week"], 2, "cut.period='week'; there is day, month, none, year"),
    (["prepare", "out=x", "cut.rows=0"], 2, "rows of a shard must be at least 1, got 0"),
    (["prepare", "out=x", "entities=A"], 2, "entities must be a list of names, got 'A'"),
    (["prepare", "out=x", "data=lobster", "data.path=/no/where"], 2, "data.path=/no/where: there is no such file"),
    (["prepare", "out=x", *TABLE, "entities=[a]"], 2, "entities: shards of a table are runs of entities"),
    (["prepare", "out=x", *TABLE, "cut.period=day"], 2, "cut.period=day: shards of a table are runs of whole entities"),
    (["prepare", "out=x", *FILINGS, "data.source.facts=true"], 2, "data.source.facts=true: shards hold filings"),
    (["prepare", "out=x", "experiment=planted_filings"], 2, "made filings know more than their table"),
    (["prepare", "out=x", "entities=[ZZ]", *SOURCE], 1, "the source has no ZZ; it has SYN000000, SYN000001"),
    (["train", "data=prepared"], 2, "data.path is missing: give data.path=…"),
    (["train", "data=prepared", "data.path=/no/where"], 2, "data.path=/no/where: there is no such file or folder"),
    (["train", "data=prepared", "data.path=."], 2, "holds no plan.json: it is no folder of shards"),
]


@pytest.mark.parametrize(("arguments", "code", "sentence"), REFUSED)
def test_refusals_are_one_sentence(
    tmp_path: Path, call: Any, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int, sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    found, _, err = call(*arguments)
    assert (found, len(err.strip().splitlines())) == (code, 1)
    assert sentence in err


def test_other_data_do_not_go_into_a_folder_that_is_begun(tmp_path: Path, call: Any) -> None:
    assert call("prepare", *SOURCE, f"out={tmp_path}", "entities=[SYN000001]")[0] == 0
    code, _, err = call("train", "data=prepared", f"data.path={tmp_path}", f"paths.output_dir={tmp_path / 'run'}")
    assert (code, "is not finished: SYN000000 of the source is not whole, and 2 more" in err) == (2, True)
    code, _, err = call("prepare", *SOURCE, "data.source.seed=5", f"out={tmp_path}")
    assert (code, "asked for with another source.seed (0, now 5); name another folder" in err) == (1, True)
