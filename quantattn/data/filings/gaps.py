"""Items that a filing has and that no numbered heading in the order of its form opens.

Some filers put an item out of the order of the form, some write a title without its number, and some answer a whole
part of the form under the heading of that part ("Part III", and where to find it). Each of these opens only items that
have no heading yet, so that a numbered heading in its place always comes first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise

from quantattn.data.filings.headings import (
    ENOUGH_TEXT,
    STRONG,
    WEAK,
    Heading,
    PartLine,
    end_of_report,
    is_above_an_entry,
    keys_of,
    names_of,
    telling_length,
    telling_lengths,
)
from quantattn.data.filings.item_names import Scheme

Choice = tuple[Heading, tuple[str, ...]]
"""A heading, and the items that it opens."""

_FEWEST = 3
"""Fewer headings are no index, and fewer titles without numbers are no items."""
_SHORTEST, _AT_ONCE = 150, 1_500
"""Characters of text that must stand behind a title, and the stretch in which they are looked for."""
_SHARE_OF_INDEX = 0.1
_HANDED_OVER = re.compile(r"\bincorporated\b[^.]{0,80}\breference\b|\bomitted\b", re.IGNORECASE)


def index_at_end(text: str, chosen: Sequence[Choice], every: Sequence[Heading]) -> list[Heading]:
    """The rows of an index at the end of a text, which says where its items stand; none where there is no such index.

    They are the headings, with and without a page, in the last tenth before the signatures, where no heading before
    them opens an item and none but the last, below which notes may stand, has text. A short report whose items are all
    answered in a line takes more than a tenth of itself.
    """
    reach = _SHARE_OF_INDEX * len(text)
    if len(every) < _FEWEST or (chosen and chosen[0][0].start <= chosen[-1][0].end - reach):  # they are farther apart
        return []
    stop = end_of_report(text, chosen[-1][0].end if chosen else every[-1].end)
    first = stop - reach
    if any(heading.start <= first for heading, _ in chosen):
        return []
    rows = [heading for heading in every if first < heading.start < stop]
    if len(rows) < _FEWEST:
        return []
    return rows if max(telling_lengths(text[:stop], rows)[:-1]) < ENOUGH_TEXT else []


def out_of_order(text: str, chosen: Sequence[Choice], headings: Sequence[Heading], scheme: Scheme) -> list[Choice]:
    """`chosen`, and the headings with a title of the form and text of their own that open items it lacks."""
    known = {name for _, names in chosen for name in names}
    added: list[Choice] = []
    for n, heading in enumerate(headings):
        meant = [names for names, _ in keys_of(heading, scheme)] if heading.worth == STRONG else []
        if len(meant) == 1 and known.isdisjoint(meant[0]):
            after = headings[n + 1].start if n + 1 < len(headings) else len(text)
            if telling_length(text, heading.end, after) == ENOUGH_TEXT:
                added.append((heading, meant[0]))
                known.update(meant[0])
    if added:
        stop = end_of_report(text, max((heading.end for heading, _ in chosen), default=0))
        added = [(heading, names) for heading, names in added if heading.start < stop]
    return _in_place([*chosen, *added])


def by_title(text: str, chosen: Sequence[Choice], every: Iterable[Heading], scheme: Scheme) -> list[Choice]:
    """`chosen`, and the lines that are the title alone of an item that it lacks.

    Args:
        text: of the filing.
        chosen: headings in the order of the text.
        every: lines of the filing that name items by their number, those of its table of contents too. Other items are
            looked for only when the form has always had them: risk factors were no item before there was Item 1A.
        scheme: of the form.

    Returns:
        Titles between two chosen headings, or before the first, of items that stand between them in the form. Where
        nothing is chosen, titles in any order, if they are three or more.
    """
    known = {name for _, names in chosen for name in names}
    wanted = [name for name in scheme.alone if name not in known]
    if not wanted:
        return list(chosen)
    listed = {name for heading in every for name in names_of(heading, scheme)}
    wanted = [name for name in wanted if name in listed or name not in scheme.since]
    added: list[Choice] = []
    before, start = -1, 0
    for heading, names in chosen:
        ranks = [scheme.names.index(name) for name in names]
        between = [name for name in wanted if before < scheme.names.index(name) < min(ranks)]
        added += _titles(text, start, heading.start, between, scheme)
        before, start = max(ranks), heading.end
    if not chosen:
        added = _titles(text, 0, end_of_report(text, 0), wanted, scheme)
        added = added if len(added) >= _FEWEST else []
    return _in_place([*chosen, *added])


def _titles(text: str, start: int, end: int, names: Sequence[str], scheme: Scheme) -> list[Choice]:
    """Of each name the line within a slice that is a title of it and has the longest text to a title of another."""
    if not names or end <= start:
        return []
    pattern = re.compile(
        rf"\n[^\w\n]*(?P<title>{'|'.join(f'({scheme.alone[name]})' for name in names)})"
        r"(?:[^\w\n]*(?:\(unaudited\))?[^\w\n]*$|\.(?=\s))",
        re.IGNORECASE | re.MULTILINE,
    )
    lines = "\n" + text[start:end]
    found: list[Choice] = []
    for match in pattern.finditer(lines):
        title = match["title"]
        ends_line = lines[match.end() : match.end() + 1] in ("\n", "")
        if title.isupper() or (ends_line and title[:1].isupper()):
            name = names[next(n for n, each in enumerate(match.groups()[1:]) if each is not None)]
            place = start + match.start(), start + match.end() - 1
            found.append((Heading(*place, (name,), title, "", WEAK), (name,)))
    return _with_most_text(text, found, end)


def _with_most_text(text: str, found: Sequence[Choice], end: int) -> list[Choice]:
    """Of the lines of each name the one with the longest text to a line of another; entries of a contents have none."""
    best: dict[str, tuple[int, Choice]] = {}
    other = end  # where the next line of another name begins
    for n in reversed(range(len(found))):
        heading, own = found[n]
        below = found[n + 1] if n + 1 < len(found) else None
        if below is not None and below[1] != own:
            other = below[0].start
        nearest = min(heading.end + _AT_ONCE, end if below is None else below[0].start)
        if telling_length(text, heading.end, nearest) < _SHORTEST or is_above_an_entry(text, heading.end):
            continue
        length = other - heading.end
        above = found[n - 1] if n and found[n - 1][1] == own else None  # "Financial Statements", then the first of them
        if above is not None and heading.start - above[0].end < _SHORTEST:
            heading = above[0]
        if length >= best.get(own[0], (0,))[0]:
            best[own[0]] = length, (heading, own)
    return [choice for _, choice in best.values()]


def by_part(text: str, chosen: Sequence[Choice], parts: Sequence[PartLine], scheme: Scheme) -> list[Choice]:
    """`chosen`, and the headings of a part, with an answer behind them, for those of its items that it lacks."""
    added: list[Choice] = []
    for (heading, names), (following, later) in pairwise(chosen) if parts else ():
        last, first = scheme.names.index(names[-1]), scheme.names.index(later[0])
        lacking: dict[str, list[str]] = {}
        for name in scheme.names[last + 1 : first]:
            if name in scheme.required and scheme.part_of[name] != scheme.part_of[names[-1]]:
                lacking.setdefault(scheme.part_of[name], []).append(name)
        for line in parts if lacking else ():
            own = lacking.pop(line.part, None) if heading.end <= line.start < following.start else None
            if own and _answers(text, line.end, following.start):
                added.append((Heading(line.start, line.end, (), "", line.part, WEAK), tuple(own)))
                break
    return _in_place([*chosen, *added])


def _answers(text: str, start: int, end: int) -> bool:
    """Whether a slice is text, and not furniture of a page."""
    return telling_length(text, start, end) >= ENOUGH_TEXT or _HANDED_OVER.search(text, start, end) is not None


def _in_place(choices: Iterable[Choice]) -> list[Choice]:
    return sorted(choices, key=lambda choice: choice[0].start)
