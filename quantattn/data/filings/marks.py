"""Marks that stand among the tokens of a filing: where an item, a part or a table begins, and where a table ends.

A mark is a code of its own and no text: a model sees that risk factors begin, whatever their heading looks like, and a
text decodes to itself as if no mark were there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import polars as pl

from quantattn.data.filings.item_names import known_names
from quantattn.data.filings.item_table import cut_all
from quantattn.data.filings.items import Items
from quantattn.data.filings.tables import find_tables

Mark = tuple[int, str]
"""Where a mark stands in a text, and its name."""
OUTSIDE, TABLE, TABLE_END = "outside", "table", "end of table"
PARTS = ("part I", "part II", "part III", "part IV")
MARKS = (OUTSIDE, TABLE, TABLE_END, *PARTS, *(f"item {name}" for name in sorted(known_names())))
"""All names; "outside" begins what belongs to no item: the cover, the contents, the signatures."""
_PART = re.compile(r"^[^\w\n]*part[ \t]+(i{1,3}|iv)\b[^\w\n]*$", re.IGNORECASE | re.MULTILINE)
_ORDER = {TABLE_END: 0, OUTSIDE: 1, **dict.fromkeys(PARTS, 2), TABLE: 4}


def item_places(items: Items, names: Sequence[str] | None = None) -> list[Mark]:
    """Where items begin in a text, a mark for each name of a joint heading.

    Args:
        items: of a filing.
        names: None: places in the whole text, and what belongs to no item too. Else in `items.select(names)`.
    """
    found: list[Mark] = []
    at = 0
    if names is None:
        for called, piece in items.pieces():
            if shown := piece.lstrip():
                start = at + len(piece) - len(shown)
                found += [(start, f"item {name}") for name in called] or [(start, OUTSIDE)]
            at += len(piece)
        return found
    for section in items.sections:
        if set(section.names).intersection(names):
            found += [(at, f"item {name}") for name in section.names]
            at += len(items[section.names[0]]) + 1
    return found


def places_of(text: str, items: Sequence[Mark] = ()) -> list[Mark]:
    """All marks of a text, sorted by place; those of its items as given, those of parts and tables found in it."""
    found = [*items, *((match.start(), f"part {match[1].upper()}") for match in _PART.finditer(text))]
    for start, end in find_tables(text, (at for at, _ in items)):
        found += [(start, TABLE), (end, TABLE_END)]
    return sorted(found, key=lambda place: (place[0], _ORDER.get(place[1], 3)))


def place_column(filings: pl.DataFrame, names: Sequence[str] | None = None) -> Iterator[list[Mark]]:
    """`item_places` of every filing of a table as `cut_all` takes it, in order."""
    return (item_places(items, names if items.sections else None) for items in cut_all(filings))
