"""Lines of a filing's text that may open an item, and those among them that are lines of a table of contents."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from quantattn.data.filings.item_names import IN_WORDS, PARTS, Scheme, after_title

_NUMBER = (
    rf"(?>(?:\d{{1,2}}(?:[ \t]?\.[ \t]?\d\d(?!\d))?|(?:{'|'.join(IN_WORDS)})(?![a-z]))"
    r"(?:[ \t]?\((?-i:[A-CT])\)|[ \t]?[A-C](?![a-zA-Z0-9]))*)"
)
_JOIN = r"(?:[ \t]*(?:,|;|&|and|through|to|or|-|–|—|\.)){1,3}[ \t]*(?:items?[ \t]*)?"
# A pattern of a whole line begins with the end of the line before and is looked for in "\n" + text, so that its matches
# start where their line does in the text: the engine jumps to line ends, and would try a `^` at every character.
_HEADING = re.compile(
    rf"\n[^\S\n]*(?:[*•·>#|_\-–—][^\S\n]*)*(?:part[ \t]+i{{1,3}}v?\b[^\w\n]*)?"
    rf"i ?tems?[^\S\n]*(?:no\.?[^\S\n]*)?[:#.\-–—]?[^\S\n]*({_NUMBER}(?:{_JOIN}{_NUMBER})*)(?-i:(?![a-z\d]))([^\n]*)",
    re.IGNORECASE,
)
_OPENING = re.compile(r"\n[^a-zA-Z\d\n]*[iIpPıİ]")
_ONE_NUMBER = re.compile(_NUMBER, re.IGNORECASE)
_NO_DIGIT = re.compile(r"[\s()]")
_SUB_ITEM = re.compile(r"[ \t]?\([a-z1-9]\)")
_OWN_PART = re.compile(r"\n[^\w\n]*part[ \t]+(i{1,3}v?)\b", re.IGNORECASE)
_TITLE_BELOW = re.compile(r"\n(?:[^\S\n]*\n)?([^\n]{1,300})")
_RANGE = re.compile(r"through|\bto\b|-|–|—", re.IGNORECASE)
_AND_ITEM = re.compile(rf"(?:,|;|&|/|and)\s*items?[ \t]*({_NUMBER})[ \t]*[.:\-–—]", re.IGNORECASE)
_NAMES_PART = r"[^\w\n]*p ?ar ?t[ \t]+(i{1,3}v?)\b(?![ \t]*,)([^\n]{0,80})$"
_PART, _PART_ALONE = (re.compile(before + _NAMES_PART, re.IGNORECASE | re.MULTILINE) for before in ("\n", ""))
_PART_TITLE = re.compile(r"^\W*(?:(?:financial|other)[ \t]+information)?\W*\d{0,3}\W*$", re.IGNORECASE)
_CONTINUED = re.compile(r"\bcont(?:inued|['’]d|\.)\W*$|\(continued\)", re.IGNORECASE)
_REFERENCE = re.compile(
    r"^\W{0,3}(?:[“\"‘]|,|(?:of|above|below|in|to|and|or|as|is|are|was|were|has|for|hereof|herein|with|contains?"
    r"|describes?|includes?|under|which|may|will|shall)\b)"
)
_OF_THIS_REPORT = re.compile(
    r"\b(?:of|in|to|with)\s+(?:this|our|the|its|such|that)\s+(?:\S+\s+){0,3}?(?:report|forms?|filing|10-[KQ])\b", re.I
)
_MID_SENTENCE = re.compile(
    r"(?:,|[“(]|(?:^|[ \t])\"|\b(?:in|see|under|of|and|to|with|by|the|or|from|at|both|also|this|our|is|are|per))[ \t]*$"
)
_PAGE_NUMBER = re.compile(r"^\W*(?:page\W*)?(?:[A-Z]{1,2}-?)?(?:\d{1,3}|[ivx]{1,5})\W*$", re.IGNORECASE)
_ENDS_WITH_PAGE = re.compile(
    r"(?:\t|\.{2,}|…|[ .]{3,})[ .\t]*(?:pages? ?)?(?:[A-Z]{1,2}-?)?\d{1,3}(?: ?[,\-–—&] ?(?:[A-Z]-?)?\d{1,3})*\W*$",
    re.I,
)
_HEADING_WITH_PAGE = re.compile(r"[\s.](?:[A-Z]{1,2}-?)?\d{1,3}(?:[ ]?[,\-–—&][ ]?\d{1,3})*\W{0,2}$")
_LINE = re.compile(r"\S[^\n]*")
_CONTENTS_TITLE = re.compile(
    r"^\W*(?:table of contents|index|page(?: no\.?| number)?|signatures?|exhibit index"
    r"|index to exhibits|ex(?:hibit)?[ -]\d.{0,80})\W*$",
    re.IGNORECASE,
)
_CONTENTS_BEFORE = re.compile(r"^[^\w\n]*(?:table of contents|index)[^\w\n]*$", re.IGNORECASE | re.MULTILINE)
_SIGNATURES = re.compile(
    rf"\n[^\w\n]*{'[ ]?'.join('signature')}[ ]?(?:\(?s\)?)?[^\w\n]*$", re.IGNORECASE | re.MULTILINE
)
_SIGNED = re.compile(r"pursuant|undersigned|duly|caused|authori[sz]ed|/s/|\bby\s*:", re.IGNORECASE)
_PURSUANT = re.compile(r"\n[^\w\n]*pursuant +to +the +requirements? +of +(?:the|section)\b", re.IGNORECASE)


STRONG, WEAK, CONTINUED = 1.0, 0.4, 0.05
"""Worth of a heading with a title of the form, of one without, of a repeated one ("Item 1. Business (Continued)")."""
ENOUGH_TEXT = 400
"""Characters behind a heading beyond which more of them say no more about it."""
_LONGEST_ENTRY, _LONGEST_LINE = 4_000, 300
_SHORTEST_CONTENTS = 3
_WORDS_OF_SIGNING, _NEAR, _PAGES = 160, 300, 100
_LOOK_BACK, _LAST_WORD = 200, 12
_AFTER_A_WORD = '.,;:!?)”"’'


@dataclass(frozen=True)
class Heading:
    """A line that may open items.

    Attributes:
        start: of the line, in characters of the text.
        end: of the line, or of the next one where the title stands on a line of its own.
        numbers: the numbers it names, in its order: one, or several of a joint heading.
        title: what follows the numbers.
        part: "I" or "II", the last part of the form that a line before it names; "" when there is none.
        worth: how likely it opens what it names, from how it is written.
    """

    start: int
    end: int
    numbers: tuple[str, ...]
    title: str
    part: str
    worth: float


@dataclass(frozen=True)
class PartLine:
    """A line that only names a part of the form: `part` is "I" to "IV"."""

    start: int
    end: int
    part: str


def opening_lines(text: str) -> list[int]:
    """Where the lines start whose first letter is that of "item" or of "part": few, and the rest need no long look."""
    return [match.start() for match in _OPENING.finditer("\n" + text)]


def find_parts(text: str, lines: list[int]) -> list[PartLine]:
    """Every line that names a part and nothing else, of `opening_lines`."""
    after = "\n" + text
    return [
        PartLine(match.start(), match.end() - 1, match.group(1).upper())
        for start in lines
        if (match := _PART.match(after, start)) and _PART_TITLE.match(match.group(2))
    ]


def find_headings(text: str, scheme: Scheme, lines: list[int], parts: list[PartLine]) -> list[Heading]:
    """Every line of `opening_lines` that may open an item; those that go on with a sentence about one are none."""
    found = []
    at, part = 0, ""
    after = "\n" + text
    for match in (match for start in lines if (match := _HEADING.match(after, start))):
        while at < len(parts) and parts[at].start <= match.start():
            part = parts[at].part
            at += 1
        heading = _heading(text, match, scheme, part)
        if heading is not None:
            found.append(heading)
    return found


def _heading(text: str, match: re.Match[str], scheme: Scheme, part: str) -> Heading | None:
    rest = match.group(2)
    numbers = _numbers(match.group(1), scheme)
    if not numbers or _REFERENCE.match(rest) or _goes_on(text, match.start()):
        return None
    sentence = rest[:160].split(". ")[0] if len(rest) > 1 else rest
    if _OF_THIS_REPORT.search(sentence) and not _has_page(rest, 0, len(rest)):
        return None
    another = _AND_ITEM.search(rest[:160])
    if another:
        numbers += tuple(number for number in _numbers(another.group(1), scheme) if number not in numbers)
    title, end = rest.strip(" \t.:;-–—()*"), match.end() - 1
    if not title:
        title, end = _next_line(text, end)
    known = any(pattern.match(title.lstrip('[(“" \t')) or pattern.match(title) for pattern in scheme.titles.values())
    worth = CONTINUED if _CONTINUED.search(rest) else STRONG if known and not _SUB_ITEM.match(rest) else WEAK
    own_part = _OWN_PART.match(match.group())
    return Heading(match.start(), end, numbers, title, own_part.group(1).upper() if own_part else part, worth)


def _has_page(text: str, start: int, end: int) -> bool:
    """Whether a heading ends with a page number, or with a list of them; its last words tell."""
    return _HEADING_WITH_PAGE.search(text[max(start, end - _PAGES) : end]) is not None


def _goes_on(text: str, start: int) -> bool:
    """Whether the line before `start` ends in the middle of a sentence, so that this one is no heading."""
    first, last = max(0, start - _LOOK_BACK), max(0, start - 1)
    line = text[max(first, text.rfind("\n", first, last) + 1) : last].rstrip(" \t")
    return _MID_SENTENCE.search(line[-_LAST_WORD:]) is not None and not line.isupper()


def _next_line(text: str, at: int) -> tuple[str, int]:
    """The next line with text after `at`, within two lines, and its end; nothing when it is another heading."""
    match = _TITLE_BELOW.match(text, at)
    if match is None or _HEADING.match("\n" + match.group(1)) or _PAGE_NUMBER.match(match.group(1)):
        return "", at
    return match.group(1).strip(), match.end()


def _numbers(written: str, scheme: Scheme) -> tuple[str, ...]:
    """Numbers of the form in `written` ("1A", "1 and 2", "1 through 4, 6"), normalised, none twice."""
    matches = list(_ONE_NUMBER.finditer(written))
    found: list[str] = []
    for before, match in zip([None, *matches], matches, strict=False):
        number = _normal(match.group())
        if before is not None and _RANGE.search(written[before.end() : match.start()]) and found:
            found += _between(found[-1], number, scheme)
        if scheme.keys(number):
            found.append(number)
        elif before is None:
            return ()
    return tuple(dict.fromkeys(found))


def _normal(number: str) -> str:
    """ "1 a", "9(T)", "Seven A" → 1A, 9, 7A."""
    if not number[0].isdigit():
        word = next(word for word in reversed(IN_WORDS) if number.lower().startswith(word))
        number = f"{IN_WORDS.index(word) + 1}{number[len(word) :]}"
    return _NO_DIGIT.sub("", number).upper().removesuffix("T")


def _between(first: str, last: str, scheme: Scheme) -> Iterator[str]:
    """Whole numbers strictly between two, as in "Items 10 through 13"."""
    if first.isdigit() and last.isdigit():
        yield from (str(n) for n in range(int(first) + 1, int(last)) if scheme.keys(str(n)))


def body_lengths(text: str, headings: Sequence[Heading]) -> list[int]:
    """Characters from each heading's end to the next heading, or to the end of the text."""
    ends = [*(heading.start for heading in headings), len(text)][1:]
    return [max(0, end - heading.end) for heading, end in zip(headings, ends, strict=True)]


