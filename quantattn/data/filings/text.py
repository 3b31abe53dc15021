"""Bytes → text, and the plain path for documents without markup (filings of the 1990s).

The plain path changes white space and removes SGML tags and character references; every other visible character
stays, in order.
"""

from __future__ import annotations

import html
import os
import re
import sys
import zlib
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

_GZIP = b"\x1f\x8b"
_WITH_GZIP_HEADER = 31
_PIECE = 2**20  # a read of more would ask for all of its memory at once
_PACKED = 2**14  # what is packed in so much is at most a thousand times as long
_BOMS = ((b"\xef\xbb\xbf", "utf-8"), (b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be"))
_HTML_ROOT = re.compile(r"<(?:html|body|!doctype\s+html)\b", re.IGNORECASE)
_PRE = re.compile(r"<pre\b", re.IGNORECASE)
_TYPED_LINES = 50
_HTML_TAG = re.compile(r"<(?:p|div|br|td|tr|font|span)\b[^<>]{0,1000}>", re.IGNORECASE)
_WRAPPER = re.compile(r"</?(?:XBRL|XML|PDF|TEXT)>")
_OPENS_UUENCODED = re.compile(r"\s*(?:<PDF>\s*)?begin [0-7]{3,4} \S")
_UUENCODED = re.compile(
    r"^begin [0-7]{3,4} \S[^\n]*\n(?:[!-`][ -`]{0,80}\n)*(?:[ `]?\n)?(?:end[ \t]*(?:\n|\Z))?", re.MULTILINE
)
_SGML_TAG = re.compile(
    r"<PAGE>[ \t]*+\d{0,4}(?=[ \t]*$)"
    r"|</?(?:PAGE|TABLE|CAPTION|S|C|FN|F\d{1,3}|R|FL|TEXT|DOCUMENT|PRE|TYPE|MULTIPLIER|LEGEND|ARTICLE|HEADER|HTML|BODY|DIV)>",
    re.IGNORECASE | re.MULTILINE,
)
_REFERENCE = re.compile(r"&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[a-zA-Z][a-zA-Z0-9]{1,31});")
_SPACE = re.compile(r"[^\S\n\t]")
_EMPTY_LINES = re.compile(r"\n\n\n+")
_INVISIBLE = re.compile(r"[\x00-\x08\x0e-\x1f\x7f-\x9f\u00ad\u200b-\u200f\u2060\ufeff]")
_INVISIBLE_ASCII = bytes((*range(9), *range(14, 32), 127))
_AFTER_TAB = re.compile(r"\t[ \t]+")
_WIDE_GAP = re.compile(r"   +")


class TooLarge(ValueError):
    """A file that holds more than may be read."""


def read_bytes(path: Path, max_bytes: int) -> bytes:
    """The file's content, unpacked when it is gzip (by content, not by name).

    Raises:
        TooLarge: more than `max_bytes` after unpacking.
        ValueError: a damaged gzip stream.
    """
    with path.open("rb") as file:
        packed = file.read(2) == _GZIP
        file.seek(0)
        at_once = _PACKED if packed else max(_PIECE, min(max_bytes, os.fstat(file.fileno()).st_size) + 1)
        read = iter(partial(file.read, at_once), b"")
        pieces, size = [], 0
        try:
            for piece in _unpacked(read) if packed else read:
                pieces.append(piece)
                size += len(piece)
                if size > max_bytes:
                    raise TooLarge(f"larger than {max_bytes:,} bytes")
        except (EOFError, zlib.error) as error:
            raise ValueError(f"damaged gzip: {error}") from None
    return b"".join(pieces)


def _unpacked(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Content of the members of a gzip file, which zeros may follow; a check of each is in its end."""
    member = zlib.decompressobj(wbits=_WITH_GZIP_HEADER)
    for packed in pieces:
        while packed := packed.lstrip(b"\0") if member.eof else packed:
            if member.eof:
                member = zlib.decompressobj(wbits=_WITH_GZIP_HEADER)
            yield member.decompress(packed)
            packed = member.unused_data
    if not member.eof:
        raise EOFError("the file ends before its content does")


def decode(content: bytes) -> str:
    """Text of `content` with Unix line ends: by byte-order mark, else UTF-8, else Windows-1252, else Latin-1."""
    for mark, encoding in _BOMS:
        if content.startswith(mark):
            text = content[len(mark) :].decode(encoding, errors="replace")
            break
    else:
        text = _decode_unmarked(content)
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def _decode_unmarked(content: bytes) -> str:
    for encoding in ("utf-8", "cp1252"):
        try:
            return content.decode(encoding)
        except UnicodeDecodeError:
            continue
    return content.decode("latin-1")


def is_html(body: str) -> bool:
    """Whether `body` is markup for a browser; the `<PAGE>`, `<TABLE>`, `<S>`, `<C>` of old filings are not.

    Nor is a typed text of many lines that somebody has put into `<html><body>` and nothing else.
    """
    if sum(1 for _ in zip(range(3), _HTML_TAG.finditer(body), strict=False)) == 3:
        return True
    return _HTML_ROOT.search(body) is not None and (_PRE.search(body) is not None or body.count("\n") < _TYPED_LINES)


def unwrap(body: str) -> str:
    """`body` without the `<XBRL>`, `<XML>`, `<PDF>` lines that EDGAR puts around it."""
    head, tail = body[:64], body[-64:]
    if len(body) <= 128:
        return _WRAPPER.sub("", body).strip()
    return (_WRAPPER.sub("", head) + body[64:-64] + _WRAPPER.sub("", tail)).strip()


def is_uuencoded(text: str, start: int = 0, end: int = sys.maxsize) -> bool:
    """Whether `text`, from `start` to `end`, is a uuencoded file."""
    return _OPENS_UUENCODED.match(text, start, end) is not None


def drop_uuencoded(body: str) -> tuple[str, int]:
    """`body` without the uuencoded files in its midst, and how many there were."""
    return _UUENCODED.subn("\n", body) if body.startswith("begin ") or "\nbegin " in body else (body, 0)


def plain_text(body: str) -> str:
    """Text of a document without markup.

    Known SGML tags go, character references are read, a run of three or more blanks inside a line becomes one tab
    (the cell separator that tables from HTML have too), shorter runs one blank, and empty lines one at most.
    """
    text = _SGML_TAG.sub(" ", body) if "<" in body else body
    text = _REFERENCE.sub(lambda match: html.unescape(match.group()), text)
    return tidy(text)


def tidy(text: str) -> str:
    """Normal form of white space: blanks single, cells by one tab, lines stripped, at most one empty line in a row."""
    if text.isascii():
        text = "\n".join(text.splitlines()).encode().translate(None, _INVISIBLE_ASCII).decode()
    else:
        text = _SPACE.sub(" ", _INVISIBLE.sub("", "\n".join(text.splitlines())))
    text = "\n".join(map(str.strip, text.split("\n")))
    had_tabs = "\t" in text
    # Every line is stripped, so a gap lies within it; a pattern that begins with three blanks takes no long time.
    text = _WIDE_GAP.sub("\t", text)
    if had_tabs:  # else nothing stands beside the tabs that the gaps became; two blanks at most stand before a tab
        text = _AFTER_TAB.sub("\t", text).replace("  \t", "\t").replace(" \t", "\t")
    return _EMPTY_LINES.sub("\n\n", text.replace("  ", " ")).strip()
