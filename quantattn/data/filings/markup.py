"""HTML → text and what inline XBRL says of the document. Runs in the child process of `pool`.

What comes out is checked against a second, cruder count of the visible characters, so that no parser empties a
document silently.
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from selectolax.lexbor import LexborHTMLParser, SelectolaxError

from quantattn.data.filings.facts import Facts, read_facts

# fmt: off
BLOCKS = frozenset((
    "address", "article", "aside", "blockquote", "body", "br", "caption", "center", "dd", "details", "dir", "div", "dl",
    "dt", "fieldset", "figcaption", "figure", "footer", "form", "h1", "h2", "h3", "h4", "h5", "h6", "header", "hr",
    "html", "legend", "li", "main", "menu", "nav", "ol", "p", "page", "pre", "section", "summary", "table", "tbody",
    "tfoot", "thead", "ul",
))
# fmt: on
NOT_TEXT = frozenset(("head", "script", "style", "template", "title"))
HIDDEN = frozenset(("ix:header", "ix:hidden", "ix:references", "ix:resources"))
FACTS = frozenset(("dei:DocumentType", "dei:EntityCentralIndexKey", "dei:AmendmentFlag"))
VOID = frozenset(
    ("area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "param", "source", "track", "wbr")
)
LONG_CELL = 200
"""A cell of several lines and more characters than this is layout, not a table cell: its lines stay lines."""

_NOT_SHOWN = (
    ("<!--", "-->"),
    *((f"<{tag}", f"</{tag}>") for tag in ("head", "title", "script", "style", "template")),
)
_DISPLAY_NONE = re.compile(r"display\s*:\s*none", re.IGNORECASE)
_SELF_CLOSED = re.compile(r"<([a-zA-Z][\w:.-]*+)((?:\s(?:[^<>/]++|/(?!>))*+)?+)/>")
_REFERENCE = re.compile(r"&(?:#\d+|#[xX][0-9a-fA-F]+|\w{1,32});?")
_read_reference = lru_cache(4_096)(html.unescape)
_TAG = re.compile(r"<[a-zA-Z/!?][^<>]*>")
_SPACE = re.compile(r"\s+")
_INVISIBLE = re.compile(r"[\x00-\x08\x0e-\x1f\x7f-\x9f\u00ad\u200b-\u200f\u2060\ufeff]")
_UNSEEN = re.compile(rf"(?:\s|{_INVISIBLE.pattern})+")
_UNSEEN_ASCII = bytes(code for code in range(128) if _UNSEEN.match(chr(code)))
_BLANKS = re.compile(r" {2,}")
_TAB = re.compile(r" *\t[ \t]*")
_WIDE_GAP = re.compile(r" {3,}")
_XHTML = re.compile(r"^\s*<\?xml\b|<html\b[^<>]*\bxmlns", re.IGNORECASE)
_OPENS_WITH_SIGN = frozenset(("$", "(", "$(", "€", "£", "US$"))
_CLOSES_WITH_SIGN = frozenset((")", "%", ")%", "%)"))


@dataclass(frozen=True)
class Rendered:
    """Text of a page.

    Attributes:
        text: one line a paragraph or table row, cells separated by a tab, blanks single.
        share: visible characters kept / visible characters in the source without its hidden parts.
        hidden: visible characters in hidden parts (`display:none`, the inline-XBRL header), which are left out.
        cover: facts of the inline-XBRL cover by name: `dei:DocumentType`, `dei:EntityCentralIndexKey`,
            `dei:AmendmentFlag`.
        facts: all of inline XBRL, when they were asked for.
    """

    text: str
    share: float
    hidden: int
    cover: Mapping[str, str]
    facts: Facts | None = None


def render_html(source: str, min_share: float = 0.95, facts: bool = False) -> Rendered:
    """Text of an HTML page.

    Args:
        source: the page.
        min_share: least share of the visible characters that must survive.
        facts: whether to read those of inline XBRL.

    Raises:
        ValueError: no visible text, or too much of it lost.
        MemoryError: the parser got no memory.
    """
    if _XHTML.search(source[:20_000]):
        source = _close_empty_elements(source)
    try:
        root = LexborHTMLParser(source).root
    except SelectolaxError as error:  # Lexbor takes any source, and gives up only when it gets no memory
        raise MemoryError from error
    if root is None:
        raise ValueError("no visible text: the parser found no element")
    text, hidden, cover = _walk(root)
    share = conserved(text, source, min_share, hidden)
    return Rendered(text, share, hidden, cover, read_facts(root) if facts else None)


def conserved(text: str, source: str, min_share: float = 0.95, hidden: int = 0) -> float:
    """The share of the visible characters of `source`, but for `hidden` ones, that are in `text`.

    Counted in a second, cruder way than texts are made; above 1 where that takes a text in angle brackets for a tag.

    Raises:
        ValueError: no visible text, or a share below `min_share`.
    """
    expected, kept = expected_length(source), _visible_length(text)
    if not kept:
        raise ValueError(f"no visible text: {expected} characters in the source, {hidden} of them hidden")
    share = kept / max(1, expected - hidden)
    if share < min_share:
        raise ValueError(f"text lost: {share:.1%} of the visible characters kept, least {min_share:.0%}")
    return share


class Writer:
    """Text in reading order: a stack of buffers, one for the page and one for every open table cell."""

    def __init__(self) -> None:
        self.buffers: list[list[str]] = [[]]
        self.rows: list[list[str]] = []

    def add(self, piece: str) -> None:
        """Append text to the innermost open buffer."""
        self.buffers[-1].append(piece)

    def open(self, tag: str) -> None:
        """An element begins."""
        if tag == "tr":
            self.add("\n")
            self.rows.append([])
        elif tag in ("td", "th"):
            self.buffers.append([])
        elif tag in BLOCKS:
            self.add("\n")

    def close(self, tag: str) -> None:
        """An element ends."""
        if tag in ("td", "th"):
            self._close_cell(self._lines(self.buffers.pop()))
        elif tag == "tr":
            self.add("\t".join(_join_signs(self.rows.pop())) + "\n")
        elif tag in BLOCKS:
            self.add("\n")

    def _close_cell(self, lines: list[str]) -> None:
        if not self.rows:
            self.add("\n".join(lines) + "\n")
        elif len(lines) > 1 and sum(map(len, lines)) > LONG_CELL:
            before = self.rows[-1]
            if before:
                self.add("\t".join(_join_signs(before)) + "\n")
                before.clear()
            self.add("\n".join(lines) + "\n")
        elif lines:
            self.rows[-1].append(" ".join(lines))

    def finish(self) -> str:
        """The page's text, one line a paragraph or table row."""
        return "\n".join(self._lines(self.buffers[0]))

    @staticmethod
    def _lines(pieces: list[str]) -> list[str]:
        text = "".join(pieces)
        if "  " in text:
            text = _BLANKS.sub(" ", text)
        if "\t" in text:
            text = _TAB.sub("\t", text)
        return [line for each in text.split("\n") if (line := each.strip())]