def telling_lengths(text: str, headings: Sequence[Heading], repeats: bool = False) -> list[int]:
    """`telling_length` of what stands behind each heading, before the next one.

    With `repeats`, before the next one of another number: some filers repeat an item's heading on every page.
    """
    found: list[int] = []  # of headings in turn, from the last to the first
    later: Heading | None = None
    for heading in reversed(headings):
        told = telling_length(text, heading.end, len(text) if later is None else later.start)
        if repeats and later is not None and heading.numbers == later.numbers:
            told = min(ENOUGH_TEXT, told + found[-1])
        found.append(told)
        later = heading
    return found[::-1]


def telling_length(text: str, at: int, end: int) -> int:
    """Characters of a slice in lines that are no entries of a table of contents, `ENOUGH_TEXT` at most."""
    told = 0
    while at < end and told < ENOUGH_TEXT:
        stop = text.find("\n", at, end)
        stop = end if stop < 0 else stop
        line = text[at:stop].strip()
        told += len(line) if len(line) >= _LONGEST_LINE or not _is_entry(line) else 0
        at = stop + 1
    return min(told, ENOUGH_TEXT)


def is_above_an_entry(text: str, at: int) -> bool:
    """Whether the next line with text ends as an entry of a table of contents does, with a page."""
    line = _LINE.search(text, at)
    return line is not None and _ENDS_WITH_PAGE.search(line.group()) is not None


