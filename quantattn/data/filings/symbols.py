"""Characters in symbol fonts: "þ" in Wingdings is a ticked box. The one that is shown, for those that filings use.

A page that names such a font for a stretch of text shows other characters than it has. Codes of the private use area,
which word processors write for the same fonts, are read too. A code that is not listed here stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

_WINGDINGS = {
    **dict.fromkeys("opq\xa8", "\N{BALLOT BOX}"),
    **dict.fromkeys("x\xfd", "\N{BALLOT BOX WITH X}"),
    **{"\xfe": "\N{BALLOT BOX WITH CHECK}", "\xfc": "\N{CHECK MARK}", "\xfb": "\N{BALLOT X}"},
    **{"l": "\N{BLACK CIRCLE}", "n": "\N{BLACK SQUARE}", "u": "\N{BLACK DIAMOND}", "\xa7": "\N{BLACK SMALL SQUARE}"},
    **{"\xa1": "\N{WHITE CIRCLE}", "\xb7": "\N{BULLET}", "\xd8": "\N{THREE-D TOP-LIGHTED RIGHTWARDS ARROWHEAD}"},
    **{"\xe0": "\N{RIGHTWARDS ARROW}", "\xdf": "\N{LEFTWARDS ARROW}", "\x9f": "\N{BULLET}", "\u0178": "\N{BULLET}"},
}
_WINGDINGS_2 = {
    **{"P": "\N{CHECK MARK}", "O": "\N{BALLOT X}", "R": "\N{BALLOT BOX WITH CHECK}", "\xa3": "\N{BALLOT BOX}"},
    **dict.fromkeys("QST", "\N{BALLOT BOX WITH X}"),
}
_GREEK = dict(zip("abgdezhqiklmnxoprstufcyw", "αβγδεζηθικλμνξοπρστυφχψω", strict=True))
_SYMBOL = {
    **_GREEK,
    **{latin.upper(): greek.upper() for latin, greek in _GREEK.items()},
    **{"\xb7": "\N{BULLET}", "\xae": "\N{RIGHTWARDS ARROW}", "\xb3": "≥", "\xa3": "≤", "\xb9": "≠", "\xbb": "≈"},
    **{"\xa5": "∞", "\xd6": "√", "\xd2": "®", "\xe2": "®", "\xd3": "©", "\xe3": "©", "\xd4": "™", "\xe4": "™"},
    **{"\xb4": "×", "\xa2": "′", "\xb2": "″", "\xe5": "∑"},
}
_FONTS = {
    name: str.maketrans(table)
    for name, table in (("wingdings", _WINGDINGS), ("wingdings 2", _WINGDINGS_2), ("symbol", _SYMBOL))
}
_PRIVATE = {0xF000 + ord(code): shown for code, shown in _WINGDINGS.items() if ord(code) < 0x100}
_IS_PRIVATE = re.compile(r"[\uf020-\uf0ff]")
_NAMES = ("ingdings", "INGDINGS", "ymbol", "YMBOL")
_MAY_HAVE = ", ".join(f'[{where}*="{name}" i]' for where in ("face", "style") for name in ("wingdings", "symbol"))
_FAMILY = re.compile(
    r"""font(?:-family\s*:|\s*:[^;,"']*\d[a-z%]*(?:/\S{1,20})?\s)\s*["']?"""
    r"""((?:wingdings|symbol)(?: \d)?)["']?\s*(?:[;,]|$)""",
    re.IGNORECASE,
)
_ANY_FAMILY = re.compile(r"font(?:-family)?\s*:", re.IGNORECASE)


def shown_in_symbols(root: Any, source: str) -> dict[int, str]:
    """`mem_id` of each piece of text in a symbol font → what is shown; most pages have none, which costs no search."""
    if not any(name in source for name in _NAMES):
        return {}
    found: dict[int, str] = {}
    for element in root.css(_MAY_HAVE):
        table = _table(element)
        if table is not None:
            found |= {node.mem_id: node.text_content.translate(table) for node in _texts(element)}
    return found


def without_private(text: str) -> str:
    """`text` with codes of the private use area as what is shown."""
    return text.translate(_PRIVATE) if not text.isascii() and _IS_PRIVATE.search(text) else text


def _texts(element: Any) -> Iterator[Any]:
    """Texts in an element, but for those in elements in it that name a font of their own."""
    ancestors: list[Any] = []
    node = element.child
    while node is not None:
        if node.tag == "-text":
            yield node
        if node.child is not None and not _names_font(node):
            ancestors.append(node)
            node = node.child
            continue
        node = node.next
        while node is None and ancestors:
            node = ancestors.pop().next


def _names_font(element: Any) -> bool:
    attributes = element.attributes
    return "face" in attributes or _ANY_FAMILY.search(attributes.get("style") or "") is not None


def _table(element: Any) -> Mapping[int, str] | None:
    """Of the font that an element names first; None where that is none of ours."""
    attributes = element.attributes
    match = _FAMILY.search(attributes.get("style") or "")
    name = match[1] if match else (attributes.get("face") or "").split(",")[0].strip(" \"'")
    return _FONTS.get(name.lower())
