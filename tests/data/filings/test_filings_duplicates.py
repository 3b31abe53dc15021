"""Of several files of one filing, the one that says most stays, whatever the files are called."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from quantattn.data.sources.filings import scan_filings

Maker = Callable[..., str]
ACCESSION = "0000000123-24-000001"
CUT = {"filename": f"123_10K_2023_{ACCESSION}.htm", "cik": "123", "filing_type": "10-K", "filing_date": "2024-03-15"}


def written(kind: str, submission: Maker) -> str:
    if kind == "cut":
        return json.dumps(CUT | {"item_1": "Item 1. Business\nWe sold more."})
    return submission(accepted=None if kind == "date alone" else "20240315101500", cik="123")


@pytest.mark.parametrize("names", ["ab", "ba"])
@pytest.mark.parametrize(
    ("better", "worse"), [("whole", "cut"), ("whole", "date alone"), ("date alone", "cut")], ids=str
)
def test_the_file_that_says_most_stays(tmp_path: Path, submission: Maker, names: str, better: str, worse: str) -> None:
    for name, kind in zip(names, (better, worse), strict=True):
        (tmp_path / name).write_text(written(kind, submission))
    source = scan_filings(tmp_path, filing_dates="latest")
    assert source.frame.collect()["file"].to_list() == [names[0]]
    aside = {row["file"]: (row["status"], row["detail"]) for row in source.documents.to_dicts()}
    assert aside[names[1]] == ("duplicate accession", f"as in {names[0]}")


def test_of_equal_ones_the_first_stays(tmp_path: Path, submission: Maker) -> None:
    for name, cik in (("a", "123"), ("b", "456"), ("c", "789")):  # one accession under several filers
        (tmp_path / name).write_text(submission(cik=cik))
    source = scan_filings(tmp_path)
    assert source.frame.collect().select("file", "entity").rows() == [("a", "0000000123")]
    assert source.report.rows_set_aside == {"duplicate accession": 2}
