"""Messages of Kraken's websocket, versions 1 and 2, of its spot market: books with their checksums, trades, quotes."""

from __future__ import annotations

from typing import Any

from quantattn.data.sources.crypto.feed import Account, BadLine
from quantattn.data.sources.crypto.kraken_book import KrakenBook, Told
from quantattn.data.sources.crypto.messages import (
    LISTED,
    Arrival,
    Change,
    Level,
    Rows,
    Stream,
    exact,
    instant,
    name_of,
    objects,
    of_type,
    plausible,
    show,
    snapshot,
    trade,
    updates,
)

_DEPTHS = (10, 25, 100, 500, 1000)
_SHIPPED, _CHANGED = ("bs", "as"), ("b", "a")


class KrakenStream(Stream):
    """Channels of books and trades; others are passed over.

    A message whose checksum is not that of the book is a gap: what came before it is lacking or wrong.

    Args:
        quotes: the book is that of the channels ticker and spread, one level a side, and not that of books.
    """

    def __init__(self, account: Account, rows: Rows, quotes: bool = False) -> None:
        super().__init__(account, rows)
        self.quotes = quotes
        self.books: dict[str, KrakenBook] = {}
        self.depths: dict[str, int] = {}

    def lost(self) -> None:
        """No book is known."""
        super().lost()
        self.books.clear()

    def message(self, arrival: Arrival, message: dict[str, Any]) -> None:
        """A list of version 1, or an object of version 2 or about the connection."""
        if LISTED in message:
            self._listed(arrival, message[LISTED])
            return
        if "feed" in message:
            raise BadLine("unknown venue", "found a feed of Kraken's futures, expected its spot market")
        channel, result = message.get("channel"), message.get("result")
        if channel == "book" and not self.quotes:
            for body in objects(message, "data"):
                self._of_version_2(arrival, body, of_type(message, "type", str))
        elif channel == "trade" and message.get("type") != "snapshot":
            for symbol, when, row in [self._trade(body) for body in objects(message, "data")]:
                self.rows.changes(symbol, arrival, when, [row])
        elif channel == "ticker" and self.quotes:
            for body in objects(message, "data"):
                pairs = [[body.get(side), body.get(f"{side}_qty")] for side in ("bid", "ask")]
                stamp = instant(body, "timestamp") if "timestamp" in body else None
                self._quote(arrival, name_of(body, "symbol"), stamp, *pairs)
        else:
            if isinstance(result, dict) and result.get("channel") == "book" and type(result.get("depth")) is str:
                self.depths[name_of(result, "symbol")] = int(exact(result["depth"], "depth", 0))
            kind = channel if isinstance(channel, str) else message.get("event", message.get("method"))
            self.passed[_named(kind) if isinstance(kind, str) and kind.isprintable() else "without a kind"] += 1

    def _listed(self, arrival: Arrival, parts: list[Any]) -> None:
        """Version 1: the channel's number, one or two contents, its name, the pair."""
        if len(parts) not in (4, 5) or not isinstance(parts[-2], str) or not parts[-2].isprintable():
            raise BadLine("not a message", f"found {show(parts)}, expected number, content, channel and pair in a list")
        channel, _, depth = parts[-2].partition("-")
        symbol, contents = name_of({"pair": parts[-1]}, "pair"), parts[1:-2]
        if channel == "book" and not self.quotes:
            sides = objects({"book": contents}, "book")
            self._of_version_1(arrival, symbol, {k: v for each in sides for k, v in each.items()}, depth)
        elif channel == "trade":
            for stamp, row in [self._traded(row) for row in of_type({"trades": contents[0]}, "trades", list)]:
                self.rows.changes(symbol, arrival, stamp, [row])
        elif channel in ("spread", "ticker") and self.quotes:
            self._quote(arrival, symbol, *_quoted(channel, contents[0]))
        else:
            self.passed[_named(channel)] += 1

    def _traded(self, row: Any) -> tuple[int, Change]:
        """Stamp and row of a trade of version 1, which has no number."""
        if not isinstance(row, list) or len(row) < 4:
            raise BadLine("not a row", f"found {show(row)}, expected price, volume, time and side of a trade")
        made = trade(_bought(row[3], "b", "s"), self.price(row[0]), self.size(row[1]), None)
        return _seconds(row[2]), made

    def _trade(self, body: dict[str, Any]) -> tuple[str, int, Change]:
        """Symbol, stamp and row of a trade of version 2."""
        bought, number = _bought(body.get("side"), "buy", "sell"), of_type(body, "trade_id", str)[:64]
        made = trade(bought, self.price(body.get("price")), self.size(body.get("qty")), number)
        return name_of(body, "symbol"), instant(body, "timestamp"), made

    def _of_version_1(self, arrival: Arrival, symbol: str, body: dict[str, Any], depth: str) -> None:
        whole = any(name in body for name in _SHIPPED)
        names = _SHIPPED if whole else _CHANGED
        told = [self._told(body.get(name, []), name, 3) for name in names]
        stamp = max((_seconds(pair[2]) for name in names for pair in body.get(name, [])), default=None)
        levels = exact(depth, "depth", 0) if depth else _DEPTHS[0]
        self._book(arrival, symbol, stamp, told, whole=whole, depth=levels, checksum=body.get("c"))

    def _of_version_2(self, arrival: Arrival, body: dict[str, Any], kind: str) -> None:
        symbol, whole = name_of(body, "symbol"), kind == "snapshot"
        told = [
            self._told([[each.get("price"), each.get("qty")] for each in objects(body, name)], name)
            for name in ("bids", "asks")
        ]
        stamp = instant(body, "timestamp") if "timestamp" in body else None
        most = max(map(len, told))
        depth = self.depths.get(symbol, next((each for each in _DEPTHS if each >= most), most))
        self._book(arrival, symbol, stamp, told, whole=whole, depth=depth, checksum=body.get("checksum"))

    def _book(
        self,
        arrival: Arrival,
        symbol: str,
        stamp: int | None,
        told: list[list[Told]],
        *,
        whole: bool,
        depth: int,
        checksum: object,
    ) -> None:
        expected = None if checksum is None else int(exact(checksum, "checksum", 0))
        book = KrakenBook(depth) if whole else self.books.get(symbol)
        fell: tuple[list[Level], list[Level]] = ([], [])
        if book is not None:
            fell = book.change(*told)
        holds = book is None or expected is None or expected == book.checksum()
        if whole and not holds:
            raise BadLine("wrong checksum", f"found a book whose checksum is not {expected}, expected one that holds")
        if whole and book is not None:
            self.books[symbol] = book
        elif not holds and self.account.reading.on_gap == "forget":
            del self.books[symbol]
        sides = [[(price, size) for price, size, *_ in side] for side in told]
        made = snapshot(*sides) if whole else updates(*(own + gone for own, gone in zip(sides, fell, strict=True)))
        self.passed["changes without a level"] += not made
        self.rows.changes(symbol, arrival, stamp, made, broken=not holds)

    def _quote(self, arrival: Arrival, symbol: str, stamp: int | None, bid: list[Any], ask: list[Any]) -> None:
        sides = [[(price, size) for price, size, *_ in self._told([pair], "quotes")] for pair in (bid, ask)]
        self.rows.changes(symbol, arrival, stamp, snapshot(*sides))

    def _told(self, pairs: Any, name: str, least: int = 2) -> list[Told]:
        """Levels in whole units and as text, in the order in which they were set; each of at least so many parts."""
        found = []
        for pair in of_type({name: pairs}, name, list):
            if not isinstance(pair, list) or len(pair) < least:
                what = "a price and a size" if least == 2 else "a price, a size and a time"
                raise BadLine("not a level", f"found {show(pair)} among {name}, expected {what}")
            found.append((self.price(pair[0]), self.size(pair[1]), pair[0], pair[1]))
        return found


