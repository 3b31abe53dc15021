"""Which filings are kept: annual, quarterly and current reports, with their variants and amendments."""

from __future__ import annotations

import re

_FAMILIES = {
    "10-K": re.compile(r"10-?K(?:405|SB|SB40|T|T405)?"),
    "10-Q": re.compile(r"10-?Q(?:SB|T)?"),
    "8-K": re.compile(r"8-?K(?:12B|12G3|15D5)?"),
}
FAMILIES = tuple(_FAMILIES)
"""Forms that `family` knows; a variant such as 10-K405 or 10-KSB belongs to the family of its base form."""

_AMENDMENT = r"\(?amendment\b[^\n]{0,40}"
_COVER = re.compile(
    rf"^[^\w\n]*(amendment[ \t]+no\b[^\n]{{0,10}}\s+(?:to|on)\s+)?form[ \t]+((?:10-?[KQ]|8-?K)(?:405|SB|T)?)[ \t]*(/A)?"
    rf"[ \t]*({_AMENDMENT})?[^\w\n]*$(?:\s+({_AMENDMENT})$)?",
    re.IGNORECASE | re.MULTILINE,
)
_OTHER_COVER = re.compile(
    r"^[^\w\n]*(?:(?i:form)|(?i:schedule))[ \t]+(?=[A-Z-]*\d)([A-Z\d-]{1,8})(/A)?[^\w\n]*$", re.MULTILINE
)
_COVER_CHARS = 6_000


def family(form: str) -> str | None:
    """The family of a form as EDGAR writes it ("10-K405/A" → "10-K"); None for any other form ("NT 10-K", "4")."""
    base = form.strip().upper().removesuffix("/A")
    return next((name for name, pattern in _FAMILIES.items() if pattern.fullmatch(base)), None)


def is_amendment(form: str) -> bool:
    """Whether the form amends an earlier one; an amendment is an event of its own, at its own time."""
    return form.strip().upper().endswith("/A")


def form_on_cover(text: str) -> str | None:
    """The form that a document's cover names on a line of its own ("FORM 10-K"), within its first 6,000 characters."""
    match = _COVER.search(text, 0, _COVER_CHARS)
    if match is None:
        return None
    form = re.sub(r"^(10|8)(?=[KQ])", r"\1-", match.group(2).upper())
    return form + ("/A" if match.group(1, 3, 4, 5) != (None, None, None, None) else "")


def other_form_on_cover(text: str) -> str | None:
    """A form of no family that a cover names so ("FORM 20-F", "SCHEDULE 13G/A" → "20-F", "13G/A"); None without one."""
    match = _OTHER_COVER.search(text, 0, _COVER_CHARS)
    return match and match[1] + (match[2] or "")