def without_contents(text: str, headings: list[Heading], scheme: Scheme) -> list[Heading]:
    """`headings` without those of tables of contents.

    Three or more headings in a row with nothing between them but page numbers, entries that end with one, and words of
    titles are a table of contents, with the one that ends it. Such a heading goes when its number stands elsewhere
    too, or when most of the table ends with page numbers; a filing that has only one-line items keeps them.
    """
    lengths = body_lengths(text, headings)
    thin = [_is_thin(text, heading, length) for heading, length in zip(headings, lengths, strict=True)]
    paged = [_has_page(text, heading.start, heading.end) for heading in headings]
    entries: set[int] = set()
    certain: set[int] = set()
    at = 0
    while at < len(headings):
        stop = at
        while stop < len(headings) and thin[stop]:
            stop += 1
        run = _table(text, headings, at, stop, paged)
        entries.update(run)
        if 2 * sum(paged[n] for n in run) >= len(run):
            certain.update(run)
        at = stop + 1
    elsewhere = {name for n, heading in enumerate(headings) if n not in entries for name in names_of(heading, scheme)}
    return [
        heading
        for n, heading in enumerate(headings)
        if n not in entries or (n not in certain and not _stands_in(elsewhere, heading, scheme))
    ]


def names_of(heading: Heading, scheme: Scheme) -> set[str]:
    """Every name that a heading may stand for."""
    return {name for names, _ in keys_of(heading, scheme) for name in names}


