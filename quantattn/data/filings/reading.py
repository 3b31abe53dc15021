"""One file of a folder of filings: what it is, what it states about itself, its text, its times and its filer.

Nothing is guessed: what a file and the index do not state stays unknown, and the file is set aside with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from quantattn.data.filings.clock import latest_acceptance_ns, parse_acceptance, parse_filing_date, public_ns
from quantattn.data.filings.forms import family, form_on_cover, is_amendment
from quantattn.data.filings.index import FilingIndex, IndexEntry
from quantattn.data.filings.markup import MarkupPool, Refused
from quantattn.data.filings.submission import (
    Submission,
    find_accession,
    has_header,
    is_wrapped_document,
    pad_cik,
    parse_submission,
)
from quantattn.data.filings.text import (
    decode,
    drop_uuencoded,
    is_html,
    is_uuencoded,
    plain_text,
    read_bytes,
    unwrap,
    visible_length,
)

OK = "ok"
NOT_A_FILING = "not a filing"
OTHER_FORM = "other form"
NO_FORM = "form not stated"
NO_FILER = "filer not stated"
NO_TIME = "no acceptance time"
DUPLICATE = "duplicate accession"
UNREADABLE = "unreadable"

_EXHIBIT_13 = re.compile(r"EX-13(?:\b|\.)")


@dataclass(frozen=True)
class Reading:
    """One file on its way into the table; None where nothing is known.

    Attributes:
        file: its name within the folder.
        kind: "submission", "document" (one in its SGML lines) or "html".
        form, entity, company, ciks, accession: as stated by header, index or cover.
        accepted_text: acceptance time as written.
        event_time, available_time: accepted and public, nanoseconds UTC.
        time_source: where the time stood.
        text: text of the main document.
        annual_report: text of Exhibit 13, when items are asked for and the submission has it.
        report_detail: why Exhibit 13 has no text although it is there.
        share: visible characters kept / visible characters of the source.
        parts_skipped: uuencoded parts.
        status: `OK`, or the reason for which the file is set aside.
        detail: what that reason was about.
    """

    file: str
    kind: str = ""
    form: str | None = None
    entity: str | None = None
    company: str | None = None
    ciks: tuple[str, ...] = ()
    accession: str | None = None
    accepted_text: str | None = None
    event_time: int | None = None
    available_time: int | None = None
    time_source: str | None = None
    text: str | None = None
    annual_report: str | None = None
    report_detail: str = ""
    share: float | None = None
    parts_skipped: int = 0
    status: str = OK
    detail: str = ""


@dataclass(frozen=True)
class ReadingOptions:
    """What a folder is read with; see `quantattn.data.sources.filings.scan_filings`."""

    index: FilingIndex | None
    filers: Mapping[str, str]
    forms: tuple[str, ...]
    filing_dates: bool
    max_bytes: int
    items: bool = False


class _SetAside(Exception):
    """A file that is left out: `status` is the reason that is counted, the message the detail."""

    def __init__(self, status: str, detail: str = "", known: Reading | None = None) -> None:
        super().__init__(detail)
        self.status, self.known = status, known


def read_filing(file: Path, name: str, options: ReadingOptions, pool: MarkupPool) -> Reading:
    """Everything about a file but its times and its filer, which `finish` decides; never raises for its content."""
    read = Reading(file=name)
    try:
        read, body, report = _recognise(file, read, options)
        _require_family(read, options)
        read = _with_text(read, body, pool)
        if report is not None:
            read = _with_annual_report(read, report, pool)
        read = _with_cover(read)
        _require_family(read, options)
        return read
    except _SetAside as reason:
        return replace(reason.known or read, status=reason.status, detail=str(reason))
    except ValueError as error:
        return replace(read, status=UNREADABLE, detail=str(error))


def finish(read: Reading, options: ReadingOptions) -> Reading:
    """`read` with its times and its filer, or set aside for lack of one of them."""
    if read.status != OK:
        return read
    try:
        read = _with_time(read, options)
        return _with_filer(read, options)
    except _SetAside as reason:
        return replace(reason.known or read, status=reason.status, detail=str(reason))
    except ValueError as error:
        return replace(read, status=UNREADABLE, detail=str(error))


def _recognise(file: Path, read: Reading, options: ReadingOptions) -> tuple[Reading, str, str | None]:
    """What the file is, what its header or index entry says, the body of its main document, that of Exhibit 13."""
    content = read_bytes(file, options.max_bytes)
    read = replace(read, accession=find_accession(file.name))
    text = decode(content)
    report = None
    if has_header(text) or is_wrapped_document(text):
        submission = parse_submission(text)
        main, header = submission.main(), submission.header
        skipped = sum(is_uuencoded(document.body) for document in submission.documents)
        read = replace(
            read,
            kind="submission" if header else "document",
            form=(main.type or None) if main else None,
            parts_skipped=skipped,
        )
        if header is not None:
            read = replace(
                read,
                form=header.form,
                accession=header.accession or read.accession,
                ciks=header.ciks,
                entity=header.ciks[0] if header.ciks else None,
                company=header.names[0] if header.names else None,
                accepted_text=header.accepted,
            )
            read = _dated(read, header.accepted, header.filed)
            _require_family(read, options)
        if main is None:
            raise ValueError(f"a header (form {read.form}) with no <DOCUMENT> after it")
        if not main.ended:
            raise ValueError("the main document has no end: no closing tag follows it, so the file stops early")
        body = unwrap(main.body)
        report = _annual_report(submission) if options.items else None
    elif content[:5] == b"%PDF-" or "\x00" in text[:1024]:
        raise _SetAside(NOT_A_FILING, "binary", read)
    elif is_html(text):
        read, body = replace(read, kind="html"), text
    elif text.lstrip()[:1] in ("{", "["):
        raise _SetAside(NOT_A_FILING, "JSON, which carries no acceptance time", read)
    else:
        raise _SetAside(NOT_A_FILING, "neither an EDGAR header nor HTML", read)
    return _with_index(read, file, options), body, report


def _annual_report(submission: Submission) -> str | None:
    """Exhibit 13, the annual report to shareholders, in as many documents as it has; None when there is none."""
    bodies = [unwrap(document.body) for document in submission.documents if _EXHIBIT_13.match(document.type)]
    return "\n".join(bodies) or None


def _dated(read: Reading, accepted: str | None, filed: str | None) -> Reading:
    """`read` with the times of its header; a filing date alone is kept as text until `_with_time` decides."""
    if accepted is not None:
        return replace(read, event_time=parse_acceptance(accepted), time_source="header")
    if filed is not None:
        return replace(read, detail=parse_filing_date(filed).isoformat(), time_source="header filing date")
    return read


def _with_index(read: Reading, file: Path, options: ReadingOptions) -> Reading:
    entry = options.index.find(read.accession, file.name) if options.index is not None else None
    if entry is None:
        return read
    read = replace(
        read,
        accession=read.accession or entry.accession,
        entity=read.entity or entry.cik,
        form=read.form or entry.form,
    )
    return read if read.event_time is not None else _dated_by_index(read, entry)


def _dated_by_index(read: Reading, entry: IndexEntry) -> Reading:
    if entry.accepted is not None:
        return replace(
            read, event_time=entry.accepted, accepted_text=entry.accepted_text, time_source="index", detail=""
        )
    if entry.filed is not None and read.time_source is None:
        return replace(read, detail=entry.filed.isoformat(), time_source="index filing date")
    return read


def _require_family(read: Reading, options: ReadingOptions) -> None:
    if read.form is not None and family(read.form) not in options.forms:
        raise _SetAside(OTHER_FORM, read.form, read)


def _with_text(read: Reading, body: str, pool: MarkupPool) -> Reading:
    if is_uuencoded(body):
        raise _SetAside(UNREADABLE, "the main document is uuencoded", read)
    body, skipped = drop_uuencoded(body)
    read = replace(read, parts_skipped=read.parts_skipped + skipped)
    if not is_html(body):
        text = plain_text(body)
        if not text:
            raise _SetAside(UNREADABLE, "no visible text", read)
        return replace(read, text=text, share=visible_length(text) / visible_length(body))
    rendered = pool.render(body)
    if isinstance(rendered, Refused):
        raise _SetAside(UNREADABLE, f"{rendered.reason} ({rendered.detail})", read)
    form, cik = rendered.facts.get("dei:DocumentType"), rendered.facts.get("dei:EntityCentralIndexKey")
    if form and rendered.facts.get("dei:AmendmentFlag", "").lower() == "true" and not is_amendment(form):
        form += "/A"
    return replace(
        read,
        text=rendered.text,
        share=rendered.share,
        form=read.form or form,
        entity=read.entity or (pad_cik(cik) if cik else None),
    )


def _with_annual_report(read: Reading, body: str, pool: MarkupPool) -> Reading:
    """`read` with the text of Exhibit 13; one that cannot be read is told, and leaves the filing as it is."""
    body, _ = drop_uuencoded(body)
    if not is_html(body):
        return replace(read, annual_report=plain_text(body) or None)
    rendered = pool.render(body)
    if isinstance(rendered, Refused):
        return replace(read, report_detail=f"Exhibit 13: {rendered.reason} ({rendered.detail})")
    return replace(read, annual_report=rendered.text)


def _with_cover(read: Reading) -> Reading:
    form = read.form or form_on_cover(read.text or "")
    if form is None:
        raise _SetAside(NO_FORM, "neither header, inline XBRL, index nor cover names a form", read)
    return replace(read, form=form.upper())


def _with_filer(read: Reading, options: ReadingOptions) -> Reading:
    name = read.file.rsplit("/", 1)[-1]
    given = sorted({cik for prefix, cik in options.filers.items() if name.startswith(prefix)})
    if len(given) > 1:
        raise ValueError(f"two filers are given for this file's name: {given[0]} and {given[1]}")
    if given and read.entity not in (None, given[0]):
        raise ValueError(f"filer {given[0]} is given for this file's name but the document states {read.entity}")
    entity = read.entity or (given[0] if given else None)
    if entity is None:
        raise _SetAside(NO_FILER, "neither header, inline XBRL, index nor `filers` names one", read)
    return replace(read, entity=entity, ciks=read.ciks or (entity,))


def _with_time(read: Reading, options: ReadingOptions) -> Reading:
    if read.event_time is None:
        if read.time_source is None:
            raise _SetAside(NO_TIME, "no header, and no entry in an index", read)
        if not options.filing_dates:
            raise _SetAside(NO_TIME, f"only the filing date {read.detail} is known", read)
        read = replace(read, event_time=latest_acceptance_ns(parse_filing_date(read.detail)), detail="")
    assert read.event_time is not None
    return replace(read, available_time=public_ns(read.event_time))
