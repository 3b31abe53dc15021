"""A filing that another program has cut into items → its text, and where its items stand in it.

EDGAR-CORPUS (Loukas et al. 2021) has `filename`, `cik`, `year` and `section_1` … `section_15` of annual reports;
edgar-crawler, its successor, writes `item_1` … for 10-K and 8-K, `part_1_item_1` … for 10-Q, and what EDGAR's index has
of the filing; others write `item1`, `item1a` and a link. None keeps the time of acceptance. Runs in the child process
of `pool` too.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from quantattn.data.filings.item_names import PARTS, scheme_of
from quantattn.data.filings.items import Section, status_of
from quantattn.data.filings.parsed import CUT, NO_ITEMS, Parsed
from quantattn.data.filings.shown import day_of
from quantattn.data.filings.submission import find_accession, pad_cik
from quantattn.data.filings.text import tidy

ANNUAL = "10-K"
"""The family of every filing of EDGAR-CORPUS, which does not say the form."""
SIGNATURES = "SIGNATURE"
METADATA = ("filename", "cik", "year", "filing_type", "filing_date", "company", "sic", "period_of_report")
LINKS = ("complete_text_filing_link", "htm_filing_link", "filing_html_index", "source")
_ITEM = re.compile(r"(?:part_([12])_)?(?:item|section)_?(\d{1,2}(?:[A-C]|\.\d\d)?)", re.IGNORECASE)
_PART = re.compile(r"part_([12])")
_NAMED = re.compile(r'"(?:part_[12]_)?(?:item|section)_?\d{1,2}(?:[A-C]|\.\d\d)?"\s*:\s*(?:"|null)', re.IGNORECASE)
_NUMBER = re.compile(
    r"\W*items?\s+\d{1,2}(?:\.\d\d)?\s?(?:\(?[a-c]\b\)?)?"
    r"(?:\s*(?:and|&|,|through|to)\s*(?:items?\s*)?\d{1,2}\s?(?:[a-c]\b)?)*\W*",
    re.IGNORECASE,
)
_BETWEEN = re.compile(r"[\s,]*")
_LONE = re.compile(r"[\ud800-\udfff]")


def looks_cut(head: str) -> bool:
    """Whether JSON that begins so names items or sections with text."""
    return head.lstrip()[:1] in ("{", "[") and _NAMED.search(head) is not None


def is_cut(names: Iterable[str]) -> bool:
    """Whether these are the names of a record: a filing's and at least one item's."""
    names = tuple(names)
    return bool({"cik", "filename"} & set(names)) and any(_ITEM.fullmatch(name) for name in names)


def is_item(name: str) -> bool:
    """Whether a record has text under this name."""
    return name == SIGNATURES or _ITEM.fullmatch(name) is not None or _PART.fullmatch(name) is not None


def parse_record(text: str) -> dict[str, Any]:
    """One JSON object.

    Raises:
        ValueError: no JSON, nested too deep, no object, or one that says something twice.
    """
    try:
        values = json.loads(text, object_pairs_hook=_once)
    except json.JSONDecodeError as error:
        raise ValueError(f"damaged JSON: {error}") from None
    except RecursionError:
        raise ValueError("JSON that is nested too deep") from None
    if not isinstance(values, dict):
        raise ValueError(f"JSON that holds a {type(values).__name__}, expected an object with items")
    return values


def parse_object(text: str, at: int) -> tuple[dict[str, Any] | None, int]:
    """The next object of a list in JSON.

    Args:
        text: of the list.
        at: where the object before it ended, or the bracket.

    Returns:
        The object (an empty one for what is none) and where it ends; None at the end of the list.

    Raises:
        ValueError: damage, or a list without an end.
    """
    at = _BETWEEN.match(text, at).end()  # type: ignore[union-attr]  # it matches nothing, too
    if text.startswith("]", at):
        return None, at + 1
    try:
        values, end = _DECODER.raw_decode(text, at)
    except json.JSONDecodeError as error:
        raise ValueError(f"damaged JSON: {error}") from None
    except RecursionError:
        raise ValueError("JSON that is nested too deep") from None
    return values if isinstance(values, dict) else {}, end


def read_metadata(values: Mapping[str, Any], form: str | None = None) -> Parsed:
    """What a record says beside its items; of EDGAR-CORPUS the form is `ANNUAL`, where no index says more.

    Args:
        values: of the record.
        form: what an index says, for a record that states none.

    Raises:
        ValueError: a value that cannot be one.
    """
    told = {name: _text(name, values.get(name)) for name in (*METADATA, *LINKS)}
    cik, stated = told["cik"], told["filing_type"]
    numbers = [find_accession(told[name] or "") for name in ("filename", *LINKS)]
    annual = any(_is_annual(name) for name in values)
    return Parsed(
        kind=CUT,
        form=stated.upper() if stated else (form or (ANNUAL if annual else None)),
        accession=next((number for number in numbers if number is not None), None),
        ciks=(pad_cik(cik),) if cik else (),
        company=told["company"],
        named=told["filename"],
        year=told["year"],
        filed=told["filing_date"],
        names=(told["company"],) if told["company"] else (),
        sic=told["sic"] and told["sic"].zfill(4),
        period=day_of(told["period_of_report"]),
    )


def _is_annual(name: str) -> bool:
    """Whether a record with this name is of an annual report: EDGAR-CORPUS, or an item such as 1A without its part."""
    match = _ITEM.fullmatch(name)
    return match is not None and (name.lower().startswith("section_") or (not match[1] and match[2][-1].isalpha()))


def read_items(values: Mapping[str, Any], known: Parsed) -> Parsed:
    """`known` with the text of a record and its items, in the order of the form, whatever order the record has them in.

    An item that the form does not have, and the signatures, are text without a name, at the end of their part. Where a
    10-Q has the text of a part beside its items, and they stand in it, what is between them is kept too. A record that
    has no text gets the status `NO_ITEMS`.

    Raises:
        ValueError: an item that is no text, or a form whose items are not known.
    """
    assert known.form is not None
    scheme = scheme_of(known.form)
    rank = {name: n for n, name in enumerate(scheme.names)}
    parts: dict[str, list[tuple[str, str, str]]] = {"": [], "1": [], "2": []}
    for key, value in values.items():
        match = _ITEM.fullmatch(key)
        text = tidy(_text(key, value) or "") if match else ""
        if match is None or not text:
            continue
        part, number = match[1] or "", match[2].upper()
        name = f"{PARTS[int(part) - 1]}.{number}" if part else number
        parts[part].append((name if name in rank else "", key, text))
    pieces: list[tuple[str, str]] = []
    for part, items in parts.items():
        items.sort(key=lambda item: (rank.get(item[0], len(rank)), item[1]))
        whole = tidy(_text(f"part_{part}", values.get(f"part_{part}")) or "") if part else ""
        pieces += _in_whole(whole, [(name, text) for name, _, text in items])
    pieces.append(("", tidy(_text(SIGNATURES, values.get(SIGNATURES)) or "")))
    text, sections = _joined([piece for piece in pieces if piece[1]])
    if not text:
        return replace(known, status=NO_ITEMS, detail="every item of the record is empty")
    return replace(known, text=text, sections=sections)


def _in_whole(whole: str, items: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """The text of a part, cut at its items; the items alone when they do not stand in it, one after the other."""
    if not items:
        return [("", whole)]
    pieces, at = [], 0
    for name, text in items:
        start = whole.find(text, at)
        if start < 0:
            return items
        pieces += [("", whole[at:start].strip()), (name, text)]
        at = start + len(text)
    return [*pieces, ("", whole[at:].strip())]


def _joined(pieces: Sequence[tuple[str, str]]) -> tuple[str, tuple[Section, ...]]:
    sections, at = [], 0
    for name, text in pieces:
        if name:
            number = _NUMBER.match(text)
            sections.append(Section((name,), at, at + len(text), status_of(text[number.end() if number else 0 :])))
        at += len(text) + 1
    return "\n".join(text for _, text in pieces), tuple(sections)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        twice, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"JSON that says {twice[:40]!r} twice")
    return values


def _text(name: str, value: object) -> str | None:
    """A value as text without what is no character; None for an empty one. Tables have whole numbers in places."""
    if value is None or value == "" or value != value:
        return None
    if isinstance(value, str):
        return _LONE.sub("\N{REPLACEMENT CHARACTER}", value).strip() or None
    if (isinstance(value, int) and not isinstance(value, bool)) or (isinstance(value, float) and value.is_integer()):
        return str(int(value))
    raise ValueError(f"{name} holds a {type(value).__name__}, expected text")


_DECODER = json.JSONDecoder(object_pairs_hook=_once)
