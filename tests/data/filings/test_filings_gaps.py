"""Items that no numbered heading opens in its place; headings that are none: contents, indexes, tops of pages."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from quantattn.data.filings.forms import FAMILIES, form_on_cover, other_form_on_cover
from quantattn.data.filings.items import BY_REFERENCE, FOUND, MISSING, OMITTED, Items, items_of, status_of
from quantattn.data.filings.parsed import OTHER_FORM, UNREADABLE, Parsed, Request
from quantattn.data.filings.parsing import parse

PROSE = "We make anvils and sell them in forty countries, and nobody has been hurt by one of them.\n" * 8
PART_III = "The information that this Part asks for is incorporated by reference from our proxy statement."
SIGNED = "SIGNATURES\nPursuant to the requirements of the Securities Exchange Act, signed.\n"


def names(items: Items) -> list[tuple[str, ...]]:
    return [section.names for section in items.sections]


def joined(*pieces: str) -> str:
    return "\n".join(piece.strip() for piece in pieces)


def test_an_item_out_of_the_order_of_the_form_is_taken_where_it_stands() -> None:
    text = joined(
        "PART I", "Item 2. Management’s Discussion and Analysis", PROSE, "Item 1. Financial Statements", PROSE
    )
    text = joined(
        text, "Item 4. Controls and Procedures", PROSE, "PART II", "Item 6. Exhibits", "31.1 Of the officer", SIGNED
    )
    items = items_of(text, "10-Q")
    assert names(items) == [("I.2",), ("I.1",), ("I.4",), ("II.6",)]
    assert items["I.1"].strip() == joined("Item 1. Financial Statements", PROSE)
    pointer = text.replace(joined("Item 1. Financial Statements", PROSE), "Item 1. Financial Statements\nSee below.")
    assert items_of(pointer, "10-Q").status["I.1"] == MISSING  # a line that points to an item opens none


CONTENTS = """
TABLE OF CONTENTS
Item 1.\tFinancial Statements\t3
Item 2.\tManagement’s Discussion and Analysis\t9
Item 4.\tControls and Procedures\t12
"""


def test_a_title_without_its_number_opens_an_item_between_its_neighbours() -> None:
    statements = joined(
        "Condensed Consolidated Statements of Earnings", PROSE, "Condensed Consolidated Balance Sheets", PROSE
    )
    text = joined("ACME INC.", CONTENTS, "2", statements, "Item 2. Management’s Discussion and Analysis", PROSE)
    text = joined(text, "Item 4. Controls and Procedures", PROSE, SIGNED)
    items = items_of(text, "10-Q")
    assert names(items) == [("I.1",), ("I.2",), ("I.4",)]
    assert items["I.1"] == statements
    titled = items_of(text.replace(statements, "FINANCIAL STATEMENTS\nACME INC.\n" + statements), "10-Q")
    assert titled["I.1"] == "FINANCIAL STATEMENTS\nACME INC.\n" + statements


def test_a_title_opens_an_item_that_the_form_has_not_always_had_only_where_the_filing_lists_it() -> None:
    business = joined("Item 1. Business", PROSE, "Risk Factors", PROSE)
    text = joined("ACME INC.", business, "Item 2. Properties", PROSE)
    assert items_of(text, "10-K")["1"] == business
    untitled = joined(text.replace("Item 2. Properties", "Properties"), "Item 3. Legal Proceedings", PROSE)
    assert names(items_of(untitled, "10-K")) == [("1",), ("2",), ("3",)]  # properties were always an item
    listed = "TABLE OF CONTENTS\nItem 1.\tBusiness\t3\nItem 1A.\tRisk Factors\t5\nItem 2.\tProperties\t9\n"
    items = items_of(listed + text, "10-K")
    assert names(items) == [("1",), ("1A",), ("2",)]
    assert items["1A"] == joined("Risk Factors", PROSE)


INDEX = """
FORM 10-K CROSS-REFERENCE INDEX
Item 1.\tBusiness\tPages 3-9
General development\tPage 4
Item 1A.\tRisk Factors\tPages 10-20
Item 2.\tProperties
None that is ours, see page 12
Item 7.\tManagement’s Discussion and Analysis\tPages 21-40
Item 8.\tFinancial Statements and Supplementary Data\tPages 41-70
"""


def test_an_index_at_the_end_is_no_list_of_items() -> None:
    contents = "MANAGEMENT’S DISCUSSION AND ANALYSIS\nOur products\t20\nOur markets\t21"  # a title above its entries
    report = joined(
        contents, "OUR YEAR", PROSE * 9, "RISK FACTORS", PROSE, "MANAGEMENT’S DISCUSSION AND ANALYSIS", PROSE * 5
    )
    items = items_of(joined(report, "Properties", PROSE, INDEX, SIGNED), "10-K")
    titled = [("1A",), ("7",), ("2",)]  # in the order of the text, which is not that of the form
    assert names(items) == [*titled, ("1",), ("8",)]  # then what the index alone says
    assert items["1A"] == joined("RISK FACTORS", PROSE)
    assert items["2"] == joined("Properties", PROSE, "FORM 10-K CROSS-REFERENCE INDEX")
    assert items["1"] == "Item 1.\tBusiness\tPages 3-9\nGeneral development\tPage 4"
    assert (items.status["1"], items.status["8"], items.status["3"]) == (BY_REFERENCE, BY_REFERENCE, MISSING)
    paged = "Item 1.\tBusiness\t3\nItem 1A.\tRisk Factors\t10\nItem 7.\tDiscussion\t21\nItem 8.\tStatements\t41"
    front = items_of(joined("ACME INC.", paged, report, "Properties", PROSE, SIGNED), "10-K")
    assert names(front) == titled  # a table of contents opens nothing
    exhibits = joined(report, "Properties", PROSE, INDEX, SIGNED, "EXHIBIT 10", PROSE * 40)
    assert names(items_of(exhibits, "10-K")) == names(items)  # behind the signatures nothing counts
    rows = INDEX + "Item 9.\tChanges in and Disagreements with Accountants\tNot applicable\n"
    rows += f"Item 15.\tExhibits\tPage 70\n(a) {PART_III * 6}\n"
    noted = items_of(joined(report, "Properties", PROSE, rows, SIGNED), "10-K")  # a note below the last row is its own
    assert names(noted) == [*titled, ("1",), ("8",), ("9",), ("15",)]
    assert (noted.status["9"], noted["15"].count(PART_III)) == (OMITTED, 6)
    whole = joined("OUR YEAR", PROSE * 20, INDEX, SIGNED)
    assert names(items_of(whole, "10-K")) == []
    assert list(items_of(whole, "10-K").pieces()) == [((), whole)]
    short = joined("ACME INC.", INDEX, SIGNED)  # the same lines where they are most of the report
    assert len(items_of(short, "10-K").sections) > 3


def test_a_part_answered_under_its_heading_answers_its_items() -> None:
    text = joined("PART II", "Item 9A. Controls and Procedures", PROSE, "Item 9B. Other Information", "None.")
    text = joined(text, "PART III", PART_III, "PART IV", "Item 15. Exhibits", PROSE, SIGNED)
    items = items_of(text, "10-K")
    assert names(items) == [("9A",), ("9B",), ("10", "11", "12", "13", "14"), ("15",)]
    assert items["12"] == joined("PART III", PART_III)
    assert (items.status["9B"], items.status["12"]) == (OMITTED, BY_REFERENCE)
    furniture = items_of(text.replace(PART_III, "Dollars in millions except per share"), "10-K")
    assert furniture.status["12"] == MISSING


def test_what_a_part_says_before_its_first_item_is_no_answer_to_the_item_before() -> None:
    text = joined("Item 9B. Other Information", "None.", "PART III", PART_III * 8, "Item 10. Directors", PROSE, SIGNED)
    assert items_of(text, "10-K").status["9B"] == OMITTED


def test_short_items_at_the_end_of_a_report_are_no_index() -> None:
    text = joined("PART I", "Item 1. Financial Statements", PROSE * 9, "Item 2. Management’s Discussion", PROSE * 9)
    text = joined(text, "Item 4. Controls and Procedures", PROSE * 9, "PART II", "Item 1. Legal Proceedings\nNone.")
    text = joined(text, "Item 3. Defaults Upon Senior Securities\nNone.", "Item 5. Other Information\nNone.", SIGNED)
    items = items_of(text, "10-Q")
    assert names(items) == [("I.1",), ("I.2",), ("I.4",), ("II.1",), ("II.3",), ("II.5",)]
    assert items.outside[2] == len(SIGNED.strip()) + 1


WRITTEN = (
    *(("Item 1. ", "ITEM ONE - "), ("Item 1A. ", "ITEM ONE A - "), ("Item 2. ", "Item Two. ")),
    *(("Item 7. ", "ITEM SEVEN - "), ("Item 10. ", "I TEM TEN. "), ("Item 11. ", "I TEM 11. ")),
    *(("Item 14. ", "Item Fourteen. "), ("Item 15. ", "ITEM FIFTEEN - ")),
    *(("PART I\n", "P ART I\n"), ("PART III", "PAR T III")),
)


def test_numbers_in_words_and_letters_that_stand_apart_open_the_same_items() -> None:
    text = joined("ACME INC.", "PART I", "Item 1. Business", PROSE, "Item 1A. Risk Factors", PROSE)
    text = joined(text, "Item 2. Properties", "None.", "PART II", "Item 7. Management’s Discussion", PROSE, "PART III")
    text = joined(text, "Item 10. Directors", PART_III, "Item 11. Executive Compensation", PART_III)
    text = joined(text, "Item 14. Principal Accountant Fees", PART_III, "Item 15. Exhibits", PROSE, SIGNED)
    items, other = items_of(text, "10-K"), text
    assert len(items.sections) == 8
    for plain, written in WRITTEN:
        assert text.count(plain) == 1
        other = other.replace(plain, written)
    found = items_of(other, "10-K")
    assert found.status == items.status
    for name in dict.fromkeys(name for section in items.sections for name in section.names):
        assert found[name].split("\n")[1:] == items[name].split("\n")[1:]


def test_a_letter_in_the_place_of_a_number_opens_nothing() -> None:
    text = joined("Item 3. Legal Proceedings", "None.", "Item X. Executive Officers", PROSE, "Item Oneida", PROSE)
    assert names(items_of(joined(text, "Item 5. Market for Our Equity", PROSE), "10-K")) == [("3",), ("5",)]


def test_entries_of_several_lines_are_no_items() -> None:
    """Sub-entries without a page, such as the dates of statements, stand in many tables of contents."""
    notes = "\n".join(f"Note {n}. Revenue from the sale of anvils of kind {n}\t{n + 6}" for n in range(1, 15))
    contents = f"""
