"""An index of filings: acceptance times (and filers) for documents that do not carry their own header."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import polars as pl

from quantattn.data.filings.clock import new_york_ns, parse_acceptance, parse_filing_date, to_ns
from quantattn.data.filings.forms import family
from quantattn.data.filings.submission import find_accession, pad_cik
from quantattn.data.filings.text import decode, read_bytes

Zone = Literal["new_york", "utc"]

_NAMES = {
    "accession": ("accession", "accession_number", "accessionnumber", "adsh"),
    "name": ("filename", "file", "name"),
    "accepted": ("accepted", "acceptance_datetime", "acceptancedatetime", "acceptance_time"),
    "filed": ("filing_date", "filingdate", "filed", "date_filed", "datefiled"),
    "cik": ("cik", "entity"),
    "form": ("form", "form_type", "type"),
    "year": ("year",),
    "link": ("complete_text_file_link", "html_index", "url"),
}
_MAX_BYTES = 2**30
MASTER = re.compile(r"^CIK\|Company Name\|Form Type\|Date Filed\|File ?name[ \t]*$", re.IGNORECASE | re.MULTILINE)
"""The line of names in EDGAR's `master.idx`."""
_PREAMBLE = 4_096


@dataclass(frozen=True)
class IndexEntry:
    """What an index says about one filing; None where it is silent.

    Attributes:
        accession: accession number.
        cik: filer, ten digits.
        form: form type.
        accepted_text: acceptance time as written in the index.
        accepted: the same, nanoseconds UTC.
        filed: filing date; a date, not an acceptance time.
    """

    accession: str | None
    cik: str | None
    form: str | None
    accepted_text: str | None
    accepted: int | None
    filed: date | None


class FilingIndex:
    """Entries by accession number, by file name, and by CIK and year."""

    def __init__(self, rows: Iterable[Mapping[str, object]], zone: Zone | None = None) -> None:
        """Rows of an index; `zone` says what a `Z` after a time means, which EDGAR's own JSON does not.

        Raises:
            ValueError: two rows that contradict each other, or a value that cannot be read, with the row's number.
        """
        self._by_accession: dict[str, IndexEntry] = {}
        self._by_name: dict[str, IndexEntry] = {}
        self._by_year: dict[tuple[str, str], list[IndexEntry]] = {}
        for number, row in enumerate(rows):
            try:
                self._add(row, zone)
            except ValueError as error:
                raise ValueError(f"index row {number}: {error}") from None

    def _add(self, row: Mapping[str, object], zone: Zone | None) -> None:
        values = {_key(name): str(value).strip() for name, value in row.items() if value is not None}
        found = {
            field: next((values[name] for name in names if values.get(name)), None) for field, names in _NAMES.items()
        }
        accession = found["accession"] or find_accession(found["link"] or "") or find_accession(found["name"] or "")
        accepted_text = found["accepted"]
        entry = IndexEntry(
            accession=accession,
            cik=pad_cik(found["cik"]) if found["cik"] else None,
            form=found["form"].upper() if found["form"] else None,
            accepted_text=accepted_text,
            accepted=parse_index_time(accepted_text, zone) if accepted_text else None,
            filed=parse_filing_date(found["filed"]) if found["filed"] else None,
        )
        year = entry.cik is not None and found["year"] is not None
        if accession is None and found["name"] is None and not year:
            raise ValueError("names neither an accession number nor a file, nor a CIK and a year")
        if accession is not None:
            self._store(self._by_accession, accession, entry)
        if found["name"] is not None:
            self._store(self._by_name, _stem(found["name"]), entry)
        if entry.cik is not None and found["year"] is not None:
            alike = self._by_year.setdefault((entry.cik, found["year"]), [])
            if entry not in alike:
                alike.append(entry)

    @staticmethod
    def _store(table: dict[str, IndexEntry], key: str, entry: IndexEntry) -> None:
        known = table.setdefault(key, entry)
        if (known.accepted, known.filed, known.form) != (entry.accepted, entry.filed, entry.form):
            raise ValueError(f"{key!r} stands in the index twice, with different times or forms")

    def find(self, accession: str | None, file_name: str) -> IndexEntry | None:
        """The entry of an accession number, else of a file's name (without folder and suffixes); else None."""
        if accession is not None and accession in self._by_accession:
            return self._by_accession[accession]
        return self._by_name.get(_stem(file_name))

    def of_year(self, cik: str, year: str, form: str) -> tuple[IndexEntry, ...]:
        """The entries of a filer (ten digits) that have this year in a column `year`, of the family of `form` if any.

        What a year means, only its author knows: of the corpus that the index was made for, or another. So no year is
        taken from a date here.
        """
        entries = self._by_year.get((cik, year), ())
        return tuple(entry for entry in entries if entry.form is None or family(entry.form) == family(form))

    def __len__(self) -> int:
        entries = [*self._by_accession.values(), *self._by_name.values(), *chain(*self._by_year.values())]
        return len({id(entry) for entry in entries})


