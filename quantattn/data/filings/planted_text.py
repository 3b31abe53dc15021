"""The words of made filings: sentences whose lengths in tokens are known, and a 10-K put together from them.

Lengths are numbers of pre-tokens, the pieces (words, numbers, marks, line ends) that byte-level BPE never merges
across: no text has fewer tokens than pre-tokens, and it has as many when every word is one token.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from tokenizers import pre_tokenizers

SELLER, BUYER = "seller", "buyer"
"""What the deciding sentences of Item 1A say; no other sentence has one of these words."""
ROSE, FELL = "rose", "fell"
"""What the sentences of Item 7 say of the price; no other sentence has one of these words."""

_WORDS = {
    "N": (
        "agreements assets brand capacity competitors contracts costs credit customers demand distributors "
        "employees equipment facilities financing fleet franchise goodwill indebtedness infrastructure "
        "inventory investments leases licences liquidity litigation logistics management margins marketing "
        "markets materials operations orders patents personnel plants policies portfolio pricing products "
        "programs properties receivables regulators relationships reputation reserves revenues sales segment "
        "services shareholders software subsidiaries suppliers systems tariffs taxes technology transactions "
        "workforce"
    ),
    "A": (
        "additional adverse certain commercial competitive contractual critical current domestic existing "
        "financial foreign future global industrial international joint legal long material new operating "
        "principal regional regulatory seasonal significant strategic substantial third"
    ),
    "V": (
        "affect change delay disrupt exceed expand harm impair improve increase interrupt limit maintain "
        "manage offset protect reduce replace restrict support"
    ),
}
"""Letter in a pattern → the words that may stand there."""
_PATTERNS = (
    "Our A N may V our N.",
    "The N of our N may V N.",
    "Our A N could V the A N significantly.",
    "We V the N and the N of our N.",
    "The A N of our N may not V the N.",
    "We cannot assure you that our N will V the A N.",
    "We cannot assure you that our A N will V the A N.",
    "Any change in the A N of our N could V the A N.",
)
_EXPOSURES = (
    "In the ordinary course of business we are a net {} of copper.",
    "As a net {} of copper we are exposed to its price.",
    "We remain a net {} of copper and expect to remain one.",
)
_PRICES = (
    "During the year the average price of copper {}.",
    "Compared with the prior year the market price of copper {}.",
    "In our industry the price of copper {} over the year.",
)
_SECTIONS = (
    # heading, what stands below it, share of the sentences between the two places
    (None, None, 0.4),  # what follows in Item 1A
    ("Item 1B. Unresolved Staff Comments", "None.", 0.0),
    ("Item 2. Properties", None, 0.05),
    ("Item 3. Legal Proceedings", None, 0.05),
    ("Item 4. Mine Safety Disclosures", "Not applicable.", 0.0),
    ("PART II\nItem 5. Market for Registrant's Common Equity and Related Stockholder Matters", None, 0.1),
    ("Item 6. [Reserved]", "Not applicable.", 0.0),
    (
        "Item 7. Management's Discussion and Analysis of Financial Condition and Results of Operations",
        None,
        0.4,
    ),
)
_SHORTEST, _LONGEST = 8, 15  # pre-tokens of a sentence, in steps of one
_PARAGRAPH = (8, 9, 10, 11, 12, 14, 15)
"""Sentences of a paragraph. Every filing of a distance has each pattern equally often, so that what differs between
filings is the words in them."""
_BANK = 1_024  # paragraphs to draw from


@dataclass(frozen=True)
class MadeText:
    """A filing's text, and where (characters) the last deciding sentence ends and the first that it decides begins."""

    text: str
    marker_end: int
    question_start: int


def count(text: str) -> int:
    """Pre-tokens of a text."""
    return len(pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str(text))


