"""A filing's text → its items: slices that are disjoint, in order, and say how each stands in the filing.

Every line that may open an item is a candidate (`headings`); tables of contents are taken out; of what is left, the
chain of candidates in the order of the form that is worth most is chosen (an 8-K has no order: the best candidate of
each number). Items that the chain lacks are looked for by other signs (`gaps`). An item reaches to the next chosen
heading, without the line that names a part before it, and the last one to the signatures.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import cached_property

from quantattn.data.filings.exhibits import find_in_report
from quantattn.data.filings.gaps import Choice, by_part, by_title, index_at_end, out_of_order
from quantattn.data.filings.headings import (
    CONTINUED,
    STRONG,
    Heading,
    PartLine,
    end_of_report,
    find_headings,
    find_parts,
    keys_of,
    opening_lines,
    telling_lengths,
    with_text,
    without_contents,
    without_furniture,
)
from quantattn.data.filings.item_names import Scheme, after_title, scheme_of

FOUND = "found"
BY_REFERENCE = "by reference"
OMITTED = "omitted"
MISSING = "missing"
STATUSES = (FOUND, BY_REFERENCE, OMITTED, MISSING)
"""An item with text of its own; one that hands the reader to another document; one that says that there is nothing to
report, or that it is reserved or left out; one that the form has and the filing does not."""

_NOTHING = re.compile(
    r"^\W*(?:(?:as\s+of|since)\s[^.,]{0,40},\s+(?:\d{4},\s+)?)?(?:none|not\s+(?:currently\s+)?(?:applicable|required)|n\s?/\s?a\b|\W?\s*(?:removed\s+and\s+)?reserved"
    r"|\W?(?:intentionally\s+)?omitted|nothing\s+to\s+report"
    r"|no\s+(?:matters?|such|items?|unresolved|change|other|information|disclosures?|disagree|events?)"
    r"|there\s+(?:were|was|are|is|have\s+been|has\s+been)\s+(?:no\b|none|not)|we\s+(?:do\s+not\s+have|have\s+no)"
    r"|inapplicable|(?:as\s+a\s+)?\W?smaller\s+reporting|the\s+(?:company|registrant)\s+(?:is\s+not\s+required|has\s+no\b))",
    re.IGNORECASE,
)
_BY_REFERENCE = re.compile(
    r"\bby\s+reference\b|\b(?:proxy|information)\s+statement\b|\bannual\s+report\s+to\b|\bexhibit\s+13\b"
    r"|\b(?:see|refer\s+to|set\s+forth|contained|appears?|included|found|discussed|described|presented|filed|begin)\b"
    r"[^.]{0,200}\b(?:notes?\s+\d|notes\s+to|item\s+\d|part\s+i|pages?\s+F?-?\d|index\s+to)",
    re.IGNORECASE,
)
_SENTENCE = re.compile(
    r"(?<=[.!?])"
    r"(?:\s*\n\s*|(?<!Item \d\.)(?<!Item \d\d\.)(?<!Item \d[A-C]\.)(?<!Note \d\.)(?<!Note \d\d\.)\s+)"
    r"(?=[A-Z“\"(])"
)
_LONGEST_NOTHING, _LONGEST_REFERENCE, _LONGEST_SENTENCE = 400, 4_000, 700


@dataclass(frozen=True)
class Section:
    """One slice of a filing's text.

    Attributes:
        names: the item, or the items of a joint heading, that it holds.
        start, end: the slice, its heading included.
        status: `FOUND`, `BY_REFERENCE` or `OMITTED`.
        report: for an item handed to the annual report (Exhibit 13) that came with the filing, the slice of that
            exhibit's text which holds it; None where there is none or it was not found in it.
    """

    names: tuple[str, ...]
    start: int
    end: int
    status: str
    report: tuple[int, int] | None = None


@dataclass(frozen=True)
class Items:
    """The items of a filing.

    Attributes:
        text: the filing's text.
        sections: disjoint slices of it, ascending; none where no item was recognised.
        expected: names that the form has and whose absence counts; none for an 8-K.
        annual_report: text of Exhibit 13, or None.
    """

    text: str
    sections: tuple[Section, ...]
    expected: tuple[str, ...]
    annual_report: str | None = None

    @cached_property
    def _by_name(self) -> Mapping[str, Section]:
        return {name: section for section in self.sections for name in section.names}

    @property
    def status(self) -> dict[str, str]:
        """Name → status: every item that the filing has or should have."""
        found = {name: section.status for section in self.sections for name in section.names}
        return found | {name: MISSING for name in self.expected if name not in found}

    def __getitem__(self, name: str) -> str:
        """Text of an item: its slice and, where it was followed into the annual report, the slice of that after it.

        Raises:
            KeyError: the filing has no such item.
        """
        section = self._by_name[name]
        own = self.text[section.start : section.end]
        if section.report is None or self.annual_report is None:
            return own
        return own + "\n" + self.annual_report[slice(*section.report)]

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def select(self, names: Sequence[str]) -> str:
        """Text of several items in the order of the filing, a joint one once; "" when it has none of them."""
        wanted = [section for section in self.sections if set(section.names).intersection(names)]
        return "\n".join(self[section.names[0]] for section in wanted)

    def pieces(self) -> Iterator[tuple[tuple[str, ...], str]]:
        """The whole text cut at the sections: names (none outside) and text; joined again it is the text."""
        at = 0
        for section in self.sections:
            if section.start > at:
                yield (), self.text[at : section.start]
            yield section.names, self.text[section.start : section.end]
            at = section.end
        if at < len(self.text):
            yield (), self.text[at:]

    @property
    def outside(self) -> tuple[int, int, int]:
        """Characters before the first item (cover, contents), between items (lines of parts), after the last one."""
        if not self.sections:
            return len(self.text), 0, 0
        first, last = self.sections[0].start, self.sections[-1].end
        inside = sum(section.end - section.start for section in self.sections)
        return first, last - first - inside, len(self.text) - last


def items_of(text: str, form: str, annual_report: str | None = None, filed: date | None = None) -> Items:
    """The items of a 10-K, 10-Q or 8-K.

    Args:
        text: what a filing source gives: one line a paragraph or table row.
        form: form type as EDGAR writes it; variants and amendments count as their family.
        annual_report: text of Exhibit 13 of the same submission, in which items that are handed to it are looked for.
        filed: day of the filing; items that the form did not have yet are then not missing. It changes nothing else.

    Returns:
        Sections, possibly none. Never raises for what stands in the text.

    Raises:
        ValueError: a form of another family.
    """
    scheme = scheme_of(form)
    lines = opening_lines(text)
    parts = find_parts(text, lines)
    every = find_headings(text, scheme, lines, parts)
    headings = without_contents(text, every, scheme)
    index: list[Choice] = []
    if not scheme.ordered:
        chosen = _by_number(text, headings)
    else:
        chosen = _in_order(text, headings, scheme)
        index = _in_order(text, index_at_end(text, chosen, every), scheme)
        chosen = [] if index else out_of_order(text, chosen, headings, scheme)
        stop = index[0][0].start if index else len(text)
        chosen = by_part(text, by_title(text[:stop], chosen, every, scheme), parts, scheme)
    sections = _cut(text, chosen, parts, scheme)
    if index and sections:
        sections = _with_rows(text, sections, index, parts)
    if annual_report is not None:
        sections = [_follow(section, text, annual_report) for section in sections]
    return Items(text, tuple(sections), scheme.expected(filed), annual_report)


def _in_order(text: str, headings: list[Heading], scheme: Scheme) -> list[Choice]:
    """The chain of headings with strictly ascending names that is worth most; of equal ones the earliest."""
    rank = {name: n for n, name in enumerate(scheme.names)}
    lengths = telling_lengths(text, headings, repeats=True)
    # best[r]: (worth, link) of the best chain whose last name is among the first r names; a link is a heading, the
    # names it stands for, and the link before it.
    best: list[tuple[float, _Link | None]] = [(0.0, None)] * (len(rank) + 1)
    for heading, length in zip(headings, lengths, strict=True):
        better = []
        for names, agreement in keys_of(heading, scheme):
            worth, before = best[rank[names[0]]]
            together = len(names) if heading.worth == STRONG else 1  # "Item 5, 6, 7" may stand at the top of a page
            worth += with_text(heading, length) * agreement * together
            better.append((rank[names[0]] + 1, worth, _Link(heading, names, before)))
        for first, worth, last in better:
            for n in range(first, len(best)):
                if worth > best[n][0]:
                    best[n] = (worth, last)
    chain: list[Choice] = []
    own: set[str] = set()  # 1A may follow "Items 1 and 2", and so may a heading of item 2 alone: then the name is its
    link = best[-1][1]
    while link is not None:
        chain.append((link.heading, tuple(name for name in link.names if name not in own)))
        own.update(link.names)
        link = link.before
    return chain[::-1]


@dataclass(frozen=True, eq=False)
class _Link:
    heading: Heading
    names: tuple[str, ...]
    before: _Link | None


def _by_number(text: str, headings: list[Heading]) -> list[Choice]:
    """The best heading of each number before the signatures; of equal ones the earliest."""
    if not headings:
        return []
    stop = end_of_report(text, headings[0].end)
    headings = [heading for heading in headings if heading.start < stop and heading.worth > CONTINUED]
    if any("." in number for heading in headings for number in heading.numbers):  # then "Item 8" is one of a 10-K
        headings = [heading for heading in headings if all("." in number for number in heading.numbers)]
    best: dict[tuple[str, ...], tuple[float, Heading]] = {}
    for heading, length in zip(headings, telling_lengths(text[:stop], headings), strict=True):
        worth = with_text(heading, length)
        if heading.numbers not in best or worth > best[heading.numbers][0]:
            best[heading.numbers] = (worth, heading)
    chosen = sorted((heading for _, heading in best.values()), key=lambda heading: heading.start)
    taken: set[str] = set()
    named = []
    for heading in chosen:
        names = tuple(number for number in heading.numbers if number not in taken)
        taken.update(names)
        if names:
            named.append((heading, names))
    return named


def _cut(text: str, chosen: list[Choice], parts: list[PartLine], scheme: Scheme) -> list[Section]:
    sections: list[Section] = []
    waiting: Choice | None = None
    for n, (heading, names) in enumerate(chosen):
        start, title_end = (waiting[0].start, heading.end) if waiting else (heading.start, heading.end)
        names = (*waiting[1], *names) if waiting else names
        waiting = None
        after = chosen[n + 1][0].start if n + 1 < len(chosen) else end_of_report(text, heading.end)
        end = _before_part(text, heading.end, after, parts)
        end = without_furniture(text, heading.end, end)
        following = chosen[n + 1][1][0] if n + 1 < len(chosen) else names[-1]
        own_end = _end_of_part(heading.end, end, parts, scheme.part_of[names[-1]], scheme.part_of[following])
        own = heading.title + "\n" + text[title_end:own_end]
        body = after_title(own)
        if own_end == end >= after - 2 and n + 1 < len(chosen) and not body.strip():
            waiting = (replace(heading, start=start), names)
            continue
        sections.append(Section(names, start, end, _status(body)))
    return sections


def _with_rows(text: str, sections: list[Section], index: list[Choice], parts: list[PartLine]) -> list[Section]:
    """`sections`, which end where the index at the end begins, and its rows on items that have no other place."""
    first = index[0][0].start
    last = sections[-1]
    if last.end > first:
        end = without_furniture(text, last.start, _before_part(text, last.start, first, parts))
        sections = [*sections[:-1], replace(last, end=end)]
    known = {name for section in sections for name in section.names}
    ends = [*(heading.start for heading, _ in index[1:]), end_of_report(text, index[-1][0].end)]
    for (heading, names), after in zip(index, ends, strict=True):
        lacking = tuple(name for name in names if name not in known)
        if lacking:
            end = without_furniture(text, heading.end, _before_part(text, heading.end, after, parts))
            answer = after_title(heading.title + text[heading.end : end])
            sections.append(Section(lacking, heading.start, end, OMITTED if _NOTHING.match(answer) else BY_REFERENCE))
    return sections


def _before_part(text: str, start: int, end: int, parts: list[PartLine]) -> int:
    """`end`, or the start of the lines naming a part if nothing but titles stands between them and `end`."""
    for part in reversed(parts):
        if part.start <= start:
            break
        if part.end <= end:
            if after_title(text[part.end : end]):
                break
            end = part.start
    return end


def _end_of_part(start: int, end: int, parts: list[PartLine], own: str, next_one: str) -> int:
    """`end`, or the line that opens the part of the next item: what follows ("Part III is omitted …") is about it."""
    if own == next_one:
        return end
    return next((part.start for part in parts if part.part == next_one and start <= part.start < end), end)


def status_of(own: str) -> str:
    """Status of an item from its title, without its number, and the text after it."""
    return _status(after_title(own))


def _status(body: str) -> str:
    if len(body) <= _LONGEST_NOTHING and (_NOTHING.match(body) or not body.strip()):
        return OMITTED
    if len(body) <= _LONGEST_REFERENCE:
        return BY_REFERENCE if _is_handed_over(body) else FOUND
    return FOUND


def _is_handed_over(body: str) -> bool:
    """Whether half of `body` and more are sentences that send the reader elsewhere; asks no more than it must."""
    handed, left = 0, len(body)
    for sentence in _SENTENCE.split(body):
        left -= len(sentence)
        if len(sentence) <= _LONGEST_SENTENCE and _BY_REFERENCE.search(sentence):
            handed += len(sentence)
        if 2 * handed >= len(body) or 2 * (handed + left) < len(body):
            break
    return 2 * handed >= len(body)


def _follow(section: Section, text: str, annual_report: str) -> Section:
    if section.status != BY_REFERENCE:
        return section
    found = find_in_report(annual_report, section.names, text[section.start : section.end])
    return replace(section, report=found)