def _stands_in(elsewhere: set[str], heading: Heading, scheme: Scheme) -> bool:
    return any(elsewhere.issuperset(names) for names, _ in keys_of(heading, scheme))


def _table(text: str, headings: list[Heading], at: int, stop: int, paged: list[bool]) -> range:
    """The headings of one table of contents: the thin ones `at` … `stop` − 1 and the one after them that ends it."""
    titled = _CONTENTS_BEFORE.search(text, max(0, headings[at].start - _NEAR), headings[at].start) is not None
    numbers = {number for heading in headings[at:stop] for number in heading.numbers}
    mostly_paged = 2 * sum(paged[at:stop]) >= stop - at
    ends = stop < len(headings) and numbers.isdisjoint(headings[stop].numbers) and (paged[stop] or not mostly_paged)
    table = range(at, stop + 1 if ends else stop)
    return table if stop > at and len(table) >= _SHORTEST_CONTENTS - titled else range(0)


def _is_thin(text: str, heading: Heading, length: int) -> bool:
    if length > _LONGEST_ENTRY:
        return False
    body = text[heading.end : heading.end + length]
    return all(_is_entry(line.strip()) for line in body.split("\n"))


def _is_entry(line: str) -> bool:
    if not line or _PAGE_NUMBER.match(line) or _CONTENTS_TITLE.match(line) or _PART_ALONE.match(line):
        return True
    return len(line) < _LONGEST_LINE and (_ends_with_page(line) or not after_title(line))


def _ends_with_page(line: str) -> bool:
    return not line.rstrip(_AFTER_A_WORD)[-1:].isalpha() and _ENDS_WITH_PAGE.search(line) is not None


def with_text(heading: Heading, length: int) -> float:
    """Worth of a heading, a little more when text follows it: of two equal lists of items the one with text wins."""
    return heading.worth * (1.0 + 0.25 * min(1.0, length / ENOUGH_TEXT))


def without_furniture(text: str, start: int, end: int) -> int:
    """`end` moved back over blanks, page numbers and links to the contents, but not before `start`."""
    while end > start:
        line = max(start, text.rfind("\n", start, end) + 1)
        words = text[line:end].rstrip()
        if words and (line == start or not (_PAGE_NUMBER.match(words) or _CONTENTS_BEFORE.match(words))):
            return line + len(words)
        end = line - 1
    return start


def keys_of(heading: Heading, scheme: Scheme) -> Iterator[tuple[tuple[str, ...], float]]:
    """Names that a heading may stand for, in the order of the form, and how well its part and title agree with them."""
    if len(scheme.titles) == 1:
        yield tuple(sorted(heading.numbers, key=scheme.names.index)), 1.0
        return
    said = {part for part in PARTS if scheme.titles[part].match(heading.title.lstrip('[(“" \t'))}
    for part in PARTS:
        names = tuple(f"{part}.{number}" for number in heading.numbers if f"{part}.{number}" in scheme.names)
        if names and (part in said or not said):
            yield tuple(sorted(names, key=scheme.names.index)), 1.1 if heading.part == part else 1.0


def end_of_report(text: str, start: int) -> int:
    """Where the report ends after `start`: at its signatures, else at the end of the text.

    A line "SIGNATURES" of a table of contents is none: the words by which a report is signed must follow at once.
    """
    lines = "\n" + text
    for match in _SIGNATURES.finditer(lines, start):
        if _SIGNED.search(lines, match.end(), match.end() + _WORDS_OF_SIGNING):
            return match.start()
    pursuant = _PURSUANT.search(lines, start)
    return pursuant.start() if pursuant else len(text)
