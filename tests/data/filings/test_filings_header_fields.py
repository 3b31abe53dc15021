"""Names, industry and period of the header, and amendments linked to what they amend."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from pathlib import Path

import polars as pl
import pytest

from quantattn.data.filings.amendments import with_originals
from quantattn.data.filings.shown import day_of
from quantattn.data.filings.submission import parse_submission
from quantattn.data.sources.filings import scan_filings

TWO_FILERS = """<SEC-HEADER>
CONFORMED SUBMISSION TYPE:\t8-K
CONFORMED PERIOD OF REPORT:\t20191217
FILER:
\tCOMPANY CONFORMED NAME:\tFIRST CO
\tCENTRAL INDEX KEY:\t1
{first}FILER:
\tCOMPANY CONFORMED NAME:\tSECOND CO
\tCENTRAL INDEX KEY:\t2
\tSTANDARD INDUSTRIAL CLASSIFICATION:\tELECTRIC SERVICES [4911]
</SEC-HEADER>
"""


@pytest.mark.parametrize(
    ("line", "sic"),
    [
        ("\tSTANDARD INDUSTRIAL CLASSIFICATION:\tAGRICULTURAL PRODUCTION-CROPS [0100]\n", "0100"),
        ("\tSTANDARD INDUSTRIAL CLASSIFICATION:\t3711\n", "3711"),
        ("<ASSIGNED-SIC>100\n", "0100"),
        ("\tSTANDARD INDUSTRIAL CLASSIFICATION:\t []\n", None),
        ("", None),  # that of the second filer is not the first's
    ],
)
def test_the_industry_is_the_first_filers(line: str, sic: str | None) -> None:
    header = parse_submission(TWO_FILERS.format(first=line)).header
    assert header is not None
    assert header.sic == sic
    assert header.names == ("FIRST CO", "SECOND CO")
    assert header.period == "20191217"


@pytest.mark.parametrize(
    ("told", "day"),
    [
        ("20231231", "2023-12-31"),
        ("2023-12-31", "2023-12-31"),
        ("September\xa028,  2024", "2024-09-28"),
        ("JANUARY 6, 2025", "2025-01-06"),
        ("00000000", None),
        ("December 31", None),
        ("", None),
        (None, None),
    ],
)
def test_days_as_they_are_told(told: str | None, day: str | None) -> None:
    assert day_of(told) == day


def test_a_table_has_them(tmp_path: Path, submission: Callable[..., str]) -> None:
    text = submission().replace("CENTRAL INDEX KEY:\t\t\t123\n", "CENTRAL INDEX KEY:\t\t\t123\n<ASSIGNED-SIC>7372\n")
    (tmp_path / "a.txt").write_text(text)
    page = "<html xmlns:ix='u'><body><p>FORM 10-K for the year ended <ix:nonNumeric name='dei:DocumentPeriodEndDate'>"
    page += "<ix:nonNumeric name='dei:CurrentFiscalYearEndDate'>May 31</ix:nonNumeric>, 2025</ix:nonNumeric></p>"
    (tmp_path / "b.htm").write_text(page + "<p>FORM 10-K</p>" * 3)
    index = tmp_path.parent / "index.csv"
    index.write_text("filename,accepted,cik,form\nb.htm,20250717120000,320187,10-K\n")
    table = scan_filings(tmp_path, index=index).frame.collect()
    header, page_alone = table.sort("file").select("names", "sic", "period").rows()
    assert header == (["ACME 123"], "7372", date(2023, 12, 31))
    assert page_alone == ([], None, date(2025, 5, 31))


def test_an_amendment_is_linked_to_the_original_of_its_period(tmp_path: Path, submission: Callable[..., str]) -> None:
    made = [
        ("01", "10-K", "20231231", "20240315101500", "123"),
        ("02", "10-K/A", "20231231", "20240401101500", "123"),  # → 01
        ("03", "10-K", "20241231", "20250315101500", "123"),
        ("04", "10-K/A", "20231231", "20250401101500", "123"),  # → 01, though 03 is nearer
        ("05", "10-K/A", "20221231", "20250402101500", "123"),  # its original is not there
        ("06", "10-Q/A", "20231231", "20250403101500", "123"),  # nor is one of its family
        ("07", "10-K/A", "20231231", "20250404101500", "456"),  # nor one of this filer
        ("08", "10-K405/A", "20241231", "20250405101500", "123"),  # → 03, of the same family
        ("09", "10-K/A", "20251231", "20250101101500", "123"),  # accepted before what it would amend
        ("10", "10-K", "20251231", "20250102101500", "123"),
        ("11", "10-K", "", "20240315101500", "789"),
        ("12", "10-K/A", "", "20240401101500", "789"),  # neither says of which period it is
    ]
    for number, form, period, accepted, cik in made:
        text = submission(form=form, accession=f"0000000123-24-0000{number}", accepted=accepted, cik=cik)
        (tmp_path / f"{number}.txt").write_text(text.replace("20231231", period))
    source = scan_filings(tmp_path)
    amends = dict(source.frame.select("accession", "amends").collect().iter_rows())
    links = {key[-2:]: value[-2:] for key, value in amends.items() if value is not None}
    assert links == {"02": "01", "04": "01", "08": "03"}
    assert "5 of 8 amendments: the original is not among the filings" in source.report.notes


def test_what_was_accepted_at_the_same_moment_is_amended_by_none() -> None:
    filings = pl.DataFrame(
        {
            "accession": ["original", "at once", "later"],
            "entity": [320193] * 3,
            "family": ["10-K"] * 3,
            "period": ["20241231"] * 3,
            "event_time": [10, 10, 11],
            "amendment": [False, True, True],
        }
    )
    assert with_originals(filings)["amends"].to_list() == [None, None, "original"]
