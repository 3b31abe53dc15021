"""One file → what it is, what it states about itself, its text and its items. Runs in the child process of `pool`.

Standard library, selectolax and the other modules of this folder that need no more than these: see `child`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from quantattn.data.filings.cut import is_cut, looks_cut, parse_record, read_items, read_metadata
from quantattn.data.filings.facts import Fact
from quantattn.data.filings.forms import family, form_on_cover, is_amendment, other_form_on_cover
from quantattn.data.filings.instance import is_instance, read_instance
from quantattn.data.filings.items import Section, items_of
from quantattn.data.filings.markup import FACTS as COVER
from quantattn.data.filings.markup import render_html
from quantattn.data.filings.package import ZIP, NotInIt, unpack_main
from quantattn.data.filings.parsed import (
    FACTS_ALONE,
    INSTANCE,
    NO_FORM,
    NOT_A_FILING,
    OK,
    OTHER_FORM,
    REPORT,
    SIZE_LIMIT,
    TEXT,
    UNREADABLE,
    Parsed,
    Request,
)
from quantattn.data.filings.shown import day_of
from quantattn.data.filings.submission import (
    Document,
    Submission,
    find_accession,
    has_header,
    is_wrapped_document,
    pad_cik,
    parse_submission,
)
from quantattn.data.filings.text import (
    TooLarge,
    decode,
    drop_uuencoded,
    is_html,
    is_uuencoded,
    plain_text,
    read_bytes,
    unwrap,
)
from quantattn.data.filings.visible import conserved

_HEAD = 65_536
_EXHIBIT_13 = re.compile(r"EX-13(?:\b|\.)")
_INSTANCES = ("EX-101.INS", "XML")
"""Types of the documents that may be one: what a filer sent, and what EDGAR has made of inline XBRL."""


@dataclass
class _Work:
    """A file on its way: what is known of it, and the bodies that are still to be read."""

    known: Parsed = field(default_factory=Parsed)
    body: str = ""
    report: str | None = None
    instances: tuple[Document, ...] = ()


class _SetAside(Exception):
    """A file that is left out: `status` is the reason that is counted, the message the detail."""

    def __init__(self, status: str, detail: str) -> None:
        super().__init__(detail)
        self.status = status


def parse(request: Request) -> Iterator[Parsed]:
    """Everything that a file says; never raises for its content.

    Yields:
        What is known after each step, each in place of the one before: the header, then text and items, then the facts
        of XBRL instances, then the annual report. Whatever becomes of a step leaves what came before it.
    """
    work = _Work()
    try:
        _recognise(request, work)
        yield replace(work.known, to_come=TEXT)
        if work.known.text is None:
            _read_text(request, work)
    except _SetAside as reason:
        yield replace(work.known, status=reason.status, detail=str(reason))
        return
    except ValueError as error:
        yield replace(work.known, status=UNREADABLE, detail=str(error))
        return
    for name, there, read in (
        (INSTANCE, bool(work.instances), _with_instances),
        (REPORT, work.report is not None, _with_annual_report),
    ):
        if there:
            work.known = replace(work.known, to_come=name)
            yield work.known
            try:
                work.known = read(work, request)
            except (_SetAside, ValueError) as error:
                work.known = work.known.without(str(error))
    yield replace(work.known, to_come="")


def _recognise(request: Request, work: _Work) -> None:
    """What the file is, what its header says, the bodies of its main document and of Exhibit 13."""
    path = Path(request.path)
    try:
        content = read_bytes(path, request.max_bytes)
    except TooLarge as error:
        raise _SetAside(SIZE_LIMIT, str(error)) from None
    except OSError as error:
        raise ValueError(f"cannot be opened: {error.strerror}") from None
    work.known = Parsed(accession=find_accession(path.name))
    if content.startswith(ZIP):
        content = _unpack(content, request.max_bytes)
    if content[257:262] == b"ustar":
        raise _SetAside(NOT_A_FILING, "a tar archive, such as those of EDGAR's daily feed: unpack it into a folder")
    text = decode(content)
    if not text or text.isspace():
        raise ValueError("an empty file")
    if has_header(text) or is_wrapped_document(text):
        submission = parse_submission(text)
        _take_header(submission, work)
        _require_family(work.known, request)
        main = submission.main()
        if main is None:
            raise ValueError(f"a header (form {work.known.form}) with no <DOCUMENT> after it")
        if not main.ended:
            raise ValueError("the main document has no end: no closing tag follows it, so the file stops early")
        work.body = unwrap(main.body)
        work.report = _annual_report(submission) if request.annual_report else None
        work.instances = tuple(each for each in submission.documents if request.facts and _may_be_instance(each))
    elif content[:5] == b"%PDF-" or "\x00" in text[:1024]:
        raise _SetAside(NOT_A_FILING, "binary")
    elif looks_cut(text[:_HEAD]):
        _read_cut(text, request, work)
        return
    elif is_instance(text):
        _read_instance(text, request, work)
    elif is_html(text):
        work.known, work.body = replace(work.known, kind="html"), text
    elif text.lstrip()[:1] in ("{", "["):
        raise _SetAside(NOT_A_FILING, "JSON without the items of a filing")
    elif request.form or form_on_cover(text) or other_form_on_cover(text):
        work.known, work.body = replace(work.known, kind="text"), text
    else:
        raise _SetAside(NOT_A_FILING, "neither an EDGAR header, nor HTML, nor a text whose cover names a form")
    work.known = replace(work.known, form=work.known.form or request.form)
    _require_family(work.known, request)


def _unpack(content: bytes, max_bytes: int) -> bytes:
    """The main document of a zip."""
    try:
        return unpack_main(content, max_bytes)
    except TooLarge as error:
        raise _SetAside(SIZE_LIMIT, str(error)) from None
    except NotInIt as error:
        raise _SetAside(NOT_A_FILING, str(error)) from None


def _read_cut(text: str, request: Request, work: _Work) -> None:
    """A JSON object with the items of a filing."""
    values = parse_record(text)
    if not is_cut(values):
        raise _SetAside(NOT_A_FILING, "JSON without a filing's name and items")
    work.known = read_metadata(values, request.form)
    if work.known.form is None:
        raise _SetAside(NO_FORM, "neither the JSON nor an index names a form")
    _require_family(work.known, request)
    work.known = read_items(values, work.known)
    if work.known.status != OK:
        raise _SetAside(work.known.status, work.known.detail)


def _read_instance(text: str, request: Request, work: _Work) -> None:
    """A file that is an XBRL instance, and so has facts and no text: always set aside, with what it states."""
    work.known = replace(work.known, kind="instance")
    if not request.facts:
        raise _SetAside(FACTS_ALONE, "an XBRL instance, whose facts are read with facts=true")
    _require_size(text, request)
    facts = read_instance(text)
    cover = {each.concept: each.text for each in reversed(facts.found) if each.concept in COVER}
    cik = cover.get("dei:EntityCentralIndexKey")
    work.known = replace(
        work.known,
        form=_covered_form(cover) or request.form,
        cik_on_cover=pad_cik(cik) if cik else None,
        facts=tuple(facts.found),
        facts_left_out=facts.left_out,
    )
    if work.known.form is None:
        raise _SetAside(NO_FORM, "neither the facts of the XBRL instance nor an index name a form")
    _require_family(work.known, request)
    raise _SetAside(FACTS_ALONE, "an XBRL instance")


def _may_be_instance(document: Document) -> bool:
    head = document.file[document.start : min(document.end, document.start + _HEAD)]
    return document.type in _INSTANCES and is_instance(unwrap(head))


def _with_instances(work: _Work, request: Request) -> Parsed:
    """`known` with the facts of the submission's XBRL instances; inline XBRL of the main document has the same."""
    if work.known.facts or work.known.facts_left_out:
        return work.known
    found: list[Fact] = []
    left_out: Counter[str] = Counter()
    for document in work.instances:
        body = unwrap(document.body)
        _require_size(body, request)
        facts = read_instance(body)
        found += facts.found
        left_out += facts.left_out
    return replace(work.known, facts=tuple(found), facts_left_out=left_out)


