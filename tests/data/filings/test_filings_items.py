"""Items are disjoint slices in order; a table of contents never wins; planted items come back as they were planted."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from quantattn.data.filings.items import BY_REFERENCE, FOUND, MISSING, OMITTED, Items, items_of

TITLES = {
    "1": "Business",
    "1A": "Risk Factors",
    "2": "Properties",
    "3": "Legal Proceedings",
    "5": "Market for Registrant’s Common Equity",
    "7": "Management’s Discussion and Analysis of Financial Condition",
    "7A": "Quantitative and Qualitative Disclosures About Market Risk",
    "8": "Financial Statements and Supplementary Data",
    "9A": "Controls and Procedures",
    "10": "Directors, Executive Officers and Corporate Governance",
    "15": "Exhibits and Financial Statement Schedules",
}
TITLES_10Q = {
    "I.1": "Financial Statements",
    "I.2": "Management’s Discussion and Analysis",
    "I.4": "Controls and Procedures",
    "II.1": "Legal Proceedings",
    "II.1A": "Risk Factors",
    "II.2": "Unregistered Sales of Equity Securities",
    "II.6": "Exhibits",
}
TITLES_8K = {
    "1.01": "Entry into a Material Definitive Agreement",
    "2.02": "Results of Operations and Financial Condition",
    "5.02": "Departure of Directors or Certain Officers",
    "9.01": "Financial Statements and Exhibits",
}
FORMS = {"10-K": TITLES, "10-Q": TITLES_10Q, "8-K": TITLES_8K}
COVER = "ACME INC.\nForm 10-K\nAnnual report.\n"
SIGNED = "\nSIGNATURES\nPursuant to the requirements of the Securities Exchange Act, signed.\nBy: A. Smith\n"

SENTENCES = st.sampled_from(
    [
        "We make anvils and sell them in forty countries.",
        "Item 7 of this report says more about our results, and so does Part II, Item 8.",
        "See “Item 1A. Risk Factors” for what could go wrong with our anvils.",
        "Sales\t$10\t$9\nCosts\t$7\t$6",
        "12",
        "The items sold in 2023 were 4,000 anvils of the large kind.",
        "Our property in Ohio, owned since 1923, makes rockets.",
    ]
)
BODIES = st.lists(SENTENCES, min_size=1, max_size=4).map(
    lambda body: "\n".join(["Anvils fell on few people.", *body, "End."])
)
HEADINGS = st.sampled_from(
    ["Item {n}. {t}", "ITEM {n} - {t}", "Item {n}:\t{t}", "Item {n}.{t}", "Item {n}.\n{t}", "ITEM {n}. {T}"]
)
CONTENTS = st.sampled_from(["", "Item {n}.\t{t}\t{p}", "Item {n}. {t}", "ITEM {n}. {t} ...... {p}"])


def heading(pattern: str, name: str, title: str, page: int = 0) -> str:
    return pattern.format(n=name.rpartition(".")[2] if name[0] == "I" else name, t=title, T=title.upper(), p=page)


@st.composite
def planted(draw: st.DrawFn, form: str) -> tuple[str, dict[str, str]]:
    """A filing's text, and its items as they were put in."""
    titles = FORMS[form]
    names = draw(st.lists(st.sampled_from(list(titles)), min_size=2, unique=True))
    names.sort(key=list(titles).index)
    written, listed = draw(HEADINGS), draw(CONTENTS)
    items = {name: f"{heading(written, name, titles[name])}\n{draw(BODIES)}" for name in names}
    contents = [heading(listed, name, titles[name], page) for page, name in enumerate(names, 3)] if listed else []
    text = COVER + ("\n".join(["TABLE OF CONTENTS", *contents, "Our anvils are described below."]) if contents else "")
    part = ""
    for name, item in items.items():
        if form == "10-Q" and name.split(".")[0] != part:
            part = name.split(".")[0]
            text += f"\nPART {part}\n"
        text += "\n" + item
    return text + SIGNED, items


