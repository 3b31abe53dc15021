"""HTML → text and what inline XBRL says of the document. Runs in the child process of `pool`.

What comes out is checked against a second, cruder count of the visible characters (`visible`), so that no parser
empties a document silently.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from selectolax.lexbor import LexborHTMLParser, SelectolaxError

from quantattn.data.filings.facts import Facts, read_facts
from quantattn.data.filings.symbols import shown_in_symbols, without_private
from quantattn.data.filings.visible import INVISIBLE, conserved, visible_length

# fmt: off
BLOCKS = frozenset((
    "address", "article", "aside", "blockquote", "body", "br", "caption", "center", "dd", "details", "dir", "div", "dl",
    "dt", "fieldset", "figcaption", "figure", "footer", "form", "h1", "h2", "h3", "h4", "h5", "h6", "header", "hr",
    "html", "legend", "li", "main", "menu", "nav", "ol", "p", "page", "pre", "section", "summary", "table", "tbody",
    "tfoot", "thead", "ul",
))
# fmt: on
CELLS = frozenset(("tr", "td", "th"))
NOT_TEXT = frozenset(("head", "script", "style", "template", "title"))
HIDDEN = frozenset(("ix:header", "ix:hidden", "ix:references", "ix:resources"))
FACTS = frozenset(("dei:DocumentType", "dei:EntityCentralIndexKey", "dei:AmendmentFlag", "dei:DocumentPeriodEndDate"))
VOID = frozenset(
    ("area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "param", "source", "track", "wbr")
)
LONG_CELL = 200
"""A cell of several lines and more characters than this is layout, not a table cell: its lines stay lines."""

_TEXT, _SKIPPED, _HIDDEN, _BLOCK, _PRE, _FACT, _INLINE = "text", "skipped", "hidden", "block", "pre", "fact", "inline"
"""What `_walk` does with a node; a row or a cell is its own kind."""
_MAY_HIDE = '[hidden], [style*="display" i]'
"""Selector of every element that `_is_hidden`, and of some that are not."""
_DISPLAY_NONE = re.compile(r"display\s*:\s*none", re.IGNORECASE)
_NAME = re.compile(r"[a-zA-Z][\w:.-]*+(?=\s|\Z)")
_SPACE = re.compile(r"\s+")
_ODD_SPACES = "\x1c\x1d\x1e\x1f\x85"  # white space to Python, invisible to us
_BLANKS = re.compile(r"  +")  # patterns that begin with plain characters: the engine jumps to them
_AFTER_TAB = re.compile(r"\t[ \t]+")
_WIDE_GAP = re.compile(r" {3,}")
_XML = re.compile(r"\s*<\?xml\b", re.IGNORECASE)
_XHTML = re.compile(r"<html\b[^<>]*\bxmlns", re.IGNORECASE)
_HEAD_CHARS = 20_000
_OPENS_WITH_SIGN = frozenset(("$", "(", "$(", "€", "£", "US$"))
_CLOSES_WITH_SIGN = frozenset((")", "%", ")%", "%)"))


@dataclass(frozen=True)
class Rendered:
    """Text of a page.

    Attributes:
        text: one line a paragraph or table row, cells separated by a tab, blanks single.
        share: visible characters kept / visible characters in the source without its hidden parts.
        hidden: visible characters in hidden parts (`display:none`, the inline-XBRL header), which are left out.
        cover: those of `FACTS` that the inline-XBRL cover states, by name.
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
    if _XML.match(source, 0, _HEAD_CHARS) or _XHTML.search(source, 0, _HEAD_CHARS):
        source = _close_empty_elements(source)
    try:
        root = LexborHTMLParser(source).root
    except SelectolaxError as error:  # Lexbor takes any source, and gives up only when it gets no memory
        raise MemoryError from error
    if root is None:
        raise ValueError("no visible text: the parser found no element")
    text, hidden, cover = _walk(root, shown_in_symbols(root, source))
    share = conserved(text, source, min_share, hidden)
    return Rendered(text, share, hidden, cover, read_facts(root) if facts else None)


class Writer:
    """Text in reading order: a stack of buffers, one for the page and one for every open table cell."""

    def __init__(self) -> None:
        self.buffers: list[list[str]] = [[]]
        self.rows: list[list[str]] = []

    def add(self, piece: str) -> None:
        """Append text to the innermost open buffer."""
        self.buffers[-1].append(piece)

    def open(self, tag: str) -> Callable[[str], None]:
        """A row or cell begins; how to append to what is the innermost buffer then."""
        if tag == "tr":
            self.add("\n")
            self.rows.append([])
        else:
            self.buffers.append([])
        return self.buffers[-1].append

    def close(self, tag: str) -> Callable[[str], None]:
        """A row or cell ends; how to append to what is the innermost buffer then."""
        if tag == "tr":
            self.add("\t".join(_join_signs(self.rows.pop())) + "\n")
        else:
            self._close_cell("".join(self.buffers.pop()).strip())
        return self.buffers[-1].append

    def _close_cell(self, text: str) -> None:
        if self.rows and "\n" not in text:
            if text:  # most are empty
                self.rows[-1].append(_one_line(text))
            return
        lines = _lines(text)
        if not self.rows:
            self.add("\n".join(lines) + "\n")
        elif sum(map(len, lines)) > LONG_CELL:
            before = self.rows[-1]
            if before:
                self.add("\t".join(_join_signs(before)) + "\n")
                before.clear()
            self.add("\n".join(lines) + "\n")
        else:
            self.rows[-1].append(" ".join(lines))

    def finish(self) -> str:
        """The page's text, one line a paragraph or table row."""
        return "\n".join(_lines("".join(self.buffers[0])))


