"""Numbers in English words, as filings write small ones."""

from __future__ import annotations

import re

_WORDS = {
    **{"no": 0, "none": 0, "nil": 0, "zero": 0, "a": 1, "an": 1, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5},
    **{"six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10, "eleven": 11, "twelve": 12, "thirteen": 13},
    **{"fourteen": 14, "fifteen": 15, "sixteen": 16, "seventeen": 17, "eighteen": 18, "nineteen": 19, "twenty": 20},
    **{"thirty": 30, "forty": 40, "fifty": 50, "sixty": 60, "seventy": 70, "eighty": 80, "ninety": 90},
}
_POWERS = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}


def number_of_words(shown: str) -> int | None:
    """ "no", "twenty-one", "two hundred and five thousand" → 0, 21, 205000; None for what is no number."""
    words = [word for word in re.findall(r"[a-z]+", shown.lower()) if word != "and"]
    if not words:
        return None
    total = part = 0
    for word in words:
        if word in _WORDS:
            part += _WORDS[word]
        elif word == "hundred":
            part = max(part, 1) * 100
        elif word in _POWERS:
            total, part = total + max(part, 1) * _POWERS[word], 0
        else:
            return None
    return total + part
