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
    check(messages, BookMessages)
    books = OrderBooks(levels, zone=zone)
    return RebuiltBook(books.after(messages), books.tally)


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
    books = OrderBooks(levels, zone=zone)
    made = books._replayed(events, levels)
    keys = events.select("entity", "available_time", "seq", "kind")
    return BookAgreement(keys.with_columns(filled=made.filled, differs=made.differs), books.tally)


class OrderBooks:
    """The books of `rebuild_book`, for messages that come piece by piece; settings as there.

    Attributes:
        levels: how many are noted.
        tally: what did not go with the books so far.
    """

    def __init__(self, levels: int, *, zone: str | None = EXCHANGE_ZONE) -> None:
        if levels < 1:
            raise ValueError(f"levels must be at least 1, got {levels}")
        self.levels, self.tally, self._zone = levels, Tally(), zone
        self._book, self._last = _Standing(0), (0, 0)
        self._of: tuple[Any, ...] | None = None

    def after(self, messages: pl.DataFrame) -> pl.DataFrame:
        """Apply rows, which follow those of the last call in canonical order, and return them with the book after each.

        Raises:
            ValueError: a new order lacks its side or price.
        """
        return self._replayed(messages, 0).frame()

    def _replayed(self, messages: pl.DataFrame, window: int) -> _Replay:
        made = _Replay(messages, self.levels, window)
        starts, books = _books(messages, self._zone)
        goes_on = bool(books) and books[0] == self._of
        begins = starts[1:] if goes_on else starts
        kind_before, side_before = self._last if goes_on else (0, 0)
        made.refuse_incomplete(begins, kind_before == DELETE)
        if goes_on and made.kind[0] == NEW and made.side[0] == 0 and kind_before == DELETE:
            made.side[0] = side_before  # a replacement that does not say its side again
        for place, (start, end) in enumerate(pairwise([*starts, messages.height])):
            opens = place > 0 or not goes_on
            if opens:
                self._book = _Standing(window)
            self._book.apply(made, start, end, opens)
        if books:
            self._of, self._last = books[-1], (int(made.kind[-1]), int(made.side[-1]))
        self.tally += made.tally()
        return made


class _Standing:
    """The orders and levels of one book."""

    def __init__(self, window: int) -> None:
        self.window, self.counts = window, np.zeros(3, np.int64)
        self.table, self.sides = np.zeros((256, 4), np.int64), np.zeros((3, 2, 512), np.int64)

    def apply(self, made: _Replay, start: int, end: int, opens: bool) -> None:
        """Apply rows start … end − 1; `opens` says that the first of them begins the book."""
        replay = compiled("quantattn.data.market.replay")
        first = start if opens else -1
        while start < end:
            start = replay.replay(
                *(made.kind, made.side, made.price, made.size, made.order_id, self.table, *self.sides, self.counts),
                *(made.tallies, self.window, made.shown, made.book, made.filled, made.differs, start, end, first),
            )
            if start < end and replay.lacks_room(self.sides[0], self.counts, self.window):
                self.sides = np.concatenate([self.sides, np.zeros_like(self.sides)], axis=2)
            elif start < end:
                larger = np.zeros((2 * len(self.table), 4), np.int64)
                replay.grow(self.table, larger)
                self.table = larger


class _Replay:
    """Messages as arrays, and what is noted of the books after each."""

    def __init__(self, messages: pl.DataFrame, levels: int, window: int) -> None:
        n = messages.height
        self.messages = messages
        self.kind = messages["kind"].to_numpy(writable=True)
        self.side = messages["side"].to_numpy(writable=True)
        self.price = messages["price"].fill_null(MISSING).to_numpy(writable=True)
        self.size = messages["size"].to_numpy(writable=True)
        self.order_id = messages["order_id"].to_numpy(writable=True)
        self.book = np.empty((4 * levels, n), np.int64)
        self.filled, self.differs = np.zeros(n, np.uint8), np.zeros(n, np.bool_)
        self.tallies, self.shown = np.zeros(5, np.int64), np.zeros((0, 0), np.int64)
        if window:
            names = [name for level in range(1, levels + 1) for name in level_columns(level)]
            self.shown = np.stack([messages[name].fill_null(0).to_numpy() for name in names])

    def refuse_incomplete(self, begins: list[int], after_deletion: bool) -> None:
        """Raise for a new order that lacks its price, or its side where no deletion stands right before it."""
        replaces = np.zeros(len(self.kind), np.bool_)
        replaces[:1], replaces[1:] = after_deletion, self.kind[:-1] == DELETE
        replaces[begins] = False
        lacking = np.flatnonzero((self.kind == NEW) & (((self.side == 0) & ~replaces) | (self.price == MISSING)))
        if len(lacking):
            row = self.messages.row(int(lacking[0]), named=True)
            raise ValueError(
                f"a new order needs a side (1 or -1) and a price, but order {row['order_id']} of {row['entity']} (seq "
                f"{row['seq']}) has side {row['side']} and price {row['price']} ({len(lacking)} such rows)"
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
        """What did not go with the books."""
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


def _books(messages: pl.DataFrame, zone: str | None) -> tuple[list[int], list[tuple[Any, ...]]]:
    """Rows at which a book begins, and whose each is: the entity and, with a zone, the day."""
    if not messages.height:
        return [], []
    # No zone changes its date within a quarter of an hour, so only the first message of each has to be asked.
    quarter = pl.lit(0) if zone is None else pl.col("available_time") // (900 * 10**9)
    run = messages.select(pl.struct("entity", quarter.alias("quarter")).rle_id())["entity"]
    edges = np.searchsorted(run.to_numpy(), np.arange(int(run[-1]) + 1))
    firsts = messages.select("entity", pl.from_epoch("available_time", "ns").alias("day"))[edges]
    if zone is None:
        firsts = firsts.select("entity")
    else:
        local = pl.col("day").dt.replace_time_zone("UTC").dt.convert_time_zone(zone)
        firsts = firsts.with_columns(local.dt.date())
    begins = np.flatnonzero(np.diff(firsts.select(pl.struct(pl.all()).rle_id()).to_series().to_numpy(), prepend=-1))
    return edges[begins].tolist(), firsts[begins].rows()


def compiled(module: str) -> Any:
    """Import a module of ours that needs numba; raises RuntimeError with what to install where it is not there."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name != "numba":
            raise
        raise RuntimeError("a book is rebuilt by numba, which is not here: pip install 'quantattn[book]'") from error
