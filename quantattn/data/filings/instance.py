"""XBRL instances, the files of facts that filings had before they had inline XBRL → the same facts. Runs in the child.

XBRL 2.1 (xbrl.org, 2003): contexts and units anywhere below the root, facts as elements of any other name that tell
theirs by id. Expat reads them and takes nothing but the text that it is given: a document type, which alone could
declare entities or name a file, is refused before it is read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from xml.parsers import expat

from quantattn.data.filings.facts import (
    LONGEST,
    Context,
    Fact,
    Facts,
    LeftOut,
    make_context,
    read_decimals,
    simplest,
)

XBRLI, LINK = "http://www.xbrl.org/2003/instance", "http://www.xbrl.org/2003/linkbase"
DIMENSIONS, CURRENCIES = "http://xbrl.org/2006/xbrldi", "http://www.xbrl.org/2003/iso4217"
SCHEMA = "http://www.w3.org/2001/XMLSchema-instance"
DEEPEST = 100
"""Elements within one another; instances have six."""
_GAP = "\x1f"  # no character of XML, so none of a name
_ROOT = re.compile(r"<(?:!DOCTYPE\s{1,99})?(?:[\w.-]{1,99}:)?xbrl[\s>\[/]")
_PAGE = re.compile(r"<html\b", re.IGNORECASE)
_HEAD = 8_192
_DECIMAL = re.compile(r"([+-]?)(?:(\d+)\.?(\d*)|\.(\d+))(?:[eE]([+-]?\d{1,4}))?", re.ASCII)
_MARKUP = re.compile(r"<[a-zA-Z/!?][^<>]*>")
_PRECISION = re.compile(r"\d{1,4}", re.ASCII)
_KEPT = 20 * LONGEST
"""Characters of a fact that are looked at, white space included; what is longer is a text block."""
_PERIOD = frozenset(("instant", "startDate", "endDate", "forever"))
_MEMBERS = frozenset(("explicitMember", "typedMember"))
_FRACTION = frozenset(("numerator", "denominator"))


def is_instance(text: str) -> bool:
    """Whether `text` begins like an XBRL instance, or like a document type of one."""
    if text[:_HEAD].lstrip()[:1] != "<":
        return False
    root = _ROOT.search(text, 0, _HEAD)
    return root is not None and _PAGE.search(text, 0, root.start()) is None


def read_instance(text: str) -> Facts:
    """Every fact of an instance, in its order.

    Raises:
        ValueError: not well-formed, a document type, another root than `xbrl`, elements nested too deep.
        MemoryError: the parser got no memory.
    """
    # A declaration has to stand first, and names an encoding that the text does not have any more.
    start = text.find("<?xml", 0, _HEAD)
    reader = _Reader()
    try:
        reader.parse((text[start:] if start > 0 else text).lstrip().encode("utf-8", "replace"))
    except expat.ExpatError as error:
        if error.code == expat.errors.codes[expat.errors.XML_ERROR_NO_MEMORY]:
            raise MemoryError from error
        raise ValueError(f"damaged XML: {error}") from None
    return reader.facts()


@dataclass
class _Open:
    """An element whose text is being read: a fact, or a part of a context or unit."""

    name: str
    attributes: dict[str, str]
    depth: int
    pieces: list[str] = field(default_factory=list)
    size: int = 0
    fraction: bool = False

    def add(self, piece: str) -> None:
        """Append text, up to what is looked at."""
        if self.size <= _KEPT:
            self.pieces.append(piece)
        self.size += len(piece)

    @property
    def text(self) -> str:
        return "".join(self.pieces)


class _Reader:
    """Expat's handlers. What is open is told by depth; facts name contexts that may come after them."""

    def __init__(self) -> None:
        self._depth = self._skipped = self._inside = 0
        self._open: list[_Open] = []
        self._found: list[_Open] = []
        self._contexts: dict[str, Context | None] = {}
        self._units: dict[str, str] = {}
        self._prefixes: dict[str, list[str]] = {}
        self._begin("")

    def parse(self, content: bytes) -> None:
        parser = expat.ParserCreate("utf-8", _GAP)
        parser.namespace_prefixes = True
        parser.buffer_text = True
        parser.StartDoctypeDeclHandler = self._refuse
        parser.StartNamespaceDeclHandler = self._namespace
        parser.EndNamespaceDeclHandler = self._end_namespace
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._text
        parser.Parse(content, True)

    def facts(self) -> Facts:
        """The facts, once everything is read."""
        facts = Facts()
        for each in self._found:
            try:
                facts.found.append(self._fact(each))
            except LeftOut as reason:
                facts.left_out[str(reason)] += 1
        return facts

    def _refuse(self, *_: object) -> None:
        raise ValueError("it has a document type, which could declare entities; an instance needs none")

    def _namespace(self, prefix: str | None, uri: str | None) -> None:
        self._prefixes.setdefault(prefix or "", []).append(uri or "")

    def _end_namespace(self, prefix: str | None) -> None:
        self._prefixes[prefix or ""].pop()

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self._depth += 1
        uri, local, prefix = _split(name)
        if self._depth == 1 and (uri, local) != (XBRLI, "xbrl"):
            raise ValueError(f"its root is {local[:40]} of {uri[:80] or 'no namespace'}, expected xbrl of {XBRLI}")
        if self._depth > DEEPEST:
            raise ValueError(f"elements are nested more than {DEEPEST} deep")
        if self._depth == 1 or self._skipped:
            return
        if self._inside:
            self._start_part(uri, local, attributes)
        elif uri == XBRLI and local in ("context", "unit"):
            self._begin(attributes.get("id") or "")
            self._inside = self._depth
        elif uri == XBRLI and local in _FRACTION and self._open:
            self._open[-1].fraction = True
        elif "contextRef" in attributes and uri != LINK:
            concept = f"{prefix}:{local}" if prefix else local
            self._open.append(_Open(concept, attributes, self._depth))
            self._found.append(self._open[-1])
        elif uri in (XBRLI, LINK):
            self._skipped = self._depth

    def _start_part(self, uri: str, local: str, attributes: dict[str, str]) -> None:
        if uri == XBRLI and local == "unitDenominator":
            self._below = self._depth
        wanted = local in _PERIOD or local in ("identifier", "measure") if uri == XBRLI else False
        if wanted or (uri == DIMENSIONS and local in _MEMBERS):
            self._open.append(_Open(local, attributes, self._depth))

    def _text(self, piece: str) -> None:
        if not self._skipped:
            for each in self._open:
                each.add(piece)

    def _end(self, name: str) -> None:
        if self._open and self._open[-1].depth == self._depth:
            closed = self._open.pop()
            if self._inside:
                self._end_part(closed)
        if self._inside == self._depth:
            self._finish(_split(name)[1])
        if self._skipped == self._depth:
            self._skipped = 0
        if self._below == self._depth:
            self._below = 0
        self._depth -= 1

    def _begin(self, key: str) -> None:
        """A context or a unit begins."""
        self._key, self._identifier, self._below = key, "", 0
        self._dates: dict[str, str] = {}
        self._dimensions: list[str] = []
        self._measures: tuple[list[str], list[str]] = ([], [])

    def _end_part(self, part: _Open) -> None:
        text = part.text.strip()
        if part.name == "identifier":
            self._identifier = text
        elif part.name == "measure":
            self._measures[bool(self._below)].append(self._measure(text))
        elif part.name in _MEMBERS:
            self._dimensions.append(f"{part.attributes.get('dimension')}={' '.join(text.split())}")
        else:
            self._dates[part.name.lower()] = text

    def _finish(self, local: str) -> None:
        if local == "context":
            self._contexts[self._key] = make_context(self._identifier, self._dates, self._dimensions)
        else:
            above, below = ("*".join(measures) for measures in self._measures)
            self._units[self._key] = above + (f"/{below}" if below else "")
        self._inside = 0

    def _measure(self, text: str) -> str:
        """A measure under the prefix that inline XBRL has for it, whatever this file calls its namespace."""
        prefix, _, local = text.rpartition(":")
        uri = next(iter(self._prefixes.get(prefix, ())[-1:]), "")
        known = {XBRLI: "xbrli", CURRENCIES: "iso4217"}.get(uri, prefix)
        return f"{known}:{local}" if known else local

    def _fact(self, node: _Open) -> Fact:
        told = node.attributes
        key = told["contextRef"]
        if key not in self._contexts:
            raise LeftOut("without a name or a context")
        context = self._contexts[key]
        if context is None:
            raise LeftOut("with a period that is none")
        if context.too_long:
            raise LeftOut("with a context that is too long")
        if node.fraction:
            raise LeftOut("fractions")
        place = (node.name, context.identifier, context.start, context.end)
        if "unitRef" not in told:
            text = " ".join(node.text.split())
            if node.size > _KEPT or len(text) > LONGEST or _MARKUP.search(text):
                raise LeftOut("text blocks")
            return Fact(*place, "", None, None, None, text, context.dimensions, False)
        unit = self._units.get(told["unitRef"])
        if not unit or len(unit) > LONGEST:
            raise LeftOut("without a unit")
        if _is_nil(told):
            return Fact(*place, unit, None, None, read_decimals(told.get("decimals")), "", context.dimensions, False)
        value, exponent = _number(node.text.strip())
        right = read_decimals(told.get("decimals")) if "decimals" in told else _of_precision(told, value, exponent)
        return Fact(*place, unit, value, exponent, right, "", context.dimensions, False)


