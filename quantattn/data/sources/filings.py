"""Source of EDGAR filings: a folder of full submissions and of main documents → one row a filing.

Files are recognised by content and taken in sorted order; nothing is left out without a count and a reason.
"""

from __future__ import annotations

import logging
import os
import re
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import date
from itertools import takewhile
from pathlib import Path
from typing import Literal, get_args

import polars as pl

from quantattn.data.filings.amendments import with_originals
from quantattn.data.filings.corpus import holds_many, read_corpus
from quantattn.data.filings.fact_table import fact_table
from quantattn.data.filings.forms import FAMILIES, family, is_amendment
from quantattn.data.filings.index import FilingIndex, Zone, read_index
from quantattn.data.filings.item_table import ITEM, item_rows
from quantattn.data.filings.items import MISSING
from quantattn.data.filings.parsed import CUT, INSTANCE, OK, REPORT, UNREADABLE
from quantattn.data.filings.pool import BAD, Limits, ParsePool
from quantattn.data.filings.reading import DUPLICATE, Reading, ReadingOptions, finish, parse_filing
from quantattn.data.filings.store import ParsedStore
from quantattn.data.filings.submission import pad_cik
from quantattn.data.filings.tables import Tables, with_tables
from quantattn.data.schema import CANONICAL_ORDER, Filings, check
from quantattn.data.sources.source import Source, SourceReport, files_sha256

_WILD = re.compile(r"[*?\[]")
_MOST_WARNINGS = 100
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class FilingSource(Source):
    """A source of filings with an account of every file.

    Attributes:
        documents: one row a file, in order: `file`, `kind` (what it was recognised as), `form`, `family`, `amendment`,
            `entity`, `accession`, `accepted_text`, `event_time`, `available_time`, `time_source`, `n_chars`,
            `share` (of the visible characters kept), `items_found` and `items_missing` (null where there is no text),
            `parts_skipped`, `facts`, `status` ("ok" or why it is not in the table) and `detail`.
        facts: facts of XBRL in the schema `FilingFacts`; None when they were not asked for.
    """

    documents: pl.DataFrame
    facts: pl.DataFrame | None = None


def scan_filings(
    path: str | Path,
    *,
    index: str | Path | FilingIndex | None = None,
    index_zone: Zone | None = None,
    filers: Mapping[str, str] | None = None,
    forms: tuple[str, ...] = FAMILIES,
    filing_dates: Literal["set_aside", "latest"] = "set_aside",
    tables: Tables = "rows",
    items: bool = False,
    facts: bool = False,
    on_bad: Literal["quarantine", "refuse"] = "quarantine",
    limits: Limits | None = None,
    workers: int | None = None,
    store: str | Path | None = None,
) -> FilingSource:
    """Read every filing under a folder.

    Full submissions and single documents are told apart by content; gzip is unpacked. A filing's acceptance time comes
    from its header, else from `index`; nothing else is taken for it. Its entity is the first filer's CIK (ten digits),
    from the header, the inline-XBRL cover, the index or `filers`.

    Args:
        path: folder, searched through, one file, or a pattern of them ("filings/**/*10-K*").
        index: CSV or JSON with acceptance times for documents that have no header (see `read_index`).
        index_zone: what a `Z` after a time in the index means.
        filers: start of a file's name → CIK, for documents that name no filer; never guessed.
        forms: families to keep, of "10-K", "10-Q", "8-K"; each with its variants and amendments.
        filing_dates: what to do with a filing of which only the filing date is known (headers before 2000, indexes):
            "set_aside", or "latest": count it as accepted at 22:00 New York of that date, the last moment possible,
            hence public on the next business day.
        tables: what becomes of tables of numbers in the texts (see `quantattn.data.filings.tables`): "rows" keeps each
            row as a line with its cells separated by a tab, "drop" leaves them out, "summary" puts a line in the place
            of each that tells its size and its columns. Items begin and end where they did; `share` is of all the text.
        items: whether to cut each text into the items of its form: two more columns, `items` (a list of `ITEM`, where
            each stands and how, see `quantattn.data.filings.items`) and `annual_report` (text of Exhibit 13, in which
            items that are handed to it are followed; null where there is none).
        facts: whether to read the facts of XBRL into a table of their own (`facts`): of inline XBRL, hidden ones too,
            else of the instance in the submission (EX-101.INS), and of instances in files of their own.
        on_bad: "quarantine" sets aside what cannot be read; "refuse" raises at the first such file.
        limits: what parsing one file may cost.
        workers: processes that parse; one a core, 8 at most, by default. Nothing in the result depends on it.
        store: a folder to keep in what was parsed, file by file, so that the next reading parses what is new or has
            changed alone; what no file needs any more is removed from it. Nothing in the result depends on it.

    Returns:
        A source whose table has the columns of `Filings` and `family`, `amendment`, `amends` (accession number of the
        original, see `with_originals`), `company`, `ciks` and `names` (all filers), `sic` (of the first), `period` (of
        the report; never a time at which anything was known), `accepted_text` (as written), `time_source`, `n_chars`,
        `share`, `file`. A filing without an accession number of its own carries its file's name there.

    Raises:
        ValueError: no files, an unknown family, contradictory filers; with on_bad="refuse", what cannot be read.
    """
    if tables not in get_args(Tables):
        raise ValueError(f"tables must be one of {', '.join(get_args(Tables))}, got {tables!r}")
    unknown = [name for name in forms if name not in FAMILIES]
    if unknown or not forms:
        raise ValueError(f"forms must be some of {', '.join(FAMILIES)}; got {', '.join(forms) or 'none'}")
    folder, files = _list_files(Path(path))
    # A name that is no UTF-8 is shown with its odd bytes as \xff.
    names = [os.fsencode(file.relative_to(folder).as_posix()).decode("utf-8", "backslashreplace") for file in files]
    options = ReadingOptions(
        index=read_index(index, index_zone) if isinstance(index, str | Path) else index,
        filers={prefix: pad_cik(cik) for prefix, cik in (filers or {}).items()},
        forms=tuple(forms),  # a configuration gives a list of its own kind, which is no JSON for a child
        filing_dates=filing_dates == "latest",
        items=items,
        facts=facts,
    )
    many = {file: kind for file in files if file.is_file() and (kind := holds_many(file))}
    with ParsePool(limits, workers) as pool, ThreadPoolExecutor(pool.workers) as threads:
        single = [file for file in files if file not in many]
        kept = None if store is None else ParsedStore(store)
        parsing = threads.map(lambda file: parse_filing(file, options, pool, kept), single)
        parsed = dict(zip(single, parsing, strict=True))
        most = int(pool.limits.file_mib * 2**20)
    if kept is not None:
        kept.forget_others()
        _LOG.info("%d files parsed, %d stood in %s", kept.parsed, kept.standing, kept.folder)
    reads: list[Reading] = []
    for file, name in zip(files, names, strict=True):
        if file in many:
            reads += read_corpus(file, name, many[file], options, most)
        else:
            reads.append(finish(parsed[file], name, options))
    reads = _without_duplicates(reads)
    bad = [read for read in reads if read.status in BAD]
    if bad and on_bad == "refuse":
        raise ValueError(f"{bad[0].file}: {_reason(bad[0])}")
    for read in bad[:_MOST_WARNINGS]:
        _LOG.warning("%s is set aside: %s", read.file, _reason(read))
    if len(bad) > _MOST_WARNINGS:
        _LOG.warning("%d more are set aside; the account of the source has all", len(bad) - _MOST_WARNINGS)
    hashes = files_sha256({name: file for name, file in zip(names, files, strict=True) if file.is_file()})
    reads, told = _with_tables(reads, tables)
    return _source(reads, hashes, options, told)


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