def check_slices(found: Items) -> None:
    assert "".join(piece for _, piece in found.pieces()) == found.text
    assert sum(found.outside) + sum(each.end - each.start for each in found.sections) == len(found.text)
    at = 0
    for section in found.sections:
        assert at <= section.start < section.end <= len(found.text)
        at = section.end
    names = [name for section in found.sections for name in section.names]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_planted_items_are_found_exactly(form: str, data: st.DataObject) -> None:
    text, items = data.draw(planted(form))
    found = items_of(text, form)
    check_slices(found)
    assert {name: found[name] for name in found.status if name in found} == items


@settings(max_examples=40, deadline=None)
@given(data=st.data(), more=st.lists(SENTENCES).map("\n".join))
def test_text_behind_the_last_item_changes_nothing(data: st.DataObject, more: str) -> None:
    text, _ = data.draw(planted("10-K"))
    assert items_of(text + more, "10-K").sections == items_of(text, "10-K").sections


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            ["Item ", "ITEMS ", "1", "1A", "7.", "9.01 ", " and ", "\n", "PART II\n", "Business", "\t4", "(a)"]
        )
        | st.text(max_size=8)
    ).map("".join),
    st.sampled_from(list(FORMS)),
)
@example("", "10-K")
@example("Item 1.", "10-K")
@example("Items 1 and 1 and 2.\nItem 2.", "10-K")
def test_any_text_is_cut_without_a_crash_and_comes_back(text: str, form: str) -> None:
    check_slices(items_of(text, form))


def test_random_prose_has_no_item_and_stays_whole() -> None:
    found = items_of("Nothing here.\nItems sold: 7 and 8.\nAs item 1 of this report says.", "10-K")
    assert found.sections == ()
    assert list(found.pieces()) == [((), found.text)]
    assert set(found.status.values()) == {MISSING}


def test_an_index_alone_gives_no_items() -> None:
    """Some filers write chapters of their own and say in an index where each item is; its lines are no items."""
    index = "\n".join(
        f"Item {name}.\t{title}\tPages {n}-{n + 1}, 90" for n, (name, title) in enumerate(TITLES.items(), 3)
    )
    for text in (f"{index}\nWho we are\nWe make anvils.\n", f"Who we are\nWe make anvils.\n{index}{SIGNED}"):
        assert items_of(text, "10-K").sections == ()


def test_joint_headings() -> None:
    body = "We make anvils in Ohio."
    for written in ("Items 1 and 2. Business and Properties", "Item 1. Business and Item 2. Properties"):
        found = items_of(
            f"{written}\n{body}\nItem 1A. Risk Factors\nAnvils fall.\nItem 3. Legal Proceedings\nMany.", "10-K"
        )
        assert [section.names for section in found.sections] == [("1", "2"), ("1A",), ("3",)]
        assert found["1"] == found["2"] == f"{written}\n{body}"
        assert found.select(["2", "1", "3"]) == f"{written}\n{body}\nItem 3. Legal Proceedings\nMany."
    under = (
        "Item 11. Executive Compensation\nItem 12. Security Ownership\nItem 13. Certain Relationships\nSee our proxy."
    )
    assert [section.names for section in items_of(under, "10-K").sections] == [("11", "12", "13")]
    through = items_of("Items 1 through 4, 6 and 8 Not Applicable.\n\nItem 5. Other Events.\nWe fell.", "8-K")
    assert through.status == {**dict.fromkeys("123468", OMITTED), "5": FOUND}


def test_a_status_for_every_item() -> None:
    found = items_of(
        "Item 1. Business\nWe make anvils.\nItem 1B. Unresolved Staff Comments\nNone.\n"
        "Item 4. Mine Safety Disclosures\nNot applicable.\nPART II\nItem 6. [Reserved]\n"
        "Item 7. Management’s Discussion and Analysis\nThe discussion in our Annual Report to Shareholders, filed as "
        "Exhibit 13, is incorporated herein by reference.\n12\nTable of Contents\n"
        "Item 9A. Controls and Procedures\nThey work.",
        "10-K",
    )
    assert {name: status for name, status in found.status.items() if status != MISSING} == {
        **{"1": FOUND, "1B": OMITTED, "4": OMITTED, "6": OMITTED, "7": BY_REFERENCE, "9A": FOUND}
    }
    assert found.status["8"] == MISSING
    assert found["4"].endswith("Not applicable.")
    assert found["7"].endswith("by reference.")  # the page's number and its link to the contents are outside
    assert found.outside == (0, len("\nPART II\n\n12\nTable of Contents\n") + 3, 0)  # and three line ends between items


