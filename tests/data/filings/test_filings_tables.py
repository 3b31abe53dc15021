"""Tables of numbers are kept, dropped or told in a line; all else stays, and items begin and end where they did."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantattn.data.filings.items import Section
from quantattn.data.filings.parsed import Parsed
from quantattn.data.filings.tables import find_tables, with_tables
from quantattn.data.sources.filings import scan_filings

BEFORE = "Item 5.07 Submission of Matters\nThe votes were counted as follows.\n"
TABLE = "Nominee\tFor\tAgainst\nA. Smith\t1,000\t20\nELECTED\nB. Jones\t$ (7)\t99% (a)\n"
AFTER = "•\tfirst, a bullet\n•\tsecond, a bullet\n99.1\tPress release\nItem 9.01\tExhibits\nNone.\n"


def parsed(text: str, *slices: tuple[int, int], report: str | None = None) -> Parsed:
    sections = tuple(Section((str(n),), start, end, "found") for n, (start, end) in enumerate(slices))
    return Parsed(text=text, sections=sections, annual_report=report)


def test_a_table_of_numbers_is_found_and_lists_are_none() -> None:
    text = BEFORE + TABLE + AFTER
    assert [text[start:end] for start, end in find_tables(text)] == [TABLE]


def test_a_typed_table_with_rules_is_one() -> None:
    table = "1998\t1999\n------\t------\nNet sales......\t$1,204\t1,310\n\nCosts\t(900)\t--\n"
    text = f"The results were these:\n\n{table}Sales rose: anvils were dear, {'and again dear, ' * 8}as we had said.\n"
    assert [text[start:end] for start, end in find_tables(text)] == [table]


@pytest.mark.parametrize(
    ("choice", "told"),
    [("drop", ""), ("summary", "[table: 3 rows, 3 columns; Nominee, For, Against]\n")],
)
def test_what_becomes_of_a_table(choice: str, told: str) -> None:
    text = BEFORE + TABLE + AFTER
    filing = parsed(text, (0, len(BEFORE + TABLE)), (text.index("Item 9.01"), len(text)))
    changed, number = with_tables(filing, choice)  # type: ignore[arg-type]
    assert number == 1
    assert changed.text is not None
    assert changed.text.startswith(BEFORE + told)
    first, second = (changed.text[each.start : each.end] for each in changed.sections)
    assert first == BEFORE + told
    assert changed.text[changed.sections[0].end :].startswith("•\tfirst, a bullet\n")
    assert second == "Item 9.01\tExhibits\nNone.\n"
    assert with_tables(filing, "rows") == (filing, 0)


LINES = ["Item 1\tBusiness", "words of a sentence", "", "Sales\t1\t2", "Total\t(3)", "x" * 120, "•\tbullet"]


@given(st.lists(st.sampled_from(LINES), min_size=1, max_size=30))
def test_dropping_takes_the_tables_alone_and_items_keep_their_text(many: list[str]) -> None:
    text = "\n".join(many)
    starts = [sum(len(each) + 1 for each in many[:n]) for n, line in enumerate(many) if line.startswith("Item")]
    slices = list(zip(starts, [*starts[1:], len(text)], strict=False))
    filing = parsed(text, *slices)
    found = find_tables(text, starts)
    changed, number = with_tables(filing, "drop")
    assert number == len(found)
    rest, at = "", 0
    for start, end in found:
        rest, at = rest + text[at:start], end
    assert changed.text == rest + text[at:]
    for (start, end), section in zip(slices, changed.sections, strict=True):
        inside = [(max(a, start), min(b, end)) for a, b in found if a < end and b > start]
        assert section.end - section.start == end - start - sum(b - a for a, b in inside)
        assert changed.text[section.start :].startswith("Item 1\tBusiness")


def test_a_source_drops_tables_and_says_how_many(tmp_path: Path, submission) -> None:  # type: ignore[no-untyped-def]
    body = f"FORM 8-K\n\n{BEFORE}\n\n" + TABLE.replace("\t", "     ") + "\n\n\n\nSIGNATURES\n\nSigned.\n"
    (tmp_path / "a.txt").write_text(submission(body, form="8-K"))
    whole, dropped = (scan_filings(tmp_path, tables=each, items=True) for each in ("rows", "drop"))
    one, other = (each.frame.collect().row(0, named=True) for each in (whole, dropped))
    assert "A. Smith\t1,000\t20" in one["text"]
    assert "Smith" not in other["text"]
    assert [each["name"] for each in one["items"]] == [each["name"] for each in other["items"]] == ["5.07"]
    assert other["n_chars"] == len(other["text"]) < one["n_chars"]
    assert dropped.report.notes[-1] == "1 tables of numbers: left out"
    with pytest.raises(ValueError, match="tables must be one of rows, drop, summary, got 'none'"):
        scan_filings(tmp_path, tables="none")  # type: ignore[arg-type]


def test_rows_without_numbers_are_no_table() -> None:
    assert find_tables("Name\tOffice\nA. Smith\tTreasurer\nB. Jones\tSecretary\nC. Brown\tCounsel\n") == []


@pytest.mark.parametrize(("rows", "found"), [(3, 1), (4, 0)])
def test_a_third_of_the_rows_of_a_table_has_a_number(rows: int, found: int) -> None:
    text = "Shares held\t1,200\n" + "Name\tOffice\n" * (rows - 1)
    assert len(find_tables(text)) == found


def test_an_item_that_ends_in_a_table_ends_where_it_was() -> None:
    """The text of an item has no line end at its end, so the last line of a table reaches over it."""
    text = BEFORE + TABLE
    changed, _ = with_tables(parsed(text, (0, len(text) - 1)), "drop")
    assert changed.text == BEFORE
    assert (changed.sections[0].start, changed.sections[0].end) == (0, len(BEFORE))


def test_items_in_an_annual_report_move_too() -> None:
    report = "Financial review\n" + TABLE + "It was a good year.\n"
    filing = parsed("Item 7\nSee the annual report.\n", (0, 29), report=report)
    filing = replace(filing, sections=(replace(filing.sections[0], report=(0, len(report))),))
    changed, number = with_tables(filing, "drop")
    assert number == 1
    assert changed.annual_report == "Financial review\nIt was a good year.\n"
    assert changed.sections[0].report == (0, len(changed.annual_report))


@pytest.mark.parametrize(
    "between",
    [
        "The following proposal was also approved at the annual meeting of the holders:\n",
        "10\t.1\tLoan Agreement of May 5, 2007\n",  # a list of exhibits whose numbers stand in two cells
        f"Note 3\t{'which tells of things that were not told, ' * 3}\t12\n",
    ],
)
def test_what_is_no_row_and_no_title_ends_a_table(between: str) -> None:
    text = BEFORE + TABLE + between + TABLE + AFTER
    assert [text[start:end] for start, end in find_tables(text)] == [TABLE, TABLE]
