"""One file → what it is, what it states about itself, its text and its items. Runs in the child process of `pool`.

Standard library, selectolax and the other modules of this folder that need no more than these: see `child`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from quantattn.data.filings.facts import Fact
from quantattn.data.filings.forms import family, form_on_cover, is_amendment
from quantattn.data.filings.items import Section, items_of
from quantattn.data.filings.markup import conserved, render_html
from quantattn.data.filings.submission import (
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

OK = "ok"
NOT_A_FILING = "not a filing"
OTHER_FORM = "other form"
NO_FORM = "form not stated"
UNREADABLE = "unreadable"
SIZE_LIMIT = "size limit"

_EXHIBIT_13 = re.compile(r"EX-13(?:\b|\.)")


@dataclass(frozen=True)
class Request:
    """What is asked of a child about one file.

    Attributes:
        path: the file.
        forms: families to keep.
        form: what an index says, for a file that states no form before its text.
        annual_report: whether to read Exhibit 13 and to follow items into it.
        facts: whether to read those of inline XBRL.
        max_bytes: of the file, unpacked.
        max_chars: of one document in HTML.
        min_share: least share of the visible characters that must survive.
    """

    path: str
    forms: tuple[str, ...]
    form: str | None = None
    annual_report: bool = False
    facts: bool = False
    max_bytes: int = 2**28
    max_chars: int = 2**26
    min_share: float = 0.95


@dataclass(frozen=True)
class Parsed:
    """What a file says; None or () where it is silent.

    Attributes:
        kind: "submission", "document" (one in its SGML lines) or "html".
        form, accession, ciks, company: of the header, else of what stands in for it.
        cik_on_cover: filer, from the inline-XBRL cover.
        accepted, filed: acceptance stamp and filing date as written in the header.
        text: of the main document.
        share: visible characters kept / visible characters of the source.
        sections: items of the text.
        annual_report: text of Exhibit 13.
        report_detail: why Exhibit 13 has no text although it is there.
        parts_skipped: uuencoded parts.
        facts: of inline XBRL, in the order of the document.
        facts_left_out: reason → facts that are not among them.
        status: `OK`, or the reason for which the file is set aside.
        detail: what that reason was about.
    """

    kind: str = ""
    form: str | None = None
    accession: str | None = None
    ciks: tuple[str, ...] = ()
    company: str | None = None
    cik_on_cover: str | None = None
    accepted: str | None = None
    filed: str | None = None
    text: str | None = None
    share: float | None = None
    sections: tuple[Section, ...] = ()
    annual_report: str | None = None
    report_detail: str = ""
    parts_skipped: int = 0
    facts: tuple[Fact, ...] = ()
    facts_left_out: Mapping[str, int] = field(default_factory=dict)
    status: str = OK
    detail: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        parts = {name: [vars(each) for each in getattr(self, name)] for name in ("sections", "facts")}
        return vars(self) | parts

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> Parsed:
        """What `as_dict` gave, after JSON or not."""
        sections = tuple(
            Section(**{**each, "names": tuple(each["names"]), "report": each["report"] and tuple(each["report"])})
            for each in values["sections"]
        )
        facts = tuple(Fact(**{**each, "dimensions": tuple(each["dimensions"])}) for each in values["facts"])
        return Parsed(**{**values, "ciks": tuple(values["ciks"]), "sections": sections, "facts": facts})


@dataclass
class _Work:
    """A file on its way: what is known of it, and the bodies that are still to be read."""

    known: Parsed = field(default_factory=Parsed)
    body: str = ""
    report: str | None = None


class _SetAside(Exception):
    """A file that is left out: `status` is the reason that is counted, the message the detail."""

    def __init__(self, status: str, detail: str) -> None:
        super().__init__(detail)
        self.status = status


def parse(request: Request) -> Iterator[Parsed]:
    """Everything that a file says; never raises for its content.

    Yields:
        What is known after each step, each in place of the one before: the header, then text and items, then the
        annual report. Whatever becomes of a step leaves what came before it.
    """
    work = _Work()
    try:
        _recognise(request, work)
        yield work.known
        _read_text(request, work)
        if work.report is None:
            yield work.known
            return
    except _SetAside as reason:
        yield replace(work.known, status=reason.status, detail=str(reason))
        return
    except ValueError as error:
        yield replace(work.known, status=UNREADABLE, detail=str(error))
        return
    yield work.known
    yield _with_annual_report(work.known, work.report, request)


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
    text = decode(content)
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
    elif content[:5] == b"%PDF-" or "\x00" in text[:1024]:
        raise _SetAside(NOT_A_FILING, "binary")
    elif is_html(text):
        work.known, work.body = replace(work.known, kind="html"), text
    elif text.lstrip()[:1] in ("{", "["):
        raise _SetAside(NOT_A_FILING, "JSON, which carries no acceptance time")
    else:
        raise _SetAside(NOT_A_FILING, "neither an EDGAR header nor HTML")
    work.known = replace(work.known, form=work.known.form or request.form)
    _require_family(work.known, request)


def _take_header(submission: Submission, work: _Work) -> None:
    header, main = submission.header, submission.main()
    skipped = sum(is_uuencoded(document.body) for document in submission.documents)
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
        known = replace(known, form=known.form or _covered_form(page.cover), cik_on_cover=pad_cik(cik) if cik else None)
        if page.facts is not None:
            known = replace(known, facts=tuple(page.facts.found), facts_left_out=page.facts.left_out)
    else:
        text = plain_text(body)
        share = conserved(text, body, request.min_share)
    form = known.form or form_on_cover(text)
    work.known = replace(known, form=form.upper() if form else None, text=text, share=share)
    if form is None:
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


def _with_annual_report(known: Parsed, body: str, request: Request) -> Parsed:
    """`known` with the text of Exhibit 13; one that cannot be read is told, and leaves the filing as it is."""
    assert known.text is not None
    assert known.form is not None
    body, _ = drop_uuencoded(body)
    try:
        if is_html(body):
            _require_size(body, request)
            report = render_html(body, request.min_share).text
        else:
            report = plain_text(body)
    except (_SetAside, ValueError) as error:
        return replace(known, report_detail=f"Exhibit 13: {error}")
    sections: Sequence[Section] = items_of(known.text, known.form, report).sections if report else known.sections
    return replace(known, annual_report=report or None, sections=tuple(sections))
