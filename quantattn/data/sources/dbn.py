"""Databento DBN files → book events, the book rebuilt from orders or as shipped; or trades; or bars.

The format, its units and what it cannot tell: docs/sources/databento.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import chain
from pathlib import Path
from typing import Literal

import numpy as np
import polars as pl

from quantattn.data.market.rebuild import Tally
from quantattn.data.schema import Instrument, level_columns
from quantattn.data.sources.dbn_books import Books, notes_on
from quantattn.data.sources.dbn_feed import Feed
from quantattn.data.sources.dbn_format import BARS, DamagedDbn, open_dbn, record_type
from quantattn.data.sources.dbn_rows import DEPTH, Account
from quantattn.data.sources.dbn_samples import PRICES
from quantattn.data.sources.runs import Scratch, lazy_table
from quantattn.data.sources.source import Source, SourceReport, files_sha256, write_set_aside
from quantattn.data.sources.text_rows import check_on_bad, price_steps

PRICE_EXPONENT = -9
_SUFFIXES = (".dbn", ".dbn.zst", ".dbn.gz", ".dbz")


@dataclass(frozen=True)
class DbnSource(Source):
    """A source of book events, trades or bars, with the records that are neither.

    Attributes:
        schema: what the files hold, one of `quantattn.data.sources.dbn_format.SCHEMAS`.
        tables: action → records that are no event of a book: "F" fills, "N" none; fields as the vendor names them.
        tally: what did not go with the books that were rebuilt.
    """

    schema: str
    tables: Mapping[str, pl.DataFrame]
    tally: Tally


def scan_dbn(
    path: str | Path,
    levels: int = 1,
    *,
    schema: str | None = None,
    tick: str | Mapping[str, str] | None = None,
    on_bad: Literal["refuse", "quarantine"] = "refuse",
    set_aside: str | Path | None = None,
    scratch: str | Path | None = None,
) -> DbnSource:
    """Read DBN files of versions 1 to 3 (plain, .zst, .gz): schema `BookEvents` and `complete`; or `Trades`; or `Bars`.

    `complete` says that the row ends an event (F_LAST) of a book that is known. The book in any other row is that of
    the last complete one before it: what stands within an event never stood in the market.

    Args:
        path: one file, or a folder, of which the files that end in .dbn, .dbn.zst, .dbn.gz and .dbz are taken.
        levels: levels of the book to keep.
        schema: which records to read, where a file holds several kinds; files of another schema are refused.
        tick: smallest price step in units of currency, as decimal text ("0.25"), or one for each entity. None takes
            the greatest common divisor of an entity's prices, and the report says so.
        on_bad: "refuse" raises at the first record that breaks a rule; "quarantine" leaves it out, counts it under
            its reason, and writes it to `set_aside`. Damaged files are refused in both cases.
        set_aside: CSV file for what is left out; needed with "quarantine".
        scratch: folder in which rows are set down that memory does not hold (60 bytes a row, and 32 a level where
            records have levels); None is the system's folder for temporary files.

    Raises:
        ValueError: one sentence that names the file, the byte or record, what was found and what was expected.
        RuntimeError: databento-dbn (extra `dbn`) or, for orders, numba (extra `book`) is not installed.
    """
    if levels < 1:
        raise ValueError(f"levels must be at least 1, got {levels}")
    check_on_bad(on_bad, set_aside)
    accounts: dict[Path, Account] = {}
    notes: list[str] = []
    feed = Feed(levels, Scratch(scratch))
    for file in _files(Path(path)):
        records = open_dbn(file, schema)
        schema = records.header.schema
        accounts[file] = feed.read(records)
        bad = accounts[file].bad
        if on_bad == "refuse" and bad.height:
            first = bad.row(0, named=True)
            raise DamagedDbn(
                f"{file.name}, record {first['record']}: {first['reason']} ({first['text']}; "
                f"{bad.height} such records); expected sound records of the schema {schema}"
            )
        notes += [f"{file.name}: {note}" for note in _notes(accounts[file])]
        notes += [
            f"{file.name}: {n:,} records of type {record_type(rtype)} are no {schema} and were passed over"
            for rtype, n in sorted(records.others.items())
        ]
    assert schema is not None
    frame, books, steps = _table(feed, schema, levels, steps=tick is None)
    instruments, ticks = _instruments(steps, tick)
    left_out = _left_out(accounts)
    if set_aside is not None:
        write_set_aside(left_out, Path(set_aside))
    marked = feed.marked or not feed.rows
    return DbnSource(
        frame=frame,
        instruments=instruments,
        report=SourceReport(
            rows_read=feed.rows,
            rows_set_aside=dict(left_out.group_by("reason", maintain_order=True).len().iter_rows()),
            files=files_sha256({file.name: file for file in accounts}),
            notes=(*notes, *notes_on(books, schema, levels, marked=marked), *ticks),
        ),
        schema=schema,
        tables=feed.tables,
        tally=books.tally,
    )


def _table(feed: Feed, schema: str, levels: int, *, steps: bool) -> tuple[pl.LazyFrame, Books, dict[str, int]]:
    """The table; what its books were like; and the greatest step that divides 1 and all prices of each entity."""
    entities = _entities(feed.names)
    order = sorted(feed.runs.names(), key=entities.__getitem__)
    found = dict.fromkeys((entities[name] for name in order), 10**9)
    last: list[Books] = []
    # Of orders all prices of the book are prices of rows; levels are shipped with prices of their own.
    shipped = range(1, min(levels, DEPTH.get(schema, 0)) + 1)
    own = PRICES if schema in BARS else ("price",)
    priced = [*own, *(name for level in shipped for name in level_columns(level) if "_price_" in name)]

    def batches() -> Iterator[pl.DataFrame]:
        books = Books(schema, levels, marked=feed.marked)
        for rows in feed.batches(order):
            yield books.after(rows.with_columns(pl.Series("entity", entities, pl.String).gather(rows["name"])))
        last[:] = [books]

    def look(made: pl.DataFrame) -> None:
        if steps:
            prices = made.group_by("entity").agg(pl.col(name).drop_nulls().unique() for name in priced)
            for entity, *own in prices.iter_rows():
                found[entity] = int(np.gcd.reduce(np.array([*chain(*own), found[entity]], np.int64)))

    return lazy_table(batches, look), last[0], found


def _entities(names: Sequence[tuple[str, int]]) -> list[str]:
    """Of each instrument: its symbol, with the publisher where a symbol has several."""
    publishers = Counter(symbol for symbol, _ in names)
    return [symbol if publishers[symbol] == 1 else f"{symbol}@{publisher}" for symbol, publisher in names]


def _files(path: Path) -> list[Path]:
    if not path.exists():
        raise ValueError(f"{path} does not exist; expected a DBN file or a folder of them")
    if path.is_file():
        return [path]
    files = sorted(file for file in path.rglob("*") if file.name.endswith(_SUFFIXES) and file.is_file())
    if not files:
        raise ValueError(f"{path} holds no file that ends in {', '.join(_SUFFIXES)}")
    return files


def _notes(account: Account) -> list[str]:
    listed = ", ".join(f"{action} {n:,}" for action, n in sorted(account.actions.items()))
    notes = [f"{account.actions.total():,} records by action or kind: {listed or 'none'}"]
    for what, n in account.counts.items():
        notes.append(f"{n:,} records {what}")
    if account.most:
        notes.append(f"the largest fall of ts_recv is {account.most:,} ns")
    if account.unnamed:
        some = ", ".join(str(each) for each in sorted(account.unnamed)[:3])
        more = " …" if len(account.unnamed) > 3 else ""
        what = "instrument ids have no symbol in the metadata and are named by their number"
        notes.append(f"{len(account.unnamed)} {what}: {some}{more}")
    return notes


def _instruments(
    steps: Mapping[str, int], tick: str | Mapping[str, str] | None
) -> tuple[tuple[Instrument, ...], list[str]]:
    """One for each entity; `steps` are taken for ticks where none is given, and noted."""
    entities = sorted(steps)
    if tick is not None:
        given = dict.fromkeys(entities, tick) if isinstance(tick, str) else dict(tick)
        missing = [name for name in entities if name not in given]
        if missing:
            raise ValueError(f"no tick is given for {', '.join(missing)}")
        return tuple(
            Instrument(name, PRICE_EXPONENT, price_steps(given[name], PRICE_EXPONENT)) for name in entities
        ), []
    notes = [
        f"the tick of {name} is taken to be {Decimal(steps[name]).scaleb(-9).normalize():f}, a divisor of all "
        "its prices; tick= gives it"
        for name in entities[:3]
    ]
    if len(entities) > 3:
        notes.append(f"the ticks of {len(entities) - 3} more entities were found in the same way")
    return tuple(Instrument(name, PRICE_EXPONENT, steps[name]) for name in entities), notes


def _left_out(accounts: Mapping[Path, Account]) -> pl.DataFrame:
    return pl.concat(
        account.bad.select(pl.lit(file.name).alias("file"), pl.all()) for file, account in accounts.items()
    )
