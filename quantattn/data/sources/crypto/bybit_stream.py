"""Messages of Bybit's websocket (version 5): a book shipped whole and then by the levels that changed, and trades."""

from __future__ import annotations

from typing import Any

from quantattn.data.sources.crypto.feed import Account, BadLine
from quantattn.data.sources.crypto.messages import (
    MILLI,
    Arrival,
    Rows,
    Stream,
    name_of,
    number,
    objects,
    of_type,
    show,
    snapshot,
    time,
    trade,
    updates,
)


class BybitStream(Stream):
    """Topics orderbook.N.SYMBOL, chained by ids, and publicTrade.SYMBOL; others are passed over."""

    def __init__(self, account: Account, rows: Rows) -> None:
        super().__init__(account, rows)
        self.last: dict[str, int] = {}
        """Symbol → id of its last update."""

    def message(self, arrival: Arrival, message: dict[str, Any]) -> None:
        """One message of one topic."""
        topic = message.get("topic")
        kind = topic.partition(".")[0] if isinstance(topic, str) else "answers"
        if kind == "orderbook":
            self._book(arrival, message)
        elif kind == "publicTrade":
            for row in objects(message, "data"):
                self._trade(arrival, row)
        else:
            self.passed[kind[:60]] += 1

    def lost(self) -> None:
        """Every chain breaks."""
        super().lost()
        self.last.clear()

    def _book(self, arrival: Arrival, message: dict[str, Any]) -> None:
        kind, body = of_type(message, "type", str), of_type(message, "data", dict)
        if kind not in ("snapshot", "delta"):
            raise BadLine("unknown type", f"found type {show(kind)}, expected snapshot or delta")
        symbol, update = name_of(body, "s"), number(body, "u")
        sides = self.levels(body, "b"), self.levels(body, "a")
        stamp = time(message, "ts", MILLI)
        # The venue begins its count anew with 1, and ships the book whole then, whatever the type says.
        whole = kind == "snapshot" or update == 1
        gap = not whole and self.last.get(symbol, update - 1) != update - 1
        self.last[symbol] = update
        made = snapshot(*sides) if whole else updates(*sides)
        self.passed["changes without a level"] += not made
        self.rows.changes(symbol, arrival, stamp, made, broken=gap)

    def _trade(self, arrival: Arrival, row: dict[str, Any]) -> None:
        side = of_type(row, "S", str)
        if side not in ("Buy", "Sell"):
            raise BadLine("unknown side", f"found side {show(side)}, expected Buy or Sell")
        made = trade(side == "Buy", self.price(row.get("p")), self.size(row.get("v")), of_type(row, "i", str)[:64])
        self.rows.changes(name_of(row, "s"), arrival, time(row, "T", MILLI), [made])
