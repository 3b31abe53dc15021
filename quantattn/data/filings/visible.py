"""How many characters of a page can be seen: counted in its source, by other and cruder means than its text is made."""

from __future__ import annotations

import html
import re
from collections import Counter
from functools import lru_cache

_NOT_SHOWN = (
    (b"<!--", b"-->"),
    *((f"<{tag}".encode(), f"</{tag}>".encode()) for tag in ("head", "title", "script", "style", "template")),
)
_OPENS_NOT_SHOWN = re.compile(rb"<(?:!--|head|title|script|style|template)")
_REFERENCE = re.compile(rb"&(?:#\d+|#[xX][0-9a-fA-F]+|\w{1,32});?")
_LETTER = re.compile(rb"[a-z\x80-\xff]")
_TAG = re.compile(rb"<[a-zA-Z/!?][^<>]*>")
# The engine passes what is not one character several times as fast as what is none of two.
_TO_CLOSING = re.compile(rb"<[a-zA-Z/!?][^>]*>")
_NOTHING_TO_SEE = r"\x00-\x08\x0e-\x1f\x7f-\x9f\u00ad\u200b-\u200f\u2060\ufeff"
INVISIBLE, _UNSEEN = re.compile(f"[{_NOTHING_TO_SEE}]"), re.compile(rf"[\s{_NOTHING_TO_SEE}]")
_UNSEEN_ASCII = bytes(code for code in range(128) if _UNSEEN.match(chr(code)))
_UNSEEN_BEYOND = re.compile("|".join(_UNSEEN.findall("".join(map(chr, range(128, 0xFFFF))))).encode())
_CONTINUATION = bytes(range(0x80, 0xC0))  # bytes of UTF-8 that begin no character


def conserved(text: str, source: str, min_share: float = 0.95, hidden: int = 0) -> float:
    """The share of the visible characters of `source`, but for `hidden` ones, that are in `text`.

    Counted in a second, cruder way than texts are made; above 1 where that takes a text in angle brackets for a tag.

    Raises:
        ValueError: no visible text, or a share below `min_share`.
    """
    expected, kept = expected_length(source), visible_length(text)
    if not kept:
        raise ValueError(f"no visible text: {expected} characters in the source, {hidden} of them hidden")
    share = kept / max(1, expected - hidden)
    if share < min_share:
        raise ValueError(f"text lost: {share:.1%} of the visible characters kept, least {min_share:.0%}")
    return share


def visible_length(text: str) -> int:
    """Characters of a text but for white space and what has no width."""
    return _visible_bytes(text.encode("utf-8", "surrogatepass"))


def _visible_bytes(data: bytes) -> int:
    """Visible characters of a text in UTF-8."""
    data = data.replace(b"\xc2\xa0", b" ").translate(None, _UNSEEN_ASCII)
    if data.isascii():
        return len(data)
    return len(data.translate(None, _CONTINUATION)) - len(_UNSEEN_BEYOND.findall(data))


def expected_length(source: str) -> int:
    """Visible characters of HTML by a second, cruder way than the parser: cut what is not shown, cut tags, unescape."""
    data = _shown(source.encode("utf-8", "surrogatepass"))
    text, tags = _TO_CLOSING.subn(b" ", data)
    if data.count(b"<") > tags + text.count(b"<"):  # an opening within a tag, which then is none
        text = _TAG.sub(b" ", data)
    text = text.replace(b"&nbsp;", b" ")
    length = _visible_bytes(text)
    for reference, times in Counter(_REFERENCE.findall(text)).items():
        length -= times * (len(reference) - _length_of_reference(reference))
    return length


@lru_cache(4_096)
def _length_of_reference(reference: bytes) -> int:
    return visible_length(html.unescape(reference.decode()))


def _shown(data: bytes) -> bytes:
    """HTML without what is never shown, kind after kind."""
    lower = data.lower()
    opened = Counter(_OPENS_NOT_SHOWN.findall(lower))
    for opening, closing in _NOT_SHOWN if opened else ():
        kept = _outside(lower, opening, closing, opened[opening])
        if len(kept) > 1:
            data = b"".join([data[part] for part in kept])
            pieces = [lower[part] for part in kept]
            lower = b"".join(pieces)
            if any(b"<" in each[-len(b"<template") :] for each in pieces[:-1]):  # what a cut joins may be an opening
                opened = Counter(_OPENS_NOT_SHOWN.findall(lower))
    return data


def _outside(lower: bytes, opening: bytes, closing: bytes, times: int) -> list[slice]:
    """What is left when every stretch from `opening` to the next `closing` goes; one that is never closed stays.

    `times`: how often the opening is there at most.
    """
    kept: list[slice] = []
    at = 0
    for _ in range(times):
        start = lower.find(opening, at)
        end = lower.find(closing, start) if start >= 0 else -1
        if end < 0:
            break
        after = start + len(opening)
        if opening[-1:].isalpha() and _LETTER.match(lower, after):  # <header> is no <head>
            kept.append(slice(at, after))
            at = after
            continue
        kept.append(slice(at, start))
        at = end + len(closing)
    return [*kept, slice(at, None)]