def _take_header(submission: Submission, work: _Work) -> None:
    header, main = submission.header, submission.main()
    skipped = sum(is_uuencoded(each.file, each.start, each.end) for each in submission.documents)
    if header is None:
        form = main.type or None if main else None
        work.known = replace(work.known, kind="document", form=form, parts_skipped=skipped)
        return
    work.known = replace(
        work.known,
        kind="submission",
        form=header.form,
        accession=header.accession or work.known.accession,
        ciks=header.ciks,
        company=header.names[0] if header.names else None,
        names=header.names,
        sic=header.sic,
        period=day_of(header.period),
        accepted=header.accepted,
        filed=header.filed,
        parts_skipped=skipped,
    )


def _annual_report(submission: Submission) -> str | None:
    """Exhibit 13, the annual report to shareholders, in as many documents as it has; None when there is none."""
    bodies = [unwrap(document.body) for document in submission.documents if _EXHIBIT_13.match(document.type)]
    return "\n".join(bodies) or None


def _require_family(known: Parsed, request: Request) -> None:
    if known.form is not None and family(known.form) not in request.forms:
        raise _SetAside(OTHER_FORM, known.form)


def _read_text(request: Request, work: _Work) -> None:
    """Text, form and items of the main document."""
    if is_uuencoded(work.body):
        raise ValueError("the main document is uuencoded")
    body, skipped = drop_uuencoded(work.body)
    known = work.known = replace(work.known, parts_skipped=work.known.parts_skipped + skipped)
    if is_html(body):
        _require_size(body, request)
        page = render_html(body, request.min_share, request.facts)
        text, share = page.text, page.share
        cik = page.cover.get("dei:EntityCentralIndexKey")
        known = replace(
            known,
            form=known.form or _covered_form(page.cover),
            cik_on_cover=pad_cik(cik) if cik else None,
            period=known.period or day_of(page.cover.get("dei:DocumentPeriodEndDate")),
        )
        if page.facts is not None:
            known = replace(known, facts=tuple(page.facts.found), facts_left_out=page.facts.left_out)
    else:
        text = plain_text(body)
        share = conserved(text, body, request.min_share)
    form = known.form or form_on_cover(text)
    work.known = replace(known, form=form.upper() if form else None, text=text, share=share)
    if form is None:
        other = other_form_on_cover(text)
        if other is not None:
            raise _SetAside(OTHER_FORM, f"{other}, by its cover")
        raise _SetAside(NO_FORM, "neither header, inline XBRL, index nor cover names a form")
    _require_family(work.known, request)
    work.known = replace(work.known, sections=items_of(text, form).sections)


def _covered_form(cover: Mapping[str, str]) -> str | None:
    form = cover.get("dei:DocumentType")
    if form and cover.get("dei:AmendmentFlag", "").lower() == "true" and not is_amendment(form):
        form += "/A"
    return form


def _require_size(body: str, request: Request) -> None:
    if len(body) > request.max_chars:
        raise _SetAside(SIZE_LIMIT, f"a document of {len(body):,} characters, at most {request.max_chars:,}")


def _with_annual_report(work: _Work, request: Request) -> Parsed:
    """`known` with the text of Exhibit 13."""
    known = work.known
    assert known.text is not None
    assert known.form is not None
    body, _ = drop_uuencoded(work.report or "")
    if is_html(body):
        _require_size(body, request)
        report = render_html(body, request.min_share).text
    else:
        report = plain_text(body)
    sections: Sequence[Section] = items_of(known.text, known.form, report).sections if report else known.sections
    return replace(known, annual_report=report or None, sections=tuple(sections))
