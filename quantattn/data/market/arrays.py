"""A table of book events as arrays for compiled loops, numbers standing for what is missing."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
import polars as pl

UNKNOWN = -(2**63)
"""Stands for a null, which a loop cannot have. A bid that is missing is the greatest number, so that no ask is above
one of them and the book is not usable."""

_BOOK = {"ask_price_1": UNKNOWN, "ask_size_1": UNKNOWN, "bid_price_1": -UNKNOWN - 1, "bid_size_1": UNKNOWN}
_TYPES = {"available_time": pl.Int64, "kind": pl.UInt8, "side": pl.Int8, "size": pl.Int64}
_TYPES |= {"price": pl.Int64} | dict.fromkeys(_BOOK, pl.Int64)


def book_arrays(events: pl.DataFrame) -> dict[str, npt.NDArray[Any]] | None:
    """The columns that features and tokens of a book are made of; None unless all have the types of `BookEvents`."""
    if any(events.schema.get(name) != kind for name, kind in _TYPES.items()):
        return None
    made: dict[str, npt.NDArray[Any]] = {}
    for name in _TYPES:
        column = events[name]
        if column.null_count() and name not in _BOOK and name != "price":
            return None
        made[name] = (column.fill_null(_BOOK.get(name, UNKNOWN)) if column.null_count() else column).to_numpy()
        made[name].flags.writeable = False  # one type of array, so that a loop is compiled once
    return made
