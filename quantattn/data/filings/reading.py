"""One file of a folder of filings: what was parsed of it, its times and its filer.

Nothing is guessed: what a file and the index do not state stays unknown, and the file is set aside with the reason.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from pathlib import Path

from quantattn.data.filings.clock import latest_acceptance_ns, parse_acceptance, parse_filing_date, public_ns
from quantattn.data.filings.index import FilingIndex, IndexEntry
from quantattn.data.filings.item_names import scheme_of
from quantattn.data.filings.items import Items
from quantattn.data.filings.parsed import CUT, FACTS_ALONE, OK, UNREADABLE, Parsed
from quantattn.data.filings.pool import ParsePool
from quantattn.data.filings.store import ParsedStore
from quantattn.data.filings.submission import find_accession

NO_FILER = "filer not stated"
NO_TIME = "no acceptance time"
DUPLICATE = "duplicate accession"
_WITHOUT_TIME = {
    False: "no header, and no entry in an index",
    True: "cut items carry none, and no entry in an index fits by accession number, name, or CIK and year",
}
_DAYS_APART = 7
"""Accepted in the evening before a long weekend, a filing has the date of the next business day."""
_SLACK_NS = 86_400 * 10**9
"""By how much clocks may differ."""


@dataclass(frozen=True)
class Reading:
    """One file on its way into the table; None where nothing is known.

    Attributes:
        file: its name within the folder.
        parsed: what the file says.
        entity, ciks, accession: as stated by header, index or cover.
        accepted_text: acceptance time as written.
        event_time, available_time: accepted and public, nanoseconds UTC.
        time_source: where the time stood.
        status: `OK`, or the reason for which the file is set aside.
        detail: what that reason was about.
    """

    file: str
    parsed: Parsed = field(default_factory=Parsed)
    entity: str | None = None
    ciks: tuple[str, ...] = ()
    accession: str | None = None
    accepted_text: str | None = None
    event_time: int | None = None
    available_time: int | None = None
    time_source: str | None = None
    status: str = OK
    detail: str = ""

    def of(self, parsed: Parsed) -> Reading:
        """The same file, of which more is parsed now."""
        return replace(self, parsed=parsed, status=parsed.status, detail=parsed.detail)

    def items(self) -> Items | None:
        """The items of the text; None when the file is set aside before its text was cut."""
        parsed = self.parsed
        if parsed.text is None or parsed.form is None or parsed.status != OK:
            return None
        expected = scheme_of(parsed.form).expected(_day(self.event_time))
        return Items(parsed.text, parsed.sections, expected, parsed.annual_report)


@dataclass(frozen=True)
class ReadingOptions:
    """What a folder is read with; see `quantattn.data.sources.filings.scan_filings`."""

    index: FilingIndex | None
    filers: Mapping[str, str]
    forms: tuple[str, ...]
    filing_dates: bool
    items: bool = False
    facts: bool = False


class _SetAside(Exception):
    """A file that is left out: `status` is the reason that is counted, the message the detail."""

    def __init__(self, status: str, detail: str) -> None:
        super().__init__(detail)
        self.status = status


def parse_filing(file: Path, options: ReadingOptions, pool: ParsePool, store: ParsedStore | None = None) -> Parsed:
    """What a file says, as it stands in the store or parsed now; safe to call from several threads at once.

    Never raises for its content.
    """
    if not file.is_file():
        return Parsed(status=UNREADABLE, detail="neither a file nor a folder")
    entry = options.index.find(find_accession(file.name), file.name) if options.index is not None else None
    asked = options.forms, entry.form if entry else None, options.items, options.facts
    return pool.parse(file, *asked) if store is None else store.parse(pool, file, *asked)


def finish(parsed: Parsed, name: str, options: ReadingOptions) -> Reading:
    """What was parsed of the file `name`, with its times and its filer, or set aside for lack of one of them."""
    read = Reading(
        file=name,
        parsed=parsed,
        entity=next(iter(parsed.ciks), None) or parsed.cik_on_cover,
        ciks=parsed.ciks,
        accession=parsed.accession,
        accepted_text=parsed.accepted,
        status=parsed.status,
        detail=parsed.detail,
    )
    wanted = parsed.status == OK or (parsed.status == FACTS_ALONE and options.facts)
    try:
        entry = _entry(parsed, name.rsplit("/", 1)[-1], options.index)
        if entry is not None:
            cik = next(iter(parsed.ciks), None) or entry.cik or parsed.cik_on_cover
            read = replace(read, entity=cik, accession=parsed.accession or entry.accession)
        read = _accepted(read, entry)
        if wanted:
            read = _public(read, entry, options.filing_dates)
            read = _with_filer(read, options.filers)
        return read
    except _SetAside as reason:
        return replace(read, status=reason.status, detail=str(reason)) if wanted else read
    except ValueError as error:
        return replace(read, status=UNREADABLE, detail=str(error)) if wanted else read


def _entry(parsed: Parsed, name: str, index: FilingIndex | None) -> IndexEntry | None:
    """The index's entry of a filing; of one that was cut into items by its CIK and year, too, where that names one."""
    if index is None:
        return None
    entry = index.find(parsed.accession, parsed.named or name) or index.find(None, name)
    if parsed.kind != CUT or parsed.form is None:
        return entry
    if entry is None and parsed.accession is None and parsed.ciks and parsed.year:
        alike = index.of_year(parsed.ciks[0], parsed.year, parsed.form)
        if len(alike) > 1:
            raise _SetAside(NO_TIME, f"the index has {len(alike)} filings of this CIK and the year {parsed.year}")
        entry = next(iter(alike), None)
    if entry is not None:
        _require_agreement(parsed, entry)
    return entry