def _split(name: str) -> tuple[str, str, str]:
    """Namespace, local name and prefix of what Expat calls an element or an attribute."""
    parts = name.split(_GAP)
    if len(parts) == 1:
        return "", name, ""
    return parts[0], parts[1], parts[2] if len(parts) > 2 else ""


def _is_nil(attributes: dict[str, str]) -> bool:
    return any(_split(name)[:2] == (SCHEMA, "nil") and told in ("true", "1") for name, told in attributes.items())


def _number(text: str) -> tuple[int, int]:
    """A number of XML Schema, with an exponent or without: integer and power of ten."""
    match = _DECIMAL.fullmatch(text)
    if match is None:
        raise LeftOut("with a text that is no number")
    sign, whole, fraction, alone, power = match.groups()
    digits, places = (whole or "") + (fraction or alone or ""), len(fraction or alone or "")
    if len(digits) > 60:
        raise LeftOut("with a number of more than 18 digits")
    return simplest(int(sign + digits), int(power or 0) - places)


def _of_precision(attributes: dict[str, str], value: int, exponent: int) -> int | None:
    """The decimals that a number of so many significant figures has (XBRL 2.1, 4.6.6); None where it is exact."""
    told = attributes.get("precision", "INF")
    if not value or not _PRECISION.fullmatch(told) or not int(told):
        return None
    return int(told) - len(str(abs(value))) - exponent
