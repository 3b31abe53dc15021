"""Spread crossing: does the price come to lie beyond today's quotes within a horizon."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import numpy.typing as npt
import polars as pl

from quantattn.data.market.sessions import Sessions
from quantattn.data.protocol.findings import Fitted
from quantattn.data.protocol.labels.prices import has_book
from quantattn.data.protocol.labels.stretch import (
    Measured,
    Stretch,
    Unit,
    look_ahead,
    over_sessions,
    require_horizon,
)
from quantattn.data.protocol.labels.threshold import CLASS_NAMES
from quantattn.data.protocol.labels.touch import first_touch

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True)
class SpreadCrossing:
    """Which of the decision's quotes is crossed first within the horizon.

    With bid b, ask a and mid m, up is the first j in the horizon with m_j > a_t, down the first with m_j < b_t: the
    price has then moved by more than half of the spread that a market order would have paid. With `price` "quote",
    up is b_j > a_t and down a_j < b_t, a round trip at the quotes that earns (Kercheval, Zhang 2015, Quantitative
    Finance 15(8), "bid-ask spread crossing"). Neither: flat. What ends the search ends the label; see
    `TripleBarrier` for what that means at the end of a session.

    Attributes:
        horizon: in `unit`.
        unit: "events" or "seconds".
        price: "mid" or "quote".
    """

    horizon: int = 100
    unit: Unit = "events"
    price: Literal["mid", "quote"] = "mid"

    def __post_init__(self) -> None:
        require_horizon(self.horizon, self.unit)
        if self.price not in ("mid", "quote"):
            raise ValueError(f"price must be 'mid' or 'quote', got {self.price!r}")

    @property
    def name(self) -> str:
        """Says price and horizon: "spread crossing of the mid within 100 events"."""
        return f"spread crossing of the {self.price} within {self.horizon} {self.unit}"

    @property
    def class_names(self) -> tuple[str, ...]:
        """Down, flat, up."""
        return CLASS_NAMES[3]

    def measure(self, events: pl.DataFrame, sessions: Sessions | None = None) -> pl.DataFrame:
        """Add `crossing` (Int8): −1 down, 0 neither, 1 up; with interval and reason.

        Raises:
            ValueError: the table shows no book.
        """
        if not has_book(events):
            raise ValueError("spread crossing needs a book, and the table has no ask_price_1 and bid_price_1")
        return over_sessions(events, sessions, {"crossing": np.int8}, partial(_measure, label=self))

    def finish(self, measured: pl.DataFrame, train: Int64Array) -> tuple[pl.DataFrame, Fitted]:
        """Class every row; nothing is fitted."""
        return measured.with_columns(label=pl.col("crossing") + 1), Fitted("quotes", None, 0)


def _measure(stretch: Stretch, label: SpreadCrossing) -> Measured:
    prices = stretch.prices
    rising, falling = (prices.bid, prices.ask) if label.price == "quote" else (prices.mid, prices.mid)
    touch = first_touch(
        stretch,
        look_ahead(stretch, label.horizon, label.unit),
        stretch.row - 1,
        (rising, prices.ask + 1),
        (falling, prices.bid - 1),
        prices.missing,
        {},
    )
    return {"crossing": touch.side}, touch.end, touch.reason