def _require_agreement(parsed: Parsed, entry: IndexEntry) -> None:
    """Refuse an entry that dates a filing before its year, or far from the filing date that came with the items."""
    day = _day(entry.accepted) if entry.accepted is not None else entry.filed
    if day is None:
        return
    if parsed.year is not None and parsed.year.isascii() and parsed.year.isdigit() and day.year < int(parsed.year):
        raise ValueError(f"the index dates it {day.isoformat()}, before the year {parsed.year} that it states")
    filed = parse_filing_date(parsed.filed) if parsed.filed else None
    if filed is not None and abs((day - filed).days) > _DAYS_APART:
        raise ValueError(f"the index dates it {day.isoformat()}, its own filing date is {filed.isoformat()}")


def _accepted(read: Reading, entry: IndexEntry | None) -> Reading:
    """`read` with the acceptance time of its header, else of the index, if one of them has it."""
    if read.parsed.accepted is not None:
        accepted = parse_acceptance(read.parsed.accepted)
        _require_header_to_agree(accepted, read.parsed.filed)
        return replace(read, event_time=accepted, time_source="header")
    if entry is not None and entry.accepted is not None:
        return replace(read, event_time=entry.accepted, accepted_text=entry.accepted_text, time_source="index")
    if read.parsed.filed is not None:
        return replace(read, time_source="record filing date" if read.parsed.kind == CUT else "header filing date")
    if entry is not None and entry.filed is not None:
        return replace(read, time_source="index filing date")
    return read


def _require_header_to_agree(accepted: int, filed: str | None) -> None:
    """Refuse an acceptance long before the filing date beside it: it would date the filing too early."""
    day = parse_filing_date(filed) if filed else None
    found = _day(accepted)
    if day is not None and found is not None and (day - found).days > _DAYS_APART:
        raise ValueError(f"its header says accepted {found.isoformat()} and filed as of {day.isoformat()}")


def _public(read: Reading, entry: IndexEntry | None, filing_dates: bool) -> Reading:
    """`read` with the time at which it became public, from its filing date alone if that is all and is allowed."""
    if read.event_time is None:
        filed = _filed(read, entry)
        if filed is None:
            raise _SetAside(NO_TIME, _WITHOUT_TIME[read.parsed.kind == CUT])
        if not filing_dates:
            raise _SetAside(NO_TIME, f"only the filing date {filed.isoformat()} is known")
        read = replace(read, event_time=latest_acceptance_ns(filed))
    assert read.event_time is not None
    if read.event_time > time.time_ns() + _SLACK_NS:
        raise ValueError(f"accepted on {_day(read.event_time)}, a day that has not come by this machine's clock")
    return replace(read, available_time=public_ns(read.event_time))


def _filed(read: Reading, entry: IndexEntry | None) -> date | None:
    if read.parsed.filed is not None:
        return parse_filing_date(read.parsed.filed)
    return entry.filed if entry is not None else None


def _with_filer(read: Reading, filers: Mapping[str, str]) -> Reading:
    name = read.parsed.named or read.file.rsplit("/", 1)[-1]
    given = sorted({cik for prefix, cik in filers.items() if name.startswith(prefix)})
    if len(given) > 1:
        raise ValueError(f"two filers are given for this file's name: {given[0]} and {given[1]}")
    if given and read.entity not in (None, given[0]):
        raise ValueError(f"filer {given[0]} is given for this file's name but the document states {read.entity}")
    entity = read.entity or (given[0] if given else None)
    if entity is None:
        raise _SetAside(NO_FILER, "neither header, inline XBRL, index nor `filers` names one")
    return replace(read, entity=entity, ciks=read.ciks or (entity,))


def _day(time: int | None) -> date | None:
    return None if time is None else datetime.fromtimestamp(time // 10**9, UTC).date()
