"""Items that a filing hands to its annual report to shareholders (Exhibit 13): where they stand in it.

The annual report has no item numbers; its sections are found by headings of their own, one a line.
"""

from __future__ import annotations

import re

_HEADINGS = {
    "1": r"(?:description of )?business(?: segments?)?",
    "5": r"(?:quarterly |common )?(?:stock|market) (?:price|data|information|for)[^\n]{0,80}|shareholder information",
    "6": r"(?:consolidated )?(?:selected|five|ten|eleven|six)[- ](?:year )?[^\n]{0,40}"
    r"(?:data|summary|review|highlights|information)",
    "7": r"management.{0,3}s? discussion[^\n]{0,100}|financial review|management.{0,3}s? financial review[^\n]{0,60}",
    "7A": r"quantitative and qualitative[^\n]{0,60}|(?:financial |market )?risk management|market risks?[^\n]{0,60}",
    "8": r"(?:consolidated )?(?:financial statements|statements? of (?:consolidated )?(?:income|earnings|operations))"
    r"[^\n]{0,80}|(?:reports? of )?(?:independent|registered)[^\n]{0,80}(?:accountants?|auditors?|firm)",
}
_HEADING = {
    name: re.compile(rf"^[^\w\n]*(?:{pattern})[^\w\n]*$", re.IGNORECASE | re.MULTILINE)
    for name, pattern in _HEADINGS.items()
}
_HANDED_TO_REPORT = re.compile(r"annual\s+report|exhibit\s+13\b", re.IGNORECASE)
_SHORTEST = 400


def find_in_report(report: str, names: tuple[str, ...], handing: str) -> tuple[int, int] | None:
    """The slice of an annual report that holds the items `names`; None when it has no heading for any of them.

    Args:
        report: text of Exhibit 13.
        names: items of one heading.
        handing: what the filing says in their place; items handed elsewhere (the proxy statement) are not looked for.

    Returns:
        From the heading whose section is longest to the next heading of another item, or to the end.
    """
    if not _HANDED_TO_REPORT.search(handing):
        return None
    starts = sorted((match.start(), name) for name, pattern in _HEADING.items() for match in pattern.finditer(report))
    found = []
    for n, (start, name) in enumerate(starts):
        if name in names and (n == 0 or starts[n - 1][1] != name):
            end = next((other for other, title in starts[n + 1 :] if title != name), len(report))
            found.append((start, end))
    longest = max(found, key=lambda span: span[1] - span[0], default=None)
    return longest if longest is not None and longest[1] - longest[0] >= _SHORTEST else None
