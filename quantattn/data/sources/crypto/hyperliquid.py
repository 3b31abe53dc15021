"""Messages of Hyperliquid's websocket: books shipped whole, and trades."""

from __future__ import annotations

from typing import Any

from quantattn.data.sources.crypto.feed import BadLine
from quantattn.data.sources.crypto.messages import (
    MILLI,
    Arrival,
    Level,
    Stream,
    name_of,
    number,
    of_type,
    show,
    time,
    trade,
)

_SIDES = {"B": True, "A": False}


class HyperliquidStream(Stream):
    """Channels l2Book and trades; others are passed over."""

    def message(self, arrival: Arrival, message: dict[str, Any]) -> None:
        """A book, or trades of any number of coins."""
        channel = of_type(message, "channel", str)
        if channel == "l2Book":
            body = of_type(message, "data", dict)
            sides = of_type(body, "levels", list)
            if len(sides) != 2:
                raise BadLine("not a book", f"found {len(sides)} sides, expected bids and asks")
            bids, asks = (self._levels(side) for side in sides)
            self.rows.shown(name_of(body, "coin"), arrival, time(body, "time", MILLI), bids, asks)
        elif channel == "trades":
            found = [self._trade(each) for each in of_type(message, "data", list)]
            for coin, stamp, row in found:
                self.rows.changes(coin, arrival, stamp, [row])
        else:
            self.passed[channel[:40]] += 1

    def _levels(self, side: object) -> list[Level]:
        if not isinstance(side, list) or not all(isinstance(level, dict) for level in side):
            raise BadLine("not a level", f"found {show(side)}, expected a list of levels")
        return [(self.price(level.get("px")), self.size(level.get("sz"))) for level in side]

    def _trade(self, each: object) -> tuple[str, int, tuple[int, int, int | None, int, str | None]]:
        if not isinstance(each, dict):
            raise BadLine("not a trade", f"found {show(each)}, expected a trade")
        side = _SIDES.get(of_type(each, "side", str))
        if side is None:
            raise BadLine("unknown side", f"found side {show(each['side'])}, expected B or A")
        row = trade(side, self.price(each.get("px")), self.size(each.get("sz")), str(number(each, "tid")))
        return name_of(each, "coin"), time(each, "time", MILLI), row
