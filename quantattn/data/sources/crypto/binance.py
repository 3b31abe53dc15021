"""Trades and aggregate trades of Binance as the exchange publishes them: CSV, plain or zipped; and as Parquet.

The format, its units and what it cannot tell: docs/sources/binance.md.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import polars as pl

from quantattn.data.schema import EXECUTE
from quantattn.data.sources.crypto.build import TradeStage, build
from quantattn.data.sources.crypto.clocks import Clocks, Order
from quantattn.data.sources.crypto.csv_rows import Layout, choices, decimals, first_fields, read_csv, times, wholes
from quantattn.data.sources.crypto.feed import EARLIEST, LATEST, SECOND, Account, BadLine, Reading, files_under
from quantattn.data.sources.crypto.messages import MICRO, MILLI
from quantattn.data.sources.decimals import from_floats, scaled_column
from quantattn.data.sources.pieces import read_pieces
from quantattn.data.sources.source import Source

ENDINGS = (".csv", ".csv.gz", ".csv.zst", ".zip", ".parquet")
_NAME = re.compile(r"(?:^|_)(?P<entity>[A-Z0-9]+_[A-Z0-9]+|[A-Za-z0-9]+)-(?:aggTrades|trades)")
_DATE = re.compile(r"-(?P<y>20\d\d)-(?P<m>\d\d)(?:-(?P<d>\d\d))?\.")
_TITLE = re.compile(r"[A-Za-z_]{1,40}")
_MAKER = choices({"true": 1, "false": -1, "True": 1, "False": -1})
"""isBuyerMaker: the buyer's order rested, so that the resting side is that of the buyer."""


def scan_binance(
    path: str | Path,
    *,
    entity: str | None = None,
    price_exponent: int = -8,
    size_exponent: int = -8,
    tick: str | None = None,
    on_bad: Literal["refuse", "quarantine"] = "refuse",
    set_aside: str | Path | None = None,
) -> Source:
    """Trades of spot and futures (schema `Trades`), one row a trade or an aggregate of trades.

    Times are milliseconds, or microseconds as in spot files since 2025: the first row decides, and every row and the
    date in the file's name must agree with it. A table of one symbol is made in pieces, others in
    memory: see `build`.

    Args:
        path: one file (.csv, .csv.gz, .zip of one CSV, .parquet), or a folder of them in the order of their names.
        entity: the symbol; None takes it from the names of the files, as in BTCUSDT-aggTrades-2025-01-01.zip.
        price_exponent: a price p of the table is p · 10^price_exponent; a file with more digits is refused.
        size_exponent: the same for quantities.
        tick: smallest price step as decimal text ("0.01"); None takes the greatest step that divides all prices.
        on_bad: "refuse" raises at the first bad line; "quarantine" leaves lines out, counts them under their reason and
            writes them to `set_aside`.
        set_aside: CSV file for what is left out; needed with "quarantine".

    Raises:
        ValueError: one sentence that names the file, the line, what was found and what was expected.
    """
    account = Account(Reading(1, price_exponent, size_exponent, tick, "forget", on_bad, set_aside))
    files = {file: entity or _entity(file) for file in files_under(Path(path), "trades of Binance", ENDINGS)}
    extras = ("first_trade_id", "last_trade_id")

    def parts(account: Account) -> Iterator[pl.DataFrame]:
        order = Order()
        for file, name in files.items():
            clocks, ids = Clocks(file, account), _Ids(file, account)
            for rows in (_parquet if file.suffix.lower() == ".parquet" else _csv)(file, account):
                own = rows.with_columns(entity=pl.lit(name), received=pl.lit(None, pl.Int64))
                made = clocks.set(ids.rising(own))
                _on_the_day(made, file)
                yield order.check(made, file)
            clocks.close()
            ids.close()

    return build(parts, partial(TradeStage, extras=extras), account)