def read_index(path: str | Path, zone: Zone | None = None) -> FilingIndex:
    """Read an index; gzip or not.

    CSV; JSON, as a list of objects, an object of accession number → object, or what EDGAR's own service says of a filer
    (`submissions/CIK….json`: lists under `filings.recent`); or EDGAR's `master.idx`, which has filing dates alone.

    Columns are found by their usual names: an accession number (or a link that holds one) or a file name, else a CIK
    and a year; an acceptance time; a filing date; a CIK; a form. A period of report is never read: it says when a
    period ended, not when anything was known.

    Raises:
        ValueError: no such columns, or a row that cannot be read.
    """
    path = Path(path)
    text = decode(read_bytes(path, _MAX_BYTES))
    try:
        rows = _rows(text)
    except (ValueError, RecursionError, pl.exceptions.PolarsError) as error:
        raise ValueError(f"{path.name} is no index: {str(error).splitlines()[0]}") from None
    if rows and not any(_key(name) in _NAMES["accepted"] + _NAMES["filed"] for name in rows[0]):
        raise ValueError(f"{path.name}: no column with acceptance times or filing dates among {', '.join(rows[0])}")
    try:
        return FilingIndex(rows, zone)
    except ValueError as error:
        raise ValueError(f"{path.name}: {error}") from None


def _rows(text: str) -> list[dict[str, object]]:
    """Rows of a CSV, of JSON or of EDGAR's `master.idx`."""
    if text.lstrip()[:1] in ("{", "["):
        return _rows_of_json(json.loads(text))
    master = MASTER.search(text, 0, _PREAMBLE)
    if master is None:
        return pl.read_csv(text.encode(), infer_schema=False).to_dicts()
    lines = [line for line in text[master.start() :].split("\n") if "|" in line]
    return pl.read_csv("\n".join(lines).encode(), separator="|", quote_char=None, infer_schema=False).to_dicts()


def _rows_of_json(content: Any) -> list[dict[str, object]]:
    if isinstance(content, dict) and isinstance(content.get("filings"), dict):
        cik = {"cik": content.get("cik")}
        return [cik | row for row in _rows_of_json(content["filings"].get("recent"))]
    if isinstance(content, dict) and content and all(isinstance(column, list) for column in content.values()):
        lengths = {name: len(column) for name, column in content.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"its lists have different lengths, {lengths}")
        return [dict(zip(content, row, strict=True)) for row in zip(*content.values(), strict=True)]
    if isinstance(content, dict) and all(isinstance(row, dict) for row in content.values()):
        return [{"accession": key, **row} for key, row in content.items()]
    if isinstance(content, list) and all(isinstance(row, dict) for row in content):
        return content
    raise ValueError("expected a list of objects, an object of objects or an object of lists")


def parse_index_time(text: str, zone: Zone | None = None) -> int:
    """Nanoseconds UTC of an acceptance time in an index.

    14 digits and ISO times without an offset are New York time; a numeric offset is taken at its word; `Z` needs
    `zone`, because EDGAR's JSON writes it behind New York times too.

    Raises:
        ValueError: not a time, a date alone, `Z` without `zone`, or a New York time that is missing or ambiguous.
    """
    if text.isdigit():
        return parse_acceptance(text)
    if not re.match(r"\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}", text):
        raise ValueError(f"acceptance time {text[:40]!r}: expected YYYYMMDDhhmmss or an ISO date and time")
    stated_utc = text.endswith(("Z", "z"))
    if stated_utc and zone is None:
        raise ValueError(
            f"acceptance time {text!r} ends in Z, which EDGAR's JSON writes behind New York times too; "
            "say zone='new_york' or zone='utc'"
        )
    moment = datetime.fromisoformat(text[:-1] if stated_utc else text)
    if stated_utc and zone == "utc":
        return to_ns(datetime.fromisoformat(text[:-1] + "+00:00"))
    return to_ns(moment) if moment.tzinfo is not None else new_york_ns(moment)


def _key(name: str) -> str:
    return re.sub(r"\W+", "_", name.strip().lower())


def _stem(name: str) -> str:
    """A file's name without folder, `.gz` and the suffix of its format."""
    base = name.replace("\\", "/").rsplit("/", 1)[-1].removesuffix(".gz")
    return re.sub(r"\.(?:txt|nc|html?|json|xml)$", "", base)
