"""How often each word stands in a text."""

from __future__ import annotations

import re
from collections import Counter

_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")


def count_words(text: str) -> Counter[str]:
    """Word → how often it stands in a text, in small letters.

    Words are of letters, of any script, with apostrophes inside; numbers, which change every year, are none.
    """
    return Counter(_WORD.findall(text.lower()))
