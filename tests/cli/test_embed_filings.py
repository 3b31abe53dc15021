"""From full submissions over a pretrained encoder to a table of embeddings, one row a filing or an item."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from small_run import call

from quantattn import load_model
from quantattn.data.filings.clock import parse_acceptance

RISKS = "Item 1A. Risk Factors\nOur anvils may fall on customers and we may be sued for it."


def submission(cik: int, year: int) -> str:
    name, day = f"{cik:010d}-{year % 100:02d}-000001", f"{year}03{cik // 11:02d}"
    risks = RISKS if year < 2022 else f"{RISKS} A court has decided against us."
    return (
        f"<SEC-DOCUMENT>{name}.txt : {day}\n<SEC-HEADER>{name}.hdr.sgml : {day}\n"
        f"<ACCEPTANCE-DATETIME>{day}101500\nACCESSION NUMBER:\t\t{name}\nCONFORMED SUBMISSION TYPE:\t10-K\n"
        f"FILED AS OF DATE:\t\t{day}\n\nFILER:\n\n\tCOMPANY DATA:\n\t\tCOMPANY CONFORMED NAME:\t\t\tACME\n"
        f"\t\tCENTRAL INDEX KEY:\t\t\t{cik}\n</SEC-HEADER>\n<DOCUMENT>\n<TYPE>10-K\n<SEQUENCE>1\n<TEXT>\nFORM 10-K\n\n"
        f"Item 1. Business\nWe made {year} anvils for company {cik}.\n{risks}\nItem 2. Properties\nNone.\n"
        "</TEXT>\n</DOCUMENT>\n</SEC-DOCUMENT>\n"
    )


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of eighteen filings and a run that was pretrained on them."""
    home = tmp_path_factory.mktemp("embed")
    (home / "filings").mkdir()
    for cik in (11, 22, 33):
        for year in range(2017, 2023):
            (home / "filings" / f"{cik}-{year}.txt").write_text(submission(cik, year))
    arguments = [
        *("experiment=filings", "objective=masked_language", "labels=none", f"data.path={home / 'filings'}"),
        *("data.prepare.vocabulary_size=300", "data.max_seq_len=64", "data.max_tokens_per_batch=512", "test=false"),
        *("trainer.max_steps=2", "trainer.validate_every=2", "trainer.threads=1", f"paths.output_dir={home / 'run'}"),
    ]
    with pytest.MonkeyPatch.context() as patch:
        assert call(patch, "train", *arguments) == 0
    return home


def embed(home: Path, out: Path, *arguments: str) -> pl.DataFrame:
    given = [f"model={home / 'run' / 'model'}", "data=filings", f"data.path={home / 'filings'}", f"out={out}"]
    with pytest.MonkeyPatch.context() as patch:
        assert call(patch, "score", *given, "output=embeddings", "deterministic=batch", *arguments) == 0
    return pl.read_delta(str(out)).sort("key")


def test_one_row_a_filing(home: Path, tmp_path: Path) -> None:
    table = embed(home, tmp_path / "out")
    assert table.columns == [
        *("entity", "as_of", "key", "form", "accession", "item", "status", "tokens", "rows", "seen_until"),
        *("embedding", "model_sha", "plan_sha"),
    ]
    assert table["accession"].to_list() == [f"{c:010d}-{y}-000001" for c in (11, 22, 33) for y in range(17, 23)]
    assert table["as_of"][0] == parse_acceptance("20170301101500")
    artefact = load_model(home / "run" / "model").artefact
    assert artefact is not None
    assert set(table["seen_until"]) == {artefact.extra["seen_until"]}
    assert (table["as_of"] < artefact.extra["seen_until"]).any()
    assert (table["as_of"] >= artefact.extra["seen_until"]).any()
    assert table["tokens"].min() > 64  # type: ignore[operator]  # each in several windows
    vectors = np.stack(table["embedding"].to_numpy())
    assert vectors.shape == (18, 64)
    assert vectors.dtype == np.float32
    assert embed(home, tmp_path / "out").equals(table)  # the same command again writes nothing


def test_one_row_an_item_and_the_same_text_gives_the_same_bits(home: Path, tmp_path: Path) -> None:
    table = embed(home, tmp_path / "out", "unit=item", "items=[1A]")
    assert set(table["item"]) == {"1A"}
    assert set(table["status"]) == {"found"}
    same = [row.tobytes() for row in table["embedding"].to_numpy()]
    last = table["accession"].str.contains("-22-").to_list()
    assert len({bits for bits, new in zip(same, last, strict=True) if not new}) == 1
    assert len({bits for bits, new in zip(same, last, strict=True) if new}) == 1
    assert len(set(same)) == 2


