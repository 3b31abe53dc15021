"""Messages of Coinbase's websocket: a book shipped whole once and then by the levels that changed, and trades."""

from __future__ import annotations

from typing import Any

from quantattn.data.schema import UPDATE
from quantattn.data.sources.crypto.feed import BadLine
from quantattn.data.sources.crypto.messages import (
    Arrival,
    Change,
    Stream,
    instant,
    name_of,
    number,
    of_type,
    show,
    snapshot,
    trade,
)

_SIDES = {"buy": 1, "sell": -1}


class CoinbaseStream(Stream):
    """Messages snapshot, l2update and match; others are passed over, last_match too, which repeats an old trade."""

    def message(self, arrival: Arrival, message: dict[str, Any]) -> None:
        """One message of one product."""
        kind = message.get("type")
        if kind == "snapshot":
            made = snapshot(self.levels(message, "bids"), self.levels(message, "asks"))
            self.rows.changes(name_of(message, "product_id"), arrival, None, made)
        elif kind == "l2update":
            changes = [self._change(each) for each in of_type(message, "changes", list)]
            self.rows.changes(name_of(message, "product_id"), arrival, instant(message, "time"), changes)
        elif kind == "match":
            # The side is that of the maker, whose order rested.
            rested = self._side(message.get("side"))
            price, size = self.price(message.get("price")), self.size(message.get("size"))
            row = trade(rested < 0, price, size, str(number(message, "trade_id")))
            self.rows.changes(name_of(message, "product_id"), arrival, instant(message, "time"), [row])
        else:
            self.passed[str(kind)[:60]] += 1

    def _change(self, change: object) -> Change:
        if not isinstance(change, list) or len(change) != 3:
            raise BadLine("not a level", f"found {show(change)} among changes, expected a side, a price and a size")
        return (UPDATE, self._side(change[0]), self.price(change[1]), self.size(change[2]), None)

    def _side(self, side: object) -> int:
        if not isinstance(side, str) or side not in _SIDES:
            raise BadLine("unknown side", f"found side {show(side)}, expected buy or sell")
        return _SIDES[side]