def _named(channel: str) -> str:
    """The name of a channel that makes no row."""
    return f"{channel} (read with book=quotes)" if channel in ("spread", "ticker") else channel[:60]


def _bought(side: object, buy: str, sell: str) -> bool:
    if side not in (buy, sell):
        raise BadLine("unknown side", f"found side {show(side)}, expected {buy} or {sell}")
    return side == buy


def _quoted(channel: str, content: Any) -> tuple[int | None, list[Any], list[Any]]:
    """Stamp, bid and ask, price and size each, of a quote of version 1."""
    if channel == "spread":
        if not isinstance(content, list) or len(content) < 5:
            raise BadLine("not a quote", f"found {show(content)}, expected bid, ask, time and the sizes of both")
        return _seconds(content[2]), [content[0], content[3]], [content[1], content[4]]
    sides = [of_type(of_type({"ticker": content}, "ticker", dict), name, list) for name in ("b", "a")]
    if any(len(side) < 3 for side in sides):
        raise BadLine("not a quote", f"found {show(sides)}, expected price, whole lots and lots of bid and ask")
    return None, [sides[0][0], sides[0][2]], [sides[1][0], sides[1][2]]


def _seconds(text: object) -> int:
    """A stamp in seconds since 1970, in ns UTC."""
    return plausible(exact(text, "time", -9), "time")
