"""What prices and sizes a table has, whether they lie on its tick, and what its book looks like."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

import numpy as np
import polars as pl

from quantattn.data.market.book import BOOK_FLAGS, book_flags, usable_book
from quantattn.data.schema import CLEAR, HALT, Instrument

KINDS: dict[int, str] = dict(
    enumerate(
        (
            *("new", "partial cancel", "delete", "execute", "execute hidden", "cross", "halt", "marker", "update"),
            "clear",
        ),
        1,
    )
)
"""Code of `kind` → its name."""
_QUOTES = ("ask_price_1", "bid_price_1")
_BARS = ("open", "high", "low", "close")


@dataclass(frozen=True)
class PriceRange:
    """Prices and sizes of one entity, as decimal text in units of currency and of shares, contracts or coins.

    Attributes:
        entity: whose.
        rows: of it.
        price_exponent, size_exponent: of the integers in the table.
        tick: the declared step.
        step: the greatest step that all prices are multiples of; None without prices.
        neighbours: the least difference of two prices.
        off_tick: prices that are no multiple of the declared tick.
        undefined: rows without a price, other than halts and clears.
        least, greatest: prices.
        least_size, greatest_size: sizes above 0.
        spread: median and greatest spread of a book with two sides, in ticks.
    """

    entity: str
    rows: int
    price_exponent: int
    size_exponent: int
    tick: str
    step: str | None
    neighbours: str | None
    off_tick: int
    undefined: int
    least: str | None
    greatest: str | None
    least_size: str | None
    greatest_size: str | None
    spread: tuple[float, float] | None


def text(number: int | None, exponent: int) -> str | None:
    """An integer of 10^exponent as plain decimal text."""
    if number is None:
        return None
    shown = f"{Decimal(number).scaleb(exponent):f}"
    return shown.rstrip("0").rstrip(".") if "." in shown else shown


def priced(columns: Sequence[str]) -> list[str]:
    """Those of the columns that hold prices."""
    return [name for name in (*_BARS, "price", *_QUOTES) if name in columns]


def measure_prices(events: pl.DataFrame, instrument: Instrument) -> PriceRange:
    """Of the rows of one entity."""
    own = events.filter(pl.col("entity") == instrument.entity)
    all_prices = pl.concat([own[name].drop_nulls().rename("price") for name in priced(own.columns)])
    distinct = all_prices.unique().sort().to_numpy()
    price, size = instrument.price_exponent, instrument.size_exponent
    step = int(np.gcd.reduce(distinct)) if len(distinct) else None
    neighbours = int(np.diff(distinct).min()) if len(distinct) > 1 else None
    sizes = _sizes(own)
    return PriceRange(
        entity=instrument.entity,
        rows=own.height,
        price_exponent=price,
        size_exponent=size,
        tick=str(text(instrument.tick, price)),
        step=text(step or None, price),
        neighbours=text(neighbours, price),
        off_tick=int((all_prices % instrument.tick != 0).sum()),
        undefined=_undefined(own),
        least=text(int(distinct[0]) if len(distinct) else None, price),
        greatest=text(int(distinct[-1]) if len(distinct) else None, price),
        least_size=text(sizes[0], size),
        greatest_size=text(sizes[1], size),
        spread=_spread(own, instrument.tick),
    )


def count_kinds(events: pl.LazyFrame) -> dict[str, int]:
    """Name of a kind → rows, in the order of the codes; empty for a table without kinds."""
    if "kind" not in events.collect_schema():
        return {}
    counted = events.group_by("kind").agg(pl.len()).sort("kind").collect(engine="streaming")
    return {KINDS.get(code, str(code)): count for code, count in counted.iter_rows()}


def count_books(events: pl.DataFrame) -> dict[str, int]:
    """Rows with a crossed, a locked, a one-sided and an empty book; empty for a table without a book."""
    if not set(_QUOTES) <= set(events.columns):
        return {}
    flagged = book_flags(events.select(_QUOTES))
    empty = pl.all_horizontal(pl.col(_QUOTES).is_null())
    one_sided = pl.col("one_sided") & ~empty
    counted = flagged.select(
        *(pl.col(name).sum() for name in BOOK_FLAGS[:2]), one_sided.sum().alias("one_sided"), empty.sum().alias("empty")
    )
    return {name: int(value) for name, value in counted.row(0, named=True).items()}


def _sizes(events: pl.DataFrame) -> Sequence[int | None]:
    name = next((name for name in ("size", "volume") if name in events.columns), None)
    if name is None:
        return (None, None)
    least, greatest = events.filter(pl.col(name) > 0).select(pl.col(name).min(), pl.col(name).max().alias("m")).row(0)
    return (least, greatest)


def _undefined(events: pl.DataFrame) -> int:
    if "price" not in events.columns:
        return 0
    without = pl.col("price").is_null()
    if "kind" in events.columns:
        # A book shipped whole is a row that shows no price of its own.
        whole = (pl.col("side") == 0) & (pl.col("size") == 0)
        without &= ~pl.col("kind").is_in([HALT, CLEAR]) & ~whole
    return int(events.select(without.sum()).item())


def _spread(events: pl.DataFrame, tick: int) -> tuple[float, float] | None:
    if not set(_QUOTES) <= set(events.columns):
        return None
    ask, bid = pl.col("ask_price_1"), pl.col("bid_price_1")
    found = events.filter(usable_book()).select(((ask - bid) / tick).alias("s"))["s"]
    median = found.median()
    return None if not found.len() else (float(median), float(found.max()))  # type: ignore[arg-type]
