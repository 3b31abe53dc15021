"""HTML → text and what inline XBRL says of the document. Runs in the child process of `pool`.

What comes out is checked against a second, cruder count of the visible characters, so that no parser empties a
document silently.
"""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from selectolax.lexbor import LexborHTMLParser, SelectolaxError

from quantattn.data.filings.facts import Facts, read_facts
from quantattn.data.filings.symbols import shown_in_symbols, without_private

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

_NOT_SHOWN = (
    ("<!--", "-->"),
    *((f"<{tag}", f"</{tag}>") for tag in ("head", "title", "script", "style", "template")),
)
_OPENS_NOT_SHOWN = re.compile(r"<(?:!--|head|title|script|style|template)", re.IGNORECASE)
_MAY_HIDE = '[hidden], [style*="display" i]'
"""Selector of every element that `_is_hidden`, and of some that are not."""
_DISPLAY_NONE = re.compile(r"display\s*:\s*none", re.IGNORECASE)
_OPEN_TAG = re.compile(r"([a-zA-Z][\w:.-]*+)(?:\s[^<>]*+)?+")
_REFERENCE = re.compile(r"&(?:#\d+|#[xX][0-9a-fA-F]+|\w{1,32});?")
_read_reference = lru_cache(4_096)(html.unescape)
_TAG = re.compile(r"<[a-zA-Z/!?][^<>]*>")
_SPACE = re.compile(r"\s+")
_INVISIBLE = re.compile(r"[\x00-\x08\x0e-\x1f\x7f-\x9f\u00ad\u200b-\u200f\u2060\ufeff]")
_UNSEEN = re.compile(rf"\s|{_INVISIBLE.pattern}")
_UNSEEN_ASCII = bytes(code for code in range(128) if _UNSEEN.match(chr(code)))
_UNSEEN_BEYOND = re.compile("|".join(chr(code) for code in range(128, 0xFFFF) if _UNSEEN.match(chr(code))).encode())
_CONTINUATION = bytes(range(0x80, 0xC0))  # bytes of UTF-8 that begin no character
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
            self._close_cell(self._lines(self.buffers.pop()))
        return self.buffers[-1].append

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
            text = _AFTER_TAB.sub("\t", text).replace(" \t", "\t")
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


def _visible_length(text: str) -> int:
    if text.isascii():
        return len(text.encode().translate(None, _UNSEEN_ASCII))
    data = text.encode("utf-8", "surrogatepass").replace(b"\xc2\xa0", b" ").translate(None, _UNSEEN_ASCII)
    if data.isascii():
        return len(data)
    return len(data.translate(None, _CONTINUATION)) - len(_UNSEEN_BEYOND.findall(data))


def _preformatted(text: str) -> str:
    return _WIDE_GAP.sub("\t", _INVISIBLE.sub("", text).replace("\r", "\n"))


def _any_inline(text: str) -> str:
    return _SPACE.sub(" ", _INVISIBLE.sub("", text))


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
    stack: list[tuple[Any, str]] = []
    node = root
    while node is not None:
        tag = node.tag or "-instruction"
        opened = False
        if tag == "-text":
            text = symbols.get(node.mem_id, node.text_content) if symbols else node.text_content
            if preformatted:
                add(_preformatted(text))
            else:  # what is printable has no white space but blanks, which `Writer` makes single
                add(text if text.isprintable() else inline(text))
        elif tag[0] != "-" and tag not in NOT_TEXT:
            if tag[:6] == "ix:non":
                _note_fact(node, facts)
            if tag in HIDDEN or (concealed and node.mem_id in concealed):
                hidden += _visible_length(node.text())
                for inner in node.traverse():
                    if (inner.tag or "")[:6] == "ix:non":
                        _note_fact(inner, facts)
            else:
                opened = True
                stack.append((node, tag))
                if tag in BLOCKS:
                    preformatted += tag == "pre"
                    add("\n")
                elif tag in CELLS:
                    add = writer.open(tag)
        if opened:
            node = node.child
        else:
            node = node.next if stack else None
        while node is None and stack:
            parent, tag = stack.pop()
            if tag in BLOCKS:
                preformatted -= tag == "pre"
                add("\n")
            elif tag in CELLS:
                add = writer.close(tag)
            node = parent.next if stack else None
    return without_private(writer.finish()), hidden, facts


def expected_length(source: str) -> int:
    """Visible characters of HTML by a second, cruder way than the parser: cut what is not shown, cut tags, unescape."""
    opened = _openings(source)
    for opening, closing in _NOT_SHOWN if opened else ():
        if opening in opened:
            kept = _cut(source, opening, closing)
            source = "".join(kept)
            if any("<" in each[-len("<template") :] for each in kept[:-1]):  # what a cut joins may be an opening
                opened = _openings(source)
    text = _TAG.sub(" ", source).replace("&nbsp;", " ")
    length = _visible_length(text)
    for reference, times in Counter(_REFERENCE.findall(text)).items():
        length -= times * (len(reference) - _visible_length(_read_reference(reference)))
    return length


def _openings(source: str) -> frozenset[str]:
    """Which openings of `_NOT_SHOWN` are in `source`."""
    return frozenset(map(str.lower, _OPENS_NOT_SHOWN.findall(source)))


def _lower(source: str) -> str:
    lower = source.lower()
    return lower if len(lower) == len(source) else source  # a few letters change length with case; tags are ASCII


def _cut(source: str, opening: str, closing: str) -> list[str]:
    """What is left when every stretch from `opening` to the next `closing` goes; one that is never closed stays."""
    lower = _lower(source)
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
    return [*kept, source[at:]]


def _close_empty_elements(source: str) -> str:
    """XHTML's `<div/>` as `<div></div>`: a parser of HTML would take it for an opening tag."""
    *pieces, last = source.split("/>")
    closed = []
    for piece in pieces:
        opening = piece.rfind("<") + 1
        tag = _OPEN_TAG.fullmatch(piece, opening) if opening else None
        name = tag.group(1) if tag else ""
        closed.append(piece + ("/>" if name.lower() in VOID or not name else f"></{name}>"))
    return "".join([*closed, last])
