"""The rows of one LOBSTER day: read as text and integers, every rule checked, the first broken one named.

A clean pair is read as columns of integers: by a compiled parser of plain digits where the files are many, so that
compiling pays, and otherwise by the CSV scanner. Only when that finds something wrong are the files read line by line,
which is slower and can say which line, which column and which rule.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

import polars as pl

from quantattn.data.schema import CROSS, EXECUTE_HIDDEN, HALT, NEW, level_columns
from quantattn.data.sources.lobster_files import MESSAGE_COLUMNS, File, Pair, Unusable, broken_file, open_file
from quantattn.data.sources.lobster_notes import facts, notes_on
from quantattn.data.sources.lobster_whole import read_whole

EMPTY_LEVEL = 9_999_999_999
"""What LOBSTER writes as the price of a level that holds no order; negative on the bid side."""

_DAY = 86_400 * 10**9
_SMALL = 1 << 25  # bytes of files, packed perhaps, whose rows are read into memory once
_UNSIGNED = (EXECUTE_HIDDEN, CROSS, HALT)
_PLAIN_SECONDS = r"^\d{1,5}(\.\d{1,9})?$"
_EXPECTED = {
    "not an integer": "an integer",
    "not a time": "seconds after midnight in plain decimals, below 86400, with at most 9 of them after the point",
    "unknown type": f"an event type from {NEW} to {HALT}",
    "impossible direction": "1 or -1 (0 where the side is not known)",
    "impossible size": "a size of at least 0",
    "impossible price": "a positive price in units of 0.0001 (for a halt -1, 0 or 1)",
    "time runs backwards": "times that never fall from one line to the next",
}


@dataclass(frozen=True)
class DayTable:
    """One day's pair, checked.

    Attributes:
        frame: gives messages beside books, columns as in the files with `line` (from 0) and `ns` after midnight, which
            reads the files again when it is computed.
        whole: the same in memory, without the text of the times, or None.
        rows: rows of `frame`.
        lines: data lines of the files, with those that were set aside.
        levels: levels of the book.
        last: the last time, in nanoseconds after midnight.
        bad: what was set aside: file, line (from 1, as an editor counts), reason, text, rows.
        notes: what was decided about the times.
    """

    frame: Callable[[], pl.LazyFrame]
    rows: int
    lines: int
    levels: int
    last: int
    bad: pl.DataFrame
    notes: tuple[str, ...]
    whole: pl.DataFrame | None = None

    def events(self, entity: str, start: int, first_seq: int, depth: int) -> pl.LazyFrame:
        """The day as book events; `start` is midnight at the exchange in ns UTC, `first_seq` the number of line 0."""
        kind, price = pl.col("kind"), pl.col("price")
        books = [name for level in range(1, depth + 1) for name in level_columns(level)]
        rows = self.frame() if self.whole is None else self.whole.lazy()
        return rows.select(
            pl.lit(entity).alias("entity"),
            (pl.col("ns") + start).alias("event_time"),
            (pl.col("ns") + start).alias("available_time"),
            (pl.col("line") + first_seq).cast(pl.Int64).alias("seq"),
            kind.cast(pl.UInt8),
            pl.when(kind.is_in(_UNSIGNED)).then(0).otherwise(pl.col("side")).cast(pl.Int8).alias("side"),
            pl.when(kind != HALT).then(price).alias("price"),
            "size",
            "order_id",
            *(_without_sentinel(name) if "_price_" in name else pl.col(name) for name in books),
            # A halt lasts until trading resumes (price 1); quoting alone (price 0) does not end it.
            pl.when(kind == HALT).then(price != 1).forward_fill().fill_null(False).alias("halted"),
        )


def read_day(pair: Pair, *, rounded_times: bool, quarantine: bool, compiled: bool = False) -> DayTable:
    """Check both files of a day; `compiled` says whether compiling the parser pays.

    Raises:
        Unusable: the pair cannot be used as a whole, or, unless `quarantine`, the first line that breaks a rule.
    """
    message, book = open_file(pair.message, MESSAGE_COLUMNS), open_file(pair.book, None)
    scan = partial(_scan, message, book)
    read: tuple[pl.DataFrame | None, dict[str, int]] | None = read_whole(message, book) if compiled else None
    if read is None:
        read = _judged(scan, pair, message, book)
    if read is None:
        return _read_by_line(pair, message, book, rounded_times, quarantine)
    whole, found = read
    notes = notes_on(pair, message.header, found, rounded_times)
    levels = len(book.columns) // 4
    return DayTable(scan, found["rows"], found["rows"], levels, found["last"], pl.DataFrame(), notes, whole)


def _judged(
    scan: Callable[[], pl.LazyFrame], pair: Pair, message: File, book: File
) -> tuple[pl.DataFrame | None, dict[str, int]] | None:
    """The rows, where they are few, and the values of `facts`, as the scanner reads them; None for a broken rule."""
    # Where every other rule is kept, the latest time so far is that of the line before, which is found faster.
    rules = [*(_rules(message.columns) | {"time runs backwards": pl.col("ns") < pl.col("ns").shift(1)}).values()]
    rules += [*_rules(book.columns).values(), pl.any_horizontal(pl.col("line", "book_line").is_null())]
    asked = (*facts(len(book.columns) // 4), pl.any_horizontal(rules).any().alias("bad"))
    whole: pl.DataFrame | None = None
    try:
        if sum(file.path.stat().st_size for file in (message, book)) <= _SMALL:
            whole = scan().drop("time").collect()
        looked = scan().select(asked).collect() if whole is None else whole.select(asked)
    except (pl.exceptions.ComputeError, pl.exceptions.SchemaError, pl.exceptions.ShapeError):
        return None
    except OSError as error:
        raise broken_file((pair.message, pair.book), error) from error
    found = looked.row(0, named=True)
    return None if found["bad"] else (whole, found)


def _scan(message: File, book: File) -> pl.LazyFrame:
    books = _scan_typed(book).rename({"line": "book_line"})
    return pl.concat([_scan_typed(message), books], how="horizontal")


def _read_by_line(pair: Pair, message: File, book: File, rounded_times: bool, quarantine: bool) -> DayTable:
    try:
        messages, books = _scan_lines(message).collect(), _scan_lines(book).collect()
    except (pl.exceptions.ComputeError, OSError) as error:
        raise broken_file((pair.message, pair.book), error) from error
    if not quarantine:
        for file, rows in ((message, messages), (book, books)):
            bad = rows.filter(pl.col("reason").is_not_null())
            if bad.height:
                raise Unusable(bad["reason"][0], _sentence(file, bad.row(0, named=True), rows.height), file.path)
    _same_length(pair, messages.height, books.height)
    if not quarantine:
        raise ValueError(f"{pair.message.name} or {pair.book.name} holds a field that the CSV scanner refuses")
    both = pl.concat([messages, books.select(pl.all().exclude("line").name.suffix("@book"))], how="horizontal")
    reason, in_book = pl.coalesce("reason", "reason@book"), pl.col("reason").is_null()
    bad = both.filter(reason.is_not_null()).select(
        pl.when(in_book).then(pl.lit(book.path.name)).otherwise(pl.lit(message.path.name)).alias("file"),
        (pl.col("line") + 1 + pl.when(in_book).then(book.header).otherwise(message.header))
        .cast(pl.Int64)
        .alias("line"),
        reason.alias("reason"),
        pl.when(in_book).then("text@book").otherwise("text").alias("text"),
        pl.lit(1, pl.Int64).alias("rows"),
    )
    good = both.filter(reason.is_null())
    if not good.height:
        raise Unusable(
            bad["reason"][0], f"{pair.message.name}: no row of it and of its order book is whole", pair.message
        )
    levels = len(book.columns) // 4
    frame = good.rename({f"{name}@book": name for name in book.columns}).lazy()
    found = frame.select(facts(levels)).collect().row(0, named=True)
    notes = notes_on(pair, message.header, found, rounded_times)
    return DayTable(lambda: frame, good.height, both.height, levels, found["last"], bad, notes)


def _scan_typed(file: File) -> pl.LazyFrame:
    rows = pl.scan_csv(
        file.path,
        glob=False,
        has_header=False,
        skip_rows=file.header,
        quote_char=None,
        row_index_name="line",
        schema={name: pl.String if name == "time" else pl.Int64 for name in file.columns},
    )
    return _with_times(rows, file)


def _scan_lines(file: File) -> pl.LazyFrame:
    # Spaces before an integer are passed over and others are not, as the CSV scanner has it.
    text = pl.col("text").str.strip_suffix("\r").str.strip_prefix("\ufeff")
    parts = text.str.split(",")
    rows = pl.scan_lines(file.path, name="text", row_index_name="line", glob=False).slice(file.header)
    fields = {name: parts.list.get(i, null_on_oob=True).alias(name) for i, name in enumerate(file.columns)}
    made = rows.select(
        pl.col("line") - file.header,
        text,
        parts.list.len().alias("fields"),
        *(
            field if name == "time" else field.str.strip_chars_start(" ").cast(pl.Int64, strict=False)
            for name, field in fields.items()
        ),
    )
    broken = {"wrong number of columns": pl.col("fields") != len(file.columns)} | _rules(file.columns)
    reason = pl.coalesce(pl.when(rule).then(pl.lit(name)) for name, rule in broken.items())
    return _with_times(made, file).with_columns(reason.alias("reason"))


def _with_times(rows: pl.LazyFrame, file: File) -> pl.LazyFrame:
    """Messages with `ns` and the `decimals` of the time; books as they are."""
    if file.columns != MESSAGE_COLUMNS:
        return rows
    text = pl.col("time")
    point = text.str.find(".", literal=True)
    return rows.with_columns(
        # A decimal of scale 9 is an integer number of nanoseconds: no float, and no digit is lost.
        ns=pl.when(text.str.contains(_PLAIN_SECONDS)).then(text).cast(pl.Decimal(20, 9)).to_physical().cast(pl.Int64),
        decimals=(text.str.len_bytes() - point - 1).fill_null(0),
    )


@cache
def _rules(columns: tuple[str, ...]) -> dict[str, pl.Expr]:
    """What may be wrong with a row that has these columns → whether it is."""
    whole = [name for name in columns if name != "time"]
    ns, kind, price, side = (pl.col(name) for name in ("ns", "kind", "price", "side"))
    rules = {
        "not an integer": pl.any_horizontal(pl.col(whole).is_null()),
    }
    if columns != MESSAGE_COLUMNS:
        prices, sizes = [n for n in whole if "_price_" in n], [n for n in whole if "_size_" in n]
        rules["impossible price"] = pl.any_horizontal((pl.col(prices) <= 0) & (pl.col(prices) != -EMPTY_LEVEL))
        rules["impossible size"] = pl.any_horizontal(pl.col(sizes) < 0)
        return rules
    rules["not a time"] = ns.is_null() | (ns >= _DAY)
    rules["unknown type"] = ~kind.is_between(NEW, HALT)
    rules["impossible direction"] = ~side.is_in([-1, 1]) & ~((side == 0) & kind.is_in(_UNSIGNED))
    rules["impossible size"] = pl.col("size") < 0
    rules["impossible price"] = pl.when(kind == HALT).then(~price.is_between(-1, 1)).otherwise(price <= 0)
    # The time of a row that is wrong in another way does not count as the latest.
    sound = ~pl.any_horizontal(*rules.values())
    rules["time runs backwards"] = ns < pl.when(sound).then(ns).cum_max()
    return rules


def _without_sentinel(name: str) -> pl.Expr:
    return pl.when(pl.col(name).abs() != EMPTY_LEVEL).then(pl.col(name)).alias(name)


def _same_length(pair: Pair, messages: int, books: int) -> None:
    if messages != books:
        shorter = "the book" if books < messages else "the message file"
        raise Unusable(
            "row counts differ",
            f"{pair.message.name} has {messages} rows but {pair.book.name} has {books}; expected one row of the book "
            f"after each message, so {shorter} stops early or lacks rows",
            pair.message,
            pair.book,
        )


def _sentence(file: File, row: dict[str, object], rows: int) -> str:
    """What is wrong with a line, in one sentence."""
    text, reason = str(row["text"]), str(row["reason"])
    line = int(str(row["line"])) + 1 + file.header
    where = f"{file.path.name}, line {line}"
    if reason == "wrong number of columns":
        what = f"has {row['fields']} columns" if text.strip() else "is empty"
        cut = line == rows + file.header and int(str(row["fields"])) < len(file.columns)
        end = "; it is the last line, so the file seems to stop early" if cut else ""
        return f"{where} {what} ({_short(text)}), expected {len(file.columns)} columns{end}"
    culprit = _culprit(file, row, text.split(","), reason)
    scientific = reason == "not a time" and re.match(r"\s*\d[\d.]*e", text, re.IGNORECASE)
    hint = ", which a spreadsheet has rounded" if scientific else ""
    return f"{where}: found {culprit}{hint}, expected {_EXPECTED[reason]}"


def _culprit(file: File, row: dict[str, object], fields: list[str], reason: str) -> str:
    if reason == "not an integer":
        name = next(name for name in file.columns if name != "time" and row[name] is None)
        return f"{_short(fields[file.columns.index(name)])} as {name}"
    wanted = {
        "not a time": "time",
        "time runs backwards": "time",
        "unknown type": "kind",
        "impossible direction": "side",
    }
    if reason in wanted:
        return f"{_short(fields[file.columns.index(wanted[reason])])} as {wanted[reason]}"
    part = reason.removeprefix("impossible ")
    least = min(
        (name for name in file.columns if part in name.split("_")),
        key=lambda name: (abs(int(str(row[name]))) == EMPTY_LEVEL, int(str(row[name]))),
    )
    return f"{_short(fields[file.columns.index(least)])} as {least}"


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:40]}…")
