"""Messages of Binance's websocket: changes of depth chained by their ids, snapshots, best quotes, trades."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from quantattn.data.sources.crypto.feed import Account, BadLine
from quantattn.data.sources.crypto.messages import (
    MILLI,
    Arrival,
    Change,
    Level,
    Rows,
    Stream,
    name_of,
    number,
    of_type,
    snapshot,
    time,
    trade,
    updates,
)

_WAITING = 10_000
"""Messages that are kept for a snapshot that is late; at ten a second a quarter of an hour."""


@dataclass(frozen=True)
class Depth:
    """A message of depth: ids of its first and last update, and in futures of the last one before it; its levels."""

    first: int
    last: int
    previous: int | None
    bids: list[Level]
    asks: list[Level]


@dataclass
class Chain:
    """The order of depth messages of one symbol, by the ids of their first and last update.

    Attributes:
        last: id of the last update that was seen; −1 before the first.
        opened: whether the book stands, from a snapshot on.
        fresh: whether nothing followed the snapshot yet.
        waiting: the last messages without a book, for a snapshot that is late.
    """

    last: int = -1
    opened: bool = False
    fresh: bool = False
    waiting: deque[Depth] = field(default_factory=lambda: deque(maxlen=_WAITING))

    def follows(self, first: int, previous: int | None) -> bool:
        """Whether a message is the next one. Futures say which id was the last before; spot ids are consecutive."""
        if self.last < 0 or previous == self.last:
            return True
        if self.fresh:
            return first <= self.last + 1
        return previous is None and first == self.last + 1


class BinanceStream(Stream):
    """Spot and futures streams, combined ({"stream": …, "data": …}) or plain.

    Args:
        quotes: the book is that of bookTicker messages, one level a side, and not that of depth messages.
    """

    def __init__(self, account: Account, rows: Rows, quotes: bool = False) -> None:
        super().__init__(account, rows)
        self.quotes = quotes
        self.chains: dict[str, Chain] = {}
        self.here: set[str] = set()
        self.early: list[tuple[Arrival, dict[str, Any]]] = []

    def begin(self) -> None:
        """A snapshot without a symbol belongs to the symbol of its own file."""
        self.here.clear()
        self.early.clear()

    def message(self, arrival: Arrival, message: dict[str, Any]) -> None:
        """One message of a combined or of a plain stream."""
        stream = of_type(message, "stream", str) if "stream" in message else ""
        body = of_type(message, "data", dict) if "data" in message else message
        event = body.get("e")
        if event == "depthUpdate":
            self._depth(arrival, body)
        elif event in ("trade", "aggTrade"):
            self._trade(arrival, body, event)
        elif "lastUpdateId" in body:
            self._snapshot(arrival, body, stream.partition("@")[0].upper())
        elif event == "bookTicker" or (event is None and {"u", "s", "b", "B", "a", "A"} <= body.keys()):
            self._quote(arrival, body)
        else:
            self.passed[f"{event}" if isinstance(event, str) and event.isprintable() else "without a kind"] += 1

    def lost(self) -> None:
        """Every chain breaks."""
        super().lost()
        self.chains = {symbol: Chain() for symbol in self.chains}

    def _trade(self, arrival: Arrival, body: dict[str, Any], event: str) -> None:
        symbol, maker = name_of(body, "s"), of_type(body, "m", bool)
        row = trade(not maker, self.price(body.get("p")), self.size(body.get("q")), str(number(body, event[0])))
        self.rows.changes(symbol, arrival, time(body, "T", MILLI), [row])

    def _quote(self, arrival: Arrival, body: dict[str, Any]) -> None:
        symbol = name_of(body, "s")
        if not self.quotes:
            self.passed["bookTicker"] += 1
            return
        bid, ask = ((self.price(body.get(p)), self.size(body.get(q))) for p, q in (("b", "B"), ("a", "A")))
        stamp = time(body, "E", MILLI) if "E" in body else None
        self.rows.shown(symbol, arrival, stamp, [bid], [ask])

    def _depth(self, arrival: Arrival, body: dict[str, Any]) -> None:
        symbol = name_of(body, "s")
        if self.quotes:
            self.passed["depthUpdate"] += 1
            return
        first, last = number(body, "U"), number(body, "u")
        previous = number(body, "pu") if "pu" in body else None
        if first > last:
            raise BadLine("impossible ids", f"found first update {first} after last {last}, expected first <= last")
        stamp = time(body, "E", MILLI)
        bids, asks = self.levels(body, "b"), self.levels(body, "a")
        chain = self.chains.setdefault(symbol, Chain())
        self.here.add(symbol)
        while self.early:
            earlier, whole = self.early.pop(0)
            self._open(earlier, whole, symbol)
        if chain.opened and last <= chain.last:
            self.passed["depthUpdate that the snapshot covers"] += 1
            return
        gap = not chain.follows(first, previous)
        if gap:
            chain.opened = False
            chain.waiting.clear()
        chain.last, chain.fresh = last, False
        if not chain.opened:
            chain.waiting.append(Depth(first, last, previous, bids, asks))
        self.passed["depthUpdate without a level"] += not bids and not asks
        self.rows.changes(symbol, arrival, stamp, updates(bids, asks), broken=gap)

    def _snapshot(self, arrival: Arrival, body: dict[str, Any], symbol: str) -> None:
        if self.quotes:
            self.passed["snapshot"] += 1
            return
        if not symbol and len(self.here) > 1:
            raise BadLine(
                "no symbol", f"found a snapshot without a symbol among depth of {len(self.here)}, expected one symbol"
            )
        symbol = symbol or next(iter(self.here), "")
        number(body, "lastUpdateId"), self.levels(body, "bids"), self.levels(body, "asks")
        if symbol:
            self._open(arrival, body, symbol)
        else:
            self.early.append((arrival, body))

    def _open(self, arrival: Arrival, body: dict[str, Any], symbol: str) -> None:
        """Begin a book, with the changes that came before the snapshot and are newer than it."""
        chain = self.chains.setdefault(symbol, Chain())
        until = number(body, "lastUpdateId")
        stamp = time(body, "E", MILLI) if "E" in body else None
        bids, asks = self.levels(body, "bids"), self.levels(body, "asks")
        if chain.opened and until < chain.last:
            self.passed["snapshot older than the book"] += 1
            return
        newer = [each for each in chain.waiting if each.last > until]
        changes: list[Change] = snapshot(bids, asks)
        if newer and (newer[0].first <= until + 1 or newer[0].previous == until):
            for each in newer:
                changes += updates(each.bids, each.asks)
            until = newer[-1].last
        chain.last, chain.opened, chain.fresh = until, True, True
        chain.waiting.clear()
        self.rows.changes(symbol, arrival, stamp, changes)
