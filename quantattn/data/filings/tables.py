"""Tables of numbers in the text of a filing: where they are, and the text without them or with a line in place of each.

The text has a row a line and a tab between cells, whether it comes from HTML or was typed. A table is a run of rows of
which a third or more have a number behind their first cell; titles, rules and empty lines may stand between rows. What
has no number and is long, or opens like a point of a list ("•", "(a)", "99.1"), is no row: lists, notes below a table
and sentences laid out in cells stay.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Literal

from quantattn.data.filings.parsed import Parsed

Tables = Literal["rows", "drop", "summary"]
"""What becomes of tables: their rows stay as they are; they go; a line tells their size and their columns."""
_LINE = re.compile(r"[^\n]*\n?")
_NUMBER = re.compile(r"[^a-zA-Z\d]{0,5}\d[\d.,]{0,20}[^a-zA-Z\d]{0,5}(?:\s?\([a-z\d]{1,2}\))?")
_LISTED = re.compile(r"[^\w-]{0,2}|\(?(?:[a-z]|[ivx]{1,4})[).]{1,2}|\(?\d{1,2}(?:\.\d{1,2})?[).]{0,2}", re.IGNORECASE)
_MOST_BETWEEN, _LONGEST_BETWEEN = 3, 100
_WORDS_OF_SENTENCE = 7
_MOST_TOLD, _LONGEST_TOLD = 12, 160


def find_tables(text: str, cuts: Iterable[int] = ()) -> list[tuple[int, int]]:
    """Slices of the tables of a text, whole lines, in order.

    Args:
        text: as a source of filings gives it.
        cuts: places that no table reaches across, such as the beginnings of items; a line that holds one is in none.
    """
    return [(start, end) for start, end, _, _ in _runs(text, sorted(set(cuts)))]


def _runs(text: str, cuts: list[int]) -> Iterator[tuple[int, int, int, int]]:
    """Start, end, number of rows, most cells in a row of each table."""
    start = end = rows = numbers = between = cells = 0
    stops = iter([*cuts, len(text) + 1])
    stop = next(stops)
    for match in _LINE.finditer(text):
        line = match.group()
        heading = False
        while match.end() > stop >= match.start() and line:
            heading, stop = True, next(stops)
        row = [] if heading else _row(line)
        if row:
            start = start if rows else match.start()
            end, between = match.end(), 0
            rows, cells = rows + 1, max(cells, len(row))
            numbers += _has_number(row)
            continue
        between += 1
        if heading or between > _MOST_BETWEEN or not _may_be_between(line):
            if rows > 1 and 3 * numbers >= rows:
                yield start, end, rows, cells
            rows = numbers = cells = between = 0


def _row(line: str) -> list[str]:
    """The cells of a row; none of a line that is none: see above."""
    if "\t" not in line:
        return []
    row = line.strip("\n").split("\t")
    number = _has_number(row)
    if _LISTED.fullmatch(row[0]):
        return row if number and _NUMBER.fullmatch(row[-1]) else []
    return row if max(map(len, row[1:])) <= _LONGEST_BETWEEN and (number or len(line) <= _LONGEST_BETWEEN) else []


def _has_number(row: list[str]) -> bool:
    return any(_NUMBER.fullmatch(cell) for cell in row[1:])


def _may_be_between(line: str) -> bool:
    """Whether a line that is no row may stand between two: a title, a rule, an empty line, and no sentence."""
    if not line or "\t" in line or len(line) > _LONGEST_BETWEEN:
        return False
    return not (line.rstrip().endswith((".", ":")) and line.count(" ") >= _WORDS_OF_SENTENCE)


def with_tables(parsed: Parsed, choice: Tables) -> tuple[Parsed, int]:
    """A filing whose tables, those of Exhibit 13 too, are as they were chosen to be; and how many there were.

    Its items begin and end where they did. With "rows" nothing changes and nothing is counted.
    """
    if choice == "rows" or parsed.text is None:
        return parsed, 0
    text, places, number = _without(parsed.text, [(each.start, each.end) for each in parsed.sections], choice)
    report, shifted = parsed.annual_report, [each.report for each in parsed.sections]
    if report is not None:
        report, found, more = _without(report, [each for each in shifted if each is not None], choice)
        moved = iter(found)
        shifted = [each and next(moved) for each in shifted]
        number += more
    parts = zip(parsed.sections, places, shifted, strict=True)
    sections = tuple(replace(each, start=start, end=end, report=part) for each, (start, end), part in parts)
    return replace(parsed, text=text, annual_report=report, sections=sections), number


def _without(text: str, slices: Sequence[tuple[int, int]], choice: Tables) -> tuple[str, list[tuple[int, int]], int]:
    """The text, the slices in it, the number of tables; a slice that ends in a table ends where that was."""
    kept: list[str] = []
    ends, shifts = [0], [0]  # behind table n of the old text; by how much what follows it has moved
    for start, end, rows, cells in _runs(text, sorted({start for start, _ in slices})):
        told = _told(text[start:end], rows, cells) if choice == "summary" else ""
        kept += [text[ends[-1] : start], told]
        ends.append(end)
        shifts.append(shifts[-1] + len(told) - (end - start))

    def place(old: int) -> int:
        n = bisect_right(ends, old)
        return min(old + shifts[n - 1], ends[n] + shifts[n]) if n < len(ends) else old + shifts[n - 1]

    moved = [(place(start), place(end)) for start, end in slices]
    return "".join([*kept, text[ends[-1] :]]), moved, len(ends) - 1


def _told(table: str, rows: int, cells: int) -> str:
    """ "[table: 9 rows, 5 columns; Directors, Votes For, …]" and the line end that the table had."""
    names: list[str] = []
    for line in table.split("\n"):
        row = [cell.strip() for cell in line.split("\t")]
        if any(_NUMBER.fullmatch(cell) for cell in row[1:]) and not all(map(_is_year, row[1:])):
            break
        names += [cell for cell in row if any(map(str.isalnum, cell)) and cell not in names]
    columns = ", ".join(names[:_MOST_TOLD])[:_LONGEST_TOLD]
    return f"[table: {rows} rows, {cells} columns{'; ' if columns else ''}{columns}]" + "\n" * table.endswith("\n")


def _is_year(cell: str) -> bool:
    return len(cell) == 4 and cell[:2] in ("19", "20") and cell.isdigit()
