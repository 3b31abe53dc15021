"""Databento DBN files → book events, the book rebuilt from orders or as shipped; or trades.

The format, its units and what it cannot tell: docs/sources/databento.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Literal

import numpy as np
import polars as pl

from quantattn.data.market.book import book_flags
from quantattn.data.market.rebuild import Tally, rebuild_book
from quantattn.data.schema import (
    CANONICAL_ORDER,
    DELETE,
    EXECUTE,
    EXECUTE_HIDDEN,
    Instrument,
    book_levels,
    level_columns,
)
from quantattn.data.sources.dbn_format import DamagedDbn, open_dbn, record_type
from quantattn.data.sources.dbn_rows import DEPTH, Rows, read_rows
from quantattn.data.sources.source import Source, SourceReport, file_sha256, write_set_aside
from quantattn.data.sources.text_rows import check_on_bad, price_steps

PRICE_EXPONENT = -9
_SUFFIXES = (".dbn", ".dbn.zst", ".dbn.gz", ".dbz")


@dataclass(frozen=True)
class DbnSource(Source):
    """A source of book events or trades, with the records that are neither.

    Attributes:
        schema: what the files hold: "mbo", "mbp-1", "mbp-10" or "trades".
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
) -> DbnSource:
    """Read DBN files of versions 1 to 3 (plain, .zst, .gz): schema `BookEvents` and `complete`, or `Trades`.

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

    Raises:
        ValueError: one sentence that names the file, the byte or record, what was found and what was expected.
        RuntimeError: databento-dbn (extra `dbn`) or, for orders, numba (extra `book`) is not installed.
    """
    if levels < 1:
        raise ValueError(f"levels must be at least 1, got {levels}")
    check_on_bad(on_bad, set_aside)
    found: dict[Path, Rows] = {}
    notes: list[str] = []
    for file in _files(Path(path)):
        records = open_dbn(file, schema)
        schema = records.header.schema
        found[file] = read_rows(records, levels)
        if on_bad == "refuse" and found[file].bad.height:
            first = found[file].bad.row(0, named=True)
            raise DamagedDbn(
                f"{file.name}, record {first['record']}: {first['reason']} ({first['text']}; "
                f"{found[file].bad.height} such records); expected sound records of the schema {schema}"
            )
        notes += [f"{file.name}: {note}" for note in _notes(found[file])]
        notes += [
            f"{file.name}: {n:,} records of type {record_type(rtype)} are no {schema} and were passed over"
            for rtype, n in sorted(records.others.items())
        ]
    assert schema is not None
    messages = _join(list(found.values()))
    frame, tally, more = _books(messages, schema, levels)
    instruments, ticks = _instruments(frame, tick)
    bad = _left_out(found)
    if set_aside is not None:
        write_set_aside(bad, Path(set_aside))
    return DbnSource(
        frame=frame.lazy(),
        instruments=instruments,
        report=SourceReport(
            rows_read=frame.height,
            rows_set_aside=dict(bad.group_by("reason", maintain_order=True).len().iter_rows()),
            files={file.name: file_sha256(file) for file in found},
            notes=(*notes, *more, *ticks),
        ),
        schema=schema,
        tables=_tables(list(found.values())),
        tally=tally,
    )


def _files(path: Path) -> list[Path]:
    if not path.exists():
        raise ValueError(f"{path} does not exist; expected a DBN file or a folder of them")
    if path.is_file():
        return [path]
    files = sorted(file for file in path.rglob("*") if file.name.endswith(_SUFFIXES) and file.is_file())
    if not files:
        raise ValueError(f"{path} holds no file that ends in {', '.join(_SUFFIXES)}")
    return files


def _notes(rows: Rows) -> list[str]:
    listed = ", ".join(f"{action} {n:,}" for action, n in sorted(rows.actions.items()))
    notes = [f"{rows.actions.total():,} records by action: {listed or 'none'}"]
    for what, n in rows.counts.items():
        notes.append(f"{n:,} records {what}")
    if rows.most:
        notes.append(f"the largest fall of ts_recv is {rows.most:,} ns")
    if rows.unnamed:
        some = ", ".join(str(each) for each in sorted(rows.unnamed)[:3])
        notes.append(
            f"{len(rows.unnamed)} instrument ids have no symbol in the metadata and are named by their number: {some}"
            + (" …" if len(rows.unnamed) > 3 else "")
        )
    return notes


def _join(files: list[Rows]) -> pl.DataFrame:
    """The rows of every file in canonical order."""
    publishers: dict[str, set[int]] = {}
    for publisher, symbol in (name for rows in files for name in rows.names):
        publishers.setdefault(symbol, set()).add(publisher)

    def entity(publisher: int, symbol: str) -> str:
        return symbol if len(publishers[symbol]) == 1 else f"{symbol}@{publisher}"

    entities = sorted({entity(*name) for rows in files for name in rows.names})
    place = {name: number for number, name in enumerate(entities)}
    parts = []
    for rows in files:
        own = pl.Series([place[entity(*name)] for name in rows.names], dtype=pl.UInt32)
        parts.append(rows.frame.with_columns(own.gather(rows.frame["name"]).alias("name")))
    joined = pl.concat(parts).with_columns(seq=pl.int_range(pl.len(), dtype=pl.Int64))
    name, time = (joined[column].to_numpy() for column in ("name", "available_time"))
    if ((name[1:] < name[:-1]) | ((name[1:] == name[:-1]) & (time[1:] < time[:-1]))).any():
        joined = joined.sort("name", "available_time", "seq", maintain_order=True)
    return joined.with_columns(pl.Series("entity", entities, pl.String).gather(joined["name"]))


