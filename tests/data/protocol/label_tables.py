"""Small event tables of every kind, and the horizon of a row written out as a loop."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
from hypothesis import strategies as st

from quantattn.data.market.sessions import SECOND, Sessions

SESSIONS = Sessions("test", np.array([0, 30]) * SECOND, np.array([20, 60]) * SECOND)
TIMES = [s * SECOND + n for s in (0, 1, 2, 3, 5, 8, 13, 20, 25, 30, 31, 33, 40, 59) for n in (0, 0, 1)]


@st.composite
def tables(draw: st.DrawFn, of: str = "book") -> pl.DataFrame:
    """Up to 14 events of one or two entities: a "book", "trades" or "bars"; some without a price, some halted."""
    rows: list[dict[str, Any]] = []
    for entity in ("A", "B")[: draw(st.integers(1, 2))]:
        for seq, time in enumerate(sorted(draw(st.lists(st.sampled_from(TIMES), min_size=1, max_size=14)))):
            row: dict[str, Any] = {"entity": entity, "event_time": time, "available_time": time, "seq": seq}
            row |= {"halted": draw(st.integers(0, 19)) == 0, "kind": draw(st.sampled_from([1, 2, 4, 7]))}
            row |= {"side": draw(st.sampled_from([-1, 0, 1]))}
            price = draw(st.integers(100, 106))
            if of == "book":
                nothing = st.none() if draw(st.integers(0, 9)) == 0 else st.just(101)
                row |= {"bid_price_1": draw(st.one_of(st.integers(100, 103), nothing)), "ask_price_1": price + 1}
            elif of == "trades":
                row |= {"price": None if draw(st.integers(0, 14)) == 0 else price}
            else:
                high, low = price + draw(st.integers(0, 3)), price - draw(st.integers(0, 3))
                row |= {"close": price, "high": None if draw(st.integers(0, 14)) == 0 else high, "low": low}
            rows.append(row)
    names = ("bid_price_1", "price", "high")
    return pl.DataFrame(rows, schema_overrides={n: pl.Int64 for n in names if n in rows[0]})


def price_of(row: dict[str, Any]) -> int | None:
    """In half price units."""
    if "ask_price_1" in row:
        bid, ask = row["bid_price_1"], row["ask_price_1"]
        return None if bid is None or bid >= ask else bid + ask
    price = row.get("close", row.get("price"))
    return None if price is None else 2 * price


def fault(row: dict[str, Any], ranged: bool = False) -> str | None:
    """Why a row's price cannot be used."""
    if row["halted"]:
        return "halt"
    if "ask_price_1" in row and row["bid_price_1"] is not None and row["bid_price_1"] >= row["ask_price_1"]:
        return "crossed book"
    if price_of(row) is None or (ranged and row.get("high", 0) is None):
        return "no data"
    return None


def first_of(reasons: list[str | None]) -> str | None:
    """The reason that goes first."""
    order = ("session end", "halt", "crossed book", "no data", "no move")
    return min((reason for reason in reasons if reason is not None), key=order.index, default=None)


def session_of(time: int, sessions: Sessions | None) -> int:
    return 0 if sessions is None else int(sessions.locate(np.array([time]))[0])


def stretch(table: pl.DataFrame, row: int, sessions: Sessions | None) -> tuple[list[dict[str, Any]], int]:
    """The rows of the entity's session, and the place of `row` among them."""
    rows = list(table.with_row_index("row").iter_rows(named=True))
    here = rows[row]
    session = session_of(here["available_time"], sessions)
    mates = [
        each
        for each in rows
        if each["entity"] == here["entity"] and session_of(each["available_time"], sessions) == session
    ]
    return mates, next(i for i, each in enumerate(mates) if each["row"] == row)


def horizon_of(
    mates: list[dict[str, Any]], place: int, horizon: int, unit: str, sessions: Sessions | None
) -> tuple[list[dict[str, Any]], int, bool, bool, bool]:
    """Rows of the horizon, its end, and whether the session ends in it, by the calendar, or the table."""
    time = mates[place]["available_time"]
    later = mates[place + 1 :]
    if unit == "events":
        short = len(later) < horizon
        later = later[:horizon]
        return later, later[-1]["available_time"] if later else time, short, False, False
    end = time + horizon * SECOND
    close = mates[-1]["available_time"] if sessions is None else int(sessions.close[session_of(time, sessions)])
    inside = [row for row in later if row["available_time"] <= end]
    return inside, end, end > close, sessions is not None and end > close, end > mates[-1]["available_time"]
