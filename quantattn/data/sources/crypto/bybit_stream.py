"""Messages of Bybit's websocket (version 5): a book shipped whole and then by the levels that changed, and trades."""

from __future__ import annotations

from typing import Any

from quantattn.data.sources.crypto.chained import Chained
from quantattn.data.sources.crypto.feed import BadLine
from quantattn.data.sources.crypto.messages import MILLI, Arrival, name_of, number, objects, of_type, show, time, trade


class BybitStream(Chained):
    """Topics orderbook.N.SYMBOL, chained by ids, and publicTrade.SYMBOL; others are passed over."""

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

    def _book(self, arrival: Arrival, message: dict[str, Any]) -> None:
        kind, body = of_type(message, "type", str), of_type(message, "data", dict)
        if kind not in ("snapshot", "delta"):
            raise BadLine("unknown type", f"found type {show(kind)}, expected snapshot or delta")
        symbol, update = name_of(body, "s"), number(body, "u")
        sides = self.levels(body, "b"), self.levels(body, "a")
        stamp = time(message, "ts", MILLI)
        # The venue begins its count anew with 1, and ships the book whole then, whatever the type says.
        whole = kind == "snapshot" or update == 1
        self.book(arrival, symbol, stamp, sides, whole=whole, number=update, before=update - 1)

    def _trade(self, arrival: Arrival, row: dict[str, Any]) -> None:
        side = of_type(row, "S", str)
        if side not in ("Buy", "Sell"):
            raise BadLine("unknown side", f"found side {show(side)}, expected Buy or Sell")
        made = trade(side == "Buy", self.price(row.get("p")), self.size(row.get("v")), of_type(row, "i", str)[:64])
        self.rows.changes(name_of(row, "s"), arrival, time(row, "T", MILLI), [made])
