"""Daily closing prices from CSV files, and which ticker a filer trades under."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from quantattn.data.filings.submission import pad_cik
from quantattn.data.filings.text import decode, read_bytes

_MAX_BYTES = 2**30
_DATE = ("date",)
_CLOSE = ("close",)
_ENTITY = ("entity", "ticker", "symbol")


@dataclass(frozen=True)
class Prices:
    """Daily closes.

    Attributes:
        frame: `entity` (ticker), `date`, `close` (Float64, positive), sorted by (entity, date), no date twice.
        adjusted: ticker → True when the closes are adjusted for later splits or dividends, hence not what anybody saw
            on that day (returns are right, levels are not point in time); None when the file does not tell.
        files: ticker → name of the file it was read from.
    """

    frame: pl.DataFrame
    adjusted: Mapping[str, bool | None]
    files: Mapping[str, str]

    @property
    def entities(self) -> tuple[str, ...]:
        """Tickers, sorted."""
        return tuple(sorted(self.files))


def read_prices(folder: str | Path) -> Prices:
    """Read every CSV (or .csv.gz) under a folder, or one file.

    Three layouts are told apart by their first row: yfinance's (three header rows; its closes are adjusted), a table
    with `date` and `close` columns (and a ticker column, else the file's name is the ticker), and a wide panel with one
    column a ticker. An empty cell is no price.

    Raises:
        ValueError: no CSV file, an unknown layout, a date or price that cannot be read, a price that is not positive,
            a date twice, or one ticker in two files.
    """
    root = Path(folder)
    files = [root] if root.is_file() else sorted(file for file in root.rglob("*") if file.is_file())
    files = [file for file in files if file.name.endswith((".csv", ".csv.gz"))]
    if not files:
        raise ValueError(f"{root} holds no .csv or .csv.gz file with prices")
    tables: list[pl.DataFrame] = []
    adjusted: dict[str, bool | None] = {}
    origin: dict[str, str] = {}
    for file in files:
        try:
            table, flag = _read_table(decode(read_bytes(file, _MAX_BYTES)), file)
            table = _checked(table)
        except (ValueError, pl.exceptions.PolarsError) as error:
            raise ValueError(f"{file.name}: {error}") from None
        for ticker in table["entity"].unique().sort():
            if ticker in origin:
                raise ValueError(f"{ticker} has prices in {origin[ticker]} and {file.name}; give one of them")
            origin[ticker], adjusted[ticker] = file.name, flag
        tables.append(table)
    return Prices(pl.concat(tables).sort("entity", "date"), adjusted, origin)


def _read_table(text: str, file: Path) -> tuple[pl.DataFrame, bool | None]:
    """(entity, date, close) as text and whether the layout says that closes are adjusted."""
    try:
        rows = pl.read_csv(text.encode(), has_header=False, infer_schema=False)
    except pl.exceptions.ComputeError as error:
        raise ValueError(_widest_line(text) or " ".join(str(error).split())) from None
    if rows.height < 2:
        raise ValueError("fewer than two rows")
    names = [(value or "").strip() for value in rows.row(0)]
    lower = [name.lower() for name in names]
    if lower[0] == "price" and "close" in lower:
        tickers = sorted({value for value in rows.row(1)[1:] if value})
        if (rows.row(1)[0] or "").lower() != "ticker" or len(tickers) != 1:
            raise ValueError(f"second row of this layout must name one ticker, got {', '.join(tickers) or 'none'}")
        body = rows[3:] if (rows.row(2)[0] or "").lower() == "date" else rows[2:]
        return _long(body, 0, lower.index("close"), pl.lit(tickers[0])), True
    date = next((lower.index(name) for name in _DATE if name in lower), None)
    if date is None:
        raise ValueError(f"no column 'date' among {', '.join(names)[:200]}")
    close = next((lower.index(name) for name in _CLOSE if name in lower), None)
    if close is not None:
        column = next((lower.index(name) for name in _ENTITY if name in lower), None)
        ticker = pl.lit(_stem(file)) if column is None else pl.nth(column).str.strip_chars()
        return _long(rows[1:], date, close, ticker), None
    tickers = [name for number, name in enumerate(names) if number != date]
    if len(set(tickers)) < len(tickers) or not all(tickers):
        raise ValueError("a panel of prices needs one name a column, each once")
    parts = [_long(rows[1:], date, number, pl.lit(name)) for number, name in enumerate(names) if number != date]
    return pl.concat(parts), None


def _widest_line(text: str) -> str | None:
    """Which line has more columns than the first, in one sentence; None when there is none."""
    table = csv.reader(io.StringIO(text))
    width = len(next(table, []))
    for row in table:
        if len(row) > width:
            return f"line {table.line_num} has {len(row)} columns, the first has {width}"
    return None


def _long(rows: pl.DataFrame, date: int, close: int, entity: pl.Expr) -> pl.DataFrame:
    table = rows.select(
        entity.alias("entity"),
        pl.nth(date).str.strip_chars().str.head(10).alias("date"),
        pl.nth(close).str.strip_chars().alias("close"),
    )
    return table.filter(pl.col("close").is_not_null() & (pl.col("close") != ""))


def _checked(table: pl.DataFrame) -> pl.DataFrame:
    parsed = table.select(
        "entity",
        date=pl.col("date").str.to_date("%Y-%m-%d", strict=False),
        close=pl.col("close").cast(pl.Float64, strict=False),
    )
    bad = parsed.select(
        (pl.any_horizontal(pl.all().is_null()) | ~pl.col("close").is_finite() | (pl.col("close") <= 0)).arg_true()
    ).to_series()
    if bad.len():
        found = ", ".join(str(value) for value in table.row(bad[0]))
        raise ValueError(f"price {bad[0]} is ({found}); expected a ticker, a date YYYY-MM-DD and a positive number")
    twice = parsed.filter(pl.struct("entity", "date").is_duplicated()).sort("entity", "date")
    if twice.height:
        raise ValueError(f"{twice['entity'][0]} has two closes on {twice['date'][0]}")
    return parsed


def _stem(file: Path) -> str:
    return file.name.removesuffix(".gz").removesuffix(".csv")


def read_tickers(path: str | Path | Sequence[str | Path]) -> dict[str, tuple[str, ...]]:
    """CIK (ten digits) → tickers, from the SEC's `company_tickers.json` or a CSV `cik,ticker`, gzip or not.

    The SEC's file states today's tickers of today's filers: one that was delisted or reorganised under another CIK is
    missing in it. Of several files the later ones say what holds for the filers that they name.

    Raises:
        ValueError: neither layout, or no path.
    """
    paths = [path] if isinstance(path, str | Path) else list(path)
    if not paths:
        raise ValueError("tickers must name a file or several, got none")
    tickers: dict[str, tuple[str, ...]] = {}
    for each in paths:
        tickers |= _tickers_of(Path(each))
    return tickers


def _tickers_of(path: Path) -> dict[str, tuple[str, ...]]:
    text = decode(read_bytes(path, _MAX_BYTES))
    if path.name.endswith((".csv", ".csv.gz")):
        table = csv.DictReader(io.StringIO(text))
        table.fieldnames = [name.strip().lower() for name in table.fieldnames or ()]
        names, rows = ("cik", "ticker"), list(table)
    else:
        content = json.loads(text)
        names, rows = ("cik_str", "ticker"), list(content.values()) if isinstance(content, dict) else content
    tickers: dict[str, tuple[str, ...]] = {}
    for row in rows:
        if not isinstance(row, dict) or any(not row.get(name) for name in names):
            what = "a row" if names[0] == "cik" else "objects"
            raise ValueError(f"{path.name}: expected {what} with {' and '.join(names)}, got {str(row)[:60]}")
        cik = pad_cik(str(row[names[0]]))
        tickers[cik] = (*tickers.get(cik, ()), str(row["ticker"]).strip())
    return tickers


def match_tickers(
    entities: Iterable[str], prices: Prices, tickers: Mapping[str, str | tuple[str, ...]]
) -> dict[str, str]:
    """Entity → the one of its tickers that has prices; entities with none are left out.

    Raises:
        ValueError: several tickers of one entity have prices (two share classes): say which one is meant.
    """
    matched = {}
    for entity in sorted(set(entities)):
        named = tickers.get(entity, ())
        priced = [ticker for ticker in ((named,) if isinstance(named, str) else named) if ticker in prices.files]
        if len(priced) > 1:
            raise ValueError(f"{entity} has prices under {' and '.join(priced)}; give the ticker that is meant")
        if priced:
            matched[entity] = priced[0]
    return matched