def _join_signs(cells: list[str]) -> list[str]:
    """Cells of a row with a lone currency sign put to the number after it, a lone `)` or `%` to the one before."""
    joined: list[str] = []
    glue = ""
    for cell in cells:
        if cell in _OPENS_WITH_SIGN:
            glue += cell
        elif cell in _CLOSES_WITH_SIGN and joined and not glue:
            joined[-1] += cell
        else:
            joined.append(glue + cell)
            glue = ""
    return joined if not glue else [*joined, glue]


def _is_hidden(node: Any, tag: str) -> bool:
    if tag in HIDDEN:
        return True
    attributes = node.attributes
    if not attributes:
        return False
    return "hidden" in attributes or _DISPLAY_NONE.search(attributes.get("style") or "") is not None


def _note_fact(node: Any, facts: dict[str, str]) -> None:
    name = node.attributes.get("name")
    if name in FACTS and name not in facts:
        facts[name] = node.text().strip()[:100]


def _visible_length(text: str) -> int:
    if text.isascii():
        return len(text.encode().translate(None, _UNSEEN_ASCII))
    return len(_UNSEEN.sub("", text))


def _inline(text: str, preformatted: bool) -> str:
    if not preformatted and text.isprintable():  # then it has no white space but blanks, which `Writer` makes single
        return text
    text = _INVISIBLE.sub("", text)
    return _WIDE_GAP.sub("\t", text.replace("\r", "\n")) if preformatted else _SPACE.sub(" ", text)


def _walk(root: Any) -> tuple[str, int, dict[str, str]]:
    """Text of the tree, number of visible characters in its hidden parts, facts about the document.

    The walk is a loop with its own stack, so depth costs memory and not the interpreter's stack.
    """
    writer = Writer()
    facts: dict[str, str] = {}
    hidden = preformatted = 0
    stack: list[tuple[Any, str]] = []
    node = root
    while node is not None:
        tag = node.tag or "-instruction"
        child = None
        if tag == "-text":
            writer.add(_inline(node.text(deep=False), preformatted > 0))
        elif tag[0] != "-" and tag not in NOT_TEXT:
            if tag[:6] == "ix:non":
                _note_fact(node, facts)
            if _is_hidden(node, tag):
                hidden += _visible_length(node.text())
                for inner in node.traverse():
                    if (inner.tag or "")[:6] == "ix:non":
                        _note_fact(inner, facts)
            else:
                preformatted += tag == "pre"
                writer.open(tag)
                child = node.child
                if child is None:
                    preformatted -= tag == "pre"
                    writer.close(tag)
        if child is not None:
            stack.append((node, tag))
            node = child
            continue
        node = node.next if stack else None
        while node is None and stack:
            parent, tag = stack.pop()
            preformatted -= tag == "pre"
            writer.close(tag)
            node = parent.next if stack else None
    return writer.finish(), hidden, facts


def expected_length(source: str) -> int:
    """Visible characters of HTML by a second, cruder way than the parser: cut what is not shown, cut tags, unescape."""
    lower = _lower(source)
    for opening, closing in _NOT_SHOWN:
        if opening in lower:
            source = _cut(source, lower, opening, closing)
            lower = _lower(source)
    text = _REFERENCE.sub(lambda match: _read_reference(match.group()), _TAG.sub(" ", source))
    return _visible_length(text)


def _lower(source: str) -> str:
    lower = source.lower()
    return lower if len(lower) == len(source) else source  # a few letters change length with case; tags are ASCII


def _cut(source: str, lower: str, opening: str, closing: str) -> str:
    """`source` without every stretch from `opening` to the next `closing`; an opening that is never closed stays."""
    kept: list[str] = []
    at = 0
    while (start := lower.find(opening, at)) >= 0:
        end = lower.find(closing, start)
        if end < 0:
            break
        after = lower[start + len(opening) : start + len(opening) + 1]
        if opening[-1].isalpha() and after.isalpha():  # <header> is no <head>
            kept.append(source[at : start + len(opening)])
            at = start + len(opening)
            continue
        kept.append(source[at:start])
        at = end + len(closing)
    return "".join([*kept, source[at:]])


def _close_empty_elements(source: str) -> str:
    """XHTML's `<div/>` as `<div></div>`: a parser of HTML would take it for an opening tag."""

    def close(match: re.Match[str]) -> str:
        name = match.group(1)
        return match.group() if name.lower() in VOID else f"<{name}{match.group(2)}></{name}>"

    return _SELF_CLOSED.sub(close, source)
