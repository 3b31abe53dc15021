"""The messages of ITCH sessions as rows of the common schema, every value checked."""

from __future__ import annotations

import hashlib
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
from quantattn.data.sources import runs
from quantattn.data.sources.itch_format import MESSAGES, DamagedItch, Piece, read_pieces
from quantattn.data.sources.runs import Runs, Scratch, Tables

_KINDS = {"A": NEW, "F": NEW, "E": EXECUTE, "C": EXECUTE, "X": CANCEL, "D": DELETE, "U": DELETE}
_KINDS |= {"P": EXECUTE_HIDDEN, "Q": CROSS, "H": HALT}
"""Type → kind of its row; a U has a second one, NEW. Other types are no event of a book."""
_FIELDS = ("stock", "side", "shares", "order_id", "new_order_id", "price", "printable", "state")
"""In the order in which `itch_walk` numbers them; after them come the bytes of `shares`, and the kind."""
_UNTOLD = {("P", "side"), ("P", "order_id")}
"""What is in a message and means nothing: a P always says B."""
_ROW = 46
"""Bytes of an event that is held."""
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
        hashes: sha256 of each file, of its bytes as they lie on disk.
    """

    scratch: Scratch
    wanted: frozenset[str] | None = None
    names: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    rows: int = 0
    hashes: dict[Path, str] = field(default_factory=dict)
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
        codes, digest, left_out = _Codes(), hashlib.sha256(), 0
        held: list[Piece] = []
        try:
            for number, piece in enumerate(read_pieces(path, digest=digest)):
                if number == 0 and piece.zeros:
                    notes.append("no message has its length before it (0 everywhere); types alone tell where they end")
                self._name(codes, piece, path)
                many = np.bincount(piece.codes, minlength=256)
                self.counts.update({chr(code): int(many[code]) for code in np.flatnonzero(many)})
                for code in MESSAGES:
                    if many[ord(code)] and code not in _KINDS:
                        self.tables.add(code, _table(piece.rows(code), start))
                held.append(piece)
                if max(codes.events.sum() * _ROW, sum(len(each.data) for each in held)) > runs.KEPT:
                    left_out += self._keep(codes, held, path, start)
        except DamagedItch:
            self._keep(codes, held, path, start)  # a message of those that are held may be wrong, and stands before
            raise
        left_out += self._keep(codes, held, path, start)
        self.hashes[path] = digest.hexdigest()
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

    def _keep(self, codes: _Codes, held: list[Piece], path: Path, start: int) -> int:
        """Decode pieces, of which `held` is emptied, to sorted rows; returns how many events were not asked for.

        How many events each stock has is known before, so each of them is written where it belongs.
        """
        pieces = held[:]
        held.clear()
        if not pieces:
            return 0
        codes.halted = np.concatenate([codes.halted, np.zeros(len(self.names) - len(codes.halted), np.bool_)])
        counts = np.zeros(len(self.names), np.int64)
        named = np.flatnonzero((codes.events > 0) & (codes.stocks >= 0))
        np.add.at(counts, codes.stocks[named], codes.events[named])
        codes.events[:] = 0
        asked = np.array([self.wanted is None or name in self.wanted for name in self.names], np.bool_)
        kept = np.where(asked, counts, 0)
        order = np.array(sorted(range(len(self.names)), key=self.names.__getitem__), np.int64)
        places, ends = np.full(len(self.names), -1, np.int64), np.cumsum(kept[order])
        places[order] = np.where(asked[order], ends - kept[order], -1)
        rows, marks = np.empty((5, kept.sum()), np.int64), np.empty((4, kept.sum()), np.int8)
        walker = compiled("quantattn.data.sources.itch_walk")
        for piece in pieces:
            message, wrong, codes.last, self.rows = walker.decode(
                *(piece.data, piece.starts, codes.fields, codes.letters, codes.stocks),
                *(codes.halted, places, codes.last, self.rows, rows, marks),
            )
            if wrong:
                _fail(path, piece, message, _EXPECTED[wrong])
        codes.read = True
        rows[0] += start
        names = np.repeat(order, kept[order]).astype(np.uint32)
        self.runs.add(_events(names, rows, marks))
        return int((counts - kept).sum())

    def _name(self, codes: _Codes, piece: Piece, path: Path) -> None:
        """Note which stock each locate code is that the piece names first, and count events."""
        walker, message = compiled("quantattn.data.sources.itch_walk"), 0
        while True:
            message = walker.count(piece.data, piece.starts, codes.fields, codes.letters, codes.events, message)
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


class _Codes:
    """What the locate codes of one session stand for, and which stocks are halted."""

    def __init__(self) -> None:
        self.fields = np.full((256, len(_FIELDS) + 2), -1, np.int64)
        self.fields[:, -2:] = 0
        for code, layout in MESSAGES.items():
            own: Any = layout.fields
            for place, name in enumerate(_FIELDS):
                if name in own and (code, name) not in _UNTOLD and (name == "stock" or code in _KINDS):
                    self.fields[ord(code), place] = own[name][1]
            wide = own["shares"][0].itemsize if "shares" in own else 0
            self.fields[ord(code), -2:] = wide, _KINDS.get(code, 0)
        self.letters, self.stocks = np.zeros(65536, np.uint64), np.full(65536, -1, np.int32)
        self.events = np.zeros(65536, np.int64)
        self.halted, self.last, self.read = np.zeros(0, np.bool_), 0, False


def _fail(path: Path, piece: Piece, message: int, what: str) -> None:
    raise DamagedItch(f"{path.name}, message at byte {piece.offset + int(piece.starts[message])}: {what}")


def _events(names: NDArray[np.uint32], rows: NDArray[np.int64], marks: NDArray[np.int8]) -> pl.DataFrame:
    """What `itch_walk.decode` wrote as columns."""
    columns = {
        "name": names,
        "available_time": rows[0],
        "price": rows[2],
        "size": rows[3],
        "order_id": rows[4],
        "kind": marks[0].view(np.uint8),
        "side": marks[1],
        "printable": marks[2],
        "halted": marks[3].view(np.bool_),
        "seq": rows[1],
    }
    return pl.DataFrame(columns)


def _table(rows: NDArray[Any], start: int) -> pl.DataFrame:
    """Messages of one type as they are: numbers unsigned, text without the spaces that fill it."""
    times = rows["time"].astype(np.int64) @ (1 << np.arange(40, -8, -8))
    columns: dict[str, Any] = {"event_time": times + start}
    for name in rows.dtype.names or ():
        if name in ("type", "time"):
            continue
        values = rows[name]
        if values.dtype.kind == "S":
            columns[name] = np.char.rstrip(np.char.decode(values, "latin-1"))
        else:
            columns[name] = values.astype(values.dtype.newbyteorder("="))
    return pl.DataFrame(columns)
