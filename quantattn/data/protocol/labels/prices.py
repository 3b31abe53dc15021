"""The price that labels are made of: the mid of a book, the price of a trade, the close of a bar."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import polars as pl

Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Prices:
    """Prices of R events in **half** price units, so that a mid needs no fraction, and where they cannot be used.

    What few labels look at is made when it is asked for.

    Attributes:
        frame: the R events.
        mid: (R,) bid + ask, twice a trade's price, or twice a bar's close; 0 where it is missing.
        halted: (R,) during a halt.
        crossed: (R,) a locked or crossed book.
        missing: (R,) no price, or no bid or no ask.
    """

    frame: pl.DataFrame
    mid: Int64Array
    halted: BoolArray
    crossed: BoolArray
    missing: BoolArray

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
            if not ask.null_count() and not bid.null_count():
                none, (a, b) = np.zeros(size, np.bool_), (ask.to_numpy(), bid.to_numpy())
                return Prices(frame, a + b, halted, b >= a, none)
            crossed = (bid >= ask).fill_null(False).to_numpy()
            return Prices(frame, (ask + bid).fill_null(0).to_numpy(), halted, crossed, _missing(ask, bid))
        price = frame[price_column(frame)]
        return Prices(frame, _half(price), halted, np.zeros(size, np.bool_), _missing(price))

    @cached_property
    def high(self) -> Int64Array:
        """(R,) twice the high of a bar; elsewhere `mid` itself."""
        return self._of_bar("high")

    @cached_property
    def low(self) -> Int64Array:
        """(R,) twice the low of a bar; elsewhere `mid` itself."""
        return self._of_bar("low")

    @cached_property
    def ask(self) -> Int64Array:
        """(R,) twice the best ask; of a table without a book, `mid` itself."""
        return _half(self.frame["ask_price_1"]) if has_book(self.frame) else self.mid

    @cached_property
    def bid(self) -> Int64Array:
        """(R,) twice the best bid; of a table without a book, `mid` itself."""
        return _half(self.frame["bid_price_1"]) if has_book(self.frame) else self.mid

    @cached_property
    def rangeless(self) -> BoolArray:
        """(R,) `missing`, or a bar without its high or low."""
        if has_book(self.frame):
            return self.missing
        names = (price_column(self.frame), "high", "low")
        return _missing(*(self.frame[name] for name in names if name in self.frame.columns))

    def part(self, first: int, last: int) -> Prices:
        """Rows first … last − 1."""
        here = slice(first, last)
        return Prices(self.frame[here], self.mid[here], self.halted[here], self.crossed[here], self.missing[here])

    def _of_bar(self, name: str) -> Int64Array:
        own = not has_book(self.frame) and name in self.frame.columns
        return _half(self.frame[name]) if own else self.mid


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


def _missing(*prices: pl.Series) -> BoolArray:
    """Where any of them is null."""
    missing = np.zeros(len(prices[0]), np.bool_)
    for price in prices:
        if price.null_count():
            missing |= price.is_null().to_numpy()
    return missing
