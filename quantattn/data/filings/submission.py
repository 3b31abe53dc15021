"""EDGAR's SGML wrapping: a full submission → its header and its documents.

Tags of this SGML are mostly unclosed; 1994 says `IMS` where later years say `SEC`; the daily feed (`.nc`) opens with
`<SUBMISSION>`, writes header tags instead of labels and may hold everything on one line. Names found inside a file
are values only: no path is ever made from one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_HEADER_MARK = re.compile(
    r"^\s*<(?:SEC-DOCUMENT|SEC-HEADER|IMS-DOCUMENT|IMS-HEADER|SUBMISSION|ACCEPTANCE-DATETIME)>", re.MULTILINE
)
_OPENS_ANOTHER = ("\n<SEC-DOCUMENT>", "\n<IMS-DOCUMENT>", "\n<SUBMISSION>")
_DOCUMENT = "<DOCUMENT>"
_TYPE = re.compile(r"\s*<TYPE>")
_TAG = re.compile(r"<(TYPE|SEQUENCE|FILENAME|DESCRIPTION)>([^<\r\n]*)")
_ACCESSION = re.compile(r"\d{10}-\d{2}-\d{6}")
_END = re.compile(r"</(?:TEXT|DOCUMENT|SEC-DOCUMENT|IMS-DOCUMENT|SUBMISSION)>|-----END PRIVACY-ENHANCED MESSAGE-----")
_FILER = re.compile(r"CENTRAL INDEX KEY:|<CIK>")
_SIC = re.compile(r"\[?(?<!\d)(\d{3,4})\]?$")
_VALUE = re.compile(r"[^<\r\n]*")
_HEAD_CHARS = 8_192
_TAIL_CHARS = 2_048
_LONGEST_FORM = 40


@dataclass(frozen=True)
class Header:
    """What the header of a submission states; None or () where it is silent.

    Attributes:
        accession: `NNNNNNNNNN-YY-NNNNNN`.
        form: submission type as written, e.g. "10-K405/A".
        ciks: the filers' central index keys, ten digits each, in the order of the header.
        names: the filers' conformed names, in the same order.
        sic: standard industrial classification of the first filer, four digits.
        filed: filing date `YYYYMMDD`; a date, not an acceptance time.
        accepted: acceptance stamp as written, New York time.
        period: period of report `YYYYMMDD`; never a time at which anything was known.
    """

    accession: str | None
    form: str | None
    ciks: tuple[str, ...]
    names: tuple[str, ...]
    sic: str | None
    filed: str | None
    accepted: str | None
    period: str | None


@dataclass(frozen=True)
class Document:
    """One document of a submission.

    Attributes:
        type, sequence, filename, description: its tags as written.
        ended: whether a closing tag (its own or the submission's) or another document follows; else the file stops.
        file: the text of the whole file.
        start, end: where its body stands in that, between `<TEXT>` and `</TEXT>`.
    """

    type: str
    sequence: int | None
    filename: str | None
    description: str | None
    ended: bool
    file: str = field(repr=False)
    start: int
    end: int

    @property
    def body(self) -> str:
        """The text between `<TEXT>` and `</TEXT>`, a copy: most documents of a submission are never read."""
        return self.file[self.start : self.end]


@dataclass(frozen=True)
class Submission:
    """A parsed file: no header when it is a single wrapped document, no documents when it is a header alone."""

    header: Header | None
    documents: tuple[Document, ...]

    def main(self) -> Document | None:
        """The document of the form itself: the first of the submission's type, else the first of all."""
        if not self.documents:
            return None
        form = self.header.form if self.header else None
        return next((document for document in self.documents if document.type == form), self.documents[0])


def has_header(text: str) -> bool:
    """Whether `text` opens like a full submission (SEC, IMS or feed header), after a PEM wrapper or not."""
    return _HEADER_MARK.search(text, 0, _HEAD_CHARS) is not None


def is_wrapped_document(text: str) -> bool:
    """Whether `text` is one document in its SGML lines (`<DOCUMENT>`, `<TYPE>`, …) with no submission header."""
    return re.match(r"\s*<DOCUMENT>\s*<TYPE>", text) is not None


def parse_submission(text: str) -> Submission:
    """Split a full submission, or a single wrapped document, into header and documents.

    Raises:
        ValueError: neither kind, a header that contradicts itself or names no form, or a second submission.
    """
    starts = list(_document_starts(text))
    if starts and any(text.find(mark, starts[0]) >= 0 for mark in _OPENS_ANOTHER):
        raise ValueError("a second submission begins in it, expected one a file: cut it where each begins")
    header = None
    if has_header(text):
        header = _parse_header(text[: starts[0]] if starts else text)
    elif not is_wrapped_document(text):
        raise ValueError(f"no EDGAR header and no <DOCUMENT> at the start, found {text.lstrip()[:40]!r}")
    ends = [*starts[1:], len(text)]
    spans = zip(starts, ends, strict=False)
    documents = tuple(_parse_document(text, start, end) for start, end in spans)
    return Submission(header, documents)


def _document_starts(text: str) -> Iterator[int]:
    """Where a `<DOCUMENT>` stands before a `<TYPE>`."""
    at = text.find(_DOCUMENT)
    while at >= 0:
        after = at + len(_DOCUMENT)
        if _TYPE.match(text, after):
            yield at
        at = text.find(_DOCUMENT, after)


def _parse_header(text: str) -> Header:
    form = _first(text, "CONFORMED SUBMISSION TYPE:", "<TYPE>")
    if form is None:
        raise ValueError("the header names no form (no CONFORMED SUBMISSION TYPE and no <TYPE>)")
    if len(form) > _LONGEST_FORM or not form.isprintable():
        raise ValueError(f"form {form[:_LONGEST_FORM]!r}: expected a short name such as 10-K")
    accession = _first(text, "ACCESSION NUMBER:", "<ACCESSION-NUMBER>")
    if accession is not None and not _ACCESSION.fullmatch(accession):
        raise ValueError(f"accession number {accession[:40]!r}: expected NNNNNNNNNN-YY-NNNNNN")
    stamps = sorted(set(_every(text, "<ACCEPTANCE-DATETIME>")))
    if len(stamps) > 1:
        raise ValueError(f"{len(stamps)} different acceptance times in one header: {stamps[0]!r} and {stamps[1]!r}")
    ciks = _every(text, "CENTRAL INDEX KEY:", "<CIK>")
    return Header(
        accession=accession,
        form=form.upper(),
        ciks=tuple(dict.fromkeys(pad_cik(cik) for cik in ciks)),
        names=tuple(dict.fromkeys(_every(text, "COMPANY CONFORMED NAME:", "<CONFORMED-NAME>"))),
        sic=_first_sic(text),
        filed=_first(text, "FILED AS OF DATE:", "<FILING-DATE>"),
        accepted=stamps[0] if stamps else None,
        period=_first(text, "CONFORMED PERIOD OF REPORT:", "<PERIOD>"),
    )


def _first_sic(text: str) -> str | None:
    """The classification that stands before a second filer begins, "SERVICES-PREPACKAGED SOFTWARE [7372]" or "7372"."""
    filers = [match.start() for match in _FILER.finditer(text)]
    first = text[: filers[1]] if len(filers) > 1 else text
    value = _first(first, "STANDARD INDUSTRIAL CLASSIFICATION:", "<ASSIGNED-SIC>")
    match = _SIC.search(value or "")
    return match and match[1].zfill(4)


def pad_cik(text: str) -> str:
    """A central index key as ten digits; ValueError unless it is 1 to 10 digits and not zero."""
    digits = text.strip()
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 10 and int(digits)):
        raise ValueError(f"central index key {text[:40]!r}: expected 1 to 10 digits")
    return digits.zfill(10)


