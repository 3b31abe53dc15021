"""How files of exchanges and of vendors of their data are told: LOBSTER, ITCH, DBN, TAQ."""

from __future__ import annotations

import re
from pathlib import Path

from quantattn.data.recognise.formats import Claim
from quantattn.data.recognise.look import Look
from quantattn.data.sources.dbn_format import SCHEMAS, DamagedDbn, open_dbn
from quantattn.data.sources.itch_format import MESSAGES
from quantattn.data.sources.taq_rows import taq_places

_MESSAGE = re.compile(r"\d{1,5}(\.\d{1,12})?,[1-7],\d+,\d+,-?\d+,-?[01]")
_BOOK = re.compile(r"-?\d{1,10},\d+,-?\d{1,10},\d+(,-?\d{1,10},\d+,-?\d{1,10},\d+)*")
_NAMED = re.compile(r"(?P<message>messages?)|order[ _-]?books?", re.IGNORECASE)
_ITCH_LENGTHS = {ord(code): layout.itemsize for code, layout in MESSAGES.items()}
_ENOUGH = 8
"""Messages in a row that make a stream ITCH."""


def lobster(look: Look) -> Claim | None:
    """Rows of six fields of a message, or of a book's levels; their role must stand in the name too."""
    if look.text is None or look.separator != "," or not look.lines:
        return None
    rows = look.lines[1:20] if len(look.lines) > 1 and not look.lines[0][:1].isdigit() else look.lines[:20]
    named = _NAMED.search(look.path.name)
    if look.mostly(_MESSAGE, rows):
        return Claim("its rows are seconds, a type from 1 to 7, order id, size, price and direction")
    if named is not None and look.mostly(_BOOK, rows):
        levels = rows[0].count(",") // 4 + 1
        return Claim(f"its rows are {levels} times ask price, ask size, bid price, bid size, as its name says")
    return None


def itch(look: Look) -> Claim | None:
    """Messages whose types are known, each with the length of its type before it, or with lengths of 0."""
    at, count, zeros, head = 0, 0, 0, look.head
    while at + 3 <= len(head) and count < 64:
        length, size = int.from_bytes(head[at : at + 2]), _ITCH_LENGTHS.get(head[at + 2])
        if size is None or length not in (size, 0):
            break
        zeros += length == 0
        at, count = at + 2 + size, count + 1
    if count < _ENOUGH and not (look.whole and count and at == len(head)):
        return None
    framing = "whose lengths are all 0" if zeros == count else "each of the length that stands before it"
    return Claim(f"it begins with {count} ITCH 5.0 messages of known types, {framing}")


def databento(look: Look) -> Claim | None:
    """The magic bytes of DBN or of the container before it; of a zstd stream its first frame."""
    if look.head.startswith(b"DBN") and 1 <= (look.head + b"\0\0\0\0")[3] <= 8:
        return _of_schema(look.path, f"it begins with the bytes of DBN, version {look.head[3]}")
    if look.head[8:11] == b"DBZ":
        return Claim(
            "it begins with the bytes of DBZ",
            unread="it is DBZ, the container before DBN, which the vendor's tool converts: "
            f"dbn {look.path.name} --output {look.path.stem}.dbn.zst",
        )
    if look.packing != "zstd" or look.head:
        return None
    try:
        return _of_schema(look.path, "it is zstd, and unpacks to the bytes of DBN")
    except RuntimeError as error:
        # Only the decoder could tell, so the name has to.
        return Claim("it is zstd, and its name says DBN", unread=str(error)) if ".dbn" in look.path.name else None


def _of_schema(path: Path, why: str) -> Claim | None:
    try:
        header = open_dbn(path).header
    except DamagedDbn as error:
        if "begin with DBN metadata" in str(error):
            return None
        if "several schemas" in str(error):
            return Claim(f"{why}; it holds records of several schemas")
        return Claim(why, unread=str(error).removeprefix(f"{path.name} ").removeprefix(f"{path.name}: "))
    assert header.schema in SCHEMAS
    return Claim(f"{why}; it holds {header.schema} of {header.dataset}")


def taq(look: Look) -> Claim | None:
    """A header with a time, a symbol, and either price and size, or bid, ask and their sizes."""
    told = None if look.text is None else taq_places(look.header, look.path.name)
    return told and Claim(f"its header names the columns of TAQ {told[0]}: {shown(look)}")


def shown(look: Look) -> str:
    """The header, cut short."""
    line = look.separator.join(look.header)
    return line if len(line) <= 80 else f"{line[:80]}…"
