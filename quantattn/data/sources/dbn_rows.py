"""Records of DBN as rows of the common schema, every value checked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from quantattn.data.schema import CANCEL, CLEAR, DELETE, EXECUTE, NEW, UPDATE, level_columns
from quantattn.data.sources.dbn_format import (
    BAD_BOOK,
    LAST,
    QUOTES,
    SNAPSHOT,
    UNDEFINED_PRICE,
    UNDEFINED_TIME,
)

_SIGN = np.zeros(256, np.int8)
_SIGN[ord("B")], _SIGN[ord("A")] = 1, -1

DEPTH: Mapping[str, int] = {"mbp-1": 1, "mbp-10": 10, "tbbo": 1, **dict.fromkeys(QUOTES, 1)}
"""Levels of the book in a record of each schema."""
Ints = NDArray[np.int64]
_BAD_ROWS = {"record": pl.Int64, "reason": pl.String, "text": pl.String}


@dataclass
class Account:
    """What happened to the records of one file.

    Attributes:
        actions: records by action, those that were set aside left out.
        wrong: tables of what was set aside: record (counted from 0 in the file), reason, and what it holds.
        unnamed: ids that the metadata gives no symbol.
        counts: what was decided → how often.
        most: the largest fall of `ts_recv`, in ns.
    """

    actions: Counter[str] = field(default_factory=Counter)
    wrong: list[pl.DataFrame] = field(default_factory=lambda: [pl.DataFrame(schema=_BAD_ROWS)])
    unnamed: set[int] = field(default_factory=set)
    counts: Counter[str] = field(default_factory=Counter)
    most: int = 0

    @property
    def bad(self) -> pl.DataFrame:
        """What was set aside, in the order of the file."""
        return pl.concat(self.wrong)


@dataclass(frozen=True)
class Shape:
    """What the records of a schema become.

    Attributes:
        depth: levels of the book that each carries.
        levels: of these, how many are kept.
        rows: (256,) rows that a record becomes, by its action; −1 where the schema has no such action.
        kinds: (256,) kind of its last row; 0 where it is no event of a book.
    """

    depth: int
    levels: int
    rows: NDArray[np.int64]
    kinds: NDArray[np.uint8]

    @staticmethod
    def of(schema: str, levels: int) -> Shape:
        """That of a schema, of whose books `levels` levels are kept."""
        rows, kinds = np.full(256, -1, np.int64), np.zeros(256, np.uint8)
        depth = DEPTH.get(schema, 0)
        # A modified order is a deletion and a new order; in a feed of levels it is a level that changed.
        known = (
            {"T": (1, EXECUTE)}
            if schema in ("trades", "tbbo")
            else {
                **{"A": (1, NEW), "C": (1, CANCEL), "M": (1, UPDATE) if depth else (2, NEW), "R": (1, CLEAR)},
                **{"T": (1, EXECUTE), "F": (1, 0), "N": (1, 0)},
            }
        )
        for action, (many, kind) in known.items():
            rows[ord(action)], kinds[ord(action)] = many, kind
        return Shape(depth, min(levels, depth), rows, kinds)


_OF_CHANGES = ("", "unknown action", "unknown side", "no side", "no price", "impossible time")
REASONS = (*_OF_CHANGES, "impossible prices", "impossible volume")
"""Why a record is set aside, by the code that `reasons_of` gives; "" is a sound record."""


def reasons_of(records: NDArray[np.void], shape: Shape) -> NDArray[np.uint8]:
    """(n,) codes: why each record has to be set aside, 0 where it is sound."""
    action, side = _bytes(records["action"]), _bytes(records["side"])
    sided = (side == ord("A")) | (side == ord("B"))
    order = (action == ord("A")) | (action == ord("M")) if not shape.depth else np.zeros(len(records), np.bool_)
    priced = records["price"] != UNDEFINED_PRICE
    event, received = records["ts_event"], records["ts_recv"]
    found = np.zeros(len(records), np.uint8)
    broken = (
        shape.rows[action] < 0,
        ~sided & (side != ord("N")),
        order & ~sided,
        (order | (action == ord("T"))) & ~priced,
        ((event >= 2**63) & (event != UNDEFINED_TIME))
        | ((received >= 2**63) & (received != UNDEFINED_TIME))
        | ((event == UNDEFINED_TIME) & (received == UNDEFINED_TIME)),
    )
    for code in range(len(broken), 0, -1):
        found[broken[code - 1]] = code
    return found


def _bytes(letters: NDArray[Any]) -> NDArray[np.uint8]:
    """(n,) single bytes as numbers, 0 where numpy has stripped a zero."""
    return np.ascontiguousarray(letters).view(np.uint8)


def bad_rows(records: NDArray[np.void], reasons: NDArray[np.uint8], number: Ints) -> pl.DataFrame:
    """What is set aside: records, why, and their numbers in the file, (n,) each."""
    shown = ("action", "side", "price", "size", "open", "high", "low", "close", "volume", "ts_event", "ts_recv")
    names = [name for name in shown if name in (records.dtype.names or ())]
    text = [", ".join(f"{name} {each[name].item()!r}" for name in names) for each in records]
    return pl.DataFrame(
        {"record": number, "reason": [REASONS[code] for code in reasons], "text": text}, schema=_BAD_ROWS
    )


def times_of(records: NDArray[np.void], latest: int, account: Account) -> tuple[Ints, Ints]:
    """When each record could be known and when it happened, ns UTC; the first never falls.

    A record cannot be known before the one before it in the feed, so where `ts_recv` falls the time before stands.
    """
    undefined = records["ts_recv"] == UNDEFINED_TIME
    received, event = records["ts_recv"].astype(np.int64), records["ts_event"].astype(np.int64)
    if undefined.any():
        received[undefined] = event[undefined]
        account.counts["have no ts_recv; their ts_event stands for it"] += int(undefined.sum())
    available = np.maximum(np.maximum.accumulate(received), latest)
    if (falls := available - received).any():
        account.counts["have a ts_recv before that of a record before them and count as available with that one"] += (
            int((falls > 0).sum())
        )
        account.most = max(account.most, int(falls.max()))
    unknown = records["ts_event"] == UNDEFINED_TIME
    if unknown.any():
        event[unknown] = available[unknown]
        account.counts["have no ts_event; the time at which they could be known stands for it"] += int(unknown.sum())
    if (early := event > available).any():
        account.counts["have a ts_event after their ts_recv; they count as having happened when received"] += int(
            early.sum()
        )
        event = np.minimum(event, available)
    if (gap := (records["flags"] & BAD_BOOK) > 0).any():
        account.counts["follow a gap of the feed, so that the book may be wrong (F_MAYBE_BAD_BOOK)"] += int(gap.sum())
    return available, event


def rows_of(records: NDArray[np.void], name: Ints, event: Ints, available: Ints, shape: Shape) -> pl.DataFrame:
    """The rows that records become, in their order, those of kind 0 among them; see `Feed` for the columns."""
    many = shape.rows[_bytes(records["action"])]
    kept = np.arange(len(records)) if (many == 1).all() else np.repeat(np.arange(len(records)), many)
    own = records if len(kept) == len(records) else records[kept]
    kind = shape.kinds[_bytes(own["action"])]
    side = _SIGN[_bytes(own["side"])]
    # A trade is told from the side of the aggressor; the order that rested is on the other.
    side = np.where(kind == EXECUTE, -side, side)
    price, size = own["price"].astype(np.int64), own["size"].astype(np.int64)
    last = (own["flags"] & LAST) > 0
    if shape.depth:
        kind, side, price, size = _of_levels(own, kind, side, price, size, shape.depth)
    elif len(kept) != len(records):
        # Of a modified order the deletion comes first; its price and its size are those of the order that stood.
        deleted = np.flatnonzero(kept[:-1] == kept[1:])
        kind[deleted], price[deleted], size[deleted], last[deleted] = DELETE, UNDEFINED_PRICE, 0, False
    columns = {
        "name": name[kept].astype(np.uint32),
        "event_time": event[kept],
        "available_time": available[kept],
        "kind": kind,
        "side": side,
        "price": price,
        "size": size,
        "order_id": np.zeros(len(own), np.int64),
        "last": last,
        "opens": ((own["flags"] & SNAPSHOT) > 0) | (kind == CLEAR),
    }
    if "order_id" in (own.dtype.names or ()):
        columns["order_id"] = np.where(kind == EXECUTE, 0, own["order_id"].astype(np.int64))
    for level in range(shape.levels):
        names = level_columns(level + 1)
        for column, field_name in zip(names, ("ask_px", "ask_sz", "bid_px", "bid_sz"), strict=True):
            columns[column] = own[f"{field_name}_{level:02}"].astype(np.int64)
    frame = pl.DataFrame(columns)
    prices = [column for column in frame.columns if "price" in column]
    return frame.with_columns(pl.when(pl.col(n) != UNDEFINED_PRICE).then(pl.col(n)).alias(n) for n in prices)


def _of_levels(
    own: NDArray[np.void], kind: NDArray[np.uint8], side: NDArray[np.int8], price: Ints, size: Ints, depth: int
) -> tuple[NDArray[np.uint8], NDArray[np.int8], Ints, Ints]:
    """What a record of a feed of levels says of one level: of a modified order the level where it now stands.

    A record without a side changed both sides at once, and an order may move to a level that is not shown: the book
    alone tells what changed.
    """
    both = (side == 0) & np.isin(kind, (NEW, CANCEL, UPDATE))
    moved = np.flatnonzero((kind == UPDATE) | both)
    told, shown = np.full(len(moved), UNDEFINED_PRICE), np.zeros(len(moved), np.int64)
    for level in range(depth):
        for own_side, name in ((1, "bid"), (-1, "ask")):
            here = (side[moved] == own_side) & (own[f"{name}_px_{level:02}"][moved] == price[moved])
            told[here], shown[here] = price[moved][here], own[f"{name}_sz_{level:02}"][moved][here]
    kind = np.where(both, UPDATE, kind).astype(np.uint8)
    price[moved], size[moved] = told, shown
    return kind, side, price, size


def table_of(records: NDArray[np.void]) -> pl.DataFrame:
    """Records as they are, field by field; letters as text."""
    return pl.DataFrame(
        {
            name: np.char.decode(records[name], "latin-1") if records[name].dtype.kind == "S" else records[name].copy()
            for name in records.dtype.names or ()
            if not name.startswith("_") and name not in ("length", "rtype")
        }
    )