PART I
Item 1.\tFinancial Statements (Unaudited)
Statements of Income\t4
Three and six months ended June 30, 2023 and 2022
Index to notes:
{notes}
Item 2.\tManagement’s Discussion and Analysis\t31
Item 4.\tControls and Procedures\t55
"""
    body = joined(
        "Item 1. Financial Statements (Unaudited)", PROSE, "Item 2. Management’s Discussion and Analysis", PROSE
    )
    text = joined("ACME INC.", contents, "PART I", body, "Item 4. Controls and Procedures", PROSE, SIGNED)
    items = items_of(text, "10-Q")
    assert items["I.1"] == joined("Item 1. Financial Statements (Unaudited)", PROSE)
    assert items["I.2"] == joined("Item 2. Management’s Discussion and Analysis", PROSE)


def test_headings_at_the_top_of_every_page_change_nothing() -> None:
    page = "12\nPART II\nItem 5, 6, 7\n"
    text = joined(
        "Item 4. Mine Safety Disclosures", "None.", "Item 5. Market for Our Common Equity", PROSE, page, PROSE
    )
    text = joined(text, "Item 6. Selected Financial Data", PROSE, "Item 7. Management’s Discussion", PROSE, SIGNED)
    items = items_of(text, "10-K")
    assert names(items) == [("4",), ("5",), ("6",), ("7",)]
    assert items["5"].startswith("Item 5. Market")
    top = "ITEM 8. FINANCIAL STATEMENTS\n"
    contents = "Income\t65\nBalance sheets\t67\nNotes\t71\n61\n"
    text = joined("Item 7. Management’s Discussion", PROSE, top, contents, top, PROSE, top, PROSE, SIGNED)
    assert items_of(text, "10-K")["8"].startswith(joined(top, contents))


def test_a_link_to_the_contents_and_a_repeated_heading_are_no_table_of_contents() -> None:
    text = joined("PART I", "Item 1. Financial Statements", PROSE, "Item 4. Controls and Procedures", PROSE)
    text = joined(
        text, "65\nTable of Contents\nACME INC.\nITEM 4. CONTROLS AND PROCEDURES", "Item 1. Legal Proceedings"
    )
    text = joined(text, "Nobody sues us for our anvils at this time, so far.", "Item 6. Exhibits", PROSE, SIGNED)
    items = items_of(text, "10-Q")
    assert names(items) == [("I.1",), ("I.4",), ("II.1",), ("II.6",)]
    assert items["II.1"].endswith("so far.")


@pytest.mark.parametrize(
    ("own", "status"),
    [
        ("Selected Data\nIntentionally Omitted.", OMITTED),
        ("Risk Factors\nAs a “smaller reporting company,” we need not answer.", OMITTED),
        ("Comments\nAs of June 30, 2019, there are no unresolved comments.", OMITTED),
        ("Risk Factors\nSince December 31, 2022, there have been no changes.", OMITTED),
        ("Other Information\nNo disclosure is required here.", OMITTED),
        ("\nITEM 9B. OTHER INFORMATION\nNot applicable.", OMITTED),
        ("Financial Statements\nSee “Item 15. Exhibits and Schedules.”", BY_REFERENCE),
        ("Legal Proceedings\nFor suits, see Note 17. Commitments and Contingencies to our statements.", BY_REFERENCE),
        ("Financial Statements\nThe statements begin on page F-1 of this document.", BY_REFERENCE),
        ("Properties\nSince June 30, 2019, we own a foundry in Ohio.", FOUND),
        ("Business\nIn 2017. We make anvils and sell them.", FOUND),
    ],
)
def test_statuses_of_short_items(own: str, status: str) -> None:
    assert status_of(own) == status


def test_small_business_forms_have_items_of_their_own() -> None:
    missing = items_of("Nothing here.", "10-KSB").status
    assert set(missing.values()) == {MISSING}
    assert " ".join(missing) == "1 2 3 4 5 6 7 8 8A 8B 9 10 11 12 13 14"
    assert " ".join(items_of("Nothing here.", "10QSB/A").status) == "I.1 I.2 I.3 II.1 II.2 II.3 II.4 II.5 II.6"
    assert "1A" in items_of("Nothing here.", "10-K").status


@pytest.mark.parametrize(
    ("cover", "form", "other"),
    [
        ("FORM 20-F", None, "20-F"),
        ("SCHEDULE 13G/A", None, "13G/A"),
        ("Form 4", None, "4"),
        ("FORM OF PROXY", None, None),
        ("See Form 20-F for more.", None, None),
        ("FORM 10-K", "10-K", "10-K"),
        ("FORM 10-K\n(Amendment No. 1)", "10-K/A", "10-K"),
        ("AMENDMENT NO. 2\nTO\nFORM 10-Q", "10-Q/A", "10-Q"),
        ("FORM 10-K\nThe amendment of our charter.", "10-K", "10-K"),
    ],
)
def test_the_form_on_a_cover(cover: str, form: str | None, other: str | None) -> None:
    text = f"UNITED STATES\n{cover}\nAnnual report.\n"
    assert form_on_cover(text) == form
    assert other_form_on_cover(text) == other


def parsed(path: Path, content: str) -> Parsed:
    path.write_text(content, "utf-8")
    *_, last = parse(Request(str(path), FAMILIES))
    return last


TYPED = (
    f"\n<PAGE>\n                    FORM 10-K\n\nItem 1. Business\n{PROSE}\nItem 2. Properties\n{PROSE * 5}\n{SIGNED}"
)


def test_a_typed_report_is_read_without_any_lines_around_it_and_within_an_empty_page(tmp_path: Path) -> None:
    bare = parsed(tmp_path / "a.txt", TYPED)
    assert (bare.status, bare.kind, bare.form) == ("ok", "text", "10-K")
    assert [section.names for section in bare.sections] == [("1",), ("2",)]
    within = parsed(tmp_path / "b.html", f"<html><body><div>{TYPED}</div></body></html>")
    assert (within.text, within.sections) == (bare.text, bare.sections)
    page = parsed(tmp_path / "c.html", "<html><body><p>FORM 10-K</p><p>Two\nlines</p><p>of one</p></body></html>")
    assert page.text == "FORM 10-K\nTwo lines\nof one"  # a page of HTML has its paragraphs from its tags
    assert parsed(tmp_path / "d.txt", "Dear reader,\nwe make anvils.\n").status == "not a filing"


def test_a_page_of_another_form_says_which(tmp_path: Path) -> None:
    found = parsed(tmp_path / "a.html", "<html><body><p>FORM 20-F</p><p>Annual</p><p>report</p></body></html>")
    assert (found.status, found.detail) == (OTHER_FORM, "20-F, by its cover")


@pytest.mark.parametrize("content", [b"", b" \r\n" * 9, b"\xef\xbb\xbf", gzip.compress(b"", mtime=0)])
def test_an_empty_file_is_called_so(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x").write_bytes(content)
    *_, last = parse(Request(str(tmp_path / "x"), FAMILIES))
    assert (last.status, last.detail) == (UNREADABLE, "an empty file")