def _books(messages: pl.DataFrame, schema: str, levels: int) -> tuple[pl.DataFrame, Tally, list[str]]:
    """The table in its schema, what did not go with its books, and notes on them."""
    if schema == "trades":
        return messages.select(*CANONICAL_ORDER, "event_time", "kind", "side", "price", "size"), Tally(), []
    tally = Tally()
    opens, last, name = (messages[column].to_numpy() for column in ("opens", "last", "name"))
    unmarked = not last.any()
    if unmarked:
        last = (messages["kind"] != DELETE).to_numpy()  # which a modified order begins with
    if schema == "mbo":
        kind = messages["kind"]
        # What traded leaves the book by records of its own, so the execution itself changes nothing.
        resting = kind.set(kind == EXECUTE, EXECUTE_HIDDEN)
        made = rebuild_book(messages.drop("name", "last", "opens").with_columns(resting), levels, zone=None)
        frame, tally = made.frame.with_columns(kind), made.tally
    else:
        opens = np.ones(len(opens), np.bool_)  # every record shows its book whole
        frame = messages.drop("name", "last", "opens").with_columns(
            pl.when(pl.col(price).is_not_null()).then(pl.col(size)).otherwise(0).alias(size)
            for level in range(1, min(levels, DEPTH[schema]) + 1)
            for price, size in (level_columns(level)[:2], level_columns(level)[2:])
        )
    starts = np.flatnonzero(np.diff(name, prepend=-1))
    first = np.repeat(starts, np.diff(starts, append=len(name)))
    row = np.arange(len(name))
    known = np.maximum.accumulate(np.where(opens, row, -1)) >= first
    frame = _sampled(frame, known & last, first)
    flags = book_flags(frame.filter("complete"))
    tally = replace(tally, crossed=int(flags["crossed"].sum()), locked=int(flags["locked"].sum()))
    notes = ["no record has F_LAST, so each is taken for the end of an event"] if unmarked and len(last) else []
    return frame, tally, notes + _on_books(frame, tally, int((~known).sum()), schema, levels)


def _sampled(frame: pl.DataFrame, complete: np.ndarray, first: np.ndarray) -> pl.DataFrame:
    """The book of every row as the last complete row of its entity, itself perhaps, left it."""
    frame = frame.with_columns(pl.Series("complete", complete))
    if complete.all():
        return frame
    source = np.maximum.accumulate(np.where(complete, np.arange(len(complete)), -1))
    place = pl.Series(np.where(source >= first, source, -1)).replace(-1, None)
    names = [name for level in range(1, book_levels(frame.columns) + 1) for name in level_columns(level)]
    books = frame.select(names).select(pl.all().gather(place))
    return frame.with_columns(books.with_columns(pl.col(name).fill_null(0) for name in names if "_size_" in name))


def _on_books(frame: pl.DataFrame, tally: Tally, unknown: int, schema: str, levels: int) -> list[str]:
    notes = []
    if unknown:
        notes.append(
            f"{unknown:,} rows come before the first snapshot or clear of their entity, so that they have no book"
        )
    within = frame.height - int(frame["complete"].sum()) - unknown
    if within:
        notes.append(f"{within:,} rows lie within an event and have the book from before it")
    unseen = {name: count for name, count in vars(tally).items() if count}
    if unseen:
        notes.append(f"not as the books stood: {', '.join(f'{name} {n:,}' for name, n in unseen.items())}")
    if (depth := DEPTH.get(schema)) and depth != levels:
        notes.append(f"{schema} has {depth} levels of the book, {min(levels, depth)} were kept")
    return notes


def _instruments(frame: pl.DataFrame, tick: str | Mapping[str, str] | None) -> tuple[tuple[Instrument, ...], list[str]]:
    entities = sorted(frame["entity"].unique())
    if tick is not None:
        given = dict.fromkeys(entities, tick) if isinstance(tick, str) else dict(tick)
        missing = [name for name in entities if name not in given]
        if missing:
            raise ValueError(f"no tick is given for {', '.join(missing)}")
        return tuple(
            Instrument(name, PRICE_EXPONENT, price_steps(given[name], PRICE_EXPONENT)) for name in entities
        ), []
    instruments: list[Instrument] = []
    notes: list[str] = []
    prices = frame.group_by("entity").agg(pl.col("price").drop_nulls().unique())
    for name, own in sorted(prices.iter_rows()):
        # A step above one unit of currency cannot be told from prices that happen to be few.
        step = int(np.gcd.reduce(np.array([*own, 10**9], np.int64)))
        instruments.append(Instrument(name, PRICE_EXPONENT, step))
        if len(notes) < 3:
            notes.append(
                f"the tick of {name} is taken to be {Decimal(step).scaleb(-9).normalize():f}, a divisor of all "
                "its prices; tick= gives it"
            )
    if len(entities) > 3:
        notes.append(f"the ticks of {len(entities) - 3} more entities were found in the same way")
    return tuple(instruments), notes


def _left_out(found: Mapping[Path, Rows]) -> pl.DataFrame:
    return pl.concat(rows.bad.select(pl.lit(file.name).alias("file"), pl.all()) for file, rows in found.items())


def _tables(files: list[Rows]) -> dict[str, pl.DataFrame]:
    actions = sorted({action for rows in files for action in rows.tables})
    return {
        action: pl.concat([rows.tables[action] for rows in files if action in rows.tables], how="diagonal_relaxed")
        for action in actions
    }
