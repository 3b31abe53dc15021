"""Four annual reports of one company: each compared with the one before, by nothing that came later."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from quantattn.data.filings.changes import FIRST, filing_changes
from quantattn.data.sources.filings import scan_filings


@pytest.fixture(scope="module")
def disney(realdata: Path) -> pl.DataFrame:
    folder = realdata / "filings"
    if not folder.is_dir():
        pytest.skip("the real data holds no filings")
    source = scan_filings(
        folder / "edgar_corpus_json_10-K" / "1001039_10K_201*",
        index=folder / "edgar_crawler_FILINGS_METADATA.csv.gz",
        filing_dates="latest",
        workers=1,
    )
    return source.frame.collect()


def test_each_year_is_compared_with_the_year_before(disney: pl.DataFrame) -> None:
    table = filing_changes(disney)
    years = table["available_time"].cast(pl.Datetime("ns")).dt.year().to_list()
    assert years == [2012, 2013, 2014, 2015]
    assert table["reason"].to_list() == [FIRST, None, None, None]
    assert table["earlier_accession"].to_list() == [None, *table["accession"].to_list()[:3]]
    changes = table["change_words"].drop_nulls().to_list()
    assert all(0 < change < 0.1 for change in changes)  # risk factors are mostly written once
    assert table["words"].drop_nulls().is_between(3_000, 6_000).all()
    early = filing_changes(disney.head(3))
    assert early.equals(table.head(3))
