"""The records of DBN files, piece by piece, gathered as rows of the common schema."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import polars as pl
from numpy.typing import NDArray

from quantattn.data.sources.dbn_format import BARS, QUOTES, Header, Records
from quantattn.data.sources.dbn_rows import Account, Ints, Shape, bad_rows, reasons_of, rows_of, table_of, times_of
from quantattn.data.sources.dbn_samples import as_changes, reasons_of_bars, rows_of_bars
from quantattn.data.sources.runs import Runs, Scratch, Tables


@dataclass
class Feed:
    """Files that follow each other.

    Attributes:
        levels: of the book, which are kept where records have them.
        scratch: where rows go that memory does not hold.
        names: (symbol, publisher) of each instrument.
        runs: rows: `name` (UInt32, a place in `names`), `available_time`, `event_time`, `seq`, `kind`, `side`, `price`,
            `size`, `order_id`, `last` and `opens` (Boolean: the record ends an event, begins or belongs to a snapshot
            or clears the book), and the levels where the records have them.
        tables: action → records that are no event of a book ("F" fills, "N" none), field by field.
        ended: `seq` of rows that end an event, as a record in a later piece of the file said.
        marked: whether any row ends an event.
        rows: how many there are.
    """

    levels: int
    scratch: Scratch
    names: list[tuple[str, int]] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)
    marked: bool = False
    rows: int = 0
    runs: Runs = field(init=False)
    tables: Tables = field(init=False)

    def __post_init__(self) -> None:
        self.runs, self.tables = Runs(self.names, self.scratch), Tables(self.scratch)
        self._places: dict[tuple[str, int], int] = {}

    def read(self, records: Records) -> Account:
        """Read a file to its end.

        Raises:
            DamagedDbn: see `Records.pieces`.
        """
        if records.header.schema in BARS:
            return self._read_bars(records)
        account = Account()
        quotes = records.header.schema in QUOTES
        number, latest = 0, -(2**63)
        shape, ends = Shape.of(records.header.schema, self.levels), _Ends()
        nothing = np.zeros(0, np.int64)
        # Without records there are still columns.
        none = np.zeros(0, records.layout)
        none = as_changes(none) if quotes else none
        self.runs.add(self._numbered(rows_of(none, nothing, nothing, nothing, shape)))
        for piece in map(as_changes, records.pieces()) if quotes else records.pieces():
            reasons = reasons_of(piece, shape)
            wrong = np.flatnonzero(reasons)
            if len(wrong):
                account.wrong.append(bad_rows(piece[wrong], reasons[wrong], wrong + number))
            number += len(piece)
            good = piece if not len(wrong) else piece[reasons == 0]
            if not len(good):
                continue
            codes, many = np.unique(good["action"], return_counts=True)
            own = [records.header.schema] if quotes else [code.decode() for code in codes]
            account.actions.update(dict(zip(own, many.tolist(), strict=True)))
            available, event = times_of(good, latest, account)
            latest = int(available[-1])
            name = self._name(good, available, records.header, account)
            rows, late = ends.mark(rows_of(good, name, event, available, shape), self.rows, len(self.names))
            self.ended += late
            self.runs.add(self._numbered(rows))
            for code in ("F", "N"):
                if (chosen := good["action"] == code.encode()).any():
                    self.tables.add(code, table_of(good[chosen]))
        self.marked |= bool(self.ended)
        return account

    def _read_bars(self, records: Records) -> Account:
        account, schema = Account(), records.header.schema
        number, latest = 0, -(2**63)
        none = np.zeros(0, records.layout)
        self.runs.add(self._numbered(rows_of_bars(none, np.zeros(0, np.int64), schema, latest, account)))
        for piece in records.pieces():
            reasons = reasons_of_bars(piece, schema)
            wrong = np.flatnonzero(reasons)
            if len(wrong):
                account.wrong.append(bad_rows(piece[wrong], reasons[wrong], wrong + number))
            number += len(piece)
            good = piece[reasons == 0]
            if not len(good):
                continue
            account.actions[schema] += len(good)
            name = self._name(good, good["ts_event"].astype(np.int64), records.header, account)
            rows = rows_of_bars(good, name, schema, latest, account)
            latest = int(rows["available_time"][-1])
            self.runs.add(self._numbered(rows))
        return account

    def batches(self, order: Sequence[int]) -> Iterator[pl.DataFrame]:
        """All rows, the names in this order, each in that of time."""
        ended = np.array(self.ended, np.int64)
        for rows in self.runs.batches(order):
            if len(ended):
                rows = rows.with_columns(pl.Series("last", rows["last"].to_numpy() | np.isin(rows["seq"], ended)))
            yield rows

    def _numbered(self, rows: pl.DataFrame) -> pl.DataFrame:
        self.marked |= bool(rows["last"].any())
        self.rows += rows.height
        return rows.with_columns(seq=pl.int_range(self.rows - rows.height, self.rows, dtype=pl.Int64))

    def _name(self, records: NDArray[np.void], available: Ints, header: Header, account: Account) -> Ints:
        """(n,) places in `names`, which grows."""
        keys = records["publisher_id"].astype(np.int64) << 32 | records["instrument_id"]
        own, place = np.unique(keys, return_inverse=True) if (keys != keys[0]).any() else (keys[:1], None)
        found = np.zeros(len(own), np.int64)
        out = None
        for i, key in enumerate(own.tolist()):
            publisher, instrument = key >> 32, key & 0xFFFFFFFF
            intervals = header.symbols.get(instrument, [])
            symbols = {symbol for _, _, symbol in intervals}
            if len(symbols) > 1:
                out = np.zeros(len(records), np.int64) if out is None else out
                chosen = np.flatnonzero(keys == key)
                days = (available[chosen] // (86_400 * 10**9)).astype("datetime64[D]")
                for day in np.unique(days):
                    symbol = next((s for first, end, s in intervals if first <= day < end), str(instrument))
                    out[chosen[days == day]] = self._place((symbol, publisher)) + 1
            elif not symbols:
                account.unnamed.add(instrument)
            found[i] = self._place((symbols.pop() if len(symbols) == 1 else str(instrument), publisher))
        name = np.broadcast_to(found[:1], len(records)) if place is None else found[place]
        return name if out is None else np.where(out > 0, out - 1, name)

    def _place(self, name: tuple[str, int]) -> int:
        if name not in self._places:
            self._places[name] = len(self.names)
            self.names.append(name)
        return self._places[name]


class _Ends:
    """Takes records away that are no row of a book, with the flag of those that end an event.

    An event may end with a record that changes no book (a fill, or nothing). It ends the event of the row before it
    when both could be known at one time; otherwise that row is not known to be the last.
    """

    def __init__(self) -> None:
        self._seq, self._time = np.zeros(0, np.int64), np.zeros(0, np.int64)  # of the latest row of each name

    def mark(self, frame: pl.DataFrame, first: int, names: int) -> tuple[pl.DataFrame, list[int]]:
        """The rows of a piece, whose numbers begin at `first`, and the numbers of earlier rows that end an event."""
        more = np.full(names - len(self._seq), -1, np.int64)
        self._seq, self._time = np.concatenate([self._seq, more]), np.concatenate([self._time, more])
        kept = (frame["kind"] > 0).to_numpy()
        late: list[int] = []
        if not kept.all():
            last = frame["last"].to_numpy(writable=True)
            if (last & ~kept).any():
                late = self._move(frame, kept, last)
            frame = frame.with_columns(pl.Series("last", last)).filter(kept)
        name = frame["name"].to_numpy()
        self._seq[name] = np.arange(first, first + len(name))  # of equal names the last one stays
        self._time[name] = frame["available_time"].to_numpy()
        return frame, late

    def _move(self, frame: pl.DataFrame, kept: NDArray[np.bool_], last: NDArray[np.bool_]) -> list[int]:
        """Mark the rows before those that end an event, in `last` or, of an earlier piece, by their numbers."""
        order = np.argsort(frame["name"].to_numpy(), kind="stable")
        name, time = (frame[n].to_numpy()[order] for n in ("name", "available_time"))
        latest = np.maximum.accumulate(np.where(kept[order], np.arange(len(order)), -1))
        ends = np.flatnonzero(~kept[order] & last[order])
        rows = latest[ends]
        here = (rows >= 0) & (name[rows] == name[ends])
        last[order[rows[here & (time[rows] == time[ends])]]] = True
        before = ends[~here]
        earlier = (self._seq[name[before]] >= 0) & (self._time[name[before]] == time[before])
        return [int(seq) for seq in np.unique(self._seq[name[before[earlier]]])]
