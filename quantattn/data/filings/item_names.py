"""The items of Forms 10-K, 10-Q and 8-K: their names, their order, and how their titles begin.

A name is the item's number as the form writes it: "1A", "7"; with its part on a 10-Q: "I.2", "II.1A"; "5.02" on an 8-K
since August 2004, "5" before. Titles changed over the years and an item's number with them (Item 14 of a 10-K was
"Exhibits" before 2003), so a title only says that a line is a heading of the form, not which one; on a 10-Q it says
the part too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date

from quantattn.data.filings.forms import family

PARTS = ("I", "II")
"""Parts of a 10-Q, both of which count their items from 1."""
IN_WORDS = (
    *("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen"),
)
"""Numbers of items as some filings of the 1990s write them."""

_NAMES_10K = "1 1A 1B 1C 2 3 4 4A 5 6 7 7A 8 8A 8B 9 9A 9B 9C 10 11 12 13 14 15 16"
_10K_OPTIONAL = frozenset(("4A", "8A", "8B"))
"""Items of some filings only: 4A (executive officers, by General Instruction G), 8A and 8B (10-KSB)."""
_10KSB_OPTIONAL = frozenset(("1A", "1B", "1C", "4A", "7A", "9A", "9B", "9C", "15", "16"))
_SINCE_10KSB = {"8A": date(2003, 8, 14), "8B": date(2004, 8, 23), "14": date(2003, 12, 15)}
"""Forms for small business issuers, until 2009, with items of their own: 8A are controls, 8B other information."""
_SINCE_10K = {
    "1A": date(2005, 12, 1),  # Securities Offering Reform
    "1B": date(2005, 12, 1),
    "1C": date(2023, 12, 15),  # Cybersecurity Risk Management: fiscal years that end then or later
    "7A": date(1997, 6, 15),
    "9A": date(2003, 8, 14),  # Item 14 for a year before
    "9B": date(2004, 8, 23),
    "9C": date(2022, 1, 10),  # Holding Foreign Companies Accountable Act
    "15": date(2002, 8, 29),  # exhibits, Item 14 before
    "16": date(2016, 6, 9),
}
"""Effective days of the releases that brought an item; a fiscal year that ended earlier may go without for a while."""
_NAMES_10Q = "I.1 I.2 I.3 I.4 II.1 II.1A II.2 II.3 II.4 II.5 II.6 II.7"
_SINCE_10Q = {"I.3": date(1997, 6, 15), "I.4": date(2002, 8, 29), "II.1A": date(2005, 12, 1)}
_10Q_OPTIONAL = frozenset(("II.7",))
_10QSB_OPTIONAL = frozenset(("I.4", "II.1A", "II.7"))
_SINCE_10QSB = {"I.3": date(2002, 8, 29)}
_NAMES_8K = """
1 2 3 4 5 6 7 8 9 10 11 12
1.01 1.02 1.03 1.04 1.05 2.01 2.02 2.03 2.04 2.05 2.06 3.01 3.02 3.03 4.01 4.02
5.01 5.02 5.03 5.04 5.05 5.06 5.07 5.08 6.01 6.02 6.03 6.04 6.05 6.06 7.01 8.01 9.01
"""

_TITLES_10K = (
    r"(?:description of (?:the )?)?(?:general )?business|risk factors|unresolved|cyber|(?:description of )?propert"
    r"|legal proceeding|submission of matters|mine safety|\W?removed|\W?reserved|executive officers|market "
    r"|selected |management.{0,3}s? discussion|plan of operation|quantitative|qualitative|(?:consolidated )?financial "
    r"|changes in|disagreements|controls|evaluation of|other (?:information|events)|disclosures? (?:regarding|about)"
    r"|directors|executive compensation|compensation of|remuneration|security ownership|certain relation"
    r"|principal account|accountant|exhibit|index to exhibit|form 10-k|summary|schedules|none\b|not applicable|omitted"
)
_TITLES_10Q_I = (
    r"(?:(?:condensed|consolidated|interim|unaudited|combined)\W+)*financial (?:statement|information)"
    r"|management.{0,3}s? discussion|quantitative|qualitative|(?:disclosure )?controls|evaluation of disclosure"
)
_TITLES_10Q_II = (
    r"legal proceeding|risk factors|unregistered|changes? in|issuer|(?:use|recent sales|repurchase|purchase)"
    r"|defaults? upon|submission of|mine safety|\W?removed|\W?reserved|other information|exhibits?\b|market for"
)
_TITLES_8K = (
    r"entry into|termination of|bankruptcy|mine safety|material cybersecurity|completion of|results of operation"
    r"|creation of|triggering|costs? associated|material impairment|notice of|unregistered|material modification"
    r"|changes? (?:in|of)|non-?reliance|departure|(?:election|resignation|appointment)|amendments?|temporary"
    r"|shareholder|submission of|abs |securities act|failure|regulation fd|other (?:event|material)"
    r"|financial (?:statement|info)|exhibits?\b|acquisition|sales? of|press release|pro forma|dismissal|static pool"
    r"|alternative|none\b|not applicable"
)


_MD_AND_A = (
    r"management.{0,3}s? discussion and analysis"
    r"(?: of (?:the |our )?(?:consolidated )?(?:financial|results|operations)\b[^\n\t]{0,90})?"
)
_MARKET_RISK = r"(?:quantitative and qualitative|qualitative and quantitative) disclosures? about market risks?"
_STATEMENTS = (
    r"(?:(?:condensed|consolidated|interim|unaudited|combined)[^\w\n]+)*"
    r"(?:financial statements(?: and supplementa(?:l|ry) data)?|balance sheets?"
    r"|statements? of (?:consolidated )?(?:income|earnings|operations|financial (?:position|condition))"
    r"(?: \(loss(?:es)?\))?)"
)
_ALONE_10K = {
    "1": r"(?:(?:our|description of(?: the)?) )?business(?: summary)?",
    "1A": r"risk factors",
    "1B": r"unresolved staff comments",
    "1C": r"cybersecurity",
    "2": r"(?:description of )?propert(?:y|ies)",
    "3": r"legal proceedings",
    "4": r"mine safety disclosures?|submission of matters to a vote of security holders",
    "5": r"market for (?:the )?(?:registrant|company|our)[^\n\t]{0,20}(?:common|equity|stock|shares)\b[^\n\t]{0,150}",
    "6": r"selected (?:consolidated )?financial data",
    "7": _MD_AND_A,
    "7A": _MARKET_RISK,
    "8": _STATEMENTS,
    "9": r"changes in and disagreements with accountants\b[^\n\t]{0,80}",
    "9A": r"(?:disclosure )?controls and procedures",
    "10": r"directors,? (?:and )?executive officers\b[^\n\t]{0,60}",
    "11": r"executive compensation",
    "12": r"security ownership of certain beneficial owners\b[^\n\t]{0,80}",
    "13": r"certain relationships and related\b[^\n\t]{0,80}",
    "14": r"principal account(?:ant|ing) fees and services",
    "15": r"exhibits?,? (?:and )?financial statement schedules?\b[^\n\t]{0,60}",
}
_ALONE_10Q = {
    "I.1": _STATEMENTS,
    "I.2": _MD_AND_A,
    "I.3": _MARKET_RISK,
    "I.4": r"(?:disclosure )?controls and procedures",
    "II.1": r"legal proceedings",
    "II.1A": r"risk factors",
    "II.2": r"unregistered sales of equity securities\b[^\n\t]{0,80}",
}
"""Item → titles that open it where they stand alone; items without a telling title (9B) are left out."""


@dataclass(frozen=True)
class Scheme:
    """The items of one form.

    Attributes:
        names: all names, in the order of the form.
        required: those whose absence is worth telling; none for an 8-K, which states only what happened.
        since: day from which filings have an item that the form did not always have.
        ordered: whether items follow one another in the order of the form.
        titles: pattern of how a title begins, the part of a 10-Q → its own.
        alone: item → pattern of a title that opens it without its number; none for an 8-K.
        part_of: name → the part of the form that it belongs to, "I" to "IV"; "" on an 8-K.
    """

    names: tuple[str, ...]
    required: tuple[str, ...]
    since: Mapping[str, date]
    ordered: bool
    titles: Mapping[str, re.Pattern[str]]
    alone: Mapping[str, str]
    part_of: Mapping[str, str]

    def expected(self, filed: date | None) -> tuple[str, ...]:
        """Names that a filing of that day should have; all required ones when the day is not known."""
        return tuple(name for name in self.required if filed is None or filed >= self.since.get(name, date.min))

    def keys(self, number: str) -> tuple[str, ...]:
        """Names that a number in a heading may stand for: two for the items of a 10-Q, none when the form has none."""
        if len(self.titles) == 1:
            return (number,) if number in self.names else ()
        return tuple(f"{part}.{number}" for part in PARTS if f"{part}.{number}" in self.names)


def _scheme(
    listed: str,
    optional: frozenset[str],
    since: Mapping[str, date],
    alone: Mapping[str, str],
    ends: Mapping[str, int],
    **titles: str,
) -> Scheme:
    names = tuple(listed.split())
    required = tuple(name for name in names if name not in optional)
    patterns = {part: re.compile(pattern, re.IGNORECASE) for part, pattern in titles.items()}
    parts = {name: _part_of(name, ends) if required else "" for name in names}
    return Scheme(names, required, since, bool(required), patterns, alone, parts)


def _part_of(name: str, ends: Mapping[str, int]) -> str:
    part, dot, _ = name.partition(".")
    return part if dot else next(part for part, last in ends.items() if int(name.rstrip("ABC")) <= last)


_ENDS_10K, _ENDS_10KSB = {"I": 4, "II": 9, "III": 14, "IV": 16}, {"I": 4, "II": 8, "III": 14, "IV": 16}
"""Part → its last item; Item 14 of a 10-K was of Part IV before 2003."""
_SCHEMES = {
    "10-K": _scheme(_NAMES_10K, _10K_OPTIONAL, _SINCE_10K, _ALONE_10K, _ENDS_10K, any=_TITLES_10K),
    "10-KSB": _scheme(_NAMES_10K, _10KSB_OPTIONAL, _SINCE_10KSB, {}, _ENDS_10KSB, any=_TITLES_10K),
    "10-Q": _scheme(_NAMES_10Q, _10Q_OPTIONAL, _SINCE_10Q, _ALONE_10Q, {}, I=_TITLES_10Q_I, II=_TITLES_10Q_II),
    "10-QSB": _scheme(_NAMES_10Q, _10QSB_OPTIONAL, _SINCE_10QSB, {}, {}, I=_TITLES_10Q_I, II=_TITLES_10Q_II),
    "8-K": _scheme(_NAMES_8K, frozenset(_NAMES_8K.split()), {}, {}, {}, any=_TITLES_8K),
}

# Words of titles in full: a line of these alone continues a title; it is no text of the item.
_TITLE_WORDS = """
a about account accountant accountants accounting acquisition act agreement amendment amendments an analysis and
appointment articles assets audit bankruptcy beneficial business bylaws certain certifying change changes code
comments common company compensation compensatory completion condition consolidated control controls corporate
creation cybersecurity data default defaults definitive departure description director directors disagreements
disclosure disclosures discussion disposition election entry equity ethics event events executive exhibit exhibits
factors failure fd fees financial fiscal for foreign form governance holders in incorporation independence independent
information inspections interim into issued issuer item items jurisdictions legal listing management market material
matters member mine modification non obligation of off officer officers on operation operations other owners ownership
prevent principal procedures proceedings proceeds properties property provision public purchases qualitative
quantitative quarterly receivership regarding registered registrant regulation related relationships reliance report
reports results review rights risk safety sale sales schedule schedules securities security selected senior services
shareholder shareholders sheet staff standard statement statements stock stockholder stockholders submission summary
supplemental supplementary supporting termination that the to transactions transfer trust under unregistered
unresolved upon use vote with year
"""
_WORDS = frozenset(_TITLE_WORDS.split())
_WORD = re.compile(r"[a-z]+", re.IGNORECASE)
_BEFORE_A_LETTER = frozenset("'’-0123456789")
"""What stands before a single letter that is no word: of "Management's", of "9B"."""


def scheme_of(form: str) -> Scheme:
    """The items of a form and its variants and amendments ("10-K405/A").

    Raises:
        ValueError: a form of another family than 10-K, 10-Q and 8-K.
    """
    kind = family(form)
    if kind is None:
        raise ValueError(f"items are known of {', '.join(_SCHEMES)} and their variants; got form {form!r}")
    return _SCHEMES[kind + "SB" if "SB" in form.upper() else kind]


def known_names() -> frozenset[str]:
    """Names of all items of all forms."""
    return frozenset(name for scheme in _SCHEMES.values() for name in scheme.names)


def after_title(line: str) -> str:
    """What follows the words of a title at the start of `line`: its first other word and all after it."""
    for match in _WORD.finditer(line):
        word = match.group().lower()
        if word not in _WORDS and not (len(word) == 1 and line[match.start() - 1 : match.start()] in _BEFORE_A_LETTER):
            return line[match.start() :]
    return ""
