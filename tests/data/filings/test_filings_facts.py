"""Inline XBRL → facts: exact numbers, their periods and units, known when the filing was public and not before."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from decimal import Decimal
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from selectolax.lexbor import LexborHTMLParser

from quantattn.data.filings.clock import parse_acceptance
from quantattn.data.filings.fact_table import FilingFacts
from quantattn.data.filings.facts import LARGEST, Facts, read_facts
from quantattn.data.filings.index import FilingIndex
from quantattn.data.schema import check
from quantattn.data.sources.filings import FilingSource, scan_filings

Maker = Callable[..., str]
HEADER = """<ix:header><ix:hidden>{hidden}</ix:hidden><ix:resources>
<xbrli:context id="year"><xbrli:entity><xbrli:identifier scheme="x">0000000123</xbrli:identifier></xbrli:entity>
<xbrli:period><xbrli:startDate>2023-01-01</xbrli:startDate><xbrli:endDate>2023-12-31</xbrli:endDate></xbrli:period>
</xbrli:context>
<xbrli:context id="day"><xbrli:entity><xbrli:identifier>0000000123</xbrli:identifier><xbrli:segment>
<xbrldi:explicitMember dimension="us-gaap:SegmentAxis">acme:AnvilMember</xbrldi:explicitMember>
<xbrldi:typedMember dimension="acme:LotAxis"><acme:lot>7</acme:lot></xbrldi:typedMember></xbrli:segment></xbrli:entity>
<xbrli:period><xbrli:instant>2023-12-31</xbrli:instant></xbrli:period></xbrli:context>
<xbrli:context id="ever"><xbrli:period><xbrli:forever/></xbrli:period></xbrli:context>
<xbrli:context id="odd"><xbrli:period><xbrli:instant>Christmas</xbrli:instant></xbrli:period></xbrli:context>
<xbrli:unit id="usd"><xbrli:measure>iso4217:USD</xbrli:measure></xbrli:unit>
<xbrli:unit id="each"><xbrli:divide>
<xbrli:unitNumerator><xbrli:measure>iso4217:USD</xbrli:measure></xbrli:unitNumerator>
<xbrli:unitDenominator><xbrli:measure>xbrli:shares</xbrli:measure></xbrli:unitDenominator></xbrli:divide></xbrli:unit>
<xbrli:unit id="area"><xbrli:measure>m</xbrli:measure><xbrli:measure>m</xbrli:measure></xbrli:unit>
</ix:resources></ix:header>"""
PLAIN = 'name="acme:X" contextRef="year" unitRef="usd"'


def facts_of(body: str, hidden: str = "") -> Facts:
    page = f"<html xmlns='http://www.w3.org/1999/xhtml'><body>{HEADER.format(hidden=hidden)}{body}</body></html>"
    root = LexborHTMLParser(page).root
    assert root is not None
    return read_facts(root)


def number(shown: str, attributes: str = "") -> tuple[int | None, int | None] | str:
    """The value of one fact, or why it is left out."""
    facts = facts_of(f"<ix:nonFraction {PLAIN} {attributes}>{shown}</ix:nonFraction>")
    if facts.found:
        return facts.found[0].value, facts.found[0].exponent
    (reason,) = facts.left_out
    return reason


@pytest.mark.parametrize(
    ("shown", "attributes", "value"),
    [
        ("391,035", 'scale="6" format="ixt:num-dot-decimal"', (391_035, 6)),
        ("391,030", 'scale="6" format="ixt:numdotdecimal"', (39_103, 7)),  # no trailing zero: equal numbers are equal
        ("6.11", 'format="ixt:num-dot-decimal"', (611, -2)),
        ("0.00001", 'scale="0"', (1, -5)),
        ("24.1", 'scale="-2" format="ixt:num-dot-decimal"', (241, -3)),  # a per cent
        ("1,234", 'scale="3" sign="-" format="ixt:num-dot-decimal"', (-1_234, 3)),
        ("1.234,5", 'format="ixt:num-comma-decimal"', (12_345, -1)),
        ("1 234 567", 'format="ixt:numspacedot"', (1_234_567, 0)),
        ("1\xa0234,5", 'format="ixt:numspacecomma"', (12_345, -1)),
        ("12,34,567.8", 'format="ixt:numdotdecimalin"', (12_345_678, -1)),
        ("—", 'scale="6" format="ixt:fixed-zero"', (0, 0)),
        ("-", 'format="ixt:zerodash"', (0, 0)),
        ("0.00", 'scale="6" sign="-"', (0, 0)),
        ("<b>5</b>", "", (5, 0)),
        (".5", "", (5, -1)),
        ("no", 'format="ixt-sec:numwordsen"', (0, 0)),
        ("Twenty-one", 'format="ixt-sec:numwordsen"', (21, 0)),
        ("two hundred and five thousand, three", 'format="ixt-sec:numwordsen"', (205_003, 0)),
        ("one million", 'format="ixt-sec:numwordsen"', (1, 6)),
        ("a dozen", 'format="ixt-sec:numwordsen"', "with a text that is no number"),
        ("9223372036854775807", "", (LARGEST, 0)),
        ("9223372036854775808", "", "with a number of more than 18 digits"),
        ("1" + "0" * 59, "", (1, 59)),
        ("1" * 5_000, "", "with a number of more than 18 digits"),
        ("", 'xsi:nil="true"', (None, None)),
        ("", 'xs:nil="true"', (None, None)),
        ("", "", "with a text that is no number"),
        ("(5)", "", "with a text that is no number"),
        ("-5", "", "with a text that is no number"),  # the sign is an attribute
        ("٥", "", "with a text that is no number"),
        ("5", 'scale="big"', "with a scale that is no whole number"),
        ("5", 'format="ixt:nobody-knows"', "with the format ixt:nobody-knows"),
    ],
)
def test_a_number_is_exact_or_left_out(shown: str, attributes: str, value: object) -> None:
    assert number(shown, attributes) == value


@settings(max_examples=60, deadline=None)
@given(st.integers(0, LARGEST), st.integers(0, 8), st.integers(-6, 12), st.booleans())
def test_number_equals_what_decimal_says(digits: int, places: int, scale: int, negative: bool) -> None:
    exact = Decimal(digits).scaleb(-places)
    shown = f"{exact:,.{places}f}"
    found = number(shown, f'scale="{scale}" format="ixt:num-dot-decimal"' + (' sign="-"' if negative else ""))
    assert not isinstance(found, str)
    value, exponent = found
    assert value is not None
    assert exponent is not None
    assert Decimal(value).scaleb(exponent) == exact.scaleb(scale) * (-1 if negative else 1)
    assert value == 0 or value % 10 != 0


def test_periods_units_dimensions_and_what_is_hidden() -> None:
    facts = facts_of(
        f'<ix:nonFraction {PLAIN} decimals="-6" scale="6">7</ix:nonFraction>'
        '<ix:nonFraction name="acme:Y" contextRef="day" unitRef="each" decimals="2">1.25</ix:nonFraction>'
        '<ix:nonFraction name="acme:Z" contextRef="ever" unitRef="area" decimals="INF">3</ix:nonFraction>',
        hidden='<ix:nonNumeric name="dei:DocumentType" contextRef="year">10-K\n </ix:nonNumeric>',
    )
    secret, x, y, z = facts.found
    assert (secret.concept, secret.text, secret.value, secret.hidden) == ("dei:DocumentType", "10-K", None, True)
    assert (x.start, x.end, x.unit, x.value, x.exponent, x.decimals) == (
        *("2023-01-01", "2023-12-31", "iso4217:USD", 7, 6, -6),
    )
    assert (x.identifier, x.dimensions, x.hidden) == ("0000000123", (), False)
    assert (y.start, y.end, y.unit, y.decimals) == (None, "2023-12-31", "iso4217:USD/xbrli:shares", 2)
    assert y.dimensions == ("acme:LotAxis=7", "us-gaap:SegmentAxis=acme:AnvilMember")
    assert (z.start, z.end, z.unit, z.decimals) == (None, None, "m*m", None)
    assert facts.left_out == {}


def test_what_is_left_out_is_counted() -> None:
    facts = facts_of(
        '<ix:nonFraction name="a" contextRef="none" unitRef="usd">1</ix:nonFraction>'
        '<ix:nonFraction name="a" contextRef="odd" unitRef="usd">1</ix:nonFraction>'
        '<ix:nonFraction name="a" contextRef="year" unitRef="none">1</ix:nonFraction>'
        '<ix:nonFraction contextRef="year" unitRef="usd">1</ix:nonFraction>'
        '<ix:nonNumeric name="a" contextRef="year" escape="true"><p>long</p></ix:nonNumeric>'
        '<ix:fraction name="a" contextRef="year" unitRef="usd"></ix:fraction>'
    )
    assert facts.found == []
    assert facts.left_out == {
        "without a name or a context": 2,
        "with a period that is none": 1,
        "without a unit": 1,
        "text blocks": 1,
        "fractions": 1,
    }


def test_a_fact_within_a_fact_is_two_facts() -> None:
    facts = facts_of(f"<ix:nonFraction {PLAIN}><ix:nonFraction {PLAIN} scale='3'>12</ix:nonFraction></ix:nonFraction>")
    assert [(fact.value, fact.exponent) for fact in facts.found] == [(12, 0), (12, 3)]


def source_of(folder: Path, submission: Maker, body: str, **settings: object) -> FilingSource:
    page = f"<html xmlns='http://www.w3.org/1999/xhtml'><body>{HEADER.format(hidden='')}<p>{body}</p></body></html>"
    (folder / "a.txt").write_text(submission(page, **settings))
    return scan_filings(folder, facts=True)


def test_a_fact_is_known_when_its_filing_is_public(tmp_path: Path, submission: Maker) -> None:
    body = f'Sales <ix:nonFraction {PLAIN} scale="6">7</ix:nonFraction>, again <ix:nonFraction {PLAIN} scale="6">7.0'
    source = source_of(tmp_path, submission, body + "</ix:nonFraction>", accepted="20240315180000")
    assert source.facts is not None
    (row,) = check(source.facts, FilingFacts).to_dicts()
    assert row["event_time"] == parse_acceptance("20240315180000")
    assert row["available_time"] == parse_acceptance("20240318060000")  # the next business day, not the period's end
    assert (row["concept"], row["start"], row["end"]) == ("acme:X", date(2023, 1, 1), date(2023, 12, 31))
    assert (row["value"], row["exponent"], row["entity"]) == (7, 6, "0000000123")
    assert "1 facts are left out: stated before" in source.report.notes
    assert source.documents["facts"].to_list() == [2]
    assert scan_filings(tmp_path).facts is None


def test_facts_are_in_canonical_order_and_only_of_filings_that_are_kept(tmp_path: Path, submission: Maker) -> None:
    body = f"<ix:nonFraction {PLAIN}>1</ix:nonFraction> and <ix:nonFraction {PLAIN}>2</ix:nonFraction>"
    page = f"<html xmlns='http://www.w3.org/1999/xhtml'><body>{HEADER.format(hidden='')}<p>{body}</p></body></html>"
    for name, accepted, accession in (
        ("a", "20240401120000", "01"),
        ("b", "20240315120000", "02"),
        ("c", "2024", "03"),
    ):
        (tmp_path / name).write_text(submission(page, accepted=accepted, accession=f"0000000123-24-0000{accession}"))
    source = scan_filings(tmp_path, facts=True)
    assert source.facts is not None
    assert source.facts.select("accession", "value").rows() == [
        *(("0000000123-24-000002", 1), ("0000000123-24-000002", 2)),
        *(("0000000123-24-000001", 1), ("0000000123-24-000001", 2)),
    ]
    assert source.report.rows_set_aside == {"unreadable": 1}


def test_facts_of_a_real_filing(realdata: Path) -> None:
    """Apple's year that ended on 28 September 2024, as its statements print it."""
    path = realdata / "filings" / "html_10-K" / "AAPL_10-K_0000320193-24-000123.html.gz"
    if not path.is_file():
        pytest.skip("the real data holds other filings")
    index = FilingIndex([{"name": path.name, "accepted": "20241101060136"}])
    facts = scan_filings(path, index=index, facts=True).facts
    assert facts is not None
    year = (pl.col("end") == date(2024, 9, 28)) & (pl.col("dimensions").list.len() == 0)

    def told(concept: str) -> tuple[object, ...]:
        return facts.filter(year, pl.col("concept") == concept).select("value", "exponent", "unit", "decimals").row(0)

    assert told("us-gaap:NetIncomeLoss") == (93_736, 6, "iso4217:USD", -6)
    assert told("us-gaap:EarningsPerShareDiluted") == (608, -2, "iso4217:USD/xbrli:shares", 2)
    assert told("us-gaap:Assets") == (36_498, 7, "iso4217:USD", -6)
    assert facts.filter(pl.col("concept") == "dei:EntityCentralIndexKey")["text"].to_list() == ["0000320193"]
    assert facts["available_time"].unique().to_list() == [parse_acceptance("20241101060136")]
