"""Raw captures of websockets in the manner of cryptofeed: lines "<epoch>: <JSON>" of several venues.

The format, its units and what it cannot tell: docs/sources/capture.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

import polars as pl

from quantattn.data.sources.crypto.binance_stream import BinanceStream
from quantattn.data.sources.crypto.bitmex_stream import BitmexStream
from quantattn.data.sources.crypto.bitstamp_stream import BitstampStream
from quantattn.data.sources.crypto.build import LevelSource, LevelStage, build
from quantattn.data.sources.crypto.bybit_stream import BybitStream
from quantattn.data.sources.crypto.coinbase_stream import CoinbaseStream
from quantattn.data.sources.crypto.deribit_stream import DeribitStream
from quantattn.data.sources.crypto.feed import Account, BadLine, Reading, files_under
from quantattn.data.sources.crypto.kraken_stream import KrakenStream
from quantattn.data.sources.crypto.messages import (
    LISTED,
    MILLI,
    Line,
    Recording,
    Rows,
    Stream,
    decode,
    plausible,
    show,
    time,
)
from quantattn.data.sources.crypto.okx_stream import OkxStream
from quantattn.data.sources.decimals import NotExact, scaled

ENDINGS = (".gz", ".xz", ".zst", ".zip", ".0", ".txt")
_CONTROL = re.compile(
    rb"(?:wss?|https?)://([^\s/:?]{1,200})\S{0,10000} (<->|<-|->) \d{1,11}(?:\.\d{1,9})?(?::.*)?", re.DOTALL
)


def scan_capture(
    path: str | Path,
    levels: int = 10,
    *,
    book: Literal["depth", "quotes"] = "depth",
    from_empty: bool = False,
    price_exponent: int = -10,
    size_exponent: int = -8,
    tick: str | None = None,
    on_gap: Literal["forget", "keep"] = "forget",
    on_bad: Literal["refuse", "quarantine"] = "refuse",
    set_aside: str | Path | None = None,
) -> LevelSource:
    """Captured messages as book events (schema `BookEvents`), trades among them, of every instrument in the capture.

    A table of one instrument is made in pieces, others are sorted first: see `build`.

    Args:
        path: one file, plain or compressed, or a folder of them, read in the order of their names.
        levels: of the books to keep.
        book: "depth" rebuilds books from their changes; "quotes" takes the best bid and ask that Kraken's ticker and
            spread and OKX's tickers tell, and passes over their books.
        from_empty: let books begin empty where no snapshot came, as in captures of Bitstamp's changes; what stood
            before the capture is then lacking. False: such an instrument has no book.
        price_exponent: a price p of the table is p · 10^price_exponent; a file with more digits is refused.
        size_exponent: the same for sizes.
        tick: smallest price step as decimal text ("0.5"); None takes the greatest step that divides all prices.
        on_gap: where the connection began anew, or a line was left out: "forget" shows no book until the next
            snapshot, "keep" goes on.
        on_bad: "refuse" raises at the first bad line; "quarantine" leaves lines out, counts them under their reason,
            writes them to `set_aside`, and treats each as a gap.
        set_aside: CSV file for what is left out; needed with "quarantine".

    Raises:
        ValueError: one sentence that names the file, the line, what was found and what was expected.
        RuntimeError: numba is not installed (extra `book`).
    """
    if book not in ("depth", "quotes"):
        raise ValueError(f"book must be 'depth' or 'quotes', got {book!r}")
    account = Account(Reading(levels, price_exponent, size_exponent, tick, on_gap, on_bad, set_aside))
    files = files_under(Path(path), "a capture", ENDINGS)

    def parts(account: Account) -> Iterator[pl.DataFrame]:
        lines = _Lines(book == "quotes")
        return Recording(account, lines.parted, partial(_stream_of, account, lines)).read_all(files)

    return build(parts, partial(LevelStage, from_empty=from_empty), account)


class _Lines:
    """Parts lines, and remembers the host of the last connection: "" before the first.

    Attributes:
        quotes: whether the book is that of quotes.
        lists: whether a message may be a list, as those of Kraken are, which may be the venue as long as none is known.
    """

    def __init__(self, quotes: bool) -> None:
        self.host, self.quotes, self.lists = "", quotes, True

    def parted(self, text: bytes) -> Line:
        """What a line is."""
        if (control := _CONTROL.fullmatch(text)) is not None:
            self.host = control[1].decode("ascii", "replace")
            return "opened" if control[2] == b"<->" else "sent"
        if text.startswith(b'{"topic"'):
            message = decode(text)
            return time(message, "ts", MILLI), message
        stamp, colon, body = text.partition(b": ")
        if not colon:
            raise BadLine(
                "not a line of a capture", f"found {show(text)}, expected '<seconds>: <JSON>' or a control line"
            )
        try:
            received = scaled(stamp.decode("ascii", "replace"), -9)
        except NotExact as error:
            raise BadLine("no receipt", f"{error} at the beginning, in seconds since 1970") from error
        if self.host and not any(name in self.host for name in _VENUES):
            raise _unknown(f"a capture of {self.host[:60]}")
        return plausible(received, "receipt"), decode(body, self.lists)


_NO_EVENT = "channel without event"
"""Stands among the keys of a message that has a channel, and no event as Bitstamp's have."""
_VENUES: Mapping[str, tuple[frozenset[str], Callable[..., Stream]]] = {
    "kraken": (frozenset((LISTED, "connectionID", "time_in", _NO_EVENT)), KrakenStream),
    "bitmex": (frozenset(("table", "info", "success")), BitmexStream),
    "bitstamp": (frozenset(("channel",)), BitstampStream),
    "binance": (frozenset(("stream", "e", "lastUpdateId")), BinanceStream),
    "coinbase": (frozenset(("product_id", "product_ids", "channels")), CoinbaseStream),
    "okx": (frozenset(("arg",)), OkxStream),
    "deribit": (frozenset(("jsonrpc",)), DeribitStream),
    "bybit": (frozenset(("topic", "req_id")), BybitStream),
}
"""Venue, as in the name of its host → keys of which its messages have one, and what reads them."""


def _stream_of(account: Account, lines: _Lines, message: dict[str, Any]) -> Stream:
    """By the host that a control line names; by its keys, where there is none."""
    told = message.keys() | ({_NO_EVENT} if "channel" in message and "event" not in message else set())
    for name, (keys, stream) in _VENUES.items():
        if name in lines.host or (not lines.host and keys & told):
            lines.lists = stream is KrakenStream
            if not lines.quotes:
                return stream(account, Rows())
            if stream not in (KrakenStream, OkxStream):
                raise BadLine("no quotes", f"found a capture of {name}, expected one of kraken or okx for book=quotes")
            return stream(account, Rows(), quotes=True)
    raise _unknown(f"keys {show(sorted(message))}")


def _unknown(found: str) -> BadLine:
    return BadLine("unknown venue", f"found {found}, expected messages of {', '.join(_VENUES)}")
