"""The messages of one ITCH session as rows of the common schema, every value checked."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from quantattn.data.schema import CANCEL, CROSS, DELETE, EXECUTE, EXECUTE_HIDDEN, HALT, NEW
from quantattn.data.sources.itch_format import MESSAGES, DamagedItch, Piece, read_pieces

_DAY = 86_400 * 10**9
_KINDS = {"A": NEW, "F": NEW, "E": EXECUTE, "C": EXECUTE, "X": CANCEL, "D": DELETE, "U": DELETE}
_KINDS |= {"P": EXECUTE_HIDDEN, "Q": CROSS, "H": HALT}
"""Type → kind of its row; a U has a second one, NEW. Other types are no event of a book."""

_SCHEMA = {"entity": pl.String, "event_time": pl.Int64, "available_time": pl.Int64, "seq": pl.Int64, "kind": pl.UInt8}
_SCHEMA |= {"side": pl.Int8, "price": pl.Int64, "size": pl.Int64, "order_id": pl.Int64}
_SCHEMA |= {"printable": pl.Boolean, "halted": pl.Boolean}


@dataclass
class Session:
    """One file, read.

    Attributes:
        rows: events in the order of the file, columns of `BookMessages`, `printable` and `halted`.
        counts: messages by type, those of stocks that were not asked for too.
        stocks: names that the file has.
        tables: type → messages that are no event of a book.
        notes: what was decided.
    """

    rows: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=_SCHEMA))
    counts: Counter[str] = field(default_factory=Counter)
    stocks: set[str] = field(default_factory=set)
    tables: dict[str, pl.DataFrame] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def read_session(path: Path, start: int, first_seq: int, wanted: frozenset[str] | None) -> Session:
    """Read a file; `start` is its midnight in ns UTC, `first_seq` the number of its first row.

    Raises:
        DamagedItch: the bytes are no sound ITCH, a time falls or is no time of a day, a locate code has two names or
            none, a side, a state, a name or an order number that cannot be.
    """
    session = Session()
    names, last = np.zeros(65536, "S8"), 0
    frames, tables = [session.rows], dict[str, list[pl.DataFrame]]()
    left_out = 0
    for number, piece in enumerate(read_pieces(path)):
        if number == 0 and piece.zeros:
            session.notes.append("no message has its length before it (0 everywhere); types alone tell where they end")
        times = _times(piece, path, last)
        last = int(times[-1])
        session.counts.update(
            {chr(code): int(n) for code, n in zip(*np.unique(piece.codes, return_counts=True), strict=True)}
        )
        parts = {code: piece.rows(code) for code in MESSAGES if (piece.codes == ord(code)).any()}
        for code, (where, messages) in parts.items():
            if "stock" in (MESSAGES[code].names or ()):
                _name(names, messages, piece, where, path)
            if code not in _KINDS:
                tables.setdefault(code, []).append(_table(messages, times[where] + start))
        made, other = _events(parts, times, names, piece, path, wanted)
        left_out += other
        frames.append(made)
    if not session.counts:
        raise DamagedItch(f"{path.name} holds no message")
    rows = pl.concat(frames).with_columns(
        pl.col("event_time", "available_time") + start,
        pl.int_range(first_seq, first_seq + pl.len(), dtype=pl.Int64).alias("seq"),
        # A halt lasts to the end of the session; quoting alone does not end it.
        pl.col("halted").forward_fill().over("entity").fill_null(False),
    )
    session.rows = rows
    session.stocks = {name.decode() for name in names if name}
    session.tables = {code: pl.concat(found) for code, found in tables.items()}
    if left_out:
        session.notes.append(f"{left_out:,} events of stocks that were not asked for were left out")
    return session


def _fail(path: Path, piece: Piece, where: NDArray[np.int64], bad: NDArray[np.bool_], what: str) -> None:
    """Raise for the first bad message; `what` says what was expected."""
    if bad.any():
        byte = piece.offset + int(piece.starts[where[np.flatnonzero(bad)[0]]])
        raise DamagedItch(f"{path.name}, message at byte {byte}: {what} ({int(bad.sum())} such messages)")


def _times(piece: Piece, path: Path, last: int) -> NDArray[np.int64]:
    """(messages,) ns since midnight, from 6 bytes each."""
    digits = piece.data[piece.starts[:, None] + np.arange(5, 11)].astype(np.int64)
    times: NDArray[np.int64] = digits @ (256 ** np.arange(5, -1, -1, dtype=np.int64))
    every = np.arange(len(times))
    _fail(path, piece, every, times >= _DAY, "expected a time below 86,400 s after midnight")
    falls = np.diff(times, prepend=last) < 0
    _fail(path, piece, every, falls, "its time is before that of the message before it, expected times that never fall")
    return times


def _name(names: NDArray[np.bytes_], rows: NDArray[Any], piece: Piece, where: NDArray[np.int64], path: Path) -> None:
    """Note which stock each locate code is; `names` (65536,) is changed in place."""
    locate, stock = rows["locate"].astype(np.int64), np.char.rstrip(rows["stock"])
    letters = np.ascontiguousarray(rows["stock"]).view(np.uint8).reshape(len(rows), 8)
    printed = ((letters >= 32) & (letters < 127)).all(axis=1) & (letters[:, 0] > 32)
    _fail(path, piece, where, ~printed, "expected the name of a stock in ASCII, filled with spaces")
    codes, first = np.unique(locate, return_index=True)
    fresh = names[codes] == b""
    names[codes[fresh]] = stock[first[fresh]]
    _fail(path, piece, where, names[locate] != stock, "its locate code belongs to another stock, expected one a code")


def _events(
    parts: dict[str, tuple[NDArray[np.int64], NDArray[Any]]],
    times: NDArray[np.int64],
    names: NDArray[np.bytes_],
    piece: Piece,
    path: Path,
    wanted: frozenset[str] | None,
) -> tuple[pl.DataFrame, int]:
    """Rows of a piece in the order of its messages, and how many were left out."""
    found = []
    for code, kind in _KINDS.items():
        if code in parts:
            where, rows = parts[code]
            found.append(_columns(code, kind, where * 2, rows, piece, path))
            if code == "U":
                found.append(_columns("U2", NEW, where * 2 + 1, rows, piece, path))
    if not found:
        return pl.DataFrame(schema=_SCHEMA), 0
    table = pl.concat(found).sort("order")
    where = table["order"].to_numpy() // 2
    stock = names[piece.data[piece.starts[where] + 1].astype(np.int64) * 256 + piece.data[piece.starts[where] + 2]]
    _fail(path, piece, where, stock == b"", "its locate code was given no stock, expected a directory message before")
    table = table.with_columns(
        pl.Series("entity", stock.astype("U8")),
        pl.Series("event_time", times[where]),
        pl.Series("available_time", times[where]),
        pl.lit(0, pl.Int64).alias("seq"),
    ).select(*_SCHEMA)
    if wanted is None:
        return table, 0
    kept = table.filter(pl.col("entity").is_in(sorted(wanted)))
    return kept, table.height - kept.height


def _columns(
    code: str, kind: int, order: NDArray[np.int64], rows: NDArray[Any], piece: Piece, path: Path
) -> pl.DataFrame:
    where, n = order // 2, len(rows)
    side, size = np.zeros(n, np.int8), np.zeros(n, np.int64)
    price: pl.Expr | pl.Series = pl.lit(None, pl.Int64)
    number = np.zeros(n, np.int64)
    printable: pl.Expr | pl.Series = pl.lit(code in ("E", "P") or None, pl.Boolean)
    halted: pl.Expr | pl.Series = pl.lit(None, pl.Boolean)
    if code in ("A", "F"):
        bad = (rows["side"] != b"B") & (rows["side"] != b"S")
        _fail(path, piece, where, bad, "expected B or S as the side of an order")
        side = np.where(rows["side"] == b"B", 1, -1).astype(np.int8)
    if code in ("A", "F", "C", "U2", "P", "Q"):
        price = pl.Series(rows["price"].astype(np.int64))
    if code not in ("D", "U", "H"):
        _fail(path, piece, where, rows["shares"] >= 2**63, "expected a number of shares below 2^63")
        size = rows["shares"].astype(np.int64)
    if code not in "PQH":
        numbers = rows["new_order_id" if code == "U2" else "order_id"]
        _fail(path, piece, where, numbers >= 2**63, "expected an order number below 2^63")
        number = numbers.astype(np.int64)
    if code == "C":
        printable = pl.Series(rows["printable"] == b"Y")
    if code == "H":
        bad = ~np.isin(rows["state"], [b"H", b"P", b"Q", b"T"])
        _fail(path, piece, where, bad, "expected H, P, Q or T as the trading state")
        halted = pl.Series(rows["state"] != b"T")
    columns = {"order": order, "side": side, "size": size, "order_id": number}
    return pl.DataFrame(columns).with_columns(
        pl.lit(kind, pl.UInt8).alias("kind"),
        price.alias("price"),
        printable.alias("printable"),
        halted.alias("halted"),
    )


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
