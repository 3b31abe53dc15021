"""Messages of OKX's websocket (version 5): books shipped whole and by the levels that changed, and trades."""

from __future__ import annotations

from typing import Any

from quantattn.data.sources.crypto.chained import Chained
from quantattn.data.sources.crypto.feed import Account, BadLine
from quantattn.data.sources.crypto.messages import (
    MILLI,
    Arrival,
    Rows,
    name_of,
    number,
    objects,
    of_type,
    show,
    snapshot,
    time,
    trade,
)

_CHANGED = ("books", "books-l2-tbt", "books50-l2-tbt")
_WHOLE = ("books5", "bbo-tbt")


class OkxStream(Chained):
    """Channels of books and trades; others are passed over. Newer messages of books are chained by their ids.

    Args:
        quotes: the book is that of tickers, one level a side, and not that of the channels of books.
    """

    def __init__(self, account: Account, rows: Rows, quotes: bool = False) -> None:
        super().__init__(account, rows)
        self._books = ("tickers",) if quotes else (*_CHANGED, *_WHOLE)

    def message(self, arrival: Arrival, message: dict[str, Any]) -> None:
        """What a channel says of one instrument."""
        where = message.get("arg")
        channel = where.get("channel") if isinstance(where, dict) else None
        if not isinstance(where, dict) or "data" not in message or channel not in (*self._books, "trades"):
            told = f"{message.get('event', channel)}"[:60]
            self.passed["tickers (read with book=quotes)" if told == "tickers" else told] += 1
            return
        symbol = name_of(where, "instId")
        for body in objects(message, "data"):
            if channel == "trades":
                side = of_type(body, "side", str)
                if side not in ("buy", "sell"):
                    raise BadLine("unknown side", f"found side {show(side)}, expected buy or sell")
                number_of = of_type(body, "tradeId", str)[:64]
                row = trade(side == "buy", self.price(body.get("px")), self.size(body.get("sz")), number_of)
                self.rows.changes(symbol, arrival, time(body, "ts", MILLI), [row])
            elif channel == "tickers":
                # A side without an order has empty text.
                bid, ask = ([[body.get(f"{side}Px"), body.get(f"{side}Sz")]] for side in ("bid", "ask"))
                sides = [{"side": [] if pair == [["", ""]] else pair} for pair in (bid, ask)]
                made = snapshot(*(self.levels(side, "side") for side in sides))
                self.rows.changes(symbol, arrival, time(body, "ts", MILLI), made)
            else:
                self._book(arrival, symbol, body, channel in _WHOLE or message.get("action") == "snapshot")

    def _book(self, arrival: Arrival, symbol: str, body: dict[str, Any], whole: bool) -> None:
        sides = self.levels(body, "bids"), self.levels(body, "asks")
        numbered = "seqId" in body
        before = number(body, "prevSeqId") if numbered and not whole and "prevSeqId" in body else None
        own = number(body, "seqId") if numbered else None
        self.book(arrival, symbol, time(body, "ts", MILLI), sides, whole=whole, number=own, before=before)