def test_what_the_form_did_not_have_yet_is_not_missing() -> None:
    text = "Item 1. Business\nAnvils.\nItem 1A. Risk Factors\nAnvils fall."
    old, new = (items_of(text, "10-K", filed=date(year, 3, 1)) for year in (1997, 2024))
    assert old.sections == new.sections == items_of(text, "10-K").sections
    assert set(new.status) - set(old.status) == {"1B", "1C", "7A", "9A", "9B", "9C", "15", "16"}
    assert old.status["1A"] == FOUND
    assert "II.1A" not in items_of("Item 1. Legal Proceedings\nMany.", "10-Q", filed=date(2004, 5, 1)).status


def test_items_handed_to_the_annual_report_are_followed() -> None:
    text = (
        "Item 7. Management’s Discussion and Analysis\nIncorporated by reference to our Annual Report.\n"
        "Item 11. Executive Compensation\nIncorporated by reference to the proxy statement.\nItem 15. Exhibits\nBelow."
    )
    review = "Management’s Discussion and Analysis of Operations\n" + "We sold more anvils. " * 30
    report = f"Dear Shareholders\nA good year.\n{review}\nConsolidated Statements of Income\nSales\t$10"
    found = items_of(text, "10-K", report)
    assert found["7"] == found.text[: found.sections[0].end] + "\n" + review + "\n"
    assert found["11"].endswith("proxy statement.")
    assert found.status["7"] == BY_REFERENCE
    assert items_of(text, "10-K")["7"] == found.text[: found.sections[0].end]
    assert items_of(text, "10-K", "No headings here.").sections == items_of(text, "10-K").sections


def test_a_sentence_about_an_item_is_no_heading() -> None:
    text = (
        "Item 1. Business\nWe refer to\nItem 7. Management’s Discussion and Analysis of Financial Condition, where\n"
        "more is said.\nItem 1A of this report warns.\nItem 3. Legal Proceedings\nMany.\n"
        "Item 3. Legal Proceedings (Continued)\nAnd more."
    )
    assert [section.names for section in items_of(text, "10-K").sections] == [("1",), ("3",)]


def test_both_numberings_of_a_current_report() -> None:
    old = items_of(
        "Item 5. Other Events\nWe fell.\nItem 7. Financial Statements and Exhibits\n(c) Press release.", "8-K"
    )
    assert list(old.status) == ["5", "7"]
    new = items_of(
        "Item 8.01 Other Events\nThe recast\nItem 8. Financial Statements\nfollows.\nItem 7.01 Regulation FD\nX.", "8-K"
    )
    assert list(new.status) == ["8.01", "7.01"]


def test_a_form_without_items_is_refused() -> None:
    with pytest.raises(ValueError, match="got form '4'"):
        items_of("Item 1. Business", "4")


def test_the_worked_example_of_the_documentation() -> None:
    """Every line `expression  # value` of the example holds."""
    page = (Path(__file__).parents[3] / "docs" / "sources" / "filings.md").read_text("utf-8")
    (example,) = [block for block in page.split("```python\n") if block.startswith("from quantattn.data.filings.items")]
    code = example.split("```")[0]
    known: dict[str, object] = {}
    exec(code, known)
    checked = 0
    for line in code.splitlines():
        expression, _, stated = line.partition("# ")
        if expression.startswith(("items[", "items.st", "items.o", "[names", '"".join')) and stated[:1] in "('T[":
            value = stated[: stated.index("): ") + 1] if stated.startswith("(") else stated.split(": ")[0]
            assert eval(expression, known) == eval(value), line
            checked += 1
    assert checked == 8
