"""Rows of a feed as a source: in one pass over pieces where they are in order, sorted on disk where they are not."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import polars as pl

from quantattn.data.market.levels import LevelBook, LevelTally
from quantattn.data.schema import CANONICAL_ORDER, CLEAR, EXECUTE, UPDATE, Instrument, level_columns
from quantattn.data.sources.crypto.feed import Account
from quantattn.data.sources.decimals import greatest_step
from quantattn.data.sources.runs import Runs, Scratch, made_again
from quantattn.data.sources.source import Source

KEPT = 4_000_000
"""Rows of a table that are kept in memory; a larger one is made again, piece by piece, whenever it is computed."""
FIRST = ("entity", "event_time", "available_time", "seq", "kind", "side", "price", "size")
LAST = ("exchange_time", "trade_id")
Parts = Callable[[Account], Iterator[pl.DataFrame]]
"""Reads the files: rows in the order of files and lines, with `event_time` and `available_time`."""


@dataclass(frozen=True)
class LevelSource(Source):
    """A source of book events from a feed of levels.

    Attributes:
        tally: what did not go with the books that were rebuilt; None where the feed ships its books whole.
    """

    tally: LevelTally | None = None


class Stage(ABC):
    """Makes rows of the table of rows in canonical order, piece by piece; what was before it carries along."""

    def __init__(self, account: Account) -> None:
        self.account = account

    @abstractmethod
    def take(self, rows: pl.DataFrame) -> pl.DataFrame:
        """The rows that are certain; others are held back."""

    def rest(self) -> pl.DataFrame | None:
        """What was held back, when no row follows."""
        return None

    def close(self) -> None:  # noqa: B027
        """Note what was found."""


class TradeStage(Stage):
    """Rows that are all trades."""

    def __init__(self, account: Account, extras: Sequence[str] = ()) -> None:
        super().__init__(account)
        self._columns = (*FIRST, *LAST, *extras)

    def take(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Columns of schema `Trades`."""
        return rows.select(self._columns)