def _entity(file: Path) -> str:
    if (match := _NAME.search(file.name)) is None:
        raise ValueError(
            f"{file.name}: no row says the symbol and the name has not the form SYMBOL-trades-DATE; give entity=SYMBOL"
        )
    return match["entity"].upper()


def _csv(file: Path, account: Account) -> Iterator[pl.DataFrame]:
    first = [each.strip() for each in first_fields(file)]
    header = bool(first) and all(_TITLE.fullmatch(each) for each in first)
    sample = _second_line(file) if header else first
    layout = _layout(sample, account.reading, file)
    for made in read_csv(file, layout, account, header=header):
        yield _named(made)


def _second_line(file: Path) -> list[str]:
    for piece in read_pieces(file, 1 << 16):
        lines = list(piece.lines())
        if len(lines) > 1:
            return lines[1][1].decode("utf-8", "replace").split(",")
    raise ValueError(f"{file.name} holds no row that can be used")


def _layout(row: list[str], reading: Reading, file: Path) -> Layout:
    """By the number of fields: 6 futures trades, 7 spot trades or futures aggregates, 8 spot aggregates."""
    count = len(row)
    aggregates = count == 8 or (count == 7 and row[5].isdigit())
    if count not in (6, 7, 8):
        raise ValueError(
            f"{file.name}, line 1: found {count} fields, expected 6 or 7 of trades, or 7 or 8 of aggregate trades"
        )
    place = 5 if aggregates else 4
    stamp = row[place]
    if not stamp.isdigit() or len(stamp) not in (13, 16):
        raise ValueError(
            f"{file.name}: found {stamp[:40]!r} as the time of the first row, expected 13 digits (milliseconds) or 16 "
            "(microseconds)"
        )
    middle = {"first": wholes(), "last": wholes()} if aggregates else {"quote": None}
    layout = {
        "id": wholes(),
        "price": decimals(reading.price_exponent),
        "quantity": decimals(reading.size_exponent),
        **middle,
        "time": times(MILLI if len(stamp) == 13 else MICRO),
        "maker": _MAKER,
    }
    return layout if len(layout) == count else {**layout, "best_match": None}


def _parquet(file: Path, account: Account) -> Iterator[pl.DataFrame]:
    """Columns timestamp, trade_id, price, quantity, buyer_maker, the numbers perhaps as floats."""
    reading = account.reading
    try:
        table = pl.read_parquet(file)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        said = str(error).splitlines()[0][:200]
        raise ValueError(f"{file.name} is no Parquet file that can be read: {said}") from error
    needed = ("timestamp", "trade_id", "price", "quantity", "buyer_maker")
    lacking = [name for name in needed if name not in table.columns]
    if lacking or not isinstance(table.schema["timestamp"], pl.Datetime) or not table.schema["trade_id"].is_integer():
        raise ValueError(
            f"{file.name}: found columns {', '.join(table.columns[:8])}, expected {', '.join(needed)}, with timestamp "
            "a datetime and trade_id a whole number"
        )
    account.take(file)
    made = table.select(
        line=pl.int_range(1, pl.len() + 1, dtype=pl.Int64),
        id=pl.col("trade_id").cast(pl.Int64, strict=False),
        price=_numbers(table["price"], reading.price_exponent, file, account),
        quantity=_numbers(table["quantity"], reading.size_exponent, file, account),
        time=_instants(table["timestamp"]),
        maker=_MAKER.make(table["buyer_maker"].cast(pl.String)),
    )
    wrong = made.select(pl.any_horizontal(pl.all().is_null())).to_series()
    # A time that cannot be is no datetime of Python's either, so it is shown as the number that it is.
    plain = table.select(needed).with_columns(pl.col("timestamp").to_physical())
    for row in wrong.arg_true():
        shown = next(name for name in made.columns if made[name][row] is None)
        found = (plain if made["time"][row] is None else table.select(needed)).row(row)
        sentence = f"found {found}, of which the {shown} cannot be"
        account.bad(file, row + 1, BadLine(f"not a {shown}", sentence), str(found))
    if wrong.all():
        raise account.nothing(file)
    yield _named(made.filter(~wrong))