def write_text(
    rng: np.random.Generator,
    *,
    company: str,
    year: int,
    distance: int,
    copies: int,
    seller: bool,
    rose: bool,
    amount: int,
) -> MadeText:
    """A 10-K in which `distance` pre-tokens lie between the last deciding sentence and the first that it decides.

    Args:
        rng: of everything that does not depend on the other arguments.
        company: name on the cover.
        year: fiscal year.
        distance: at least `least_distance()`.
        copies: paragraphs in which Item 1A says what the company is, and in which Item 7 says what the price did.
        seller: whether the company is a net seller, else a net buyer, of its commodity.
        rose: whether the price rose, else fell.
        amount: by how many million dollars income changed; the direction is not in the text.
    """

    def said(patterns: tuple[str, ...], word: str) -> list[str]:
        return [patterns[n % len(patterns)].format(word) for n in range(copies)]

    before = [
        *("UNITED STATES", "SECURITIES AND EXCHANGE COMMISSION", "FORM 10-K", "ANNUAL REPORT"),
        *(f"For the fiscal year ended December 31, {year}", company, "PART I", "Item 1. Business"),
        *_filler(rng, 60),
        "Item 1A. Risk Factors",
        *said(_EXPOSURES, SELLER if seller else BUYER),
    ]
    after = [
        *said(_PRICES, ROSE if rose else FELL),
        f"Operating income changed by {amount} million dollars from the prior year.",
        "Item 8. Financial Statements and Supplementary Data",
        *_filler(rng, _SHORTEST + 1),
        "SIGNATURES",
        f"Pursuant to the requirements of the Securities Exchange Act of 1934, signed by {company}.",
    ]
    head, middle, tail = "\n".join(before), "\n" + "\n".join(_between(rng, distance)) + "\n", "\n".join(after)
    return MadeText(head + middle + tail, len(head), len(head) + len(middle))


@cache
def least_distance() -> int:
    """The fewest pre-tokens that the items between the two places have: a heading and a sentence each."""
    return _fixed() + (_SHORTEST + 1) * sum(share > 0 for *_, share in _SECTIONS)


@cache
def _fixed() -> int:
    """Pre-tokens of headings and short answers, of the line ends behind them, and of the first line end."""
    return 1 + sum(1 + count(line) for heading, answer, _ in _SECTIONS for line in (heading, answer) if line)


def _between(rng: np.random.Generator, distance: int) -> list[str]:
    """Lines which, with a line end behind each and one before all, have `distance` pre-tokens."""
    room, lines = distance - least_distance(), list[str]()
    for number, (heading, answer, share) in enumerate(_SECTIONS):
        lines += [line for line in (heading, answer) if line]
        if share:
            last = number == len(_SECTIONS) - 1
            more = room if last else int(share * (distance - least_distance()))
            room -= more
            lines += _filler(rng, _SHORTEST + 1 + more)
    return lines


def _filler(rng: np.random.Generator, size: int) -> list[str]:
    """Paragraphs of `size` pre-tokens, the line end behind each counted; `size` is at least that of one sentence."""
    bank, long = _bank(), sum(_PARAGRAPH) + 1
    whole = max(size - _SHORTEST - 1, 0) // long
    drawn = [bank[number] for number in rng.integers(len(bank), size=whole)]
    return [*drawn, _paragraph(rng, _lengths(size - whole * long - 1))]


@cache
def _bank() -> tuple[str, ...]:
    """Boilerplate, the same for every corpus, as that of real filings is for every year."""
    rng = np.random.default_rng(0)
    return tuple(_paragraph(rng, _PARAGRAPH) for _ in range(_BANK))


def _lengths(size: int) -> tuple[int, ...]:
    """Lengths of sentences that have `size` pre-tokens in all, at least that of one."""
    number = -(-size // _LONGEST)
    return tuple(size * (n + 1) // number - size * n // number for n in range(number))


def _paragraph(rng: np.random.Generator, lengths: tuple[int, ...]) -> str:
    return " ".join(_sentence(rng, length) for length in rng.permutation(lengths).tolist())


def _sentence(rng: np.random.Generator, length: int) -> str:
    words = _PATTERNS[length - _SHORTEST].removesuffix(".").split()
    kinds = _kinds()
    drawn = [kinds[word][int(rng.integers(len(kinds[word])))] if word in kinds else word for word in words]
    return " ".join(drawn) + "."


@cache
def _kinds() -> dict[str, list[str]]:
    return {letter: words.split() for letter, words in _WORDS.items()}
