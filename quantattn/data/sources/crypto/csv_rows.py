"""CSV files of any size as checked columns: read as text in pieces, every field converted, the first bad one named."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from quantattn.data.sources.crypto.feed import EARLIEST, LATEST, Account, BadLine
from quantattn.data.sources.crypto.messages import show
from quantattn.data.sources.decimals import scaled_column
from quantattn.data.sources.pieces import Piece, read_pieces


@dataclass(frozen=True)
class Field:
    """How one column is converted.

    Attributes:
        make: texts → values, null for a text that cannot be.
        expected: what to say of such a text.
        optional: whether the field may be empty.
    """

    make: Callable[[pl.Series], pl.Series]
    expected: str
    optional: bool = False


Layout = Mapping[str, Field | None]
"""Every column of a file in order, and how it is converted; None: it is not kept."""


def names() -> Field:
    """Names of instruments and the like."""
    return Field(lambda text: text.set(~text.str.contains(r"^[!-~]{1,64}$"), None), "a name")


def text(*, optional: bool = False) -> Field:
    """Any text of up to 64 characters."""
    return Field(lambda found: found.set(found.str.len_chars() > 64, None), "at most 64 characters", optional)


def wholes() -> Field:
    """Whole numbers below 2^63, Int64."""
    return Field(_wholes, "a whole number below 2^63")


def times(unit: int) -> Field:
    """Times since 1970 in `unit` ns, as Int64 ns UTC."""

    def make(found: pl.Series) -> pl.Series:
        number = _wholes(found)
        return number.set(~number.is_between(EARLIEST // unit, LATEST // unit, closed="left"), None) * unit

    return Field(make, f"a time between 2009 and 2100 in units of {unit:,} ns")


def decimals(exponent: int, *, optional: bool = False) -> Field:
    """Decimals in units of 10^exponent, Int64."""
    expected = (
        f"an unsigned decimal number below 2^63 with no digit beyond 10^{exponent} (price_exponent, size_exponent)"
    )
    return Field(lambda found: scaled_column(found, exponent), expected, optional)


def choices(values: Mapping[str, int | bool]) -> Field:
    """One of a few words."""
    known = list(values)

    def make(found: pl.Series) -> pl.Series:
        return found.replace_strict(known, [values[word] for word in known], default=None)

    return Field(make, f"one of {', '.join(known)}")


def first_fields(path: Path) -> list[str]:
    """Fields of the first line; empty for an empty file."""
    for piece in read_pieces(path, 1 << 16):
        _, line = next(piece.lines())
        return line.decode("utf-8", "replace").split(",")
    return []


def listed(fields: Sequence[str]) -> str:
    """Fields of a header for a sentence, cut short."""
    shown = ", ".join(fields)
    return repr(shown) if len(shown) <= 80 else f"{shown[:80]!r}…"


def read_csv(path: Path, layout: Layout, account: Account, *, header: bool) -> Iterator[pl.DataFrame]:
    """The columns of a file that are kept, piece by piece; `line` and `losses`, the lines left out before, beside them.

    Only commas and line ends part fields; a quotation mark is a character like others.

    Raises:
        ValueError: a line cannot be used and is not to be left out; no line can be used; broken compression.
    """
    rows, ended = 0, True
    for piece in read_pieces(path):
        raw = piece if not (header and piece.first == 1) else _without_first(piece)
        before, bad = account.losses, list[int]()
        made = [_convert(path, table, layout, account, bad) for table in _texts(path, raw, list(layout), account, bad)]
        for found in made:
            lost = np.searchsorted(np.sort(np.array(bad, np.int64)), found["line"].to_numpy())
            yield found.with_columns(losses=pl.Series(lost.astype(np.int64)) + before)
            rows += found.height
        ended = piece.data.endswith(b"\n")
    account.take(path)
    if not rows:
        raise account.nothing(path)
    account.ended(path)
    if not ended:
        account.notes.append(f"{path.name}: the last line has no end, so that the file may have been cut off in it")


BROKEN = (pl.col("losses") > pl.col("losses").shift(1, fill_value=0).over("entity")).alias("broken")
"""Whether lines were left out since the row before of the same entity, for `clocks.Carried`."""


def _without_first(piece: Piece) -> Piece:
    return Piece(2, piece.data.partition(b"\n")[2])


def _texts(path: Path, piece: Piece, columns: list[str], account: Account, bad: list[int]) -> Iterator[pl.DataFrame]:
    """A piece as a table of text; line by line, which is slower, where something in it cannot be."""
    data = piece.data
    lines = data.count(b"\n") + (not data.endswith(b"\n") and bool(data))
    if not lines:
        return
    schema = dict.fromkeys(columns, pl.String)
    table = None
    if (
        not account.empty
        and data.count(b",") == lines * (len(columns) - 1)
        and b"\r" not in data.replace(b"\r\n", b"\n")
    ):
        try:
            table = pl.read_csv(data, has_header=False, schema=schema, quote_char=None)
        except pl.exceptions.PolarsError:
            table = None
    if table is not None and table.height == lines:
        yield table.with_columns(line=pl.int_range(piece.first, piece.first + lines, dtype=pl.Int64))
        return
    rows = []
    for line, raw in piece.lines():
        if not raw:
            account.empty.append(line)
            continue
        for empty in account.empty:
            _leave_out(path, empty, _width([""], columns), b"", account, bad)
        account.empty.clear()
        try:
            fields = raw.decode().split(",")
        except UnicodeDecodeError as error:
            _leave_out(
                path,
                line,
                BadLine("not UTF-8", f"found {show(raw)}, expected UTF-8 ({error.reason})"),
                raw,
                account,
                bad,
            )
            continue
        if len(fields) == len(columns):
            rows.append((*(each or None for each in fields), line))
        else:
            _leave_out(path, line, _width(fields, columns), raw, account, bad)
    yield pl.DataFrame(rows, schema={**schema, "line": pl.Int64}, orient="row")


def _width(fields: list[str], columns: list[str]) -> BadLine:
    sentence = f"found {len(fields)} fields, expected {len(columns)}: {', '.join(columns[:8])}"
    return BadLine("fields", sentence + (", …" if len(columns) > 8 else ""))


def _leave_out(path: Path, line: int, error: BadLine, raw: bytes, account: Account, bad: list[int]) -> None:
    account.bad(path, line, error, raw.decode("utf-8", "replace"))
    bad.append(line)


def _convert(path: Path, table: pl.DataFrame, layout: Layout, account: Account, bad: list[int]) -> pl.DataFrame:
    made, wrong = [table["line"]], np.zeros(table.height, np.bool_)
    for name, field in layout.items():
        if field is None:
            continue
        found = field.make(table[name]).alias(name)
        lacking = found.is_null() & (table[name].is_not_null() if field.optional else True)
        for row in (pl.Series(~wrong) & lacking).arg_true():
            line, value = table["line"][row], table[name][row]
            sentence = f"found {show(value or '')} as {name}, expected {field.expected}"
            shown = ",".join(each or "" for each in table.row(row)[:-1])
            _leave_out(path, line, BadLine(f"not a {name}", sentence), shown.encode(), account, bad)
        wrong |= lacking.to_numpy()
        made.append(found)
    rows = pl.DataFrame(made)
    return rows.filter(pl.Series(~wrong)) if wrong.any() else rows


def _wholes(found: pl.Series) -> pl.Series:
    return found.set(~found.str.contains(r"^[0-9]{1,19}$"), None).cast(pl.Int64, strict=False)
