"""Source of EDGAR filings: a folder of full submissions and of main documents → one row a filing.

Files are recognised by content and taken in sorted order; nothing is left out without a count and a reason.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import polars as pl

from quantattn.data.filings.clock import (
    latest_acceptance_ns,
    parse_acceptance,
    parse_filing_date,
    public_ns,
)
from quantattn.data.filings.forms import FAMILIES, family, form_on_cover, is_amendment
from quantattn.data.filings.index import FilingIndex, IndexEntry, Zone, read_index
from quantattn.data.filings.markup import Limits, MarkupPool, Refused
from quantattn.data.filings.submission import (
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
from quantattn.data.schema import CANONICAL_ORDER, Filings, check
from quantattn.data.sources.source import Source, SourceReport, file_sha256

_LOG = logging.getLogger(__name__)

OK = "ok"
NOT_A_FILING = "not a filing"
OTHER_FORM = "other form"
NO_FORM = "form not stated"
NO_FILER = "filer not stated"
NO_TIME = "no acceptance time"
DUPLICATE = "duplicate accession"
UNREADABLE = "unreadable"


@dataclass(frozen=True)
class FilingSource(Source):
    """A source of filings with an account of every file.

    Attributes:
        documents: one row a file, in order: `file`, `kind` (what it was recognised as), `form`, `family`, `amendment`,
            `entity`, `accession`, `accepted_text`, `event_time`, `available_time`, `time_source`, `n_chars`,
            `share` (of the visible characters kept), `parts_skipped`, `status` ("ok" or why it is not in the table)
            and `detail`.
    """

    documents: pl.DataFrame


@dataclass(frozen=True)
class _Read:
    """One file on its way into the table; None where nothing is known."""

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
    share: float | None = None
    parts_skipped: int = 0
    status: str = OK
    detail: str = ""


@dataclass(frozen=True)
class _Options:
    index: FilingIndex | None
    filers: Mapping[str, str]
    forms: tuple[str, ...]
    filing_dates: bool
    max_bytes: int


class _SetAside(Exception):
    """A file that is left out: `status` is the reason that is counted, the message the detail."""

    def __init__(self, status: str, detail: str = "", known: _Read | None = None) -> None:
        super().__init__(detail)
        self.status, self.known = status, known


def scan_filings(
    path: str | Path,
    *,
    index: str | Path | FilingIndex | None = None,
    index_zone: Zone | None = None,
    filers: Mapping[str, str] | None = None,
    forms: tuple[str, ...] = FAMILIES,
    filing_dates: Literal["set_aside", "latest"] = "set_aside",
    on_bad: Literal["quarantine", "refuse"] = "quarantine",
    limits: Limits | None = None,
    workers: int | None = None,
) -> FilingSource:
    """Read every filing under a folder.

    Full submissions and single documents are told apart by content; gzip is unpacked. A filing's acceptance time comes
    from its header, else from `index`; nothing else is taken for it. Its entity is the first filer's CIK (ten digits),
    from the header, the inline-XBRL cover, the index or `filers`.

    Args:
        path: folder, searched through, or one file.
        index: CSV or JSON with acceptance times for documents that have no header (see `read_index`).
        index_zone: what a `Z` after a time in the index means.
        filers: start of a file's name → CIK, for documents that name no filer; never guessed.
        forms: families to keep, of "10-K", "10-Q", "8-K"; each with its variants and amendments.
        filing_dates: what to do with a filing of which only the filing date is known (headers before 2000, indexes):
            "set_aside", or "latest": count it as accepted at 22:00 New York of that date, the last moment possible,
            hence public on the next business day.
        on_bad: "quarantine" sets aside what cannot be read; "refuse" raises at the first such file.
        limits: what parsing one document may cost.
        workers: parsing children; 2 at most by default.

    Returns:
        A source whose table has the columns of `Filings` and `family`, `amendment`, `company`, `ciks` (all filers),
        `accepted_text` (as written), `time_source`, `n_chars`, `share`, `file`. A filing without an accession number of
        its own carries its file's name there.

    Raises:
        ValueError: no files, an unknown family, contradictory filers; with on_bad="refuse", what cannot be read.
    """
    root = Path(path)
    unknown = [name for name in forms if name not in FAMILIES]
    if unknown or not forms:
        raise ValueError(f"forms must be some of {', '.join(FAMILIES)}; got {', '.join(forms) or 'none'}")
    files = _list_files(root)
    limits = limits or Limits()
    options = _Options(
        index=read_index(index, index_zone) if isinstance(index, str | Path) else index,
        filers={prefix: pad_cik(cik) for prefix, cik in (filers or {}).items()},
        forms=forms,
        filing_dates=filing_dates == "latest",
        max_bytes=int(4 * limits.size_mib * 2**20),
    )
    workers = workers or min(2, os.cpu_count() or 1)
    with MarkupPool(limits, workers) as pool, ThreadPoolExecutor(workers) as threads:
        reads = list(threads.map(lambda file: _read(file, _name(file, root), options, pool), files))
    reads = _without_duplicates([_finish(read, options) for read in reads])
    for read in reads:
        if read.status == UNREADABLE:
            if on_bad == "refuse":
                raise ValueError(f"{read.file}: {read.detail}")
            _LOG.warning("%s is set aside: %s", read.file, read.detail)
    return _source(reads, {_name(file, root): file_sha256(file) for file in files})


def summary(source: FilingSource) -> pl.DataFrame:
    """How many files, how long, and what was set aside and why: one row a (family, status), sorted.

    Columns: `family` (null when it is none of those kept), `status`, `files`, `chars` (in all), `chars_median`,
    `chars_max`, `share_min` (least share of visible characters kept), `parts_skipped`.
    """
    return (
        source.documents.group_by("family", "status")
        .agg(
            files=pl.len(),
            chars=pl.col("n_chars").sum(),
            chars_median=pl.col("n_chars").median().cast(pl.Int64),
            chars_max=pl.col("n_chars").max(),
            share_min=pl.col("share").min(),
            parts_skipped=pl.col("parts_skipped").sum(),
        )
        .sort("family", "status", nulls_last=True)
    )


def _list_files(root: Path) -> list[Path]:
    if root.is_file():
        return [root]
    if not root.is_dir():
        raise ValueError(f"{root} is neither a folder nor a file")
    files = sorted((file for file in root.rglob("*") if file.is_file()), key=lambda file: file.relative_to(root).parts)
    if not files:
        raise ValueError(f"{root} holds no files")
    return files


def _name(file: Path, root: Path) -> str:
    return file.name if file == root else file.relative_to(root).as_posix()


def _read(file: Path, name: str, options: _Options, pool: MarkupPool) -> _Read:
    read = _Read(file=name)
    try:
        read, body = _recognise(file, read, options)
        _require_family(read, options)
        read = _with_text(read, body, pool)
        read = _with_cover(read)
        _require_family(read, options)
        return read
    except _SetAside as reason:
        return replace(reason.known or read, status=reason.status, detail=str(reason))
    except ValueError as error:
        return replace(read, status=UNREADABLE, detail=str(error))


def _finish(read: _Read, options: _Options) -> _Read:
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


def _recognise(file: Path, read: _Read, options: _Options) -> tuple[_Read, str]:
    """What the file is, what its header or its index entry says, and the body of its main document."""
    content = read_bytes(file, options.max_bytes)
    read = replace(read, accession=find_accession(file.name))
    text = decode(content)
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
        body = unwrap(main.body)
    elif content[:5] == b"%PDF-" or "\x00" in text[:1024]:
        raise _SetAside(NOT_A_FILING, "binary", read)
    elif is_html(text):
        read, body = replace(read, kind="html"), text
    elif text.lstrip()[:1] in ("{", "["):
        raise _SetAside(NOT_A_FILING, "JSON, which carries no acceptance time", read)
    else:
        raise _SetAside(NOT_A_FILING, "neither an EDGAR header nor HTML", read)
    return _with_index(read, file, options), body


def _dated(read: _Read, accepted: str | None, filed: str | None) -> _Read:
    """`read` with the times of its header; a filing date alone is kept as text until `_with_time` decides."""
    if accepted is not None:
        return replace(read, event_time=parse_acceptance(accepted), time_source="header")
    if filed is not None:
        return replace(read, detail=parse_filing_date(filed).isoformat(), time_source="header filing date")
    return read


def _with_index(read: _Read, file: Path, options: _Options) -> _Read:
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


def _dated_by_index(read: _Read, entry: IndexEntry) -> _Read:
    if entry.accepted is not None:
        return replace(
            read, event_time=entry.accepted, accepted_text=entry.accepted_text, time_source="index", detail=""
        )
    if entry.filed is not None and read.time_source is None:
        return replace(read, detail=entry.filed.isoformat(), time_source="index filing date")
    return read


def _require_family(read: _Read, options: _Options) -> None:
    if read.form is not None and family(read.form) not in options.forms:
        raise _SetAside(OTHER_FORM, read.form, read)


def _with_text(read: _Read, body: str, pool: MarkupPool) -> _Read:
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


def _with_cover(read: _Read) -> _Read:
    form = read.form or form_on_cover(read.text or "")
    if form is None:
        raise _SetAside(NO_FORM, "neither header, inline XBRL, index nor cover names a form", read)
    return replace(read, form=form.upper())


def _with_filer(read: _Read, options: _Options) -> _Read:
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


def _with_time(read: _Read, options: _Options) -> _Read:
    if read.event_time is None:
        if read.time_source is None:
            raise _SetAside(NO_TIME, "no header, and no entry in an index", read)
        if not options.filing_dates:
            raise _SetAside(NO_TIME, f"only the filing date {read.detail} is known", read)
        read = replace(read, event_time=latest_acceptance_ns(parse_filing_date(read.detail)), detail="")
    assert read.event_time is not None
    return replace(read, available_time=public_ns(read.event_time))


def _without_duplicates(reads: list[_Read]) -> list[_Read]:
    """The first of several files with one accession number stays; the others are set aside."""
    seen: dict[str, str] = {}
    kept = []
    for read in reads:
        if read.status == OK and read.accession is not None:
            first = seen.setdefault(read.accession, read.file)
            if first != read.file:
                read = replace(read, status=DUPLICATE, detail=f"as in {first}")
        kept.append(read)
    return kept


def _source(reads: list[_Read], hashes: Mapping[str, str]) -> FilingSource:
    table = pl.DataFrame(
        [_row(number, read) for number, read in enumerate(reads)],
        schema={
            **{"entity": pl.String, "event_time": pl.Int64, "available_time": pl.Int64, "seq": pl.Int64},
            **{"form": pl.String, "accession": pl.String, "text": pl.String, "family": pl.String},
            **{"amendment": pl.Boolean, "company": pl.String, "ciks": pl.List(pl.String), "accepted_text": pl.String},
            **{"time_source": pl.String, "n_chars": pl.Int64, "share": pl.Float64, "file": pl.String},
            **{"kind": pl.String, "parts_skipped": pl.Int64, "status": pl.String, "detail": pl.String},
        },
        orient="row",
    )
    kept = table.filter(pl.col("status") == OK).drop("kind", "parts_skipped", "status", "detail")
    kept = kept.with_columns(pl.col("accession").fill_null(pl.col("file"))).sort(CANONICAL_ORDER, maintain_order=True)
    aside = Counter(read.status for read in reads if read.status != OK)
    report = SourceReport(
        rows_read=kept.height,
        rows_set_aside=dict(sorted(aside.items())),
        files=dict(hashes),
        notes=_notes(table),
    )
    documents = table.select(
        *("file", "kind", "form", "family", "amendment", "entity", "accession", "accepted_text", "event_time"),
        *("available_time", "time_source", "n_chars", "share", "parts_skipped", "status", "detail"),
    )
    return FilingSource(check(kept, Filings).lazy(), (), report, documents)


def _row(number: int, read: _Read) -> tuple[object, ...]:
    form = read.form
    return (
        *(read.entity, read.event_time, read.available_time, number),
        *(form, read.accession, read.text, family(form) if form else None),
        *(is_amendment(form) if form else None, read.company, list(read.ciks), read.accepted_text),
        *(read.time_source, len(read.text) if read.text is not None else None, read.share, read.file),
        *(read.kind, read.parts_skipped, read.status, read.detail),
    )


def _notes(table: pl.DataFrame) -> tuple[str, ...]:
    notes = [
        "accepted from 06:00 to 17:30 New York of a business day counts as public at once, later as public at 06:00 of "
        "the next business day (exchange open and no federal holiday)"
    ]
    dates = table.filter((pl.col("status") == OK) & pl.col("time_source").str.ends_with("filing date")).height
    if dates:
        notes.append(f"{dates} filings are dated by their filing date alone, as if accepted at 22:00 New York of it")
    skipped = int(table["parts_skipped"].sum())
    if skipped:
        notes.append(f"{skipped} uuencoded parts were skipped")
    return tuple(notes)
