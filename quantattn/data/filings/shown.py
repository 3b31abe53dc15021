"""Texts of inline XBRL as a page shows them → the values that they stand for. Runs in the child process of `pool`.

A format of the transformation registries (xbrl.org's `ixt`, the SEC's `ixt-sec`) says how: "☒" is true, "December 31,
2023" 2023-12-31, "Nevada" NV. An instance has the values alone.
"""

from __future__ import annotations

import re
from datetime import date

from quantattn.data.filings.number_words import number_of_words

_TRUE, _FALSE = frozenset(("fixedtrue", "booleantrue")), frozenset(("fixedfalse", "booleanfalse"))
_EMPTY = frozenset(("fixedempty", "nocontent"))
_BOXES = {"☐": "false", "☒": "true", "☑": "true", "o": "false", "x": "true", "\uf0a8": "false", "\uf0fe": "true"}
_MONTHS = {name: n for n, name in enumerate("jan feb mar apr may jun jul aug sep oct nov dec".split(), 1)}  # noqa: SIM905
_PARTS = re.compile(r"[^\W\d_]+|\d+")
_DATES = {
    **dict.fromkeys(("datemonthnamedayyearen", "datemonthdayyearen", "datelonguk"), "mdy"),
    **dict.fromkeys(("datedaymonthnameyearen", "datedaymonthyearen"), "dmy"),
    **dict.fromkeys(("datemonthdayyear", "dateslashus"), "mdy"),
    **dict.fromkeys(("datedaymonthyear", "dateslasheu"), "dmy"),
    **{"dateyearmonthday": "ymd", "datemonthnamedayen": "md", "datemonthdayen": "md", "datemonthday": "md"},
    **{"datedaymonthnameen": "dm", "datedaymonthen": "dm", "datemonthnameyearen": "my", "datemonthyearen": "my"},
}
"""Format → the order of its parts."""
_STATES = """
Alabama AL|Alaska AK|Arizona AZ|Arkansas AR|California CA|Colorado CO|Connecticut CT|Delaware DE|District of Columbia DC
Florida FL|Georgia GA|Hawaii HI|Idaho ID|Illinois IL|Indiana IN|Iowa IA|Kansas KS|Kentucky KY|Louisiana LA|Maine ME
Maryland MD|Massachusetts MA|Michigan MI|Minnesota MN|Mississippi MS|Missouri MO|Montana MT|Nebraska NE|Nevada NV
New Hampshire NH|New Jersey NJ|New Mexico NM|New York NY|North Carolina NC|North Dakota ND|Ohio OH|Oklahoma OK
Oregon OR|Pennsylvania PA|Puerto Rico PR|Rhode Island RI|South Carolina SC|South Dakota SD|Tennessee TN|Texas TX|Utah UT
Vermont VT|Virginia VA|Washington WA|West Virginia WV|Wisconsin WI|Wyoming WY
"""
_CODES = {
    name.lower(): code
    for name, _, code in (each.rpartition(" ") for line in _STATES.split("\n") for each in line.split("|"))
}
_SPANS = {"duryear": "Y", "durmonth": "M", "durweek": "W", "durday": "D"}
_AMOUNT = re.compile(r"(\d{1,6})?(?:\.(\d{1,9}))?(?<=\d)", re.ASCII)
_EIGHT, _ISO = re.compile(r"\d{8}", re.ASCII), re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_WHOLE = re.compile(r"\d{1,6}", re.ASCII)
_UNIT = re.compile(r"\b(year|month|week|day)s?\b")
_CATEGORIES = {each.lower(): each for each in ("Large Accelerated Filer", "Accelerated Filer", "Non-accelerated Filer")}
_EXCHANGES = (
    (re.compile(r"nyse american\b|nyse mkt\b", re.IGNORECASE), "NYSEAMER"),
    (re.compile(r"nyse arca\b", re.IGNORECASE), "NYSEArca"),
    (re.compile(r"(?:the )?new york stock exchange\b|nyse$", re.IGNORECASE), "NYSE"),
    (re.compile(r"(?:the )?nasdaq\b", re.IGNORECASE), "NASDAQ"),
)


