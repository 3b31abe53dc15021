"""Messages of Bitstamp's websocket: changes of the book, books, and trades."""

from __future__ import annotations

from typing import Any

from quantattn.data.sources.crypto.feed import BadLine
from quantattn.data.sources.crypto.messages import (
    MICRO,
    Arrival,
    Stream,
    number,
    of_type,
    show,
    snapshot,
    time,
    trade,
    updates,
)


class BitstampStream(Stream):
    """Channels diff_order_book, order_book and live_trades, each of one pair; others are passed over."""

    def message(self, arrival: Arrival, message: dict[str, Any]) -> None:
        """One event of one channel."""
        event = of_type(message, "event", str)
        if event == "bts:request_reconnect":
            self.lost()
        if event not in ("data", "trade"):
            self.passed[event[:60]] += 1
            return
        channel, _, pair = of_type(message, "channel", str).rpartition("_")
        body = of_type(message, "data", dict)
        if not pair or len(pair) > 20 or not pair.isalnum():
            raise BadLine("not a name", f"found channel {show(message['channel'])}, expected the name of a pair in it")
        if channel == "live_trades" and event == "trade":
            kind = number(body, "type")
            if kind > 1:
                raise BadLine("unknown side", f"found type {kind}, expected 0 (a buyer came) or 1")
            price, size = self.price(body.get("price_str")), self.size(body.get("amount_str"))
            row = trade(kind == 0, price, size, str(number(body, "id")))
            self.rows.changes(pair, arrival, time(body, "microtimestamp", MICRO), [row])
        elif channel in ("diff_order_book", "order_book") and event == "data":
            sides = self.levels(body, "bids"), self.levels(body, "asks")
            made = updates(*sides) if channel == "diff_order_book" else snapshot(*sides)
            self.passed["changes without a level"] += not made
            self.rows.changes(pair, arrival, time(body, "microtimestamp", MICRO), made)
        else:
            self.passed[f"{channel} {event}"[:60]] += 1
