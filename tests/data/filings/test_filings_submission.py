"""The SGML wrapping: every layout that EDGAR has used, and nothing but ValueError for anything else."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from quantattn.data.filings.submission import (
    find_accession,
    has_header,
    is_wrapped_document,
    pad_cik,
    parse_submission,
)

Maker = Callable[..., str]
PEM = "-----BEGIN PRIVACY-ENHANCED MESSAGE-----\nProc-Type: 2001,MIC-CLEAR\nMIC-Info: RSA-MD5,RSA,\n xyz==\n\n"
FEED = (
    "<SUBMISSION>\n<ACCESSION-NUMBER>0000000123-24-000001<TYPE>8-K<PERIOD>20240101<FILING-DATE>20240108<FILER>"
    "<COMPANY-DATA><CONFORMED-NAME>ACME<CIK>0000000123</COMPANY-DATA><FORMER-COMPANY><FORMER-CONFORMED-NAME>OLD"
    "</FORMER-COMPANY></FILER><DOCUMENT><TYPE>8-K<SEQUENCE>1<FILENAME>a.htm<TEXT>one</TEXT></DOCUMENT>"
    "<DOCUMENT><TYPE>EX-10<SEQUENCE>2<TEXT>two</TEXT></DOCUMENT></SUBMISSION>"
)


@pytest.mark.parametrize("brand", ["SEC", "IMS"])
@pytest.mark.parametrize("wrapper", ["", PEM])
def test_labelled_header(submission: Maker, brand: str, wrapper: str) -> None:
    text = wrapper + submission("Body.", brand=brand, form="10-K405/A")
    header = parse_submission(text).header
    assert has_header(text)
    assert header is not None
    assert (header.form, header.accession, header.ciks) == ("10-K405/A", "0000000123-24-000001", ("0000000123",))
    assert (header.filed, header.accepted, header.period) == ("20240315", "20240315101500", "20231231")
    assert parse_submission(text).documents[0].body.strip() == "Body."


def test_feed_header_on_one_line() -> None:
    parsed = parse_submission(FEED)
    assert parsed.header is not None
    assert parsed.header.form == "8-K"
    assert parsed.header.ciks == ("0000000123",)
    assert parsed.header.names == ("ACME",)
    assert (parsed.header.filed, parsed.header.accepted) == ("20240108", None)
    assert [(document.type, document.body) for document in parsed.documents] == [("8-K", "one"), ("EX-10", "two")]


def test_every_filer_is_kept_in_order(submission: Maker) -> None:
    second = "\nFILER:\n\tCOMPANY DATA:\n\t\tCOMPANY CONFORMED NAME:\tTWO\n\t\tCENTRAL INDEX KEY:\t45\n</SEC-HEADER>\n"
    header = parse_submission(submission().replace("</SEC-HEADER>\n", second)).header
    assert header is not None
    assert header.ciks == ("0000000123", "0000000045")
    assert header.names == ("ACME 123", "TWO")


@pytest.mark.parametrize("lost", ["</TEXT>\n", "</DOCUMENT>\n", "</TEXT>\n</DOCUMENT>\n", "</SEC-HEADER>\n"])
def test_unclosed_tags(submission: Maker, lost: str) -> None:
    more = "<DOCUMENT>\n<TYPE>EX-99\n<SEQUENCE>2\n<TEXT>\nExhibit.\n</TEXT>\n</DOCUMENT>\n"
    parsed = parse_submission(submission("Body.", more=more).replace(lost, ""))
    assert [document.type for document in parsed.documents] == ["10-K", "EX-99"]
    assert parsed.documents[0].body.split() == ["Body."] or "</SEC-DOCUMENT>" in parsed.documents[1].body
    assert "Exhibit." in parsed.documents[1].body
    assert "Exhibit." not in parsed.documents[0].body


def test_document_without_text_tag() -> None:
    (document,) = parse_submission("<DOCUMENT>\n<TYPE>8-K\n<SEQUENCE>1\nBody here.\n</DOCUMENT>").documents
    assert document.body.strip() == "Body here."


def test_main_document_is_the_one_of_the_form(submission: Maker) -> None:
    text = submission("Form.", form="10-Q")
    first = "<DOCUMENT>\n<TYPE>COVER\n<SEQUENCE>0\n<TEXT>\nLetter.\n</TEXT>\n</DOCUMENT>\n"
    main = parse_submission(text.replace("<DOCUMENT>\n<TYPE>10-Q", first + "<DOCUMENT>\n<TYPE>10-Q")).main()
    assert main is not None
    assert main.body.strip() == "Form."


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("20240315101500\n", "20240315101500\n<ACCEPTANCE-DATETIME>20240316101500\n", "2 different acceptance times"),
        ("CONFORMED SUBMISSION TYPE:\t10-K", "", "names no form"),
        ("\t0000000123-24-000001", "\t123", "accession number '123'"),
        ("CENTRAL INDEX KEY:\t\t\t123", "CENTRAL INDEX KEY:\t\t\t../../x", "central index key '../../x'"),
    ],
)
def test_contradictory_header_is_one_sentence(submission: Maker, old: str, new: str, what: str) -> None:
    text = submission()
    assert old in text
    with pytest.raises(ValueError, match=what):
        parse_submission(text.replace(old, new).replace("<TYPE>10-K\n", "<TYPE>\n"))


TAGS = "SEC-DOCUMENT SUBMISSION DOCUMENT TYPE TEXT /TEXT /DOCUMENT SEQUENCE ACCEPTANCE-DATETIME CIK"
WORDS = ["20240315101500", "10-K", "1", "-----", "é", "\x00", "\n", "\t", "CENTRAL INDEX KEY:"]
PIECES = st.sampled_from([*(f"<{tag}>" for tag in TAGS.split()), *WORDS])


@settings(max_examples=50, deadline=None)
@given(st.one_of(st.text(), st.lists(PIECES, max_size=25).map("".join)))
@example("<SEC-DOCUMENT>")
def test_anything_is_parsed_or_refused(text: str) -> None:
    try:
        parsed = parse_submission(text)
    except ValueError:
        return
    assert parsed.header is not None or is_wrapped_document(text)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="<>\r")), min_size=1, max_size=5))
def test_bodies_come_back_whole_and_in_order(bodies: list[str]) -> None:
    text = "".join(f"<DOCUMENT>\n<TYPE>EX-{n}\n<TEXT>{body}</TEXT>\n</DOCUMENT>\n" for n, body in enumerate(bodies))
    assert [document.body for document in parse_submission(text).documents] == bodies


def test_keys_and_names() -> None:
    assert pad_cik("320193") == pad_cik("0000320193") == "0000320193"
    for wrong in ("", "0", "x", "12345678901", "１２"):
        with pytest.raises(ValueError, match="central index key"):
            pad_cik(wrong)
    assert find_accession("AAPL_10-K_0000320193-24-000123.html.gz") == "0000320193-24-000123"
    assert find_accession("000032019324000123.txt") == "0000320193-24-000123"
    assert find_accession("aapl-20240928.htm") is None
    assert find_accession("0000320193-24-000123_0000320193-24-000124.txt") is None
