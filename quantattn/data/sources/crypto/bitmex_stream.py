"""Messages of BitMEX's websocket: levels keyed by ids, shipped whole once and then by their changes, and trades."""

from __future__ import annotations

from typing import Any

from quantattn.data.schema import UPDATE
from quantattn.data.sources.crypto.feed import Account, BadLine
from quantattn.data.sources.crypto.messages import (
    Arrival,
    Change,
    Level,
    Rows,
    Stream,
    instant,
    name_of,
    number,
    objects,
    of_type,
    show,
    snapshot,
    trade,
)

_SIDES = {"Buy": 1, "Sell": -1}
_BOOKS = ("orderBookL2", "orderBookL2_25")


class BitmexStream(Stream):
    """Tables orderBookL2 (or orderBookL2_25) and trade; others are passed over.

    A change names its level by an id alone, whose price the message that brought the level has given.
    """

    def __init__(self, account: Account, rows: Rows) -> None:
        super().__init__(account, rows)
        self.standing: dict[str, dict[int, tuple[int, int]]] = {}
        """Symbol → id of a level → its side and price."""

    def message(self, arrival: Arrival, message: dict[str, Any]) -> None:
        """One table's rows, of one symbol or of several."""
        table = message.get("table")
        if table in _BOOKS:
            self._book(arrival, message)
        elif table == "trade" and message.get("action") == "insert":
            found = [self._trade(row) for row in objects(message, "data")]
            for symbol, stamp, row in found:
                self.rows.changes(symbol, arrival, stamp, [row])
        else:
            what = f"{table} {message.get('action')}" if isinstance(table, str) else "without a table"
            self.passed[what[:60]] += 1

    def lost(self) -> None:
        """Every book waits for its next partial."""
        super().lost()
        self.standing.clear()

    def _book(self, arrival: Arrival, message: dict[str, Any]) -> None:
        action = of_type(message, "action", str)
        if action == "partial":
            self._partial(arrival, message)
            return
        if action not in ("insert", "update", "delete"):
            raise BadLine("unknown action", f"found action {show(action)}, expected partial, insert, update or delete")
        by_symbol: dict[str, list[dict[str, Any]]] = {}
        for row in objects(message, "data"):
            by_symbol.setdefault(name_of(row, "symbol"), []).append(row)
        made = []
        for symbol, rows in by_symbol.items():
            if symbol not in self.standing:
                self.passed["orderBookL2 before its partial"] += 1
                continue
            known = dict(self.standing[symbol])
            changes = [change for row in rows for change in self._changes(row, action, known)]
            made.append((symbol, known, changes, _stamp(rows[0])))
        for symbol, known, changes, stamp in made:
            self.standing[symbol] = known
            self.rows.changes(symbol, arrival, stamp, changes)

    def _partial(self, arrival: Arrival, message: dict[str, Any]) -> None:
        data = objects(message, "data")
        symbols = {name_of(row, "symbol") for row in data}
        if not symbols:
            symbols = {name_of(of_type(message, "filter", dict), "symbol")}
        if len(symbols) != 1:
            raise BadLine("not a partial", f"found a partial of {len(symbols)} symbols, expected one")
        sides: dict[int, list[Level]] = {1: [], -1: []}
        known: dict[int, tuple[int, int]] = {}
        for row in data:
            side, price = self._side(row), self.price(row.get("price"))
            known[number(row, "id")] = (side, price)
            sides[side].append((price, self.size(row.get("size"))))
        symbol = symbols.pop()
        self.standing[symbol] = known
        stamp = _stamp(data[0]) if data else None
        self.rows.changes(symbol, arrival, stamp, snapshot(sides[1], sides[-1]))

    def _changes(self, row: dict[str, Any], action: str, known: dict[int, tuple[int, int]]) -> list[Change]:
        """What a row does; `known` is changed in place."""
        level, side = number(row, "id"), self._side(row)
        if action == "insert":
            price = self.price(row.get("price"))
            known[level] = (side, price)
            return [(UPDATE, side, price, self.size(row.get("size")), None)]
        if level not in known:
            raise BadLine("unknown level", f"found {action} of level {level}, expected one that was brought before")
        old, price = known[level]
        if action == "delete":
            del known[level]
            return [(UPDATE, old, price, 0, None)]
        known[level] = (side, price)
        moved: list[Change] = [(UPDATE, old, price, 0, None)] if side != old else []
        return [*moved, (UPDATE, side, price, self.size(row.get("size")), None)]

    def _side(self, row: dict[str, Any]) -> int:
        side = _SIDES.get(of_type(row, "side", str))
        if side is None:
            raise BadLine("unknown side", f"found side {show(row['side'])}, expected Buy or Sell")
        return side

    def _trade(self, row: dict[str, Any]) -> tuple[str, int | None, Change]:
        came = self._side(row) > 0
        number_of = of_type(row, "trdMatchID", str)[:64]
        made = trade(came, self.price(row.get("price")), self.size(row.get("size")), number_of)
        return name_of(row, "symbol"), _stamp(row), made


def _stamp(row: dict[str, Any]) -> int | None:
    """None where the row has none."""
    return instant(row, "timestamp") if "timestamp" in row else None
