"""Nasdaq TotalView-ITCH 5.0: binary files of a session → book events of every stock, the book rebuilt from messages.

The format, its units and what it cannot tell: docs/sources/itch.md.
"""

from __future__ import annotations

import datetime as dt
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from quantattn.data.market.rebuild import EXCHANGE_ZONE, OrderBooks, Tally
from quantattn.data.market.sessions import midnight
from quantattn.data.schema import Instrument
from quantattn.data.sources.itch_format import MESSAGES
from quantattn.data.sources.itch_rows import Sessions
from quantattn.data.sources.runs import Scratch, lazy_table
from quantattn.data.sources.source import Source, SourceReport

PRICE_EXPONENT = -4
_DATES = (
    (re.compile(r"(?<!\d)(?P<y>(?:19|20)\d\d)-?(?P<m>\d\d)-?(?P<d>\d\d)(?!\d)"), "YYYYMMDD"),
    (re.compile(r"(?<!\d)(?P<m>\d\d)(?P<d>\d\d)(?P<y>(?:19|20)\d\d)(?!\d)"), "MMDDYYYY"),
)


@dataclass(frozen=True)
class ItchSource(Source):
    """A source of book events with every message that is no event of a book.

    Attributes:
        tables: type (one character of the specification) → its messages, fields as in `itch_format.MESSAGES`, with
            `event_time` in ns UTC.
        tally: what did not go with the books that were rebuilt.
    """

    tables: Mapping[str, pl.DataFrame]
    tally: Tally


def scan_itch(
    path: str | Path,
    levels: int = 1,
    *,
    date: str | dt.date | None = None,
    stocks: Sequence[str] | None = None,
    tick: int = 100,
    scratch: str | Path | None = None,
) -> ItchSource:
    """Read ITCH 5.0 files (plain or .gz) and rebuild the book of every stock (schema `BookEvents`, and `halted`).

    Files are read in pieces, and what memory would not hold is set down in a folder of its own until the source is no
    more needed; a large table is then made anew from there whenever it is computed. `available_time` is `event_time`.

    Args:
        path: one file, or a folder, of which the files with "itch" in their name are taken.
        levels: levels of the book to keep.
        date: day of the session, as a date or YYYY-MM-DD. The messages do not say it; None takes it from the file's
            name (YYYYMMDD or MMDDYYYY), and the report says so.
        stocks: those to keep; None keeps all.
        tick: smallest price step in units of 10⁻⁴ (100 is a cent).
        scratch: folder in which rows are set down that memory does not hold (50 bytes an event); None is the system's
            folder for temporary files.

    Raises:
        ValueError: one sentence that names the file, the byte, what was found and what was expected; no date; a stock
            that no file has.
        RuntimeError: numba is not installed (extra `book`).
        OSError: what is set down does not fit.
    """
    if levels < 1:
        raise ValueError(f"levels must be at least 1, got {levels}")
    day = dt.date.fromisoformat(date) if isinstance(date, str) else date
    if isinstance(stocks, str) or (stocks is not None and not stocks):
        raise ValueError(f"stocks must be a list of at least one name, got {stocks!r}")
    files = _files(Path(path), day)
    notes: list[str] = []
    sessions = Sessions(Scratch(scratch), None if stocks is None else frozenset(stocks))
    for session_date, (file, note) in sorted(files.items()):
        own = sessions.read(file, midnight(session_date, EXCHANGE_ZONE))
        notes += [f"{file.name}: {sentence}" for sentence in (*note, *own)]
    missing = sorted(set(stocks or ()) - set(sessions.names))
    if missing:
        raise ValueError(f"{path}: no message names {', '.join(missing)}")
    tallies: list[Tally] = []

    def books() -> Iterator[pl.DataFrame]:
        rebuilt = OrderBooks(levels)
        for messages in sessions.batches():
            yield rebuilt.after(messages)
        tallies[:] = [rebuilt.tally]

    frame = lazy_table(books, lambda _: None)
    notes += _notes(sessions.counts, tallies[0])
    return ItchSource(
        frame=frame,
        instruments=tuple(Instrument(sessions.names[name], PRICE_EXPONENT, tick) for name in sessions.runs.names()),
        report=SourceReport(
            rows_read=sessions.rows,
            files={file.name: sessions.hashes[file] for file, _ in files.values()},
            notes=tuple(notes),
        ),
        tables=sessions.tables,
        tally=tallies[0],
    )


def _files(path: Path, date: dt.date | None) -> dict[dt.date, tuple[Path, tuple[str, ...]]]:
    if not path.exists():
        raise ValueError(f"{path} does not exist; expected an ITCH 5.0 file or a folder of them")
    files = [path] if path.is_file() else sorted(f for f in path.rglob("*") if "itch" in f.name.lower() and f.is_file())
    if not files:
        raise ValueError(f"{path} holds no file with 'itch' in its name")
    if date is not None and len(files) > 1:
        raise ValueError(f"date={date} was given for {len(files)} files under {path}; expected one file")
    found: dict[dt.date, tuple[Path, tuple[str, ...]]] = {}
    for file in files:
        own, note = (date, ()) if date is not None else _date_in(file.name)
        if own in found:
            raise ValueError(f"{found[own][0].name} and {file.name} both hold {own}; expected one file a session")
        found[own] = (file, note)
    return found


def _date_in(name: str) -> tuple[dt.date, tuple[str, ...]]:
    for pattern, form in _DATES:
        if (match := pattern.search(name)) is not None:
            try:
                day = dt.date(int(match["y"]), int(match["m"]), int(match["d"]))
            except ValueError:
                continue
            return day, (f"the session is taken to be {day}, from the name ({form}); no message says it",)
    raise ValueError(f"{name}: neither a message nor the name says which day it is; give date=YYYY-MM-DD")


def _notes(counts: Counter[str], tally: Tally) -> list[str]:
    def listed(codes: Sequence[str]) -> str:
        return ", ".join(f"{code} {counts[code]:,}" for code in codes)

    codes = [code for code in MESSAGES if counts[code]]
    notes = [f"{counts.total():,} messages: {listed(codes)}"]
    unseen = {name: count for name, count in vars(tally).items() if count}
    if unseen:
        notes.append(f"not as the rebuilt books stood: {', '.join(f'{name} {n:,}' for name, n in unseen.items())}")
    return notes