def _list_files(path: Path) -> tuple[Path, list[Path]]:
    """The folder that names are relative to, and the files in it that are meant, sorted."""
    if path.is_file():
        return path.parent, [path]
    if path.is_dir():
        folder, found = path, path.rglob("*")
    else:
        fixed = list(takewhile(lambda part: not _WILD.search(part), path.parts))
        if len(fixed) == len(path.parts):
            raise ValueError(f"{path} is neither a folder nor a file")
        folder = Path(*fixed)
        found = folder.glob(str(path.relative_to(folder)))
    files = sorted((file for file in found if not file.is_dir()), key=lambda file: file.relative_to(folder).parts)
    if not files:
        raise ValueError(f"{path} holds no files")
    return folder, files


def _without_duplicates(reads: list[Reading]) -> list[Reading]:
    """Of several files with one accession number one stays; the others are set aside.

    It is the first that knows its acceptance time, else the first that is no filing cut into items, else the first.
    """
    best: dict[str, Reading] = {}
    for read in reads:
        number = read.accession or read.parsed.named
        if read.status == OK and number is not None:
            best[number] = min(best.get(number, read), read, key=_lacks)
    kept = []
    for read in reads:
        chosen = best.get(read.accession or read.parsed.named or "")
        if read.status == OK and chosen is not None and chosen.file != read.file:
            read = replace(read, status=DUPLICATE, detail=f"as in {chosen.file}")
        kept.append(read)
    return kept


def _lacks(read: Reading) -> tuple[bool, bool]:
    """What a file has less of than another one of the same filing: its acceptance time, its whole text."""
    return (read.time_source or "").endswith("date"), read.parsed.kind == CUT


def _with_tables(reads: list[Reading], choice: Tables) -> tuple[list[Reading], tuple[str, ...]]:
    """Texts with their tables as they were chosen to be, and a note of how many those that are kept have."""
    if choice == "rows":
        return reads, ()
    changed = [with_tables(read.parsed, choice) for read in reads]
    number = sum(found for read, (_, found) in zip(reads, changed, strict=True) if read.status == OK)
    note = f"{number:,} tables of numbers: {'left out' if choice == 'drop' else 'a line in the place of each'}"
    return [replace(read, parsed=parsed) for read, (parsed, _) in zip(reads, changed, strict=True)], (note,)


def _reason(read: Reading) -> str:
    return read.detail if read.status == UNREADABLE else f"{read.status} ({read.detail})"


