"""Recordings in the manner of hftbacktest's collector: lines "<ns of receipt> <JSON>" of Binance or Hyperliquid.

The format, its units and what it cannot tell: docs/sources/hftbacktest.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal

import polars as pl

from quantattn.data.sources.crypto.binance_stream import BinanceStream
from quantattn.data.sources.crypto.build import LevelSource, LevelStage, ShownStage, build
from quantattn.data.sources.crypto.feed import Account, BadLine, Reading, files_under
from quantattn.data.sources.crypto.hyperliquid import HyperliquidStream
from quantattn.data.sources.crypto.messages import Line, Recording, Rows, Stream, decode, plausible
from quantattn.data.sources.decimals import NotExact, whole
from quantattn.data.sources.pieces import read_pieces

ENDINGS = (".gz", ".xz", ".zst", ".zip", ".txt", ".json", ".jsonl")


def scan_hftbacktest(
    path: str | Path,
    levels: int = 10,
    *,
    book: Literal["depth", "quotes"] = "depth",
    price_exponent: int = -8,
    size_exponent: int = -8,
    tick: str | None = None,
    on_gap: Literal["forget", "keep"] = "forget",
    on_bad: Literal["refuse", "quarantine"] = "refuse",
    set_aside: str | Path | None = None,
) -> LevelSource:
    """Recorded messages as book events (schema `BookEvents`), trades among them.

    A table of one instrument is made in pieces, others are sorted first: see `build`.

    Args:
        path: one file, plain or compressed, or a folder of them, read in the order of their names.
        levels: of the book to keep; 1 with book="quotes".
        book: for Binance, whose book it is: that of depth messages, rebuilt, or that of bookTicker messages.
        price_exponent: a price p of the table is p · 10^price_exponent; a file with more digits is refused.
        size_exponent: the same for sizes.
        tick: smallest price step as decimal text ("0.01"); None takes the greatest step that divides all prices.
        on_gap: where depth messages are lacking: "forget" shows no book until the next snapshot, "keep" goes on.
        on_bad: "refuse" raises at the first bad line; "quarantine" leaves lines out, counts them under their reason,
            writes them to `set_aside`, and treats each as a gap.
        set_aside: CSV file for what is left out; needed with "quarantine".

    Raises:
        ValueError: one sentence that names the file, the line, what was found and what was expected.
        RuntimeError: numba is not installed (extra `book`).
    """
    if book not in ("depth", "quotes"):
        raise ValueError(f"book must be 'depth' or 'quotes', got {book!r}")
    reading = Reading(1 if book == "quotes" else levels, price_exponent, size_exponent, tick, on_gap, on_bad, set_aside)
    files = files_under(Path(path), "a recording", ENDINGS)
    venue = _venue(files[0])
    whole_books = book == "quotes" or venue is HyperliquidStream

    def parts(account: Account) -> Iterator[pl.DataFrame]:
        choose = partial(_stream_of, venue, account, book == "quotes")
        return Recording(account, _parted, choose).read_all(files)

    return build(parts, ShownStage if whole_books else LevelStage, Account(reading))


def _venue(path: Path) -> type[Stream]:
    """Hyperliquid names the channel of every message; everything else is taken for Binance."""
    for piece in read_pieces(path, 1 << 16):
        for _, text in piece.lines():
            try:
                found = _parted(text)
            except BadLine:
                continue
            return HyperliquidStream if not isinstance(found, str) and "channel" in found[1] else BinanceStream
    return BinanceStream


def _parted(text: bytes) -> Line:
    stamp, _, body = text.partition(b" ")
    try:
        received = whole(stamp.decode("ascii", "replace"))
    except NotExact as error:
        raise BadLine("no receipt", f"{error} at the beginning, in ns since 1970") from error
    return plausible(received, "receipt"), decode(body)


def _stream_of(venue: type[Stream], account: Account, quotes: bool, message: dict[str, Any]) -> Stream:
    if ("channel" in message) != (venue is HyperliquidStream):
        raise BadLine("another venue", "found a message of another venue than the first, expected one venue")
    if venue is HyperliquidStream:
        return HyperliquidStream(account, Rows(account.reading.levels))
    return BinanceStream(account, Rows(1 if quotes else 0), quotes)