def find_accession(name: str) -> str | None:
    """The accession number that a file's own name carries, with or without dashes as EDGAR writes them; else None."""
    found = set(_ACCESSION.findall(name)) or {
        f"{run[:10]}-{run[10:12]}-{run[12:]}" for run in re.findall(r"(?<!\d)\d{18}(?!\d)", name)
    }
    return found.pop() if len(found) == 1 else None


def _parse_document(text: str, start: int, end: int) -> Document:
    """`start` is at `<DOCUMENT>`, and `end` at the next one, or at the end of the file for the last."""
    opening = text.find("<TEXT>", start, end)
    tags = text[start:opening] if opening >= 0 else text[start : min(end, start + _HEAD_CHARS)]
    if opening >= 0:
        closing = text.rfind("</TEXT>", start, end)
        span = opening + len("<TEXT>"), closing if closing > opening else _end_of_document(text, start, end)
    else:
        ends = [match.end() for match in _TAG.finditer(tags)]
        span = start + max(ends, default=len(_DOCUMENT)), _end_of_document(text, start, end)
    found: dict[str, str] = {}
    for match in _TAG.finditer(tags):
        if value := match.group(2).strip():
            found.setdefault(match.group(1), value)
    sequence = found.get("SEQUENCE", "")
    return Document(
        type=found.get("TYPE", "").upper(),
        sequence=int(sequence) if sequence.isascii() and sequence.isdigit() else None,
        filename=found.get("FILENAME"),
        description=found.get("DESCRIPTION"),
        ended=end < len(text) or _has_end(text, start),
        file=text,
        start=span[0],
        end=span[1],
    )


def _has_end(text: str, start: int) -> bool:
    """Whether a closing tag stands after `start`: nearly always at the end, so that is looked at first."""
    return any(_END.search(text, at) is not None for at in (max(start, len(text) - _TAIL_CHARS), start))


def _end_of_document(text: str, start: int, end: int) -> int:
    closing = text.rfind("</DOCUMENT>", start, end)
    return closing if closing >= 0 else end


def _every(text: str, *labels: str) -> list[str]:
    """Values that follow any of the labels, up to the next tag or the end of the line; empty ones are left out."""
    found = []
    for label in labels:
        at = text.find(label)
        while at >= 0:
            start = at + len(label)
            value = _VALUE.match(text, start)
            if value is not None and not text.endswith("<FORMER-COMPANY>", 0, at):
                found.append((at, value.group().strip()))
            at = text.find(label, start)
    return [value for _, value in sorted(found) if value]


def _first(text: str, *labels: str) -> str | None:
    return next(iter(_every(text, *labels)), None)
