"""Indexes as EDGAR publishes them, and those that are none: one sentence that names the file."""

from __future__ import annotations

import gzip
import json
from datetime import date
from pathlib import Path

import pytest

from quantattn.data.filings.clock import parse_acceptance
from quantattn.data.filings.index import read_index
from quantattn.data.recognise import recognise

MASTER = """Description:           Master Index of EDGAR Dissemination Feed
Last Data Received:    March 31, 1996
Comments:              webmaster@sec.gov

CIK|Company Name|Form Type|Date Filed|Filename
--------------------------------------------------------------------------------
1000032|BINCH "JAMES" G|4|1996-02-05|edgar/data/1000032/0001000032-96-000001.txt
718413|COMMUNITY BANKERS TRUST|10-K405|1996-03-28|edgar/data/718413/0000718413-96-000002.txt
"""


def test_the_master_index_of_edgar_has_filing_dates_alone(tmp_path: Path) -> None:
    path = tmp_path / "master.gz"
    path.write_bytes(gzip.compress(MASTER.encode()))
    index = read_index(path)
    entry = index.find("0000718413-96-000002", "any")
    assert entry is not None
    assert (entry.cik, entry.form, entry.filed, entry.accepted) == ("0000718413", "10-K405", date(1996, 3, 28), None)
    assert len(index) == 2
    assert recognise(path).sentence.startswith("master.gz: it is an index of filings")


def test_what_edgar_says_of_a_filer(tmp_path: Path) -> None:
    """Lists side by side, under `filings.recent` or alone; a `Z` needs a zone."""
    lists = {
        "accessionNumber": ["0000718413-24-000001", "0000718413-24-000002"],
        "filingDate": ["2024-03-15", "2024-05-01"],
        "acceptanceDateTime": ["2024-03-14T18:00:27.000Z", "2024-05-01T16:00:00.000Z"],
        "form": ["10-K", "10-Q"],
        "primaryDocument": ["report.htm", "report.htm"],
    }
    path = tmp_path / "CIK0000718413.json"
    path.write_text(json.dumps({"cik": "718413", "name": "A", "filings": {"recent": lists, "files": []}}))
    entry = read_index(path, "new_york").find("0000718413-24-000001", "any")
    assert entry is not None
    assert (entry.cik, entry.form, entry.accepted) == ("0000718413", "10-K", parse_acceptance("20240314180027"))
    assert "index of filings" in recognise(path).sentence
    path.write_text(json.dumps(lists))
    entry = read_index(path, "new_york").find("0000718413-24-000001", "any")
    assert entry is not None
    assert (entry.cik, entry.accepted) == (None, parse_acceptance("20240314180027"))
    with pytest.raises(ValueError, match=r"^CIK0000718413\.json: index row 0: acceptance time .* ends in Z"):
        read_index(path)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"a": ', "Expecting value"),
        ("[" * 100_000, "maximum recursion depth exceeded"),
        ("[1, 2]", "expected a list of objects"),
        ('{"a": {"accepted": "20240315101500"}, "b": 1}', "expected a list of objects"),
        ('{"accession": ["x"], "accepted": []}', "its lists have different lengths"),
        ('{"filings": {"recent": 3}}', "expected a list of objects"),
        ("", "empty"),
    ],
)
def test_what_is_no_index_is_told_with_its_name(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"^x\.json is no index: ") as error:
        read_index(path)
    assert reason in str(error.value)