def test_what_does_not_go_together_is_refused(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = f"model={home / 'run' / 'model'}"
    out = f"out={tmp_path / 'out'}"
    assert call(monkeypatch, "score", model, out, "unit=item") == 2
    assert "but data is market" in capsys.readouterr().err
    given = [model, out, "data=filings", f"data.path={home / 'filings'}"]
    assert call(monkeypatch, "score", *given, "items=[99]", "unit=item") == 1
    assert "items must be names such as 1A" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_changes_of_an_item_by_words_and_by_embeddings(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    embed(home, tmp_path / "items", "unit=item", "items=[1A]")
    out = tmp_path / "changes.parquet"
    given = [f"data.path={home / 'filings'}", f"embeddings={tmp_path / 'items'}", f"out={out}"]
    assert call(monkeypatch, "changes", *given) == 0
    said = capsys.readouterr().out
    assert "item 1A of 18 filings, 15 compared" in said
    assert "not compared: 3, first filing" in said
    assert "in_sample=true gives those too" in said
    table = pl.read_parquet(out)
    shown = [line.split("│")[1:-1] for line in said.splitlines() if line.startswith("│")]
    assert [float(row[5]) for row in shown] == sorted((float(row[5]) for row in shown), reverse=True)
    compared = table.filter(pl.col("reason").is_null())
    assert sorted(row[5].strip() for row in shown) == sorted(f"{value:.4f}" for value in compared["change_words"])
    assert sum(row[7].strip() == "–" for row in shown) == compared["change_embedding"].null_count() > 0
    changed = table.filter(pl.col("reason").is_null() & pl.col("accession").str.contains("-22-"))
    same = table.filter(pl.col("reason").is_null() & ~pl.col("accession").str.contains("-22-"))
    assert set(same["change_words"]) == set(same["change_tfidf"]) == {0.0}
    assert changed["change_words"].min() > 0  # type: ignore[operator]
    assert changed["change_embedding"].min() > 0  # type: ignore[operator]
    unseen = table.filter(pl.col("embedding_reason").is_null())
    assert 0 < unseen.height < 15
    assert set(unseen.filter(~pl.col("accession").str.contains("-22-"))["change_embedding"]) <= {0.0}
    assert call(monkeypatch, "changes", *given[:2], "out=table.xlsx") == 2
    assert "written as .parquet or .csv" in capsys.readouterr().err
    assert call(monkeypatch, "changes", "data=synthetic", f"out={out}") == 2
    assert "changes are of filings, but data is market" in capsys.readouterr().err


def write_closes(folder: Path, first: str, last: str) -> Path:
    """Daily closes of two of the three companies, on every weekday from the first day to the last."""
    days = pl.date_range(pl.lit(first).str.to_date(), pl.lit(last).str.to_date(), "1d", eager=True)
    days = days.filter(days.dt.weekday() <= 5)
    folder.mkdir()
    rng = np.random.default_rng(0)
    for ticker in ("AAA", "BBB"):
        closes = np.round(100 * np.exp(np.cumsum(rng.normal(0, 0.01, len(days)))), 2)
        pl.DataFrame({"date": days, "close": closes}).write_csv(folder / f"{ticker}.csv")
    known = {str(i): {"cik_str": 11 * (i + 1), "ticker": ticker} for i, ticker in enumerate(("AAA", "BBB", "C"))}
    (folder.parent / "tickers.json").write_text(json.dumps(known))
    return folder


@pytest.mark.parametrize(("first", "last", "code"), [("2016-01-01", "2026-06-30", 0), ("2016-01-01", "2020-12-31", 1)])
def test_a_market_reads_the_embeddings_if_their_model_saw_nothing_of_what_is_held_out(
    home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    first: str,
    last: str,
    code: int,
) -> None:
    closes = write_closes(tmp_path / "closes", first, last)
    embed(home, tmp_path / "table")
    run = tmp_path / "run"
    given = [
        *("experiment=market", "data=with_filings", f"data.path={closes}", f"data.source.filings={tmp_path / 'table'}"),
        *(f"data.source.tickers={tmp_path / 'tickers.json'}", "labels.horizon=5", "data.max_seq_len=64"),
        *("trainer.max_steps=1", "trainer.validate_every=1", "trainer.threads=1", "data.prepare.decision_every=10"),
    ]
    assert call(monkeypatch, "train", *given, "test=false", f"paths.output_dir={run}") == code
    said = capsys.readouterr()
    if code:
        assert "fitted on rows outside training: encoder of filings" in said.err
        return
    assert len(load_model(run / "model").encoder.config.vectors["filing"]) == 64
    data = json.loads((run / "data.json").read_text())
    assert data["counts"]["set aside by the source: filings of companies that the market does not have"] == 6
