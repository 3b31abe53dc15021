"""Rows of DBN in canonical order → the table: books rebuilt or as shipped, shown when an event is complete."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from quantattn.data.market.book import book_flags
from quantattn.data.market.rebuild import OrderBooks, Tally
from quantattn.data.schema import CANONICAL_ORDER, DELETE, EXECUTE, EXECUTE_HIDDEN, book_levels, level_columns
from quantattn.data.sources.dbn_format import BARS
from quantattn.data.sources.dbn_rows import DEPTH
from quantattn.data.sources.dbn_samples import BAR_COLUMNS

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]
_OWN = ("name", "last", "opens")


class Books:
    """The book after each row, for rows that come in batches.

    Args:
        schema: of the records.
        levels: of the book.
        marked: whether any record says that it ends an event; otherwise each does.

    Attributes:
        tally: what did not go with the books so far; of rows that end an event alone, how many were crossed or locked.
        unknown: rows of which no book is known.
        within: rows within an event.
    """

    def __init__(self, schema: str, levels: int, *, marked: bool) -> None:
        self._schema, self._levels, self._marked = schema, levels, marked
        self._rebuilt = OrderBooks(levels, zone=None)
        self._flags = Tally()
        self.unknown, self.within = 0, 0
        # Of the last row's entity: its name, whether its book is known, and the book as of the last complete row.
        self._name, self._known = -1, False
        self._shown = pl.DataFrame()

    @property
    def tally(self) -> Tally:
        """What did not go with the books so far."""
        return replace(self._rebuilt.tally, crossed=self._flags.crossed, locked=self._flags.locked)

    def after(self, rows: pl.DataFrame) -> pl.DataFrame:
        """The table of these rows, which follow those of the last call and have the columns of `Feed`, and `entity`."""
        if self._schema in BARS:
            return rows.select(*CANONICAL_ORDER, "event_time", *BAR_COLUMNS)
        if self._schema == "trades":
            return rows.select(*CANONICAL_ORDER, "event_time", "kind", "side", "price", "size")
        opens, last, name = (rows[column].to_numpy() for column in ("opens", "last", "name"))
        if not self._marked or self._schema == "tbbo":  # each of whose records shows the book that its trade met
            last = (rows["kind"] != DELETE).to_numpy()  # which a modified order begins with
        if self._schema == "mbo":
            kind = rows["kind"]
            # What traded leaves the book by records of its own, so the execution itself changes nothing.
            resting = kind.set(kind == EXECUTE, EXECUTE_HIDDEN)
            made = self._rebuilt.after(rows.drop(_OWN).with_columns(resting)).with_columns(kind)
        else:
            opens = np.ones(len(opens), np.bool_)  # every record shows its book whole
            made = rows.drop(_OWN).with_columns(
                pl.when(pl.col(price).is_not_null()).then(pl.col(size)).otherwise(0).alias(size)
                for level in range(1, min(self._levels, DEPTH[self._schema]) + 1)
                for price, size in (level_columns(level)[:2], level_columns(level)[2:])
            )
        if not len(name):
            return made.with_columns(complete=pl.lit(None, pl.Boolean))
        made = self._sampled(made, name, opens, last)
        flags = book_flags(made.filter("complete"))
        self._flags += Tally(crossed=int(flags["crossed"].sum()), locked=int(flags["locked"].sum()))
        return made

    def _sampled(self, made: pl.DataFrame, name: NDArray[np.uint32], opens: Flags, last: Flags) -> pl.DataFrame:
        """The book of every row as the last complete row of its entity, itself perhaps, left it."""
        goes_on, row = int(name[0]) == self._name, np.arange(len(name))
        starts = np.flatnonzero(np.diff(name.astype(np.int64), prepend=-1))
        first = np.repeat(starts, np.diff(starts, append=len(name)))
        known = np.maximum.accumulate(np.where(opens, row, -1)) >= first
        if goes_on and self._known:
            known |= first == 0
        complete = known & last
        source = np.maximum.accumulate(np.where(complete, row, -1))
        names = [name for level in range(1, book_levels(made.columns) + 1) for name in level_columns(level)]
        books = made.select(names)
        nothing = books.clear(1).with_columns(pl.col(name).fill_null(0) for name in names if "_size_" in name)
        # Row 0 is that of an entity that has shown no book, row 1 what the one that goes on showed last.
        before = np.where((first == 0) & goes_on, 1, 0)
        place = np.where(source >= first, source + 2, before)
        both = pl.concat([nothing, self._shown if goes_on else nothing, books])
        self.unknown += int((~known).sum())
        self.within += int((known & ~complete).sum())
        self._name, self._known, self._shown = int(name[-1]), bool(known[-1]), both[int(place[-1])]
        made = made.with_columns(pl.Series("complete", complete))
        return made if complete.all() else made.with_columns(both[place])


def notes_on(books: Books, schema: str, levels: int, *, marked: bool) -> list[str]:
    """Sentences for the report, when the last batch is done."""
    if schema == "trades" or schema in BARS:
        return []
    notes = [] if marked or schema == "tbbo" else ["no record has F_LAST, so each is taken for the end of an event"]
    if books.unknown:
        notes.append(
            f"{books.unknown:,} rows come before the first snapshot or clear of their entity, so that they have no book"
        )
    if books.within:
        notes.append(f"{books.within:,} rows lie within an event and have the book from before it")
    unseen = {name: count for name, count in vars(books.tally).items() if count}
    if unseen:
        notes.append(f"not as the books stood: {', '.join(f'{name} {n:,}' for name, n in unseen.items())}")
    if (depth := DEPTH.get(schema)) and depth != levels:
        notes.append(f"{schema} has {depth} levels of the book, {min(levels, depth)} were kept")
    return notes
