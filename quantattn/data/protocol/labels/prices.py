"""The price that labels are made of: the mid of a book, the price of a trade, the close of a bar."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt
import polars as pl

Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Prices:
    """Prices of R events in **half** price units, so that a mid needs no fraction, and where they cannot be used.

    Attributes:
        mid: (R,) bid + ask, twice a trade's price, or twice a bar's close; 0 where it is missing.
        high: (R,) twice the high of a bar; elsewhere `mid` itself.
        low: (R,) twice the low of a bar; elsewhere `mid` itself.
        ask: (R,) twice the best ask; of a table without a book, `mid` itself.
        bid: (R,) twice the best bid; likewise.
        halted: (R,) during a halt.
        crossed: (R,) a locked or crossed book.
        missing: (R,) no price, or no bid or no ask.
        rangeless: (R,) `missing`, or a bar without its high or low.
    """

    mid: Int64Array
    high: Int64Array
    low: Int64Array
    ask: Int64Array
    bid: Int64Array
    halted: BoolArray
    crossed: BoolArray
    missing: BoolArray
    rangeless: BoolArray

    @staticmethod
    def of(frame: pl.DataFrame) -> Prices:
        """The prices of book events (`ask_price_1`, `bid_price_1`), bars (`close`) or trades (`price`).

        Raises:
            ValueError: the table has none of these.
        """
        size = frame.height
        halted = frame["halted"].fill_null(False).to_numpy() if "halted" in frame.columns else np.zeros(size, np.bool_)
        if has_book(frame):
            ask, bid = frame["ask_price_1"], frame["bid_price_1"]
            crossed = (bid >= ask).fill_null(False).to_numpy()
            missing = (ask.is_null() | bid.is_null()).to_numpy()
            mid = (ask + bid).fill_null(0).to_numpy()
            return Prices(mid, mid, mid, _half(ask), _half(bid), halted, crossed, missing, missing)
        price = frame[price_column(frame)]
        mid, missing = _half(price), price.is_null().to_numpy()
        high, low = (_half(frame[name]) if name in frame.columns else mid for name in ("high", "low"))
        rangeless = missing.copy()
        for name in ("high", "low"):
            if name in frame.columns:
                rangeless |= frame[name].is_null().to_numpy()
        return Prices(mid, high, low, mid, mid, halted, np.zeros(size, np.bool_), missing, rangeless)

    def part(self, first: int, last: int) -> Prices:
        """Rows first … last − 1."""
        return Prices(*(getattr(self, field.name)[first:last] for field in fields(self)))


def has_book(frame: pl.DataFrame) -> bool:
    """Whether the table shows the best quotes after each event."""
    return {"ask_price_1", "bid_price_1"} <= set(frame.columns)


def price_column(frame: pl.DataFrame) -> str:
    """The column that holds the price of a table without a book; ValueError when there is none."""
    for name in ("close", "price"):
        if name in frame.columns:
            return name
    raise ValueError(
        f"labels need ask_price_1 and bid_price_1, close, or price; the table has {', '.join(frame.columns) or 'none'}"
    )


def require_positive(frame: pl.DataFrame) -> None:
    """Refuse a price that no relative move can be taken from.

    Raises:
        ValueError: naming the first row with a usable price that is not above zero.
    """
    if has_book(frame):
        ask, bid = frame["ask_price_1"], frame["bid_price_1"]
        worthless = ((ask > bid) & (ask + bid <= 0)).arg_true()
        if len(worthless):
            row = int(worthless[0])
            raise ValueError(f"a relative move needs mids above zero, but row {row} has bid {bid[row]}, ask {ask[row]}")
        return
    name = price_column(frame)
    worthless = (frame[name] <= 0).arg_true()
    if len(worthless):
        row = int(worthless[0])
        raise ValueError(f"a relative move needs prices above zero, but row {row} has {name} {frame[name][row]}")


def _half(price: pl.Series) -> Int64Array:
    return np.asarray((price.cast(pl.Int64) * 2).fill_null(0).to_numpy(), np.int64)