def _source(
    reads: list[Reading], hashes: Mapping[str, str], options: ReadingOptions, told: tuple[str, ...]
) -> FilingSource:
    table = pl.DataFrame([_row(number, read) for number, read in enumerate(reads)], schema=_COLUMNS, orient="row")
    kept = table.filter(pl.col("status") == OK).drop(_OF_DOCUMENTS)
    kept = kept.with_columns(pl.col("accession").fill_null(pl.col("file"))).sort(CANONICAL_ORDER, maintain_order=True)
    kept = with_originals(kept)
    if not options.items:
        kept = kept.drop("annual_report", *(() if table["cut"].any() else ("items",)))
    aside = Counter(read.status for read in reads if read.status != OK)
    facts, left_out = fact_table(reads) if options.facts else (None, ())
    report = SourceReport(
        rows_read=kept.height,
        rows_set_aside=dict(sorted(aside.items())),
        files=dict(hashes),
        notes=_notes(table) + _amended(kept) + told + left_out,
    )
    missing = pl.col("items").list.eval(pl.element().struct.field("status") == MISSING).list.sum().cast(pl.Int64)
    documents = table.with_columns(items_missing=missing, items_found=pl.col("items").list.len() - missing).select(
        *("file", "kind", "form", "family", "amendment", "entity", "accession", "accepted_text", "event_time"),
        *("available_time", "time_source", "n_chars", "share", "items_found", "items_missing", "parts_skipped"),
        *("facts", "status", "detail"),
    )
    return FilingSource(check(kept, Filings).lazy(), (), report, documents, facts)


_OF_DOCUMENTS = ("kind", "parts_skipped", "facts", "status", "detail")
_COLUMNS: dict[str, pl.DataType | type[pl.DataType]] = {
    **{"entity": pl.String, "event_time": pl.Int64, "available_time": pl.Int64, "seq": pl.Int64},
    **{"form": pl.String, "accession": pl.String, "text": pl.String, "family": pl.String},
    **{"amendment": pl.Boolean, "company": pl.String, "ciks": pl.List(pl.String), "accepted_text": pl.String},
    **{"names": pl.List(pl.String), "sic": pl.String, "period": pl.Date},
    **{"time_source": pl.String, "n_chars": pl.Int64, "share": pl.Float64, "file": pl.String},
    **{"annual_report": pl.String, "items": pl.List(ITEM), "cut": pl.Boolean},
    **{"kind": pl.String, "parts_skipped": pl.Int64, "facts": pl.Int64, "status": pl.String, "detail": pl.String},
}


def _row(number: int, read: Reading) -> tuple[object, ...]:
    parsed, items = read.parsed, read.items()
    form, text = parsed.form, parsed.text
    return (
        *(read.entity, read.event_time, read.available_time, number),
        *(form, read.accession or parsed.named, text, family(form) if form else None),
        *(is_amendment(form) if form else None, parsed.company, list(read.ciks), read.accepted_text),
        *(list(parsed.names), parsed.sic, date.fromisoformat(parsed.period) if parsed.period else None),
        *(read.time_source, len(text) if text is not None else None, parsed.share, read.file),
        *(parsed.annual_report, item_rows(items) if items is not None else None),
        parsed.kind == CUT,
        *(parsed.kind, parsed.parts_skipped, len(parsed.facts), read.status, read.detail or parsed.report_detail),
    )


def _amended(kept: pl.DataFrame) -> tuple[str, ...]:
    amendments = kept.filter("amendment")
    missing = amendments["amends"].null_count()
    return (f"{missing} of {amendments.height} amendments: the original is not among the filings",) if missing else ()


def _notes(table: pl.DataFrame) -> tuple[str, ...]:
    notes = [
        "accepted from 06:00 to 17:30 New York of a business day counts as public at once, later as public at 06:00 of "
        "the next business day (exchange open and no federal holiday)"
    ]
    cut = table.filter(pl.col("kind") == CUT)
    if cut.height:
        kept = cut.filter(pl.col("status") == OK)["time_source"]
        notes.append(
            f"{cut.height} filings were cut into items by another program, which keeps no acceptance time: "
            f"{(kept == 'index').sum()} have that of the index, {(kept != 'index').sum()} are dated by a filing date, "
            f"{cut.height - len(kept)} are set aside; what that program left out of them cannot be told"
        )
    dates = table.filter((pl.col("status") == OK) & pl.col("time_source").str.ends_with("filing date")).height
    if dates:
        notes.append(f"{dates} filings are dated by their filing date alone, as if accepted at 22:00 New York of it")
    failed = table.filter(pl.col("status") == OK)["detail"].str
    unread, instances = (int(failed.contains(f"{part}: ", literal=True).sum()) for part in (REPORT, INSTANCE))
    if instances:
        notes.append(f"XBRL instances of {instances} submissions could not be read; their facts are lacking")
    if unread:
        notes.append(f"{unread} annual reports (Exhibit 13) could not be read; items are not followed into them")
    skipped = int(table["parts_skipped"].sum())
    if skipped:
        notes.append(f"{skipped} uuencoded parts were skipped")
    return tuple(notes)
