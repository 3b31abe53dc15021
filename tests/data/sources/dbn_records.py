"""DBN files made by the vendor's own encoder, and a literal reader of what their orders do."""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import databento_dbn as dbn
import pytest

from quantattn.data.sources import scan_dbn

START = 1_704_067_200 * 10**9  # 2024-01-01
SYMBOLS = {7: "ESH4", 9: "NQH4"}
UNDEFINED = 2**63 - 1
LEVELS = 2
Order = tuple[str, str, int, int, int, int]  # action, side, price, size, order id, flags
Row = tuple[int | None, ...]


def header(schema: str | None = "mbo", version: int = 3, symbols: dict[int, str] | None = None, **more: Any) -> bytes:
    def interval(number: int, first: int = 1, end: int = 4) -> SimpleNamespace:
        days = {"start_date": dt.date(2024, 1, first), "end_date": dt.date(2024, 1, end)}
        return SimpleNamespace(**days, symbol=str(number))

    names = SYMBOLS if symbols is None else symbols
    mappings = [SimpleNamespace(raw_symbol=name, intervals=[interval(n)]) for n, name in names.items()]
    return dbn.Metadata(
        dataset="GLBX.MDP3",
        start=START,
        stype_in=dbn.SType.RAW_SYMBOL,
        stype_out=dbn.SType.INSTRUMENT_ID,
        schema=None if schema is None else dbn.Schema.from_str(schema),
        symbols=sorted(names.values()),
        mappings=more.pop("mappings", mappings),
        version=version,
        **more,
    ).encode()


def mbo(n: int, order: Order, instrument: int = 7, publisher: int = 1, **more: int) -> bytes:
    action, side, price, size, number, flags = order
    event = more.pop("ts_event", START + 1000 * n)
    return bytes(
        dbn.MBOMsg(
            publisher,
            instrument,
            event,
            number,
            price,
            size,
            dbn.Action(action),
            dbn.Side(side),
            more.pop("ts_recv", event + 300),
            flags,
            sequence=n,
            **more,
        )
    )


def mbp(n: int, order: Order, book: Sequence[tuple[int, int, int, int]]) -> bytes:
    """A record of mbp-1 or mbp-10, by the number of levels: (bid, ask, bid size, ask size) each."""
    action, side, price, size, _, flags = order
    message = dbn.MBP1Msg if len(book) == 1 else dbn.MBP10Msg
    event = START + 1000 * n
    levels = [dbn.BidAskPair(*level) for level in book]
    fields = (1, 7, event, price, size, dbn.Action(action), dbn.Side(side), 0, event + 300, flags)
    return bytes(message(*fields, levels=levels[0] if len(levels) == 1 else levels))


def trade(n: int, side: str, price: int, size: int) -> bytes:
    event = START + 1000 * n
    return bytes(dbn.TradeMsg(1, 7, event, price, size, dbn.Action("T"), dbn.Side(side), 0, event + 300, 0))


def stream(n: int, seed: int) -> list[Order]:
    """A clear, a snapshot, and events of one to three records with trades and fills among them."""
    draw = random.Random(seed)
    orders: list[Order] = [("R", "N", UNDEFINED, 0, 0, 40)]
    for number in range(1, 9):
        side = "BA"[number % 2]
        orders.append(("A", side, 10**9 * (100 - number if side == "B" else 100 + number), 5, number, 40))
    orders[-1] = (*orders[-1][:5], 168)
    while len(orders) < n:
        for left in range(draw.randint(1, 3), 0, -1):
            action = draw.choices("ACMTFNR", [8, 8, 4, 2, 2, 1, 0.1])[0]
            side = "N" if action in "NR" else draw.choice("BA")
            price = UNDEFINED if action in "NR" else 10**9 * draw.randint(95, 105)
            number = draw.randint(1, 20)
            orders.append((action, side, price, draw.randint(1, 9), number, 130 if left == 1 else 0))
    return orders


def literal(orders: list[Order]) -> list[Row]:
    """(ask, size, bid, size) of `LEVELS` after every record that ends an event and is no fill or nothing."""
    standing: dict[int, tuple[str, int, int]] = {}
    found: list[Row] = []
    for action, side, price, size, number, flags in orders:
        if action == "R":
            standing.clear()
        elif action == "A":
            standing[number] = (side, price, size)
        elif action == "M":
            standing[number] = (standing.get(number, (side,))[0] if number not in standing else side, price, size)
        elif action == "C" and number in standing:
            own, at, left = standing.pop(number)
            if left > size:
                standing[number] = (own, at, left - size)
        if flags & 128:
            depth: dict[str, Counter[int]] = defaultdict(Counter)
            for own, at, left in standing.values():
                depth[own][at] += left
            asks, bids = sorted(depth["A"].items()), sorted(depth["B"].items(), reverse=True)
            row: list[int | None] = []
            for level in range(LEVELS):
                for one in (asks, bids):
                    row += one[level] if level < len(one) else (None, 0)
            found.append(tuple(row))
    return found


def write(folder: Path, data: bytes, name: str = "x.dbn") -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def mbo_file(folder: Path, orders: list[Order], **more: int) -> Path:
    return write(folder, header() + b"".join(mbo(n, order, **more) for n, order in enumerate(orders)))


def refusal(path: Path, **more: object) -> str:
    with pytest.raises(ValueError) as caught:
        scan_dbn(path, **more)  # type: ignore[arg-type]
    said = str(caught.value)
    assert "\n" not in said
    assert said.startswith(path.name)
    return said
