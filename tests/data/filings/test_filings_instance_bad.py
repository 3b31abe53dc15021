"""Bombs and damage in XBRL instances: nothing is expanded, opened or fetched, and no part is taken for the whole."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from quantattn.data.filings.index import FilingIndex
from quantattn.data.filings.instance import read_instance
from quantattn.data.filings.pool import Limits
from quantattn.data.sources.filings import scan_filings
from tests.data.filings.instances import exhibit, instance

Maker = Callable[..., str]
LAUGHS = "".join(f"<!ENTITY l{n} '{f'&l{n - 1};' * 10}'>" for n in range(1, 20))
HOSTILE = {
    "laughs": f"<!DOCTYPE xbrl [<!ENTITY l0 'ha'>{LAUGHS}]>",
    "quadratic": f"<!DOCTYPE xbrl [<!ENTITY l19 '{'x' * 100_000}'>]>",
    "file": "<!DOCTYPE xbrl [<!ENTITY l19 SYSTEM 'file:///etc/passwd'>]>",
    "network": "<!DOCTYPE xbrl [<!ENTITY l19 SYSTEM 'http://127.0.0.1:9/x'>]>",
    "parameter": "<!DOCTYPE xbrl [<!ENTITY % p SYSTEM 'file:///etc/passwd'>%p;]>",
    "subset": "<!DOCTYPE xbrl SYSTEM 'http://127.0.0.1:9/x.dtd'>",
    "empty": "<!DOCTYPE xbrl>",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_document_type_is_refused_before_it_is_read(tmp_path: Path, submission: Maker, name: str) -> None:
    body = f"<acme:X contextRef='year'>{'&l19;' * 1_000 if name != 'empty' else 'a'}</acme:X>"
    text = instance(body).replace("?>\n", "?>\n" + HOSTILE[name])
    with pytest.raises(ValueError, match=r"^it has a document type, which could declare entities"):
        read_instance(text)
    (tmp_path / "a.xml").write_text(text)
    (tmp_path / "b.txt").write_text(submission(more=exhibit(text)))
    index = FilingIndex([{"name": "a.xml", "accepted": "20240315101500", "cik": "1", "form": "10-K"}])
    source = scan_filings(tmp_path, index=index, facts=True)
    alone, within = source.documents.to_dicts()
    assert (alone["status"], within["status"]) == ("unreadable", "ok")
    assert within["detail"] == f"XBRL instance: {alone['detail']}"
    assert "XBRL instances of 1 submissions could not be read; their facts are lacking" in source.report.notes
    assert source.facts is not None
    assert source.facts.height == 0
    assert source.frame.collect()["text"].to_list() == ["FORM 10-K\n\nWe sold more."]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (instance("")[:-8], "damaged XML: unclosed token"),
        (instance("<acme:X>"), "damaged XML: mismatched tag"),
        (instance("&nbsp;"), "damaged XML: undefined entity"),
        (instance("<b:X/>"), "damaged XML: unbound prefix"),
        ("<xbrl/>", "its root is xbrl of no namespace, expected xbrl of http://www.xbrl.org/2003/instance"),
        (instance("<acme:X>" * 200_000), "elements are nested more than 100 deep"),
        (instance("<acme:X " + " ".join(f"a{n}='1'" for n in range(50_000)) + "/>") + "x", "damaged XML: junk after"),
        ("", "damaged XML: no element found"),
    ],
)
def test_damage_is_told_and_no_part_is_taken_for_the_whole(text: str, reason: str) -> None:
    with pytest.raises(ValueError) as error:
        read_instance(text)
    assert str(error.value).startswith(reason)


def test_a_limit_that_an_instance_passes_leaves_the_filing_its_text(tmp_path: Path, submission: Maker) -> None:
    report = "<DOCUMENT>\n<TYPE>EX-13\n<SEQUENCE>3\n<TEXT>\nOur year.\n</TEXT>\n</DOCUMENT>\n"
    big = exhibit(instance("<acme:X contextRef='year'>a</acme:X>" * 100_000))
    (tmp_path / "a.txt").write_text(submission(more=big + report))
    source = scan_filings(tmp_path, facts=True, items=True, limits=Limits(size_mib=1.0))
    (row,) = source.frame.collect().to_dicts()
    assert (row["text"], row["annual_report"]) == ("FORM 10-K\n\nWe sold more.", "Our year.")
    assert source.documents["detail"][0].startswith("XBRL instance: a document of ")
    for memory_mib in (64, 76, 82, 88, 94, 100):  # memory ends at one place of the child's code or at another
        limits = Limits(cpu_seconds=1, memory_mib=memory_mib)
        source = scan_filings(tmp_path, facts=True, items=True, limits=limits)
        assert source.frame.collect()["text"].to_list() == [row["text"]]
        assert source.documents["detail"][0].startswith("XBRL instance: ")
        assert source.facts is not None
        assert source.facts.height == 0


def test_long_contexts_and_units_are_not_repeated_in_every_fact() -> None:
    """A context of a megabyte in a thousand facts would make a gigabyte of them."""
    axis = "<xbrldi:typedMember dimension='acme:A'><acme:a>{}</acme:a></xbrldi:typedMember>".format("x" * 1_000)
    period = "<xbrli:period><xbrli:instant>2023-12-31</xbrli:instant></xbrli:period>"
    entity = "<xbrli:entity><xbrli:segment>{}</xbrli:segment></xbrli:entity>"
    contexts = "".join(
        f"<xbrli:context id='c{n}'>{entity.format(axis * n)}{period}</xbrli:context>" for n in (3, 1_000)
    )
    contexts += "<xbrli:unit id='u'>" + "<xbrli:measure>acme:m</xbrli:measure>" * 1_000 + "</xbrli:unit>"
    body = "<acme:X contextRef='c3'>a</acme:X><acme:X contextRef='c3' unitRef='u'>1</acme:X>"
    facts = read_instance(instance(body + "<acme:X contextRef='c1000'>a</acme:X>" * 1_000, contexts))
    assert [len(fact.dimensions) for fact in facts.found] == [3]
    assert facts.left_out == {"with a context that is too long": 1_000, "without a unit": 1}
