"""XBRL instances: the facts that inline XBRL gives, from the files that filings had before; nothing beyond the file."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from xml.sax.saxutils import escape

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from selectolax.lexbor import LexborHTMLParser

from quantattn.data.filings.clock import parse_acceptance
from quantattn.data.filings.facts import LARGEST, Fact, Facts, read_facts
from quantattn.data.filings.index import FilingIndex
from quantattn.data.filings.instance import is_instance, read_instance
from quantattn.data.filings.markup import render_html
from quantattn.data.filings.shown import told_text
from quantattn.data.filings.submission import parse_submission
from quantattn.data.filings.text import decode, read_bytes, unwrap
from quantattn.data.sources.filings import scan_filings
from tests.data.filings.instances import CONTEXTS, PLAIN, exhibit, inline, instance

Maker = Callable[..., str]


def facts_of_page(page: str) -> Facts:
    root = LexborHTMLParser(page.replace('<xbrli:unit id="none"/>', "")).root
    assert root is not None
    return read_facts(root)


@dataclass(frozen=True)
class Stated:
    """A fact, as it can be written in both ways."""

    digits: int | None
    places: int
    scale: int
    negative: bool
    text: str
    context: str
    unit: str
    decimals: str

    def inline(self) -> str:
        place = f"name='acme:X' contextRef='{self.context}'"
        if self.unit == "":
            return f"<ix:nonNumeric {place}>{escape(self.text)}</ix:nonNumeric>"
        place += f" unitRef='{self.unit}' decimals='{self.decimals}' scale='{self.scale}'"
        if self.digits is None:
            return f"<ix:nonFraction {place} xsi:nil='true'></ix:nonFraction>"
        shown = f"{Decimal(self.digits).scaleb(-self.places):,.{self.places}f}"
        sign = "sign='-'" if self.negative else ""
        return f"<ix:nonFraction {place} {sign} format='ixt:num-dot-decimal'>{shown}</ix:nonFraction>"

    def instance(self) -> str:
        place = f"contextRef='{self.context}'"
        if self.unit == "":
            return f"<acme:X {place}>{escape(self.text)}</acme:X>"
        place += f" unitRef='{self.unit}' decimals='{self.decimals}'"
        if self.digits is None:
            return f"<acme:X {place} xsi:nil='true'/>"
        value = Decimal(self.digits).scaleb(self.scale - self.places) * (-1 if self.negative else 1)
        return f"<acme:X {place}>\n{value:f} </acme:X>"


WORDS = st.text(st.characters(codec="utf-8", exclude_characters="<", exclude_categories=("C", "Zl", "Zp")), max_size=40)
STATED = st.builds(
    Stated,
    digits=st.none() | st.integers(0, LARGEST + 10),
    places=st.integers(0, 8),
    scale=st.integers(-6, 12),
    negative=st.booleans(),
    text=WORDS | st.just("w " * 700),
    context=st.sampled_from(["year", "day", "ever", "odd", "lost"]),
    unit=st.sampled_from(["", "usd", "each", "area", "lost"]),
    decimals=st.sampled_from(["-6", "2", "INF", "0", "much"]),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(STATED, max_size=8))
def test_both_ways_of_writing_facts_give_the_same(stated: list[Stated]) -> None:
    there = facts_of_page(inline("".join(f"<p>{each.inline()}</p>" for each in stated)))
    here = read_instance(instance("".join(each.instance() for each in stated)))
    assert here.found == there.found
    assert here.left_out == there.left_out
    assert len(here.found) + sum(here.left_out.values()) == len(stated)


def number(text: str, attributes: str = "") -> tuple[object, ...] | str:
    """Value, exponent and decimals of one fact, or why it is left out."""
    facts = read_instance(instance(f"<acme:X {PLAIN} {attributes}>{text}</acme:X>"))
    if facts.found:
        return facts.found[0].value, facts.found[0].exponent, facts.found[0].decimals
    (reason,) = facts.left_out
    return reason


@pytest.mark.parametrize(
    ("text", "attributes", "value"),
    [
        ("391035000000", 'decimals="-6"', (391_035, 6, -6)),
        ("-6.110", 'decimals="2"', (-611, -2, 2)),
        ("+.5", 'decimals="INF"', (5, -1, None)),
        ("5.", "", (5, 0, None)),
        ("1.5E6", "", (15, 5, None)),  # xs:double
        ("150e-5", "", (15, -4, None)),
        ("0.000", 'decimals="2"', (0, 0, 2)),
        ("9223372036854775807", "", (LARGEST, 0, None)),
        ("9223372036854775808", "", "with a number of more than 18 digits"),
        ("1" * 100_000, "", "with a number of more than 18 digits"),
        ("123456", 'precision="4"', (123_456, 0, -2)),  # 123400 … 123500: right to hundreds
        ("1200", 'precision="2"', (12, 2, -2)),
        ("0.00125", 'precision="2"', (125, -5, 4)),
        ("123", 'precision="INF"', (123, 0, None)),
        ("0", 'precision="3"', (0, 0, None)),
        ("123", 'precision="4" decimals="0"', (123, 0, 0)),
        ("", 'xsi:nil="true"', (None, None, None)),
        ("", 'xsi:nil="1" decimals="0"', (None, None, 0)),
        ("", 'acme:nil="true"', "with a text that is no number"),
        ("1,234", "", "with a text that is no number"),
        ("INF", "", "with a text that is no number"),
        ("٥", "", "with a text that is no number"),
        ("1 2", "", "with a text that is no number"),
        ("<!-- five -->5<![CDATA[0]]>&#49;", "", (501, 0, None)),
    ],
)
def test_a_number_is_exact_or_left_out(text: str, attributes: str, value: object) -> None:
    assert number(text, attributes) == value


def test_names_of_namespaces_and_the_order_of_elements_are_no_matter() -> None:
    body = f"<acme:X {PLAIN}>1</acme:X><acme:Y contextRef='day' unitRef='each'>2</acme:Y>"
    facts = read_instance(instance(body))
    assert [(fact.concept, fact.unit) for fact in facts.found] == [
        *(("acme:X", "iso4217:USD"), ("acme:Y", "iso4217:USD/xbrli:shares")),
    ]
    assert facts.found[1].dimensions == ("acme:LotAxis=7", "us-gaap:SegmentAxis=acme:AnvilMember")
    assert read_instance(instance(body + CONTEXTS, "")) == facts  # contexts after the facts that name them
    renamed = instance(body).replace("xbrli:", "i:").replace("xmlns:xbrli=", "xmlns:i=")
    renamed = renamed.replace("iso4217:", "c:").replace("xmlns:iso4217=", "xmlns:c=")
    assert read_instance(renamed.replace("xmlns:i:", "xmlns:i=").replace("xmlns:c:", "xmlns:c=")) == facts
    plain = instance(body).replace("<xbrli:", "<").replace("</xbrli:", "</").replace("xbrli:shares", "shares")
    assert read_instance(plain.replace("xmlns:xbrli=", "xmlns=")) == facts
    assert read_instance(instance(body).replace("xmlns:xbrli=", "xmlns:z=").replace("xbrli:", "z:")) == facts


@pytest.mark.parametrize(
    ("period", "start", "end"),
    [
        ("<instant>2023-12-31</instant>", None, "2023-12-31"),
        ("<instant>2024-01-01T00:00:00</instant>", None, "2023-12-31"),  # the same midnight
        (
            "<startDate>2023-01-01T00:00:00</startDate><endDate>2024-01-01T00:00:00</endDate>",
            "2023-01-01",
            "2023-12-31",
        ),
        ("<forever/>", None, None),
    ],
)
def test_a_midnight_is_the_end_of_the_day_before(period: str, start: str | None, end: str | None) -> None:
    text = f"<context id='c'><entity><identifier>1</identifier></entity><period>{period}</period></context>"
    text = f"<xbrl xmlns='http://www.xbrl.org/2003/instance'>{text}<x contextRef='c'>a</x></xbrl>"
    (fact,) = read_instance(text).found
    assert (fact.start, fact.end, fact.concept, fact.text) == (start, end, "x", "a")


@pytest.mark.parametrize(
    "period",
    [
        *("<instant>2023-12-31T12:00:00</instant>", "<instant>0001-01-01T00:00:00</instant>", "<instant/>", ""),
        *("<startDate>2023-01-01</startDate>", "<startDate>x</startDate><endDate>2023-12-31</endDate>"),
    ],
)
def test_a_period_that_is_none_leaves_its_facts_out(period: str) -> None:
    text = f"<context id='c'><period>{period}</period></context><x contextRef='c'>a</x>"
    facts = read_instance(f"<xbrl xmlns='http://www.xbrl.org/2003/instance'>{text}</xbrl>")
    assert (facts.found, facts.left_out) == ([], {"with a period that is none": 1})


def test_what_is_left_out_is_counted() -> None:
    facts = read_instance(
        instance(
            '<acme:A contextRef="lost">1</acme:A><acme:A contextRef="odd">1</acme:A>'
            '<acme:A contextRef="year" unitRef="lost">1</acme:A><acme:A contextRef="year" unitRef="none">1</acme:A>'
            '<acme:A contextRef="year">&lt;p&gt;long&lt;/p&gt;</acme:A><acme:A contextRef="year">'
            + "w "
            * 600
            + "</acme:A>"
            f"<acme:A {PLAIN}><xbrli:numerator>1</xbrli:numerator><xbrli:denominator>3</xbrli:denominator></acme:A>"
            '<link:footnoteLink><link:footnote contextRef="year">no fact</link:footnote></link:footnoteLink>'
            '<acme:Tuple><acme:B contextRef="year">in a tuple</acme:B></acme:Tuple>'
        )
    )
    assert [(fact.concept, fact.text) for fact in facts.found] == [("acme:B", "in a tuple")]
    assert facts.left_out == {
        **{"without a name or a context": 1, "with a period that is none": 1, "without a unit": 2},
        **{"text blocks": 2, "fractions": 1},
    }


COVER = "<dei:DocumentType contextRef='year'>10-K</dei:DocumentType><dei:AmendmentFlag contextRef='year'>true"
COVER += "</dei:AmendmentFlag><dei:EntityCentralIndexKey contextRef='year'>0000000123</dei:EntityCentralIndexKey>"


@pytest.mark.parametrize("kind", ["EX-101.INS", "XML"])
def test_facts_are_known_when_the_submission_is_public(tmp_path: Path, submission: Maker, kind: str) -> None:
    text = instance(f"<acme:X {PLAIN} decimals='-3'>7000</acme:X><acme:X {PLAIN} decimals='-3'>7000.0</acme:X>")
    (tmp_path / "a.txt").write_text(submission(accepted="20240315180000", more=exhibit(text, kind)))
    source = scan_filings(tmp_path, facts=True, items=True)
    assert source.facts is not None
    (row,) = source.facts.to_dicts()
    assert (row["event_time"], row["available_time"]) == (
        *(parse_acceptance("20240315180000"), parse_acceptance("20240318060000")),
    )
    assert (row["value"], row["exponent"], row["decimals"], row["accession"]) == (7, 3, -3, "0000000123-24-000001")
    assert "1 facts are left out: stated before" in source.report.notes
    assert scan_filings(tmp_path).documents["facts"].to_list() == [0]


def test_inline_facts_stand_for_the_instance_that_was_made_of_them(tmp_path: Path, submission: Maker) -> None:
    page = inline("<p><ix:nonFraction name='acme:X' contextRef='year' unitRef='usd'>7</ix:nonFraction></p>")
    other = instance(f"<acme:Y {PLAIN}>8</acme:Y>")
    (tmp_path / "a.txt").write_text(submission(page, more=exhibit(other, "XML")))
    facts = scan_filings(tmp_path, facts=True).facts
    assert facts is not None
    assert facts["concept"].to_list() == ["acme:X"]


def test_an_instance_in_a_file_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "acme-20231231.xml").write_text(instance(COVER + f"<acme:X {PLAIN}>7</acme:X>"))
    named = {"name": "acme-20231231.htm", "accepted": "20240315101500", "accession": "0000000123-24-000001"}
    source = scan_filings(tmp_path, index=FilingIndex([named]), facts=True)
    assert source.facts is not None
    row = source.facts.filter(concept="acme:X").row(0, named=True)
    assert (row["entity"], row["form"], row["accession"], row["available_time"]) == (
        *("0000000123", "10-K/A", "0000000123-24-000001", parse_acceptance("20240315101500")),
    )
    assert source.frame.collect().height == 0
    assert source.report.rows_set_aside == {"facts without text": 1}
    assert scan_filings(tmp_path).report.rows_set_aside == {"facts without text": 1}
    untimed = scan_filings(tmp_path, facts=True)
    assert untimed.facts is not None
    assert untimed.facts.height == 0
    assert untimed.report.rows_set_aside == {"no acceptance time": 1}
    assert scan_filings(tmp_path, facts=True, forms=("8-K",)).report.rows_set_aside == {"other form": 1}


def test_a_page_of_inline_xbrl_is_no_instance(submission: Maker) -> None:
    assert is_instance(instance(""))
    assert is_instance("\n<!-- made by hand -->\n<xbrl>")
    for other in (inline(""), submission(inline("")), "<html><xbrl>", json.dumps(instance("")), "text of <xbrl "):
        assert not is_instance(other)


def test_edgar_makes_the_same_facts_of_inline_xbrl(realdata: Path) -> None:
    """The `_htm.xml` of a submission is EDGAR's own reading of its main document."""
    compared = 0
    for path in sorted((realdata / "filings" / "full_submission").glob("*")):
        text = decode(read_bytes(path, 2**28))
        if "_htm.xml" not in text:
            continue
        submission = parse_submission(text)
        main = submission.main()
        assert main is not None
        page = render_html(unwrap(main.body), facts=True).facts
        made = [unwrap(each.body) for each in submission.documents if is_instance(unwrap(each.body))]
        assert page is not None
        assert len(made) == 1
        facts = read_instance(made[0])
        assert facts.left_out == page.left_out == {}
        assert untold(facts.found) == untold(page.found)
        compared += len(facts.found)
    if not compared:
        pytest.skip("the real data holds no submission with a made instance")


