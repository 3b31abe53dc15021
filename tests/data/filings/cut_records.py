"""Records of filings that were cut into items, as EDGAR-CORPUS and edgar-crawler have them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import polars as pl

from quantattn.data.filings.index import FilingIndex

NUMBERS = tuple("1 1A 1B 2 3 4 5 6 7 7A 8 9 9A 9B 10 11 12 13 14 15".split())  # noqa: SIM905
"""Sections of EDGAR-CORPUS."""
ACCEPTED = "20160226161500"


def section(number: str, words: str) -> str:
    return f"Item {number}. {words}\nOf {words.lower()} there is more to say than this."


def record(cik: int = 718413, year: int = 2015, **texts: str) -> dict[str, str]:
    """A row of EDGAR-CORPUS."""
    told = {"1": section("1", "Business"), "1A": section("1A", "Risk Factors"), "7": section("7", "Discussion")} | texts
    named = {"filename": f"{cik}_{year}.txt", "cik": str(cik), "year": str(year)}
    return named | {f"section_{number}": told.get(number, "") for number in NUMBERS}


def index_of(*records: Mapping[str, str], accepted: str = ACCEPTED) -> FilingIndex:
    return FilingIndex({"filename": each["filename"], "accepted": accepted} for each in records)


def parquet(path: Path, records: list[dict[str, str]]) -> Path:
    pl.DataFrame(records).write_parquet(path)
    return path


RECORDS = [record(1), record(2, **{"8": section("8", "Statements")}), record(3, 2016)]


def crawled(**more: str) -> dict[str, str]:
    """An object of edgar-crawler."""
    return {
        **{"cik": "123", "company": "ACME", "filing_type": "10-K", "filing_date": "2024-03-15", "sic": "1"},
        **{"period_of_report": "2023-12-31", "filename": "123_10K_2023_0000000123-24-000001.htm"},
        **{"item_1": section("1", "Business"), "item_1A": "", "item_2": "Item 2. Properties\nNone."},
        **more,
    }