def _instants(column: pl.Series) -> pl.Series:
    """Datetimes as ns UTC, those without a zone taken for UTC; null where they lie outside of what can be."""
    assert isinstance(column.dtype, pl.Datetime)
    ns = {"ms": 10**6, "us": 10**3, "ns": 1}[column.dtype.time_unit]
    number = pl.col(column.name)
    can_be = number.is_between(-(-EARLIEST // ns), LATEST // ns)  # in its own unit, in which nothing overflows
    return column.to_physical().to_frame().select(pl.when(can_be).then(number * ns)).to_series()


def _numbers(column: pl.Series, exponent: int, file: Path, account: Account) -> pl.Series:
    if not column.dtype.is_float():
        return scaled_column(column.cast(pl.String), exponent)
    made, moved = from_floats(column, exponent)
    account.notes.append(
        f"{file.name}: {column.name} is a float in the file; each is taken for the decimal of 10^{exponent} next to it "
        f"({moved:,} are not the float nearest to theirs)"
    )
    return made


def _named(made: pl.DataFrame) -> pl.DataFrame:
    """Columns of the common table, the ids of the first and last trade of an aggregate beside them."""
    absent = pl.lit(None, pl.Int64)
    aggregates = "first" in made.columns
    return made.select(
        "line",
        exchange_time="time",
        kind=pl.lit(EXECUTE, pl.UInt8),
        side=pl.col("maker").cast(pl.Int8),
        price="price",
        size="quantity",
        trade_id=pl.col("id").cast(pl.String),
        number="id",
        first_trade_id=pl.col("first") if aggregates else absent,
        last_trade_id=pl.col("last") if aggregates else absent,
    )


class _Ids:
    """Ids of a file's trades, which must rise."""

    def __init__(self, file: Path, account: Account) -> None:
        self._file, self._account = file, account
        self._first, self._last, self._count = -1, -1, 0

    def rising(self, rows: pl.DataFrame) -> pl.DataFrame:
        """The rows of a piece without those whose id does not rise."""
        number = rows["number"].to_numpy()
        before = np.maximum.accumulate(np.concatenate([[self._last], number]))[:-1]
        repeats = number <= before
        for row in np.flatnonzero(repeats).tolist():
            error = BadLine("id does not rise", f"found id {number[row]} after {before[row]}, expected ids that rise")
            self._account.bad(self._file, rows["line"][row], error, str(number[row]))
        kept = rows.filter(pl.Series(~repeats))
        if kept.height:
            self._first = self._first if self._count else kept["number"][0]
            self._last, self._count = kept["number"][-1], self._count + kept.height
        return kept

    def close(self) -> None:
        """Note how many are lacking."""
        lacking = self._last - self._first + 1 - self._count if self._count else 0
        if lacking:
            self._account.notes.append(f"{self._file.name}: {lacking:,} ids are lacking between the first and the last")


def _on_the_day(rows: pl.DataFrame, file: Path) -> None:
    """Refuse a file whose times do not lie on the day, or in the month, of its name."""
    if (match := _DATE.search(file.name)) is None:
        return
    try:
        first = dt.date(int(match["y"]), int(match["m"]), int(match["d"] or 1))
    except ValueError:
        return
    month_after = (first.replace(day=1) + dt.timedelta(days=32)).replace(day=1)
    end = first + dt.timedelta(days=1) if match["d"] else month_after
    low, high = (int(dt.datetime.combine(day, dt.time(), dt.UTC).timestamp()) * SECOND for day in (first, end))
    outside = rows.filter(~pl.col("exchange_time").is_between(low, high, closed="left"))
    if outside.height:
        raise ValueError(
            f"{file.name}, line {outside['line'][0]}: found time {outside['exchange_time'][0]} ns, expected one of "
            f"{match[0][1:-1]}, which the name says ({outside.height:,} such rows)"
        )