class ShownStage(Stage):
    """Books shipped whole, and trades, each of which shows the last book of its entity."""

    def __init__(self, account: Account) -> None:
        super().__init__(account)
        self._names = [name for level in range(1, account.reading.levels + 1) for name in level_columns(level)]
        self._last: pl.DataFrame | None = None

    def take(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Every row with the book after it."""
        columns = [*FIRST, "order_id", *LAST, *self._names]
        missing = [pl.lit(None, pl.Int64).alias(name) for name in self._names if name not in rows.columns]
        own = rows.with_columns(order_id=pl.lit(0, pl.Int64), _ships=pl.col("kind") == UPDATE).with_columns(missing)
        own = own.select(*columns, "_ships")
        before = own.clear() if self._last is None else self._last.with_columns(_ships=pl.lit(True))
        # The rows are numbered before they are parted by entity: a number is a place among all of them.
        place = pl.when("_ships").then("_row").forward_fill().over("entity")
        sizes = [name for name in self._names if "_size_" in name]
        made = (
            pl.concat([before, own])
            .with_row_index("_row")
            .with_columns(place.alias("_place"))
            .with_columns(pl.col(self._names).gather(pl.col("_place")))
            .with_columns(pl.col(sizes).fill_null(0))
            .select(columns)
        )
        self._last = made.tail(1)
        return made.slice(before.height)


class LevelStage(Stage):
    """Changes of levels, snapshots and trades, the books rebuilt.

    Args:
        account: of the files.
        from_empty: let books begin empty where no snapshot came.
        by_message: rows that share these columns, one after another, are one message; None where `complete` is there.
            Such rows say in `clears` where a snapshot begins, and a CLEAR is put before it.
    """

    def __init__(self, account: Account, *, from_empty: bool = False, by_message: Sequence[str] | None = None) -> None:
        super().__init__(account)
        self._by_message, self._from_empty = by_message, from_empty
        self._books: dict[str, LevelBook] = {}
        self._held: pl.DataFrame | None = None
        self._opened: set[str] = set()
        self._changed: set[str] = set()

    def take(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Every whole message with the book after it."""
        if self._by_message is None:
            return self._rebuilt(rows.with_columns(order_id=pl.lit(0, pl.Int64)))
        both = rows if self._held is None else pl.concat([self._held, rows])
        run = both.select(pl.struct(self._by_message).rle_id()).to_series()
        whole = int(run.search_sorted(run[-1])) if both.height else 0
        self._held = both[whole:]
        return self._rebuilt(self.messages(both[:whole], run[:whole]))

    def rest(self) -> pl.DataFrame | None:
        """The last message."""
        if self._held is None:
            return None
        return self._rebuilt(self.messages(self._held, pl.zeros(self._held.height, pl.UInt32, eager=True)))

    @property
    def tally(self) -> LevelTally:
        """What did not go with the books."""
        return sum((book.tally for book in self._books.values()), LevelTally())

    def close(self) -> None:
        """Note it, and what has no book."""
        unseen = {name: count for name, count in vars(self.tally).items() if count}
        if unseen:
            listed = ", ".join(f"{name} {count:,}" for name, count in unseen.items())
            self.account.notes.append(f"not as the rebuilt books stood: {listed}")
        never = sorted(self._changed - self._opened)
        if never and not self._from_empty:
            shown = ", ".join(never[:5]) + (f" and {len(never) - 5} more" if len(never) > 5 else "")
            self.account.notes.append(f"no snapshot of {shown} came, so there is no book of it")

    def messages(self, rows: pl.DataFrame, run: pl.Series) -> pl.DataFrame:
        """Rows with `complete` and a CLEAR before every snapshot; `seq` counts a line twice, to leave it a number."""
        made = rows.with_columns(
            seq=2 * pl.col("seq") + 1,
            # Every trade is a message of its own.
            complete=(run != run.shift(-1)).fill_null(True) | (pl.col("kind") == EXECUTE),
            order_id=pl.lit(0, pl.Int64),
        )
        opens = made.filter("clears").with_columns(
            pl.col("seq") - 1,
            kind=pl.lit(CLEAR, pl.UInt8),
            side=pl.lit(0, pl.Int8),
            price=pl.lit(None, pl.Int64),
            size=pl.lit(0, pl.Int64),
            complete=pl.lit(False),
        )
        quiet = made.with_columns(broken=pl.col("broken") & ~pl.col("clears"))
        return pl.concat([quiet, opens]).sort(CANONICAL_ORDER)

    def _rebuilt(self, rows: pl.DataFrame) -> pl.DataFrame:
        reading, made = self.account.reading, []
        own = rows.select(*FIRST, "order_id", "complete", "broken", *LAST)
        for (name,), part in own.group_by("entity", maintain_order=True):
            entity = str(name)
            if entity not in self._books:
                self._books[entity] = LevelBook(
                    reading.levels, from_empty=self._from_empty, forget_at_breaks=reading.on_gap == "forget"
                )
            made.append(self._books[entity].after(part))
        for kind, seen in ((CLEAR, self._opened), (UPDATE, self._changed)):
            seen.update(own.filter(pl.col("kind") == kind)["entity"].unique())
        empty = LevelBook(reading.levels).after(own.clear())
        return pl.concat([empty, *made])


@dataclass
class _Seen:
    """What a source says of its table."""

    rows: int
    steps: dict[str, int]

    def add(self, made: pl.DataFrame, unit: int) -> None:
        self.rows += made.height
        prices = [name for name in made.columns if name == "price" or "_price_" in name]
        for (entity,), own in made.group_by("entity"):
            name = str(entity)
            self.steps[name] = greatest_step([own[column] for column in prices], self.steps.get(name, unit))


class _SeveralEntities(Exception):
    """Rows of more than one entity come in the order of their lines, which is not that of the table."""


def build(parts: Parts, stage_of: Callable[[Account], Stage], account: Account, *, merged: bool = False) -> LevelSource:
    """Read the files, check every row, and make the source.

    Rows of one entity are those of the table in the order of its files, so that pieces follow one another. Rows of
    several entities, and rows of merged files, are read once, sorted, and set down in the system's folder for temporary
    files as far as memory does not hold them. No more than a few pieces are in memory; of the table itself up to `KEPT`
    rows are, and a larger one is made again whenever it is computed.

    Args:
        parts: reads the files.
        stage_of: makes what turns their rows into those of the table.
        account: takes what happens.
        merged: rows of several files belong between each other, so that they must be sorted.
    """
    if not merged:
        try:
            return _piece_by_piece(lambda account: _of_one_entity(parts(account)), stage_of, account)
        except _SeveralEntities:
            account = account.again()
    rows = _Sorted(parts(account))
    return _piece_by_piece(lambda _: rows.pieces(), stage_of, account)


class _Sorted:
    """Rows of several entities in canonical order, as often as they are asked for; `seq` counts them as they come."""

    def __init__(self, parts: Iterable[pl.DataFrame]) -> None:
        self._names: list[str] = []
        self._runs = Runs(self._names, Scratch())
        codes: dict[str, int] = {}
        count = 0
        for part in parts:
            for name in part["entity"].unique(maintain_order=True):
                if name not in codes:
                    codes[name] = len(self._names)
                    self._names.append(name)
            code = pl.col("entity").replace_strict(codes, return_dtype=pl.UInt32)
            seq = count + pl.int_range(pl.len(), dtype=pl.Int64)
            self._runs.add(part.select(pl.exclude("entity", "seq"), name=code, seq=seq))
            count += part.height

    def pieces(self) -> Iterator[pl.DataFrame]:
        """They, in tables of a few hundred thousand rows."""
        names, none = pl.Series("entity", self._names, pl.String), pl.DataFrame()
        for rows in self._runs.batches():  # the first has no row and every column
            none = none if none.width else rows
            whole = pl.concat([none, rows], how="diagonal")
            yield whole.with_columns(names.gather(whole["name"])).drop("name")


def sort_rows(parts: Iterable[pl.DataFrame]) -> pl.DataFrame:
    """Rows in canonical order; `seq` counts them as they come."""
    rows = pl.concat(list(parts), how="diagonal").with_columns(seq=pl.int_range(pl.len(), dtype=pl.Int64))
    return rows.sort(CANONICAL_ORDER, maintain_order=True)


def _piece_by_piece(pieces: Parts, stage_of: Callable[[Account], Stage], account: Account) -> LevelSource:
    stage, seen, kept = stage_of(account), _Seen(0, {}), list[pl.DataFrame]()
    schema = None
    for made in _run(pieces(account), stage):
        schema = made.schema
        seen.add(made, 10**-account.reading.price_exponent)
        if seen.rows <= KEPT:
            kept.append(made)
        else:
            kept.clear()
    if seen.rows <= KEPT:
        return _source(pl.concat(kept).lazy(), seen, stage)

    def again() -> Iterator[pl.DataFrame]:
        fresh = account.again()
        return _run(pieces(fresh), stage_of(fresh))

    return _source(made_again(again, schema or pl.Schema()), seen, stage)


def _run(rows: Iterator[pl.DataFrame], stage: Stage) -> Iterator[pl.DataFrame]:
    for piece in rows:
        yield stage.take(piece)
    if (rest := stage.rest()) is not None:
        yield rest


def _of_one_entity(parts: Iterator[pl.DataFrame]) -> Iterator[pl.DataFrame]:
    count, names = 0, set[str]()
    for part in parts:
        names.update(part["entity"].unique())
        if len(names) > 1:
            raise _SeveralEntities
        yield part.with_columns(seq=count + pl.int_range(pl.len(), dtype=pl.Int64))
        count += part.height


def _source(frame: pl.LazyFrame, seen: _Seen, stage: Stage) -> LevelSource:
    account = stage.account
    stage.close()
    found = instruments(seen.steps, account)
    return LevelSource(frame, found, account.report(seen.rows), stage.tally if isinstance(stage, LevelStage) else None)


def instruments(steps: dict[str, int], account: Account) -> tuple[Instrument, ...]:
    """One for each entity; without a given tick its is the greatest step that divides all its prices and 1."""
    reading = account.reading
    if reading.tick is None:
        ticks = ", ".join(f"{name} {steps[name]}" for name in sorted(steps)[:10]) + (" …" if len(steps) > 10 else "")
        account.notes.append(
            f"ticks are the greatest steps that divide 1 and all prices here, in 10^{reading.price_exponent}: "
            f"{ticks}; give tick= where files have to agree"
        )
    return tuple(
        Instrument(name, reading.price_exponent, reading.step() or steps[name], reading.size_exponent)
        for name in sorted(steps)
    )
