"""Training on the shards of filings, and of a table, is training on the files."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quantattn.cli import main
from quantattn.cli.config import compose, plain

STEPS = ["trainer.max_steps=2", "trainer.validate_every=1", "trainer.threads=1", "model.n_layers=1", "model.width=16"]
STEPS += ["model.n_heads=2", "model.hidden=16"]
TABLE = ["experiment=sberbank", "data=table", "data.source.id=who", "data.source.time=day", "labels=outcome"]
TABLE += ["labels.label=group", "data.source.time_format=day", "data.source.columns={kind: category, amount: decimal2}"]
FILINGS = ["experiment=filings", "objective=masked_language", "labels=none", "data.prepare.vocabulary_size=300"]
FILINGS += ["data.max_seq_len=256", "data.max_tokens_per_batch=1024"]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Any:
    """Runs a command that must end well, or be refused with a sentence: what it said on stdout."""

    def run(command: str, *arguments: str, refused: str = "") -> str:
        monkeypatch.setattr(sys, "argv", ["quantattn", *arguments])
        code = main(command)
        out, err = capfd.readouterr()
        assert code == (2 if refused else 0), err
        assert refused in err
        return str(out)

    return run


@pytest.fixture
def edgar(tmp_path: Path) -> Path:
    """Thirty submissions over 30 months."""
    random = np.random.default_rng(1)
    (tmp_path / "edgar").mkdir()
    for number in range(30):
        name, day = f"0000000123-20-{number:06}", f"{2018 + number // 12}{number % 12 + 1:02}15"
        words = " ".join(random.choice(["anvils", "rockets", "springs", "we", "made", "sold", "1,200"], 60))
        (tmp_path / "edgar" / f"{number:02}.txt").write_text(
            f"<SEC-DOCUMENT>{name}.txt : {day}\n<SEC-HEADER>{name}.hdr.sgml : {day}\n<ACCEPTANCE-DATETIME>{day}101500\n"
            f"ACCESSION NUMBER:\t{name}\nCONFORMED SUBMISSION TYPE:\t10-K\nFILED AS OF DATE:\t{day}\n\nFILER:\n\n"
            f"\tCOMPANY DATA:\n\t\tCOMPANY CONFORMED NAME:\tACME\n\t\tCENTRAL INDEX KEY:\t{number % 3 + 1}\n"
            "</SEC-HEADER>\n<DOCUMENT>\n<TYPE>10-K\n<SEQUENCE>1\n<TEXT>\n<html><body><p>FORM 10-K</p>"
            f"<p>Item 1. Business</p><p>{words}</p></body></html>\n</TEXT>\n</DOCUMENT>\n</SEC-DOCUMENT>\n"
        )
    return tmp_path


def same_run(one: Path, other: Path) -> dict[str, Any]:
    """Whether two run folders hold the same bits; what they say of their data, but for the hash of the manifest."""
    files = [{p.name: p for p in folder.rglob("*") if p.is_file()} for folder in (one, other)]
    for name in ("metrics.csv", "vocabulary.json", "model.safetensors"):
        assert files[0][name].read_bytes() == files[1][name].read_bytes(), name
    said = [json.loads(each["data.json"].read_text()) for each in files]
    hashes = [each.pop("hashes") for each in said]
    assert said[0] == said[1]
    return {name: (hashes[0].get(name), found) for name, found in hashes[1].items() if hashes[0].get(name) != found}


def test_of_a_table(bank: Path, call: Any) -> None:
    own = [*TABLE, f"data.path={bank / 'events.csv'}", f"labels.path={bank / 'outcomes.csv'}", "data.prepare.n_bins=7"]
    out = call("prepare", *own, f"out={bank / 'shards'}", "cut.rows=50")
    assert f"{bank / 'shards'}: 320 rows in 7 shards" in out
    assert f"train on it: python train.py data=prepared_table data.path={bank / 'shards'}" in out
    call("train", *own, *STEPS, f"paths.output_dir={bank / 'raw'}")
    shards = [*TABLE[:1], "data=prepared_table", f"data.path={bank / 'shards'}", *TABLE[4:6], "labels.id=who"]
    shards.append(f"labels.path={bank / 'outcomes.csv'}")
    call("train", *shards, *STEPS, f"paths.output_dir={bank / 'again'}")
    assert list(same_run(bank / "raw", bank / "again")) == ["manifest.json"]
    raw, made = (plain(compose("train", each))["data"] for each in (own, shards))
    assert {**made, "source": raw["source"], "path": raw["path"]} == raw


def test_of_filings(edgar: Path, call: Any) -> None:
    own = [*FILINGS, f"data.path={edgar / 'edgar'}"]
    out = call("prepare", *own, f"out={edgar / 'shards'}")
    assert f"{edgar / 'shards'}: 30 rows in 9 shards" in out
    assert "  0000000001: 10 rows, 2018 to 2020\n" in out
    assert f"train on it: python train.py data=prepared_filings data.path={edgar / 'shards'}" in out
    call("train", *own, *STEPS, f"paths.output_dir={edgar / 'raw'}")
    shards = [*FILINGS[:3], "data=prepared_filings", f"data.path={edgar / 'shards'}"]
    call("train", *shards, *STEPS, f"paths.output_dir={edgar / 'again'}")
    assert list(same_run(edgar / "raw", edgar / "again")) == ["31 source files"]
    sentence = (
        "keeps no setting prepare.layout; give data.prepare.layout=…, or data=prepared_filings, since it holds filings"
    )
    call("train", *FILINGS[:3], "data=prepared", f"data.path={edgar / 'shards'}", refused=sentence)
    raw, made = (plain(compose("train", each))["data"] for each in (own, shards))
    assert {**made, "source": raw["source"], "path": raw["path"]} == raw
    through = [*own, *STEPS, f"shards={edgar / 'shards'}", f"paths.output_dir={edgar / 'through'}"]
    parses = {path: path.stat().st_mtime_ns for path in (edgar / "shards").rglob("*.gz")}
    call("train", *through)
    assert list(same_run(edgar / "raw", edgar / "through")) == ["31 source files"]
    assert parses == {path: path.stat().st_mtime_ns for path in (edgar / "shards").rglob("*.gz")}
    assert len(parses) == 30