def untold(facts: list[Fact]) -> set[Fact]:
    """Facts without whether a page hides them."""
    return {replace(each, hidden=False) for each in facts}


@pytest.mark.parametrize(
    ("shown", "form", "value"),
    [
        ("☒", "ixt-sec:boolballotbox", "true"),
        ("☐", "ixt-sec:boolballotbox", "false"),
        ("?", "ixt-sec:boolballotbox", "?"),
        ("whatever", "ixt:fixed-true", "true"),
        ("☐", "ixt:booleanfalse", "false"),
        ("—", "ixt:fixed-empty", ""),
        ("December 31, 2023", "ixt:date-monthname-day-year-en", "2023-12-31"),
        ("Sept. 5th, 2023", "ixt:datemonthdayyearen", "2023-09-05"),
        ("31 December 2023", "ixt:date-day-monthname-year-en", "2023-12-31"),
        ("12/31/2023", "ixt:date-month-day-year", "2023-12-31"),
        ("February 30, 2023", "ixt:date-monthname-day-year-en", "February 30, 2023"),
        ("May 5, 23", "ixt:date-monthname-day-year-en", "May 5, 23"),  # of which century?
        ("December 31", "ixt:date-monthname-day-en", "--12-31"),
        ("February 29", "ixt:date-monthname-day-en", "--02-29"),
        ("September 2023", "ixt:date-monthname-year-en", "2023-09"),
        ("West Virginia", "ixt-sec:stateprovnameen", "WV"),
        ("District of Columbia", "ixt-sec:stateprovnameen", "DC"),
        ("Ruritania", "ixt-sec:stateprovnameen", "Ruritania"),
        ("The Nasdaq Stock Market LLC", "ixt-sec:exchnameen", "NASDAQ"),
        ("New York Stock Exchange", "ixt-sec:exchnameen", "NYSE"),
        ("NYSE American", "ixt-sec:exchnameen", "NYSEAMER"),
        ("five years", "ixt-sec:durwordsen", "P5Y"),
        ("three-year", "ixt-sec:durwordsen", "P3Y"),
        ("5 years and six months", "ixt-sec:durwordsen", "P5Y6M"),
        ("30 days", "ixt-sec:durwordsen", "P30D"),
        ("a while", "ixt-sec:durwordsen", "a while"),
        ("six months and a year", "ixt-sec:durwordsen", "six months and a year"),  # not in their order
        ("24", "ixt-sec:durmonth", "P24M"),
        ("2.7", "ixt-sec:duryear", "P2Y8M12D"),  # 0.7 of 360 days
        ("0.5", "ixt-sec:duryear", "P6M"),
        ("0", "ixt-sec:duryear", "P0Y"),
        ("1.33", "ixt-sec:duryear", "1.33"),
        ("1.5", "ixt-sec:durmonth", "1.5"),
        ("Non-accelerated filer", "ixt-sec:entityfilercategoryen", "Non-accelerated Filer"),
        ("Nevada", "", "Nevada"),
    ],
)
def test_a_text_is_what_its_format_says(shown: str, form: str, value: str) -> None:
    assert told_text(shown, form) == value


@given(
    st.text(max_size=30), st.sampled_from(["datemonthdayyear", "datemonthday", "exchnameen", "durwordsen", "duryear"])
)
def test_a_text_that_does_not_fit_its_format_stays(shown: str, form: str) -> None:
    told = told_text(shown, form)
    assert told == shown or re.fullmatch(r"\d{4}-\d\d-\d\d|--\d\d-\d\d|[A-Za-z]{2,8}|P(\d+[YMWD])+", told)