def told_text(shown: str, form: str) -> str:
    """The value of a text.

    Args:
        shown: with single blanks.
        form: name in a transformation registry, with its prefix or without; "" for a text that stands for itself.

    Returns:
        What the format says; the text as it is shown where the format is not known here or does not fit it.
    """
    kind = form.rpartition(":")[2].replace("-", "").lower()
    if kind in _TRUE or kind in _FALSE:
        return "true" if kind in _TRUE else "false"
    if kind in _EMPTY:
        return ""
    if kind == "boolballotbox":
        return _BOXES.get(shown.lower(), shown)
    if kind in _DATES:
        return _date(shown, _DATES[kind]) or shown
    if kind == "stateprovnameen":
        return _CODES.get(shown.lower(), shown)
    if kind in _SPANS:
        return _span(shown, _SPANS[kind]) or shown
    if kind == "durwordsen":
        return _span_of_words(shown) or shown
    if kind == "entityfilercategoryen":
        return _CATEGORIES.get(shown.lower(), shown)
    if kind == "exchnameen":
        return next((code for pattern, code in _EXCHANGES if pattern.match(shown)), shown)
    return shown


def day_of(told: str | None) -> str | None:
    """ "20231231", "2023-12-31", "December 31, 2023" → 2023-12-31; None for what is none."""
    text = " ".join((told or "").split())
    if _EIGHT.fullmatch(text):
        text = f"{text[:4]}-{text[4:6]}-{text[6:]}"
    return _date(text, "ymd" if _ISO.fullmatch(text) else "mdy")


def _span(shown: str, unit: str) -> str | None:
    """ "24" → P24M, "2.7" years → P2Y8M12D, a year being 12 months of 30 days here, as it is for EDGAR.

    None for what is no number, and for a part of a year that is no whole number of such days.
    """
    match = _AMOUNT.fullmatch(shown)
    if match is None or (match[2] and unit != "Y"):
        return None
    days, rest = divmod(360 * int(match[2] or 0), 10 ** len(match[2] or ""))
    if rest:
        return None
    parts = ((int(match[1] or 0), unit), (days // 30, "M"), (days % 30, "D"))
    return "P" + "".join(f"{number}{name}" for number, name in parts if number) if days else f"P{parts[0][0]}{unit}"


def _span_of_words(shown: str) -> str | None:
    """ "three-year", "30 days", "five years and six months" → P3Y, P30D, P5Y6M; None for what is none."""
    told, at, text = dict[str, int](), 0, shown.lower()
    for match in _UNIT.finditer(text):
        amount = text[at : match.start()].strip(" ,-").removeprefix("and ").strip()
        number = int(amount) if _WHOLE.fullmatch(amount) else number_of_words(amount)
        unit = match[1][0].upper()
        if number is None or unit in told:
            return None
        told[unit], at = number, match.end()
    if not told or text[at:].strip(" .") or list(told) != [unit for unit in "YMWD" if unit in told]:
        return None
    return "P" + "".join(f"{number}{unit}" for unit, number in told.items())


def _date(shown: str, order: str) -> str | None:
    """2023-12-31, --12-31 or 2023-12, as XML Schema writes them; None for what is none."""
    parts = [part for part in _PARTS.findall(shown) if part.lower() not in ("st", "nd", "rd", "th")]
    if len(parts) != len(order):
        return None
    told = {name: _whole(part, name) for name, part in zip(order, parts, strict=True)}
    year, month, day = told.get("y", 2_000), told.get("m"), told.get("d", 1)
    if year is None or month is None or day is None or ("y" in told and year < 1_000):
        return None
    try:
        found = date(year, month, day).isoformat()
    except ValueError:
        return None
    return found if "d" in told and "y" in told else found[:7] if "y" in told else f"-{found[4:]}"


def _whole(part: str, name: str) -> int | None:
    if part.isascii() and part.isdigit():
        return int(part) if len(part) <= 4 else None
    return _MONTHS.get(part[:3].lower()) if name == "m" else None
