"""A book rebuilt from the messages of its orders, and a shipped book held against them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from importlib import import_module
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from quantattn.data.schema import DELETE, NEW, BookMessages, book_levels, check, level_columns

EXCHANGE_ZONE = "America/New_York"
MISSING = -(2**63)
"""A price that the message does not give, where a null cannot stand."""
_CHUNK = 8192


@dataclass(frozen=True)
class Tally:
    """Messages that do not go with the book as it stood, counted; all 0 for a whole feed from the first message on.

    Attributes:
        reused_ids: new orders under the number of one that stands, which then goes: the same message twice.
        unknown_ids: cancellations, deletions and executions of a number under which no order stands. They lessen
            shares of orders that were never seen to arrive, at the message's own price, and nothing else.
        unplaced: of these, the ones that found too few such shares or gave no side or price; what was lacking is
            taken from nothing. Also the new orders that replace one of them and give no side: they do not stand.
        overdrawn: more shares taken than the order had; it is taken whole.
        contradicting: a deletion of another size than what was left, or another side than the order's.
        crossed: rows after which the best bid is above the best ask.
        locked: rows after which they are equal.
    """

    reused_ids: int = 0
    unknown_ids: int = 0
    unplaced: int = 0
    overdrawn: int = 0
    contradicting: int = 0
    crossed: int = 0
    locked: int = 0

    def __add__(self, other: Tally) -> Tally:
        return Tally(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)})


@dataclass(frozen=True)
class RebuiltBook:
    """Messages with the book after each.

    Attributes:
        frame: the messages with `ask_price_1` … `bid_size_L`. A side, a price or the size of a deletion that the
            message did not give is that of the order it names.
        tally: what did not go with the book.
    """

    frame: pl.DataFrame
    tally: Tally


@dataclass(frozen=True)
class BookAgreement:
    """How far a shipped book of L levels follows from its messages.

    Attributes:
        rows: one a message: the keys of the table, `kind`, `filled` (UInt8: levels that the messages cannot tell, so
            that they were taken from the shipped book) and `differs` (Boolean: some other level is not the shipped
            one; the shipped book is then taken whole, so that one fault counts once).
        tally: what did not go with the book.
    """

    rows: pl.DataFrame
    tally: Tally

    @property
    def rebuilt(self) -> int:
        """Rows of which every level was rebuilt."""
        return int((self.rows["filled"] == 0).sum())

    @property
    def differing(self) -> int:
        """Rows that differ from the shipped book."""
        return int(self.rows["differs"].sum())


def rebuild_book(messages: pl.DataFrame, levels: int = 10, *, zone: str | None = EXCHANGE_ZONE) -> RebuiltBook:
    """Apply messages in their order and note the best `levels` levels of both sides after each.

    A book begins empty, anew with every entity and every day in `zone`. New orders stand until they are cancelled,
    deleted or executed, or the book is cleared; hidden executions, crosses, halts, markers and updates change nothing.
    A replacement is a deletion and a new order, which need not give a side when it follows at once. Orders are not
    matched: a book that crosses stays crossed, is counted, and can be flagged by `book_flags`.

    Args:
        messages: schema `BookMessages`, in canonical order. Columns of a book in it are replaced.
        levels: how many; a level that is empty has a null price and size 0.
        zone: whose days; None: an entity has one book.

    Raises:
        ValueError: the table breaks its schema, or a new order lacks its side or price.
        RuntimeError: numba is not installed.
    """
    if levels < 1:
        raise ValueError(f"levels must be at least 1, got {levels}")
    check(messages, BookMessages)
    books = [_Replay(part, levels, 0) for part in _books(messages, zone)]
    frames = [book.frame() for book in books]
    depth = book_levels(messages.columns)
    names = [name for level in range(1, max(depth, levels) + 1) for name in level_columns(level)]
    empty = messages.clear().drop(names, strict=False)
    empty = empty.with_columns(pl.lit(None, pl.Int64).alias(name) for name in names[: 4 * levels])
    return RebuiltBook(pl.concat([empty, *frames]), sum((book.tally() for book in books), Tally()))


def compare_book(events: pl.DataFrame, *, zone: str | None = EXCHANGE_ZONE) -> BookAgreement:
    """Hold a shipped book against its messages, for feeds that tell of the levels they show and of no others (LOBSTER).

    Two things cannot be known from such messages, and are taken from the shipped book and counted in `filled`: the
    book after the first message of a day, and the level that comes into view when a message empties one. All else is
    rebuilt from messages; a level that leaves the view is forgotten, because what happens there is not told.

    Args:
        events: schema `BookEvents`, in canonical order.
        zone: whose days; None: an entity has one book.

    Raises:
        ValueError, RuntimeError: as `rebuild_book`; the table has no book.
    """
    check(events, BookMessages)
    levels = book_levels(events.columns)
    if not levels:
        raise ValueError("the table has no columns of a book (ask_price_1 …) to compare with")
    books = [_Replay(part, levels, levels) for part in _books(events, zone)]
    keys = events.select("entity", "available_time", "seq", "kind")
    return BookAgreement(
        keys.with_columns(
            filled=np.concatenate([book.filled for book in books] or [np.zeros(0, np.uint8)]),
            differs=np.concatenate([book.differs for book in books] or [np.zeros(0, np.bool_)]),
        ),
        sum((book.tally() for book in books), Tally()),
    )


class _Replay:
    """One book from its first message to its last."""

    def __init__(self, messages: pl.DataFrame, levels: int, window: int) -> None:
        replay = compiled("quantattn.data.market.replay")
        n = messages.height
        self.messages, self.levels = messages, levels
        self.kind = messages["kind"].to_numpy(writable=True)
        self.side = messages["side"].to_numpy(writable=True)
        self.price = messages["price"].fill_null(MISSING).to_numpy(writable=True)
        self.size = messages["size"].to_numpy(writable=True)
        self.book = np.empty((4 * levels, n), np.int64)
        self.filled, self.differs = np.zeros(n, np.uint8), np.zeros(n, np.bool_)
        self.tallies = np.zeros(5, np.int64)
        _refuse_incomplete(self.kind, self.side, self.price, messages)
        shown = np.zeros((0, 0), np.int64)
        if window:
            names = [name for level in range(1, levels + 1) for name in level_columns(level)]
            shown = np.stack([messages[name].fill_null(0).to_numpy() for name in names])
        order_id, counts = messages["order_id"].to_numpy(writable=True), np.zeros(3, np.int64)
        table, sides = np.zeros((1, 4), np.int64), np.zeros((3, 2, 0), np.int64)
        for start in range(0, n, _CHUNK):
            end = min(start + _CHUNK, n)
            rows = 1 << int(2 * (counts[2] + _CHUNK) - 1).bit_length()
            if rows > len(table):
                larger = np.zeros((rows, 4), np.int64)
                replay.grow(table, larger)
                table = larger
            room = int(counts[:2].max()) + _CHUNK + window + 1
            if room > sides.shape[2]:
                sides = np.concatenate([sides, np.zeros((3, 2, 2 * room - sides.shape[2]), np.int64)], axis=2)
            replay.replay(
                *(self.kind, self.side, self.price, self.size, order_id, table, *sides, counts, self.tallies, window),
                *(shown, self.book, self.filled, self.differs, start, end, start == 0),
            )

    def frame(self) -> pl.DataFrame:
        """The messages with the book after each."""
        old = range(1, book_levels(self.messages.columns) + 1)
        kept = self.messages.drop(name for level in old for name in level_columns(level))
        price = pl.Series("price", self.price)
        return kept.with_columns(
            pl.Series("side", self.side),
            price.set(price == MISSING, None),
            pl.Series("size", self.size),
        ).with_columns(book_columns(self.book))

    def tally(self) -> Tally:
        """What did not go with the book."""
        ask, ask_size, bid, bid_size = self.book[:4]
        both = (ask_size > 0) & (bid_size > 0)
        reused, unknown, unplaced, overdrawn, contradicting = self.tallies.tolist()
        crossed, locked = int((both & (bid > ask)).sum()), int((both & (bid == ask)).sum())
        return Tally(reused, unknown, unplaced, overdrawn, contradicting, crossed, locked)


def book_columns(book: NDArray[np.int64]) -> list[pl.Series]:
    """Levels (4L, n), price and size of ask and bid one by one, as columns; the price of an empty level is null."""
    columns = []
    for level in range(len(book) // 4):
        for s, names in enumerate((level_columns(level + 1)[:2], level_columns(level + 1)[2:])):
            prices, sizes = book[4 * level + 2 * s : 4 * level + 2 * s + 2]
            price, size = pl.Series(names[0], prices), pl.Series(names[1], sizes)
            columns += [price if sizes.all() else price.set(size == 0, None), size]
    return columns


def _books(messages: pl.DataFrame, zone: str | None) -> list[pl.DataFrame]:
    """The table cut where a book begins."""
    if not messages.height:
        return []
    # No zone changes its date within a quarter of an hour, so only the first message of each has to be asked.
    quarter = pl.lit(0) if zone is None else pl.col("available_time") // (900 * 10**9)
    run = messages.select(pl.struct("entity", quarter.alias("quarter")).rle_id())["entity"]
    edges = np.searchsorted(run.to_numpy(), np.arange(int(run[-1]) + 1))
    firsts = messages.select("entity", pl.from_epoch("available_time", "ns"))[edges]
    if zone is None:
        begins = firsts["entity"].rle_id()
    else:
        local = pl.col("available_time").dt.replace_time_zone("UTC").dt.convert_time_zone(zone)
        begins = firsts.select(pl.struct("entity", local.dt.date()).rle_id())["entity"]
    starts = edges[np.searchsorted(begins.to_numpy(), np.arange(int(begins[-1]) + 1))].tolist()
    return [messages[a:b] for a, b in pairwise([*starts, messages.height])]


def _refuse_incomplete(
    kind: NDArray[np.uint8], side: NDArray[np.int8], price: NDArray[np.int64], messages: pl.DataFrame
) -> None:
    replaces = np.zeros(len(kind), np.bool_)
    replaces[1:] = kind[:-1] == DELETE
    lacking = np.flatnonzero((kind == NEW) & (((side == 0) & ~replaces) | (price == MISSING)))
    if len(lacking):
        row = messages.row(int(lacking[0]), named=True)
        raise ValueError(
            f"a new order needs a side (1 or -1) and a price, but order {row['order_id']} of {row['entity']} (seq "
            f"{row['seq']}) has side {row['side']} and price {row['price']} ({len(lacking)} such rows)"
        )


def compiled(module: str) -> Any:
    """Import a module of ours that needs numba; raises RuntimeError with what to install where it is not there."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name != "numba":
            raise
        raise RuntimeError("a book is rebuilt by numba, which is not here: pip install 'quantattn[book]'") from error
