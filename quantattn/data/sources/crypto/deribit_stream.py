"""Messages of Deribit's websocket: a book shipped whole once and then by its changes, chained by ids, and trades."""

from __future__ import annotations

from typing import Any

from quantattn.data.sources.crypto.chained import Chained
from quantattn.data.sources.crypto.feed import BadLine
from quantattn.data.sources.crypto.messages import (
    MILLI,
    Arrival,
    Level,
    name_of,
    number,
    objects,
    of_type,
    show,
    time,
    trade,
)

_ACTIONS = ("new", "change", "delete")


class DeribitStream(Chained):
    """Channels book.NAME.INTERVAL and trades.NAME.INTERVAL; others are passed over."""

    def message(self, arrival: Arrival, message: dict[str, Any]) -> None:
        """One notification of a subscription."""
        body = message.get("params")
        channel = body.get("channel") if isinstance(body, dict) else None
        kind = channel.partition(".")[0] if isinstance(channel, str) else "answers"
        if isinstance(body, dict) and kind == "trades":
            for row in objects(body, "data"):
                self._trade(arrival, row)
        elif isinstance(body, dict) and kind == "book" and "change_id" in of_type(body, "data", dict):
            self._book(arrival, body["data"])
        else:
            self.passed[kind[:60]] += 1

    def _book(self, arrival: Arrival, body: dict[str, Any]) -> None:
        symbol, changed = name_of(body, "instrument_name"), number(body, "change_id")
        whole = "prev_change_id" not in body
        before = None if whole else number(body, "prev_change_id")
        sides = self._levels(body, "bids"), self._levels(body, "asks")
        stamp = time(body, "timestamp", MILLI)
        self.book(arrival, symbol, stamp, sides, whole=whole, number=changed, before=before)

    def _levels(self, body: dict[str, Any], name: str) -> list[Level]:
        found = []
        for change in of_type(body, name, list):
            if not isinstance(change, list) or len(change) != 3 or change[0] not in _ACTIONS:
                raise BadLine("not a level", f"found {show(change)} among {name}, expected an action, price and amount")
            found.append((self.price(change[1]), 0 if change[0] == "delete" else self.size(change[2])))
        return found

    def _trade(self, arrival: Arrival, row: dict[str, Any]) -> None:
        came = of_type(row, "direction", str)
        if came not in ("buy", "sell"):
            raise BadLine("unknown side", f"found direction {show(came)}, expected buy or sell")
        number_of = of_type(row, "trade_id", str)[:64]
        made = trade(came == "buy", self.price(row.get("price")), self.size(row.get("amount")), number_of)
        self.rows.changes(name_of(row, "instrument_name"), arrival, time(row, "timestamp", MILLI), [made])
