"""The messages of ITCH sessions as rows of the common schema, every value checked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from quantattn.data.market.rebuild import compiled
from quantattn.data.schema import CANCEL, CROSS, DELETE, EXECUTE, EXECUTE_HIDDEN, HALT, NEW
from quantattn.data.sources.itch_format import MESSAGES, DamagedItch, Piece, read_pieces
from quantattn.data.sources.runs import Runs, Scratch, Tables

_KINDS = {"A": NEW, "F": NEW, "E": EXECUTE, "C": EXECUTE, "X": CANCEL, "D": DELETE, "U": DELETE}
_KINDS |= {"P": EXECUTE_HIDDEN, "Q": CROSS, "H": HALT}
"""Type → kind of its row; a U has a second one, NEW. Other types are no event of a book."""
_FIELDS = ("stock", "side", "shares", "order_id", "new_order_id", "price", "printable", "state")
"""In the order in which `itch_walk` numbers them."""
_UNTOLD = {("P", "side"), ("P", "order_id")}
"""What is in a message and means nothing: a P always says B."""
_EXPECTED = (
    "",
    "expected a time below 86,400 s after midnight",
    "its time is before that of the message before it, expected times that never fall",
    "its locate code belongs to another stock, expected one a code",
    "its locate code was given no stock, expected a directory message before",
    "expected B or S as the side of an order",
    "expected a number of shares below 2^63",
    "expected an order number below 2^63",
    "expected H, P, Q or T as the trading state",
)
"""What a message that `itch_walk.decode` stops at should have been."""


@dataclass
class Sessions:
    """The files that were read so far.

    Attributes:
        wanted: stocks whose events are kept; None keeps all.
        names: stocks that the files name.
        runs: events, `name` a place in `names`; columns as of `event_rows`.
        tables: type → messages that are no event of a book.
        counts: messages by type, those of stocks that were not asked for too.
        rows: events that were kept.
    """

    scratch: Scratch
    wanted: frozenset[str] | None = None
    names: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    rows: int = 0
    runs: Runs = field(init=False)
    tables: Tables = field(init=False)

    def __post_init__(self) -> None:
        self.runs, self.tables = Runs(self.names, self.scratch), Tables(self.scratch)
        self._places: dict[str, int] = {}

    def read(self, path: Path, start: int) -> list[str]:
        """Read a file, whose midnight is `start` in ns UTC, and return notes on it.

        Raises:
            DamagedItch: the bytes are no sound ITCH, a time falls or is no time of a day, a locate code has two names
                or none, a side, a state, a name or an order number that cannot be.
        """
        notes: list[str] = []
        codes, left_out = _Codes(), 0
        for number, piece in enumerate(read_pieces(path)):
            if number == 0 and piece.zeros:
                notes.append("no message has its length before it (0 everywhere); types alone tell where they end")
            self._name(codes, piece, path)
            rows, times = _decoded(codes, piece, path)
            many = np.bincount(piece.codes, minlength=256)
            self.counts.update({chr(code): int(many[code]) for code in np.flatnonzero(many)})
            for code in MESSAGES:
                if many[ord(code)] and code not in _KINDS:
                    where, messages = piece.rows(code)
                    self.tables.add(code, _table(messages, times[where] + start))
            kept = rows if self.wanted is None else rows.filter(pl.col("name").is_in(self._chosen()))
            left_out += rows.height - kept.height
            self.runs.add(
                kept.with_columns(
                    pl.col("available_time") + start,
                    seq=pl.int_range(self.rows, self.rows + pl.len(), dtype=pl.Int64),
                )
            )
            self.rows += kept.height
        if not codes.read:
            raise DamagedItch(f"{path.name} holds no message")
        if left_out:
            notes.append(f"{left_out:,} events of stocks that were not asked for were left out")
        return notes

    def batches(self) -> Iterator[pl.DataFrame]:
        """All events in canonical order, in batches: columns of `BookMessages`, `printable` and `halted`."""
        names = pl.Series(self.names, dtype=pl.String)
        for rows in self.runs.batches():
            yield rows.select(
                names.gather(rows["name"]).alias("entity"),
                pl.col("available_time").alias("event_time"),
                *("available_time", "seq", "kind", "side", "price", "size", "order_id"),
                pl.when(pl.col("printable") >= 0).then(pl.col("printable") > 0),
                "halted",
            )

    def _chosen(self) -> list[int]:
        return [self._places[name] for name in sorted(self.wanted or ()) if name in self._places]

    def _name(self, codes: _Codes, piece: Piece, path: Path) -> None:
        """Note which stock each locate code is that the piece names first."""
        walker, message = compiled("quantattn.data.sources.itch_walk"), 0
        while True:
            message = walker.unnamed(piece.data, piece.starts, codes.fields, codes.letters, message)
            if message == len(piece.starts):
                break
            at = int(piece.starts[message])
            place = at + int(codes.fields[piece.data[at], 0])
            letters = piece.data[place : place + 8].tobytes()
            if not all(32 <= letter < 127 for letter in letters) or letters[:1] == b" ":
                _fail(path, piece, message, "expected the name of a stock in ASCII, filled with spaces")
            name = letters.decode().rstrip()
            if name not in self._places:
                self._places[name] = len(self.names)
                self.names.append(name)
            locate = int(piece.data[at + 1]) * 256 + int(piece.data[at + 2])
            codes.letters[locate], codes.stocks[locate] = int.from_bytes(letters, "big"), self._places[name]
        codes.halted = np.concatenate([codes.halted, np.zeros(len(self.names) - len(codes.halted), np.bool_)])


class _Codes:
    """What the locate codes of one session stand for, and which stocks are halted."""

    def __init__(self) -> None:
        self.fields, self.wide = np.full((256, len(_FIELDS)), -1, np.int64), np.zeros(256, np.uint8)
        self.kinds = np.zeros(256, np.uint8)
        for code, layout in MESSAGES.items():
            own: Any = layout.fields
            for place, name in enumerate(_FIELDS):
                if name in own and (code, name) not in _UNTOLD and (name == "stock" or code in _KINDS):
                    self.fields[ord(code), place] = own[name][1]
            self.wide[ord(code)] = own["shares"][0].itemsize if "shares" in own else 0
            self.kinds[ord(code)] = _KINDS.get(code, 0)
        self.letters, self.stocks = np.zeros(65536, np.uint64), np.full(65536, -1, np.int32)
        self.halted, self.last, self.read = np.zeros(0, np.bool_), 0, False


def _fail(path: Path, piece: Piece, message: int, what: str) -> None:
    raise DamagedItch(f"{path.name}, message at byte {piece.offset + int(piece.starts[message])}: {what}")


def _decoded(codes: _Codes, piece: Piece, path: Path) -> tuple[pl.DataFrame, NDArray[np.int64]]:
    """Events of a piece in its order, and the times of all its messages, in ns since midnight."""
    walker = compiled("quantattn.data.sources.itch_walk")
    m = len(piece.starts)
    times, rows, marks = np.empty(m, np.int64), np.empty((5, 2 * m), np.int64), np.empty((4, 2 * m), np.int8)
    n, message, wrong = walker.decode(
        *(piece.data, piece.starts, codes.fields, codes.wide, codes.kinds, codes.letters, codes.stocks),
        *(codes.halted, codes.last, times, rows, marks),
    )
    if wrong:
        _fail(path, piece, message, _EXPECTED[wrong])
    codes.last, codes.read = int(times[-1]), True
    columns = {
        "name": rows[0, :n].astype(np.uint32),
        "available_time": rows[1, :n],
        "price": rows[2, :n],
        "size": rows[3, :n],
        "order_id": rows[4, :n],
        "kind": marks[0, :n].astype(np.uint8),
        "side": marks[1, :n],
        "printable": marks[2, :n],
        "halted": marks[3, :n] > 0,
    }
    return pl.DataFrame(columns), times


def _table(rows: NDArray[Any], times: NDArray[np.int64]) -> pl.DataFrame:
    """Messages of one type as they are: numbers unsigned, text without the spaces that fill it."""
    columns: dict[str, Any] = {"event_time": times}
    for name in rows.dtype.names or ():
        if name in ("type", "time"):
            continue
        values = rows[name]
        if values.dtype.kind == "S":
            columns[name] = np.char.rstrip(np.char.decode(values, "latin-1"))
        else:
            columns[name] = values.astype(values.dtype.newbyteorder("="))
    return pl.DataFrame(columns)
