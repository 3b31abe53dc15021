"""What the doctor says of a table, line by line; a line that calls for a look is marked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

from quantattn.data.examine import Examination
from quantattn.data.examine.balance import Balance
from quantattn.data.examine.columns import ColumnFacts
from quantattn.data.examine.prices import PriceRange
from quantattn.data.examine.times import Gap, Times
from quantattn.data.recognise import Format
from quantattn.data.sources.source import SourceReport

SECOND = 10**9
_UNITS = (
    *((86_400 * SECOND, "d"), (3_600 * SECOND, "h"), (60 * SECOND, "min")),
    *((SECOND, "s"), (10**6, "ms"), (10**3, "µs")),
)
ADVICE = {
    "no acceptance time": "give data.source.index=FILE with their acceptance times, or data.source.filing_dates=latest "
    "for those whose filing date is known",
    "no entity or date": "give data.source.entity and data.source.date for files of one stock and day",
}
"""Reason for setting aside → what can be done about it."""
_MOST_ENTITIES = 5
_MOST_FILES = 200
_FILE_COLUMNS = ("file", "form", "accepted (UTC)", "characters", "kept", "items", "status")


@dataclass(frozen=True)
class Line:
    """One line: what it is about, what is said, and whether it calls for a look."""

    label: str
    words: str
    look: bool = False


def lines_of(found: Examination, form: Format, report: SourceReport) -> list[Line]:
    """Everything that is said of a table, in the order in which it is printed."""
    return [
        *_rows(found),
        *_clocks(found, form.zone),
        *_events(found),
        *_books(found, form),
        *(line for each in found.prices[:_MOST_ENTITIES] for line in _prices(each)),
        *_balance(found),
        *(_column(each, found.looked_at) for each in found.columns),
        *_filings(found),
        *_report(report),
    ]


def span(time: int) -> str:
    """A length of time in ns, in the largest unit that it holds, with three digits."""
    for size, name in _UNITS:
        if time >= size:
            return f"{time / size:.3g} {name}" if time < 1000 * size else f"{time / size:,.0f} {name}"
    return f"{time} ns"


def moment(time: int, zone: str = "UTC", date: bool = True) -> str:
    """A time in ns UTC, on the clock of a zone; as many digits of the second as it has."""
    here = datetime.fromtimestamp(time // SECOND, UTC).astimezone(ZoneInfo(zone))
    fraction = f".{time % SECOND:09d}".rstrip("0").rstrip(".")
    return here.strftime("%Y-%m-%d %H:%M:%S" if date else "%H:%M:%S") + fraction


def share(part: int, whole: int) -> str:
    """A count with its share of a whole."""
    if not part or not whole:
        return f"{part:,}"
    percent = 100 * part / whole
    return f"{part:,} ({'<0.1' if percent < 0.1 else f'{percent:.1f}'} %)"


def _rows(found: Examination) -> Iterator[Line]:
    if found.entities == 1:
        yield Line("rows", f"{found.rows:,} of {next(iter(found.largest))}")
    else:
        names = ", ".join(f"{name} {rows:,}" for name, rows in list(found.largest.items())[:_MOST_ENTITIES])
        more = ", …" if found.entities > _MOST_ENTITIES else ""
        least, median, most = found.histories
        yield Line("rows", f"{found.rows:,} of {found.entities:,} entities: {names}{more}")
        yield Line("histories", f"from {least:,} to {most:,} rows an entity, {median:,} the median")
    if found.looked_at < found.rows:
        yield Line("", f"what follows kinds is said of the first {found.looked_at:,} rows; --rows takes another number")


def _clocks(found: Examination, zone: str) -> Iterator[Line]:
    times = found.times
    if times is None:
        return
    for name, pair in (
        ("event", (times.first_event, times.last_event)),
        ("available", (times.first_available, times.last_available)),
    ):
        if name == "available" and not times.delay_max:
            continue
        said = " to ".join(moment(each) for each in pair) + " UTC"
        if zone != "UTC":
            said += f"; {' to '.join(moment(each, zone) for each in pair)} {zone.rpartition('/')[2].replace('_', ' ')}"
        yield Line("time" if not times.delay_max else f"{name} time", said)
    yield from _gaps(found.gaps, found.nights, zone, times.step_median)
    yield from _disorder(times, found.rows if found.looked_at == found.rows else found.looked_at)
    if found.repeated:
        yield Line("duplicates", f"{share(found.repeated, found.looked_at)} rows are equal to an earlier one", True)
    else:
        yield Line("duplicates", "none")


def _gaps(gaps: Sequence[Gap], nights: Sequence[Gap], zone: str, step: int | None) -> Iterator[Line]:
    usual = "" if step is None else f"; {span(step)} between rows in the median"
    for label, kind in (("gaps", gaps), ("nights", nights)):
        if kind:
            shown = ", ".join(f"{span(g.end - g.start)} after {moment(g.start, zone)} ({g.entity})" for g in kind)
            yield Line(label, f"largest {'within a day' if label == 'gaps' else 'over days'} {shown}{usual}")
            usual = ""


def _disorder(times: Times, rows: int) -> Iterator[Line]:
    said = []
    if times.early:
        said.append(f"{share(times.early, rows)} rows could be known before they happened")
    if times.falls:
        said.append(
            f"{share(times.falls, rows)} event times are before that of the row before, by {span(times.largest_fall)} "
            "at most"
        )
    if times.delay_max:
        said.append(
            f"from event to availability {span(times.delay_median)} in the median, {span(times.delay_max)} at most"
        )
    said.append(f"{share(times.ties, rows)} rows at the time of the row before")
    yield Line("clocks", "; ".join(said), bool(times.early or times.falls))


def _events(found: Examination) -> Iterator[Line]:
    if found.kinds:
        yield Line("kinds", ", ".join(f"{name} {share(rows, found.rows)}" for name, rows in found.kinds.items()))
    if found.incomplete:
        yield Line("", f"{share(found.incomplete, found.looked_at)} rows show the book from before them")


def _books(found: Examination, form: Format) -> Iterator[Line]:
    if found.books:
        odd = {name.replace("_", "-"): rows for name, rows in found.books.items() if rows}
        said = ", ".join(f"{name} {share(rows, found.looked_at)}" for name, rows in odd.items())
        yield Line("books", said or "both sides in every row, none crossed or locked", bool(odd))
    if found.halts_count:
        shown = ", ".join(
            f"{name} {moment(start, form.zone)} to {'the end' if end is None else moment(end, form.zone, date=False)}"
            for name, start, end in found.halts[:3]
        )
        yield Line("halts", f"{found.halts_count:,}: {shown}{', …' if found.halts_count > 3 else ''}", True)
    if found.outside:
        yield Line(
            "sessions",
            f"{share(found.outside, found.looked_at)} rows outside the sessions of {form.calendar}, where nothing "
            "gets a label; if those are many, is it the right day and clock?",
            True,
        )


def _prices(found: PriceRange) -> Iterator[Line]:
    if found.least is None:
        yield Line("prices", f"{found.entity}: none", True)
        return
    said = f"{found.entity}: {found.least} to {found.greatest}, whole numbers of 10^{found.price_exponent}"
    if found.undefined:
        said += f"; {found.undefined:,} rows without a price"
    yield Line("prices", said, bool(found.undefined))
    if found.off_tick:
        tick = f"declared {found.tick}, but {found.off_tick:,} prices are no multiple of it"
    else:
        tick = f"{found.tick}, and every price is a multiple of it"
    if found.step is not None and found.step != found.tick:
        tick += f"; the greatest step of all prices is {found.step}"
    if found.neighbours is not None and found.neighbours not in (found.step, found.tick):
        tick += f"; no two prices are nearer than {found.neighbours}"
    if found.spread is not None:
        tick += f"; spread {found.spread[0]:.4g} ticks in the median, {found.spread[1]:.4g} at most"
    yield Line("tick", tick, bool(found.off_tick))
    if found.least_size is not None:
        yield Line("sizes", f"{found.least_size} to {found.greatest_size}, whole numbers of 10^{found.size_exponent}")


def _balance(found: Examination) -> Iterator[Line]:
    for each in found.balance:
        yield _horizon(each)
    if found.no_balance:
        yield Line("balance", found.no_balance, True)


def _horizon(found: Balance) -> Line:
    known = found.down + found.flat + found.up
    without = ", ".join(f"{why} {rows:,}" for why, rows in found.unlabelled.items())
    if not known:
        return Line("balance", f"after {found.horizon:,} events: no row has a label ({without})", True)
    said = f"after {found.horizon:,} events: down {found.down / known:.1%}, flat {found.flat / known:.1%}, "
    said += f"up {found.up / known:.1%} of {known:,} rows"
    return Line("balance", said + (f"; without a label: {without}" if without else ""), known < found.horizon)


def _column(found: ColumnFacts, rows: int) -> Line:
    said = f"{found.name}, {found.type}: {found.distinct:,} values"
    if found.common:
        said += ", " + ", ".join(f"{value!r} {share(count, rows)}" for value, count in found.common)
    elif found.least is not None:
        said += f", {found.least} to {found.greatest}, {found.median} in the middle"
    if found.missing:
        said += f"; missing in {share(found.missing, rows)} rows"
    return Line("column", said, found.missing == rows)


def _filings(found: Examination) -> Iterator[Line]:
    told = found.filings
    if not told:
        return
    for name, label in (("form", "forms"), ("time_source", "times from")):
        if told.get(name):
            yield Line(label, ", ".join(f"{what} {count:,}" for what, count in told[name].items()))
    if "characters" in told:
        least, middle, most = told["characters"]
        yield Line("length", f"{least:,} to {most:,} characters, {middle:,} in the middle")
    files = told.get("files", ())
    rows = [_FILE_COLUMNS, *(_file(each) for each in files[:_MOST_FILES])]
    widths = [max(len(row[n]) for row in rows) for n in range(len(_FILE_COLUMNS))]
    for row in rows if files else ():
        yield Line("files", "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    if len(files) > _MOST_FILES:
        yield Line("", f"and {len(files) - _MOST_FILES:,} more; --json has all")


def _file(told: Mapping[str, Any]) -> tuple[str, ...]:
    """One file's line of the account; a time that only a filing date stands for is the last that it can have been."""
    by = "by " if (told["time_source"] or "").endswith("filing date") else ""
    accepted, length, found, missing = (
        told[name] for name in ("event_time", "n_chars", "items_found", "items_missing")
    )
    return (
        _cell(told["file"], 120),
        _cell(told["form"] or "-", 20),
        "-" if accepted is None else by + moment(accepted),
        "-" if length is None else f"{length:,}",
        "-" if told["share"] is None else f"{told['share']:.1%}",
        "-" if found is None else f"{found} of {found + missing}",
        told["status"] + (f" ({_cell(told['detail'], 200)})" if told["detail"] else ""),
    )


def _cell(text: str, most: int) -> str:
    """What a file says or is called, on one line, without what a terminal would obey."""
    shown = "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text[: most + 1])
    return shown if len(shown) <= most else shown[: most - 1] + "…"


def _report(report: SourceReport) -> Iterator[Line]:
    for note in report.notes:
        yield Line("note", note)
    for reason, rows in report.rows_set_aside.items():
        yield Line("set aside", f"{rows:,} rows, {reason}", True)
        if (advice := ADVICE.get(reason)) is not None:
            yield Line("", advice)
    if not report.rows_set_aside:
        yield Line("set aside", "nothing was set aside")
