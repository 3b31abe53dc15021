"""Real filings and prices: every kept form gives text, dates are honest, another tool's items are in it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import polars as pl
import pytest

from quantattn.data.filings.clock import parse_acceptance, session_on
from quantattn.data.filings.labels import label_filings
from quantattn.data.filings.prices import match_tickers, read_prices, read_tickers
from quantattn.data.sources.filings import FilingSource, scan_filings


@pytest.fixture(scope="module")
def folder(realdata: Path) -> Path:
    if not (realdata / "filings").is_dir():
        pytest.skip("the real data holds no filings")
    return realdata / "filings"


@pytest.fixture(scope="module")
def submissions(folder: Path) -> FilingSource:
    return scan_filings(folder / "full_submission")


def parsed(source: FilingSource) -> pl.DataFrame:
    """Files of a kept form, whether they could be dated or not."""
    return source.documents.filter(pl.col("family").is_not_null())


@pytest.mark.parametrize(("name", "files"), [("old_ascii", 8), ("html_8-K", 6), ("edgar_crawler_raw_8-K", 6)])
def test_every_filing_of_a_kept_form_gives_its_text(folder: Path, name: str, files: int) -> None:
    source = scan_filings(folder / name)
    kept = parsed(source)
    assert kept.height == files
    assert set(kept["status"]) <= {"ok", "no acceptance time", "filer not stated"}
    assert kept["n_chars"].min() > 1_000  # type: ignore[operator]
    assert kept["share"].min() > 0.98  # type: ignore[operator]
    assert source.report.rows_read + sum(source.report.rows_set_aside.values()) == len(source.report.files)


def test_other_forms_are_told_and_counted(folder: Path, submissions: FilingSource) -> None:
    documents = scan_filings(folder / "old_ascii" / "24F-2NT_0000950129-95-001652.txt").documents
    assert documents.select("status", "detail").row(0) == ("other form", "24F-2NT")
    assert submissions.report.rows_set_aside["other form"] == 1  # 485APOS, a header alone


def test_full_submissions(submissions: FilingSource) -> None:
    table = submissions.frame.collect()
    by_accession = {row["accession"]: row for row in table.to_dicts()}
    apple = by_accession["0001104659-04-019574"]
    assert (apple["entity"], apple["form"], apple["accepted_text"]) == ("0000320193", "8-K", "20040714162934")
    assert apple["event_time"] == apple["available_time"] == 1_089_836_974_000_000_000  # 2004-07-14T20:29:34Z
    southern = by_accession["0000092122-19-000063"]
    assert southern["ciks"] == ["0000092122", "0000041091"]
    assert "Georgia Power" in southern["text"]
    assert "xbrli" not in southern["text"]
    feed = submissions.documents.filter(pl.col("accession") == "0001493152-25-001317")
    assert feed.select("form", "entity", "status").row(0) == ("8-K", "0000880984", "no acceptance time")
    assert submissions.documents["parts_skipped"].sum() == 17


def test_after_half_past_five_is_the_next_day(folder: Path) -> None:
    source = scan_filings(folder / "old_ascii" / "EXPERTELLIGENCE_8-K_0000723533-04-000001.txt")
    (row,) = source.frame.collect().to_dicts()
    assert row["accepted_text"] == "20040107180532"
    assert row["available_time"] == parse_acceptance("20040108060000")


def test_a_filing_of_1994_is_dated_only_by_its_filing_date(folder: Path) -> None:
    path = folder / "old_ascii" / "FORD_10-K_0000037996-94-000005.txt.gz"
    assert scan_filings(path).documents["detail"].to_list() == ["only the filing date 1994-03-21 is known"]
    (row,) = scan_filings(path, filing_dates="latest").frame.collect().to_dicts()
    assert row["available_time"] == parse_acceptance("19940322060000")
    assert "second-largest producer of cars and trucks" in re.sub(r"\s+", " ", row["text"])


def test_large_inline_xbrl(folder: Path) -> None:
    (row,) = scan_filings(folder / "html_10-K" / "AAPL_10-K_0000320193-24-000123.html.gz").documents.to_dicts()
    assert (row["form"], row["entity"], row["accession"]) == ("10-K", "0000320193", "0000320193-24-000123")
    assert row["status"] == "no acceptance time"  # an accession number and a period are no time
    assert row["share"] == 1.0


def words(text: str) -> str:
    return " ".join(re.findall(r"\w+", text))


def test_items_cut_by_another_tool_stand_in_our_text(folder: Path) -> None:
    source = scan_filings(
        folder / "edgar_crawler_raw_8-K",
        index=folder / "edgar_crawler_FILINGS_METADATA.csv.gz",
        filing_dates="latest",
    )
    texts = dict(source.frame.collect().select("accession", "text").iter_rows())
    compared = 0
    for path in sorted((folder / "edgar_corpus_json_8-K").glob("*.json")):
        accession = re.search(r"\d{10}-\d{2}-\d{6}", path.name)
        assert accession is not None
        ours = words(re.sub(r"^\d{1,3}$", "", texts[accession.group()], flags=re.MULTILINE))  # without page numbers
        for name, item in json.loads(path.read_text(encoding="utf-8")).items():
            if name.startswith("item") and item:
                compared += 1
                assert words(item) in ours, (path.name, name)
    assert compared == 13


def test_real_prices_meet_real_filings(realdata: Path, folder: Path, submissions: FilingSource) -> None:
    prices = read_prices(realdata / "prices" / "yfinance_ohlcv_2000_2025")
    assert len(prices.entities) == 25
    assert prices.frame.height == 149_730
    assert set(prices.adjusted.values()) == {True}
    assert all(session_on(day) is not None for day in prices.frame["date"].unique())
    filings = submissions.frame.collect()
    tickers = match_tickers(filings["entity"], prices, read_tickers(folder / "sec_company_tickers.json.gz"))
    assert sorted(tickers.values()) == ["AAPL", "F", "ORCL", "TSLA"]
    labels = label_filings(filings, prices, tickers, horizon=63).filter(pl.col("label_reason").is_null())
    assert sorted(labels["ticker"]) == ["AAPL", "F", "ORCL", "TSLA"]
    volatile = labels.sort("volatility")["ticker"].to_list()
    assert volatile[-1] == "TSLA"  # the spring of 2020