def _one_line(text: str) -> str:
    """A text with single blanks, and none beside a tab."""
    if "  " in text:
        text = _BLANKS.sub(" ", text)
    return _AFTER_TAB.sub("\t", text).replace(" \t", "\t") if "\t" in text else text


def _lines(text: str) -> list[str]:
    return [line for each in _one_line(text).split("\n") if (line := each.strip())]


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


def _hidden(root: Any) -> frozenset[int]:
    """The elements that attributes hide, by `mem_id`; one question to the parser is faster than one an element."""
    found = []
    for node in (root, *root.css(_MAY_HIDE)):
        attributes = node.attributes
        if "hidden" in attributes or _DISPLAY_NONE.search(attributes.get("style") or "") is not None:
            found.append(node.mem_id)
    return frozenset(found)


def _note_fact(node: Any, facts: dict[str, str]) -> None:
    name = node.attributes.get("name")
    if name in FACTS and name not in facts:
        facts[name] = node.text().strip()[:100]


def _preformatted(text: str) -> str:
    return _WIDE_GAP.sub("\t", INVISIBLE.sub("", text).replace("\r", "\n"))


def _any_inline(text: str) -> str:
    return _SPACE.sub(" ", INVISIBLE.sub("", text))


def _inline(text: str) -> str:
    """`_any_inline` of a text with none of `_ODD_SPACES`, white space that words would be told apart by."""
    if text.isspace():  # most that come here stand between two tags
        return " "
    words = " ".join(text.split())
    if not words.isprintable():
        return _any_inline(text)
    return (" " if text[:1].isspace() else "") + words + (" " if text[-1:].isspace() else "")


def _walk(root: Any, symbols: Mapping[int, str]) -> tuple[str, int, dict[str, str]]:
    """Text of the tree, `symbols` in place of theirs, number of visible characters in hidden parts, facts of the cover.

    The walk is a loop with its own stack, so depth costs memory and not the interpreter's stack.
    """
    writer = Writer()
    add = writer.buffers[-1].append
    facts: dict[str, str] = {}
    concealed = _hidden(root)
    whole = root.text()
    inline: Callable[[str], str] = _any_inline if any(map(whole.__contains__, _ODD_SPACES)) else _inline
    hidden = preformatted = 0
    kinds: dict[int, str] = {}  # a number is one name in this tree; it takes less time to read
    stack: list[tuple[Any, str]] = []
    node = root
    while node is not None:
        try:
            kind = kinds[node.tag_id]
        except KeyError:
            kind = kinds[node.tag_id] = _kind(node.tag or "")
        if kind is _TEXT:
            text = symbols.get(node.mem_id, node.text_content) if symbols else node.text_content
            if preformatted:
                add(_preformatted(text))
            else:  # what is printable has no white space but blanks, which `Writer` makes single
                add(text if text.isprintable() else inline(text))
            node = node.next
        elif kind is _SKIPPED:
            node = node.next
        else:
            if kind is _FACT:
                _note_fact(node, facts)
            if kind is _HIDDEN or (concealed and node.mem_id in concealed):
                hidden += visible_length(node.text())
                for inner in node.traverse():
                    if (inner.tag or "")[:6] == "ix:non":
                        _note_fact(inner, facts)
                node = node.next if stack else None
            else:
                stack.append((node, kind))
                if kind is _BLOCK or kind is _PRE:
                    preformatted += kind is _PRE
                    add("\n")
                elif kind in CELLS:
                    add = writer.open(kind)
                node = node.child
        while node is None and stack:
            parent, kind = stack.pop()
            if kind is _BLOCK or kind is _PRE:
                preformatted -= kind is _PRE
                add("\n")
            elif kind in CELLS:
                add = writer.close(kind)
            node = parent.next if stack else None
    return without_private(writer.finish()), hidden, facts


def _kind(tag: str) -> str:
    """What the walk does with elements of a name, or with nodes of another kind, whose names begin with a dash."""
    if tag in CELLS:
        return tag
    if tag in BLOCKS:
        return _PRE if tag == "pre" else _BLOCK
    if tag[:1] in ("", "-") or tag in NOT_TEXT:
        return _TEXT if tag == "-text" else _SKIPPED
    if tag in HIDDEN:
        return _HIDDEN
    return _FACT if tag[:6] == "ix:non" else _INLINE


def _close_empty_elements(source: str) -> str:
    """XHTML's `<div/>` as `<div></div>`: a parser of HTML would take it for an opening tag."""
    *pieces, last = source.split("/>")
    closed: list[str] = []
    for piece in pieces:
        opening = piece.rfind("<") + 1
        name = _NAME.match(piece, opening) if opening and piece.find(">", opening) < 0 else None
        closed += (piece, _ending(name[0]) if name is not None else "/>")
    return "".join([*closed, last])


@lru_cache(256)
def _ending(name: str) -> str:
    return "/>" if name.lower() in VOID else f"></{name}>"
