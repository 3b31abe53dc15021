"""Inline XBRL → facts: a concept, a period, a value, a unit. Runs in the child process of `pool`; see `instance` too.

Inline XBRL 1.1 (xbrl.org, 2013) writes a number as it is shown, with a format that says how to read it, a power of ten
(`scale`) and a sign of its own; contexts and units stand in the header, and a fact names them by id. Values are exact:
an integer and a power of ten, never a float.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date, timedelta
from typing import Any

from quantattn.data.filings.number_words import number_of_words
from quantattn.data.filings.shown import told_text

LARGEST = 2**63 - 1
LONGEST = 1_000
"""Characters of a text that is a fact and no text block, and of a unit."""
_LONGEST_CONTEXT = 4_000

_MARKED = frozenset(("ix:nonfraction", "ix:nonnumeric", "ix:fraction"))
_DATE = re.compile(r"(\d{4}-\d{2}-\d{2})(T00:00:00)?", re.ASCII)
_DECIMAL = re.compile(r"(\d*)(?:\.(\d*))?", re.ASCII)
_WHOLE = re.compile(r"[+-]?\d{1,4}", re.ASCII)
_DOT = frozenset(("", "numdotdecimal", "numcommadot", "numspacedot", "numdotdecimalin", "numdotdecimalapos"))
_COMMA = frozenset(("numcommadecimal", "numdotcomma", "numspacecomma", "numcomma", "numcommadecimalapos"))
_ZERO = frozenset(("zerodash", "numdash", "fixedzero"))


@dataclass(frozen=True)
class Fact:
    """One fact of a document.

    Attributes:
        concept: its name, "us-gaap:Revenues".
        identifier: whom it is about, a CIK.
        start, end: dates of the period; an instant has no start, "forever" neither.
        unit: measures as written, "iso4217:USD", "iso4217:USD/xbrli:shares"; "" for a text.
        value, exponent: the number is value · 10^exponent; value has no trailing zero, so that equal numbers are
            equal. None for a text and for a fact that says that it has no value (`xsi:nil`).
        decimals: the number is right to 10^−decimals; None: exact, or not said.
        text: of a fact that is no number, as its format tells it (see `shown`); "" for a number.
        dimensions: "axis=member" of each, sorted; none of a fact about the whole filer.
        hidden: whether the page does not show it.
    """

    concept: str
    identifier: str
    start: str | None
    end: str | None
    unit: str
    value: int | None
    exponent: int | None
    decimals: int | None
    text: str
    dimensions: tuple[str, ...]
    hidden: bool


@dataclass
class Facts:
    """Facts of a document in its order, and why some were left out: reason → how many."""

    found: list[Fact] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class Context:
    """Whom facts are about, in which period, along which dimensions; see `Fact`."""

    identifier: str
    start: str | None
    end: str | None
    dimensions: tuple[str, ...]
    too_long: bool = False
    """A context stands in every fact that names it, so that long ones would make much of little."""


class LeftOut(Exception):
    """A fact that cannot be read; the message is the reason."""


def read_facts(root: Any) -> Facts:
    """Every fact of a parsed page; hidden parts are read too. Never raises for what is in the page."""
    contexts: dict[str, Context | None] = {}
    units: dict[str, str] = {}
    marked: list[tuple[Any, bool]] = []
    hidden, inside = set[int](), set[int]()
    for node in root.traverse():
        tag, name = node.tag or "", _name(node)
        if tag in _MARKED:
            marked.append((node, node.mem_id in hidden))
        elif tag == "ix:hidden" and node.mem_id not in hidden:
            hidden.update(inner.mem_id for inner in node.traverse())
        elif name in ("context", "unit") and node.mem_id not in inside:  # one within another would be read twice
            inside.update(inner.mem_id for inner in node.traverse())
            key = node.attributes.get("id") or ""
            if name == "context":
                contexts[key] = _context(node)
            else:
                units[key] = _unit(node)
    facts = Facts()
    for node, unseen in marked:
        try:
            facts.found.append(_fact(node, contexts, units, unseen))
        except LeftOut as reason:
            facts.left_out[str(reason)] += 1
    return facts


def _fact(node: Any, contexts: Mapping[str, Context | None], units: Mapping[str, str], hidden: bool) -> Fact:
    attributes = node.attributes
    concept, key = attributes.get("name"), attributes.get("contextref")
    if not concept or not key or key not in contexts:
        raise LeftOut("without a name or a context")
    context = contexts[key]
    if context is None:
        raise LeftOut("with a period that is none")
    if context.too_long:
        raise LeftOut("with a context that is too long")
    place = (concept, context.identifier, context.start, context.end)
    if node.tag == "ix:fraction":
        raise LeftOut("fractions")
    if node.tag == "ix:nonnumeric":
        if attributes.get("escape") == "true" or attributes.get("continuedat"):
            raise LeftOut("text blocks")
        text = told_text(" ".join(node.text().split()), attributes.get("format") or "")
        if len(text) > LONGEST:
            raise LeftOut("text blocks")
        return Fact(*place, "", None, None, None, text, context.dimensions, hidden)
    unit = units.get(attributes.get("unitref") or "")
    if not unit or len(unit) > LONGEST:
        raise LeftOut("without a unit")
    value, exponent = None, None
    if not any(name.rpartition(":")[2] == "nil" and told in ("true", "1") for name, told in attributes.items()):
        value, exponent = _number(node.text(), attributes)
    right = read_decimals(attributes.get("decimals"))
    return Fact(*place, unit, value, exponent, right, "", context.dimensions, hidden)


def read_decimals(told: str | None) -> int | None:
    """The attribute `decimals` of a number; None for "INF", for what is no number, and for none."""
    return int(told) if told is not None and _WHOLE.fullmatch(told) else None


def _number(shown: str, attributes: Mapping[str, str | None]) -> tuple[int, int]:
    """The number of a fact: integer and power of ten."""
    scale = attributes.get("scale") or "0"
    if not _WHOLE.fullmatch(scale):
        raise LeftOut("with a scale that is no whole number")
    value, exponent = parse_number(shown, attributes.get("format") or "")
    if attributes.get("sign") == "-":
        value = -value
    return simplest(value, exponent + int(scale))


def parse_number(shown: str, form: str) -> tuple[int, int]:
    """A number as it is shown, without sign and scale: an integer and a power of ten, as a format says.

    Args:
        shown: "1,234.5", "1.234,5", "—", "twenty-one".
        form: name in the transformation registry, with its prefix or without; "" for a plain decimal.

    Raises:
        LeftOut: a format that is not known, or a text that is no such number.
    """
    kind = form.rpartition(":")[2].replace("-", "").lower()
    if kind in _ZERO:
        return 0, 0
    if kind == "numwordsen":
        number = number_of_words(shown)
        if number is None:
            raise LeftOut("with a text that is no number")
        return number, 0
    digits = "".join(shown.split()).replace("'", "").replace("’", "")
    if kind in _COMMA:
        digits = digits.replace(".", "").replace(",", ".")
    elif kind in _DOT:
        digits = digits.replace(",", "")
    else:
        raise LeftOut(f"with the format {form[:40]}")
    match = _DECIMAL.fullmatch(digits)
    if match is None or not any(match.groups()):
        raise LeftOut("with a text that is no number")
    whole, fraction = match.group(1), match.group(2) or ""
    if len(whole) + len(fraction) > 60:
        raise LeftOut("with a number of more than 18 digits")
    return int(whole + fraction), -len(fraction)


def simplest(value: int, exponent: int) -> tuple[int, int]:
    """The same number without trailing zeros; 0 · 10^0 for nothing.

    Raises:
        LeftOut: it does not fit into 64 bits then.
    """
    if value == 0:
        return 0, 0
    while value % 10 == 0:
        value, exponent = value // 10, exponent + 1
    if abs(value) > LARGEST:
        raise LeftOut("with a number of more than 18 digits")
    return value, exponent


def _context(node: Any) -> Context | None:
    """A context; None when its period has no dates and is not "forever"."""
    identifier, dates, dimensions = "", dict[str, str](), list[str]()
    for inner in node.traverse():
        name = _name(inner)
        if name == "identifier":
            identifier = inner.text().strip()
        elif name in ("instant", "startdate", "enddate", "forever"):
            dates[name] = inner.text().strip()
        elif name in ("explicitmember", "typedmember"):
            dimensions.append(f"{inner.attributes.get('dimension')}={' '.join(inner.text().split())}")
    return make_context(identifier, dates, dimensions)


def make_context(identifier: str, dates: Mapping[str, str], dimensions: Iterable[str]) -> Context | None:
    """A context from the dates of its period by the element's name in small letters; None for a period that is none."""
    start = period_date(dates["startdate"], last=False) if "startdate" in dates else None
    last = dates.get("enddate") or dates.get("instant")
    end = period_date(last, last=True) if last else None
    if "forever" not in dates and (end is None or ("startdate" in dates and start is None)):
        return None
    told = tuple(sorted(dimensions))
    if len(identifier) + sum(map(len, told)) > _LONGEST_CONTEXT:
        return Context("", start, end, (), too_long=True)
    return Context(identifier, start, end, told)


def period_date(text: str, *, last: bool) -> str | None:
    """A date of a period as YYYY-MM-DD; None for what is none, and for a time of the day.

    XBRL 2.1 (4.7.2) takes a date at the end of a period, or an instant, for the midnight that ends it; where that
    midnight is written as a time, it is that of the day after.
    """
    match = _DATE.fullmatch(text)
    try:
        day = date.fromisoformat(match[1]) if match is not None else None
        return None if match is None or day is None else (day - timedelta(days=last and bool(match[2]))).isoformat()
    except (ValueError, OverflowError):
        return None


def _unit(node: Any) -> str:
    """A unit as measures: products by `*`, a quotient by `/`."""
    above, below = list[str](), list[str]()
    for inner in node.traverse():
        if _name(inner) == "measure":
            (below if _name(inner.parent) == "unitdenominator" else above).append(inner.text().strip())
    return "*".join(above) + ("/" + "*".join(below) if below else "")


def _name(node: Any) -> str:
    """Name of an element without its prefix, in small letters as a parser of HTML has it."""
    return (node.tag or "").rpartition(":")[2] if node is not None else ""
