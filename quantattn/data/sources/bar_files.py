"""Files of bars, text or Parquet → one long table of text: a row a bar, whatever way the columns were laid out."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from quantattn.data.sources.table_files import FAULT, LINE, TEXT, is_parquet, readable
from quantattn.data.sources.text_rows import first_lines, numbered, split_header

PRICES = ("open", "high", "low", "close")
FIELDS = (*PRICES, "volume")
STARTS = ("open_time", "open time", "opentime", "window_start", "start", "start_time", "begin")
"""Names of columns that hold the starts of bars."""
_DATED = re.compile(r"-\d{1,2}[smhdw]o?-\d{4}-\d\d(-\d\d)?$")
"""What follows the name in SYMBOL-1m-2021-11-27."""
_TIMES = ("date", "datetime", "date_time", "timestamp", "time", "dt")
_SYNONYMS: Mapping[str, tuple[str, ...]] = {
    "time": (
        *_TIMES,
        *("gmt time", "local time", "time (utc)", "timestamp_utc", "datetime_utc", "date_utc", "day", "unix"),
        *("ts_event", "__index_level_0__", *STARTS, ""),
    ),
    "clock": ("time",),
    "entity": ("symbol", "ticker", "name"),
    "volume": ("volume", "vol", "vol.", "tickvol", "tick_volume"),
}


@dataclass(frozen=True)
class BarText:
    """The bars of one file, as text.

    Attributes:
        frame: String columns `entity`, `stamp`, `open`, `high`, `low`, `close`, `volume` (null where the file has
            none), `LINE`, `TEXT` and `FAULT`, in the order of the lines.
        layout: "three header rows", "one bar a line" or "a column for each name".
        passed_over: columns that are not read.
        time: name of the column of times, in lower case.
    """

    frame: pl.LazyFrame
    layout: str
    passed_over: tuple[str, ...]
    time: str = "date"


def bar_places(header: Sequence[str], columns: Mapping[str, str]) -> tuple[list[str], dict[str, int]]:
    """Names of the columns in lower case, and our name → place of each that is found.

    Raises:
        ValueError: `columns` names one that is not there.
    """
    names = [name.lower().removeprefix("<").removesuffix(">") for name in header]
    found = {ours: place for ours in (*_SYNONYMS, *PRICES) if (place := _place(names, ours, columns)) is not None}
    if found.get("clock") == found.get("time"):
        found.pop("clock", None)
    return names, found


def read_bar_text(
    file: Path, columns: Mapping[str, str], entity: str | None, names: Sequence[str] | None = None
) -> BarText:
    """Find out how a file is laid out.

    Args:
        file: plain or packed text with `,`, `;`, tab or `|` between fields and a header.
        columns: our name of a field (one of `FIELDS`, "time", "clock" or "entity") → the file's name of its column,
            where the header does not say.
        entity: name for a file of one instrument; None takes what the file says, or the start of its name.
        names: of the columns of a file without a header.

    Raises:
        ValueError: there is no header, or it names no time or, beside other fields, no close.
    """
    unknown = sorted(set(columns) - {*FIELDS, "time", "clock", "entity"})
    if unknown:
        raise ValueError(f"columns may give {', '.join((*FIELDS, 'time', 'clock', 'entity'))}, got {unknown[0]!r}")
    if is_parquet(file):
        return _columns(file, columns, entity or _DATED.sub("", file.name.split(".")[0]))
    lines = first_lines(file, 3)
    if not lines:
        raise ValueError(f"{file.name} is empty; expected a header line")
    separator, first = split_header(file, lines[0])
    titles = int(len(first) == 1 and len(lines) > 1)  # such as the address of who made the file
    if titles:
        separator, first = split_header(file, lines[1])
    own = entity or _DATED.sub("", file.name.split(".")[0])
    if names is not None:
        if len(first) != len(names):
            raise ValueError(
                f"{file.name}, line 1: found {len(first)} fields in {lines[0][:120]!r}, but {len(names)} names"
            )
        return _of_header(file, separator, list(names), columns, own, 0, titles)
    rows = [split_header(file, line, separator)[1] for line in lines]
    if len(rows) == 3 and _names_times(rows[2][0]) and not any(rows[2][1:]) and len(rows[1]) == len(rows[0]):
        return _three_rows(file, separator, rows, columns)
    if any(_is_number(name) for name in first):
        raise ValueError(
            f"{file.name}, line 1: found {lines[0][:120]!r}, expected a header that names its columns, or names=[…]"
        )
    return _of_header(file, separator, first, columns, own, 1, titles)


def _of_header(
    file: Path, separator: str, header: list[str], columns: Mapping[str, str], entity: str, headers: int, titles: int
) -> BarText:
    names, found = bar_places(header, columns)
    shown = separator.join(header)[:120]
    if "time" not in found:
        raise ValueError(f"{file.name} has no column of times; its header is {shown!r}: name it with columns")
    if "close" in found:
        part = numbered(file, separator, len(header), found.values(), headers, titles)
        return _chosen_bars(part.frame, header, found, entity, names[found["time"]])
    if found.keys() & {*PRICES, "volume"} or found.keys() & {"clock", "entity"}:
        raise ValueError(f"{file.name} has no column close; its header is {shown!r}: name it with columns")
    part = numbered(file, separator, len(header), range(len(header)), headers, titles)
    return _wide(file, part.frame, header, found["time"])


def _columns(file: Path, columns: Mapping[str, str], entity: str) -> BarText:
    """Parquet, a bar a row: every value as its shortest text."""
    frame = pl.scan_parquet(file, glob=False)
    schema = readable(frame.head(0), file).schema
    names, found = bar_places(list(schema), columns)
    if not {"time", "close"} <= found.keys():
        raise ValueError(
            f"{file.name} has the columns {', '.join(schema)[:160]}; expected a time and a close among them"
        )
    kinds = {n: (name, kind) for n, (name, kind) in enumerate(schema.items()) if n in found.values()}
    for name, kind in kinds.values():
        if kind.is_nested() or kind == pl.Binary:
            raise ValueError(f"{file.name}: column {name!r} is {kind}; expected text, numbers or times")
    rows = frame.select(_as_text(name, kind).fill_null("").alias(f"c{n}") for n, (name, kind) in kinds.items())
    rows = rows.with_row_index(LINE, offset=1)
    shown = pl.concat_str(pl.exclude(LINE), separator=",").alias(TEXT)
    rows = rows.with_columns(pl.col(LINE).cast(pl.Int64), shown, pl.lit(None, pl.String).alias(FAULT))
    return _chosen_bars(rows, list(schema), found, entity, names[found["time"]])


def _as_text(name: str, kind: pl.DataType) -> pl.Expr:
    if isinstance(kind, pl.Datetime):
        return pl.col(name).dt.to_string("%Y-%m-%dT%H:%M:%S%.9f" + ("%:z" if kind.time_zone else ""))
    return pl.col(name).cast(pl.String)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return text.lower() not in ("nan", "inf", "infinity")  # which are names of instruments too


def _names_times(text: str) -> bool:
    return text.lower() in _TIMES


def _place(names: Sequence[str], ours: str, columns: Mapping[str, str]) -> int | None:
    wanted = (columns[ours].lower(),) if ours in columns else _SYNONYMS.get(ours, (ours,))
    for each in wanted:
        if each in names and (each or names[0] == ""):
            return names.index(each)
    if ours in columns:
        raise ValueError(f"there is no column {columns[ours]!r} for {ours}; the header has {', '.join(names)}")
    return None


def _chosen(frame: pl.LazyFrame, places: Mapping[str, int | None], entity: pl.Expr, stamp: pl.Expr) -> pl.LazyFrame:
    fields = {
        name: pl.lit(None, pl.String) if (n := places.get(name)) is None else pl.col(f"c{n}").str.strip_chars()
        for name in FIELDS
    }
    return frame.select(LINE, TEXT, FAULT, entity.alias("entity"), stamp.alias("stamp"), **fields)


def _chosen_bars(
    frame: pl.LazyFrame, header: Sequence[str], found: Mapping[str, int], entity: str, time: str
) -> BarText:
    stamp = pl.concat_str(
        [pl.col(f"c{found[n]}").str.strip_chars() for n in ("time", "clock") if n in found], separator=" "
    )
    name = pl.col(f"c{found['entity']}").str.strip_chars() if "entity" in found else pl.lit(entity)
    rest = tuple(cell for n, cell in enumerate(header) if n not in found.values())
    return BarText(_chosen(frame, found, name, stamp), "one bar a line", rest, time)


def _three_rows(file: Path, separator: str, rows: list[list[str]], columns: Mapping[str, str]) -> BarText:
    """As yfinance writes a table of two column levels: fields, then tickers, then the name of the index."""
    wanted = {ours: columns.get(ours, ours).lower() for ours in FIELDS}
    places: dict[str, dict[str, int | None]] = {}
    rest: list[str] = []
    for n, (field, ticker) in enumerate(zip(rows[0][1:], rows[1][1:], strict=True), 1):
        ours = [name for name, theirs in wanted.items() if theirs == field.lower()]
        if not ours:
            rest.append(f"{field} of {ticker}")
        for name in ours:
            places.setdefault(ticker, {})[name] = n
    without = [ticker for ticker, found in places.items() if "close" not in found]
    if without or not places:
        raise ValueError(f"{file.name} has no column close{f' for {without[0]}' if without else ''} in its header")
    frame = numbered(file, separator, len(rows[0]), range(len(rows[0])), 3).frame
    parts = [_chosen(frame, found, pl.lit(ticker), pl.col("c0").str.strip_chars()) for ticker, found in places.items()]
    return BarText(pl.concat(parts), "three header rows", tuple(rest))


def _wide(file: Path, frame: pl.LazyFrame, header: list[str], time: int) -> BarText:
    tickers = {f"c{n}": name for n, name in enumerate(header) if n != time}
    double = sorted({name for name in tickers.values() if not name or list(tickers.values()).count(name) > 1})
    if not tickers or double:
        what = f"{double[0]!r} twice or a column without a name" if double else "times alone"
        raise ValueError(f"{file.name}: the header has {what}; expected a time and a column for each instrument")
    parts = [
        _chosen(frame, {"close": int(c[1:])}, pl.lit(name), pl.col(f"c{time}").str.strip_chars())
        for c, name in tickers.items()
    ]
    return BarText(pl.concat(parts), "a column for each name", ())
