"""Items of a source: where they stand, how many stand how, sequences of some of them alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from quantattn.data.filings.item_table import NONE_OF_THEM, TAKEN_WHOLE, item_names, item_summary, select_items
from quantattn.data.filings.prepare import prepare_filings
from quantattn.data.protocol import WalkForward
from quantattn.data.sources.filings import scan_filings
from quantattn.data.sources.source import Source, SourceReport

Maker = Callable[..., str]
BODY = (
    "FORM 10-K\n\nItem 1. Business\n\nWe make anvils.\n\nItem 6. [Reserved]\n\n"
    "Item 7. Management's Discussion and Analysis\n\nIncorporated by reference to our Annual Report, Exhibit 13."
)
REVIEW = "Management's Discussion and Analysis\n" + "We sold more anvils.\n" * 30


def exhibit(body: str) -> str:
    return f"<DOCUMENT>\n<TYPE>EX-13.1\n<SEQUENCE>2\n<TEXT>\n{body}\n</TEXT>\n</DOCUMENT>\n"


@pytest.fixture
def folder(tmp_path: Path, submission: Maker) -> Path:
    (tmp_path / "a.txt").write_text(submission(BODY, more=exhibit(REVIEW)))
    (tmp_path / "b.txt").write_text(
        submission("Item 5.02 Departure of Directors\n\nShe left.", form="8-K", accession="0000000123-24-000002")
    )
    return tmp_path


def test_items_are_columns_when_asked_for(folder: Path) -> None:
    (annual, current) = scan_filings(folder, items=True).frame.collect().to_dicts()
    found = {item["name"]: item for item in annual["items"]}
    assert [name for name, item in found.items() if item["status"] != "missing"] == ["1", "6", "7"]
    assert annual["text"][found["1"]["start"] : found["1"]["end"]] == "Item 1. Business\n\nWe make anvils."
    assert (found["6"]["status"], found["7"]["status"], found["8"]["start"]) == ("omitted", "by reference", None)
    assert annual["annual_report"][found["7"]["report_start"] : found["7"]["report_end"]] == REVIEW.strip()
    assert [(item["name"], item["status"]) for item in current["items"]] == [("5.02", "found")]
    assert current["annual_report"] is None
    plain = scan_filings(folder).frame.collect()
    assert not {"items", "annual_report"} & set(plain.columns)


def test_an_annual_report_that_cannot_be_read_is_told(tmp_path: Path, submission: Maker) -> None:
    hidden = "<html><body><div style='display:none'>x</div></body></html>"
    (tmp_path / "a.txt").write_text(submission(BODY, more=exhibit(hidden)))
    source = scan_filings(tmp_path, items=True)
    assert source.documents["status"].to_list() == ["ok"]
    assert source.documents["detail"][0].startswith("Exhibit 13: no visible text")
    assert "1 annual reports (Exhibit 13) could not be read; items are not followed into them" in source.report.notes


def test_how_many_items_stand_how(folder: Path) -> None:
    table = item_summary(scan_filings(folder, items=True).frame.collect())
    assert table.columns == ["family", "name", "found", "by_reference", "omitted", "missing"]
    assert table.filter(pl.col("name") == "7").row(0) == ("10-K", "7", 0, 1, 0, 0)
    names = table.filter(pl.col("family") == "10-K")["name"].to_list()
    assert names[:6] == ["1", "1A", "1B", "1C", "2", "3"]
    assert names[-1] == "16"


def test_some_items_in_place_of_the_whole(folder: Path) -> None:
    filings = scan_filings(folder, items=True).frame.collect()
    kept, counts, dropped = select_items(filings, ("1", "7"))
    assert kept["text"].to_list() == [
        "Item 1. Business\n\nWe make anvils.\n"
        "Item 7. Management's Discussion and Analysis\n\nIncorporated by reference to our Annual Report, Exhibit 13.\n"
        + REVIEW.strip()
    ]
    assert kept["n_chars"].to_list() == [len(kept["text"][0])]
    assert counts == {"item 1 found": 1, "item 7 by reference": 1}
    assert dropped == {NONE_OF_THEM: 1}
    whole, counts, _ = select_items(filings.with_columns(text=pl.lit("A letter.")), ("8",))
    assert whole["text"].to_list() == ["A letter."] * 2
    assert counts == {"item 8 missing": 1, TAKEN_WHOLE: 2}
    with pytest.raises(ValueError, match="none of 2 filings has one of the items 9C"):
        select_items(filings, ("9C",))


def test_names_as_yaml_gives_them() -> None:
    assert item_names([7, "1a", 5.02, "II.1A", 7]) == ("7", "1A", "5.02", "II.1A")
    for wrong in ([], ["17"], ["risk"]):
        with pytest.raises(ValueError, match="items must be names such as 1A"):
            item_names(wrong)


def test_sequences_of_some_items_alone() -> None:
    """Sixty filings, one a day, of which every tenth has no item 1."""
    rows = []
    for n in range(60):
        first = "" if n % 10 == 3 else f"Item 1. Business\nIt rose {n}.\n"
        time = (19_000 + n) * 86_400 * 10**9
        rows.append(
            ("0000000001", time, time, n, "10-K", f"0000000001-22-{n:06}", first + "Item 7. Management\nsecret")
        )
    schema = ["entity", "event_time", "available_time", "seq", "form", "accession", "text"]
    frame = pl.DataFrame(rows, schema=schema, orient="row")
    made = Source(frame.lazy(), (), SourceReport(frame.height, files={"made": "up"}))
    cut = WalkForward(test=0.2, valid=0.1)
    prepared = prepare_filings(made, objective="masked", items=[1], split=cut, vocabulary_size=300)
    counts = prepared.counts
    assert (counts["filings"], counts["item 1 found"], counts["item 1 missing"]) == (60, 54, 6)
    assert prepared.dropped[NONE_OF_THEM] == 6
    assert sum(counts[f"{part} filings"] for part in ("train", "valid", "test")) == 54
    assert "secret" not in prepared.vocabulary_json
    with pytest.raises(ValueError, match="items must be names"):
        prepare_filings(made, objective="masked", items=["risk"])
