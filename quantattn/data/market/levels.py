"""A book rebuilt from changes of its price levels, for feeds that tell sizes at prices and name no order."""

from __future__ import annotations

from dataclasses import dataclass, fields
from itertools import pairwise

import numpy as np
import polars as pl

from quantattn.data.market.rebuild import MISSING, book_columns, compiled
from quantattn.data.schema import UPDATE, BookMessages, book_levels, check, level_columns

_CHUNK = 8192


@dataclass(frozen=True)
class LevelTally:
    """What does not go with the book as it stood, counted.

    Attributes:
        absent: sizes of 0 for a level that does not stand; they change nothing. Below the depth of the snapshot that a
            book began with they are normal.
        unopened: changes while there is no book, before the first snapshot or after a break; they are not applied.
        breaks: places where the feed lacks messages.
        crossed: rows that end a message and after which the best bid is above the best ask.
        locked: the same where they are equal.
    """

    absent: int = 0
    unopened: int = 0
    breaks: int = 0
    crossed: int = 0
    locked: int = 0

    def __add__(self, other: LevelTally) -> LevelTally:
        return LevelTally(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)})


@dataclass(frozen=True)
class RebuiltLevels:
    """Changes with the book after each.

    Attributes:
        frame: the rows with `ask_price_1` … `bid_size_L`.
        tally: what did not go with the book.
    """

    frame: pl.DataFrame
    tally: LevelTally


def rebuild_levels(
    messages: pl.DataFrame, levels: int = 10, *, from_empty: bool = False, forget_at_breaks: bool = True
) -> RebuiltLevels:
    """Apply changes of levels in their order and note the best `levels` levels of both sides after each.

    UPDATE sets the level at `price` on `side` to `size`, and takes it away when that is 0. CLEAR empties a side, both
    when `side` is 0, and opens the book: the rows of a snapshot follow it. Other kinds change nothing. One message may
    be several rows, which take effect together: until the one that ends it, rows show the book as it was before, so
    that no state is shown that never stood.

    There is no book, and levels are empty, until a CLEAR has come; a size that is set tells nothing of the levels that
    were set before. The same holds after a break, where messages were lost.

    Args:
        messages: schema `BookMessages`, in canonical order; optionally the Booleans `complete` (the message ends with
            this row; without the column every row is one) and `broken` (messages are lacking before this row; dropped
            from the result). Columns of a book in it are replaced.
        levels: how many; a level that is empty has a null price and size 0.
        from_empty: begin with an empty book instead of none, for a feed that never ships a snapshot. What stood before
            it is then lacking.
        forget_at_breaks: False goes on with what is left of the book.

    Raises:
        ValueError: the table breaks its schema, or an UPDATE lacks its side or price.
        RuntimeError: numba is not installed.
    """
    if levels < 1:
        raise ValueError(f"levels must be at least 1, got {levels}")
    check(messages, BookMessages)
    _refuse_incomplete(messages)
    edges = np.cumsum(messages["entity"].rle().struct.field("len").to_numpy()).tolist()
    made, tally = [_bare(messages, levels)], LevelTally()
    for first, end in pairwise([0, *edges]):
        book = LevelBook(levels, from_empty=from_empty, forget_at_breaks=forget_at_breaks)
        made.append(book.after(messages[first:end]))
        tally += book.tally
    return RebuiltLevels(pl.concat(made), tally)


class LevelBook:
    """The book of one entity, for changes that come piece by piece; settings as in `rebuild_levels`.

    Attributes:
        levels: how many are noted.
        tally: what did not go with the book so far.
    """

    def __init__(self, levels: int, *, from_empty: bool = False, forget_at_breaks: bool = True) -> None:
        self.levels, self._forgets = levels, forget_at_breaks
        self._state = np.array([0, 0, from_empty, 0], np.int64)
        self._tallies, self._shown = np.zeros(5, np.int64), np.zeros((4 * levels, 1), np.int64)
        self._sides = np.zeros((2, 2, 0), np.int64)

    @property
    def tally(self) -> LevelTally:
        """What did not go with the book so far."""
        return LevelTally(*self._tallies.tolist())

    def after(self, messages: pl.DataFrame) -> pl.DataFrame:
        """Apply rows, which follow those of the last call, and return them with the book after each."""
        replay = compiled("quantattn.data.market.level_replay")
        n = messages.height
        flags = [
            messages[name].to_numpy() if name in messages.columns else np.full(n, given)
            for name, given in (("complete", True), ("broken", False))
        ]
        columns = [
            messages["kind"].to_numpy(),
            messages["side"].to_numpy(),
            messages["price"].fill_null(MISSING).to_numpy(),
            messages["size"].to_numpy(),
            *flags,
        ]
        book = np.empty((4 * self.levels, n), np.int64)
        for start in range(0, n, _CHUNK):
            end = min(start + _CHUNK, n)
            room = int(self._state[:2].max()) + _CHUNK + 1
            if room > self._sides.shape[2]:
                more = np.zeros((2, 2, 2 * room - self._sides.shape[2]), np.int64)
                self._sides = np.concatenate([self._sides, more], axis=2)
            applied = (*columns, self._forgets, *self._sides, self._state, self._tallies, self._shown, book)
            replay.replay_levels(*applied, start, end)
        return _bare(messages, None).with_columns(book_columns(book))


def _bare(messages: pl.DataFrame, levels: int | None) -> pl.DataFrame:
    """The rows without a book and without `broken`; with `levels`, no row and the columns of a book."""
    old = [name for level in range(1, book_levels(messages.columns) + 1) for name in level_columns(level)]
    kept = messages.drop(*old, "broken", strict=False)
    if levels is None:
        return kept
    return kept.clear().with_columns(book_columns(np.empty((4 * levels, 0), np.int64)))


def _refuse_incomplete(messages: pl.DataFrame) -> None:
    side, price = pl.col("side"), pl.col("price")
    update = pl.col("kind") == UPDATE
    lacking = messages.filter(update & ((side == 0) | price.is_null()))
    if lacking.height:
        row = lacking.row(0, named=True)
        raise ValueError(
            f"a level needs a side (1 or -1) and a price, but seq {row['seq']} of {row['entity']} has side "
            f"{row['side']} and price {row['price']} ({lacking.height} such rows)"
        )
