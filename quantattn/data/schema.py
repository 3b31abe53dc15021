"""What an event table must look like, and the one check that says where it does not.

Times are int64 nanoseconds UTC. Prices are integers; `Instrument.price_exponent` says of what. A table is in
canonical order when it is sorted by (entity, available_time, seq), and every stage keeps that order.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeVar

import dataframely as dy
import polars as pl

CANONICAL_ORDER: tuple[str, ...] = ("entity", "available_time", "seq")
"""The sort key of every event table; `seq`, the order of the source, breaks ties."""

NEW, CANCEL, DELETE, EXECUTE, EXECUTE_HIDDEN, CROSS, HALT, MARKER, UPDATE, CLEAR, FILING = range(1, 12)
"""Codes of `kind`: those of LOBSTER; MARKER, which only synthetic markets have; UPDATE, a level or a quote that now
shows this price and size, in feeds without orders; CLEAR, a book emptied before a snapshot; FILING, a document that
becomes public. 0 is kept for "missing".
"""

Frame = TypeVar("Frame", pl.DataFrame, pl.LazyFrame)


@dataclass(frozen=True)
class Instrument:
    """How the integers of one entity's prices are to be read.

    Attributes:
        entity: the name in the `entity` column.
        price_exponent: a price p is p · 10^price_exponent units of currency (LOBSTER: −4).
        tick: the smallest price step, in the same integers (LOBSTER, a stock above one dollar: 100, a cent).
        size_exponent: a size s is s · 10^size_exponent shares, contracts or coins.
    """

    entity: str
    price_exponent: int = -4
    tick: int = 100
    size_exponent: int = 0

    def __post_init__(self) -> None:
        if self.tick < 1:
            raise ValueError(f"tick must be a positive integer price step, got {self.tick} for {self.entity!r}")


class Events(dy.Schema):
    """The columns that every event table has: whose event, when it happened, when it could be known, in what order."""

    entity = dy.String(nullable=False, min_length=1)
    event_time = dy.Int64(nullable=False)
    available_time = dy.Int64(nullable=False)
    seq = dy.Int64(nullable=False, min=0)

    @dy.rule()
    def available_not_before_event(cls) -> pl.Expr:
        """Nothing is known before it happens."""
        return pl.col("available_time") >= pl.col("event_time")


class BookMessages(Events):
    """What happens to single orders of a book.

    `side` is that of the resting order: +1 buy, −1 sell, 0 not known.
    """

    kind = dy.UInt8(nullable=False, min=NEW, max=FILING)
    side = dy.Int8(nullable=False, is_in=[-1, 0, 1])
    price = dy.Int64(nullable=True)
    size = dy.Int64(nullable=False, min=0)
    order_id = dy.Int64(nullable=False)


class BookEvents(BookMessages):
    """Messages with the book after each of them; deeper levels are `ask_price_2` … in the same manner.

    An empty level has a null price and size 0. An optional Boolean column `halted` says that trading is halted after
    the event.
    """

    ask_price_1 = dy.Int64(nullable=True)
    ask_size_1 = dy.Int64(nullable=True, min=0)
    bid_price_1 = dy.Int64(nullable=True)
    bid_size_1 = dy.Int64(nullable=True, min=0)


class Trades(Events):
    """Trades of a feed that shows no book. `side` is that of the resting order, so −1 says that a buyer came."""

    kind = dy.UInt8(nullable=False, min=EXECUTE, max=CROSS)
    side = dy.Int8(nullable=False, is_in=[-1, 0, 1])
    price = dy.Int64(nullable=False)
    size = dy.Int64(nullable=False, min=0)


class Bars(Events):
    """Prices of stretches of time; `event_time` is the end of the stretch, when its close is known."""

    open = dy.Int64(nullable=True)
    high = dy.Int64(nullable=True)
    low = dy.Int64(nullable=True)
    close = dy.Int64(nullable=False)
    volume = dy.Int64(nullable=True, min=0)


class Filings(Events):
    """Documents, one a row; `event_time` is when it was accepted, `available_time` when the public could read it."""

    form = dy.String(nullable=False, min_length=1)
    accession = dy.String(nullable=False, min_length=1)
    text = dy.String(nullable=False)


def check(frame: Frame, schema: type[Events], first_row: int = 0) -> Frame:
    """Return `frame` unchanged if it obeys `schema`; columns beyond the schema are allowed.

    A LazyFrame is checked by name and type alone and is not computed; a DataFrame also by value and by order.

    Args:
        frame: a table, or a run of its rows.
        schema: of all of it.
        first_row: number of the run's first row in the table.

    Raises:
        ValueError: one sentence that names the column, the row (counted from 0) and the rule.
    """
    found = frame.collect_schema()
    for name, column in schema.columns().items():
        if name not in found:
            raise ValueError(
                f"{schema.__name__}: column {name!r} is missing; the table has {', '.join(found) or 'none'}"
            )
        if not column.validate_dtype(found[name]):
            raise ValueError(f"{schema.__name__}: column {name!r} is {found[name]}, expected {column.dtype}")
    if isinstance(frame, pl.DataFrame):
        _check_values(frame, schema, first_row)
        _check_order(frame, schema, first_row)
    return frame


def book_levels(columns: pl.Schema | list[str]) -> int:
    """How many levels of the book a table carries; raises ValueError when a level lacks one of its four columns."""
    names = set(columns)
    found = {int(m.group(1)) for name in names if (m := re.fullmatch(r"(?:ask|bid)_(?:price|size)_(\d+)", name))}
    depth = max(found, default=0)
    for level in range(1, depth + 1):
        for name in level_columns(level):
            if name not in names:
                raise ValueError(f"the table has {depth} levels of the book but no column {name!r}")
    return depth


def level_columns(level: int) -> tuple[str, str, str, str]:
    """The four columns of one level (1 is the best), in the order of a LOBSTER file."""
    return (f"ask_price_{level}", f"ask_size_{level}", f"bid_price_{level}", f"bid_size_{level}")


def _check_values(frame: pl.DataFrame, schema: type[Events], first_row: int) -> None:
    failure = schema.filter(frame).failure
    if not len(failure):
        return
    rule = next(iter(failure.counts()))
    column, _, what = rule.rpartition("|")
    row = _first_row_breaking(frame, schema, rule)
    shown = {name: frame[name][row] for name in ([column] if column else ("entity", "event_time", "available_time"))}
    where = f" of column {column!r}" if column else ""
    raise ValueError(
        f"{schema.__name__}: row {first_row + row} breaks the rule {what!r}{where}: "
        f"{', '.join(f'{name} = {value!r}' for name, value in shown.items())} ({failure.counts()[rule]} such rows)"
    )


def _first_row_breaking(frame: pl.DataFrame, schema: type[Events], rule: str) -> int:
    low, high = 0, frame.height
    while high - low > 1:
        middle = (low + high) // 2
        if rule in schema.filter(frame[low:middle]).failure.counts():
            high = middle
        else:
            low = middle
    return low


def _check_order(frame: pl.DataFrame, schema: type[Events], first_row: int) -> None:
    if frame.height < 2:
        return
    later = pl.col("available_time") > pl.col("available_time").shift(1)
    same = pl.col("available_time") == pl.col("available_time").shift(1)
    in_order = later | (same & (pl.col("seq") > pl.col("seq").shift(1)))
    next_entity = pl.col("entity") > pl.col("entity").shift(1)
    same_entity = pl.col("entity") == pl.col("entity").shift(1)
    broken = frame.select((next_entity | (same_entity & in_order)).not_().arg_true())["entity"]
    if broken.len():
        row = broken[0]
        before, here = frame.select(CANONICAL_ORDER)[row - 1 : row + 1].rows()
        raise ValueError(
            f"{schema.__name__}: row {first_row + row} is out of order: a table is sorted by "
            f"{', '.join(CANONICAL_ORDER)} with no two rows equal, but {here} follows {before}"
        )
