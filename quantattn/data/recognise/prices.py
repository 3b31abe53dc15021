"""How files of bars and of quotes are told, and how they write times and volumes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import polars as pl

from quantattn.data.recognise.exchange import shown
from quantattn.data.recognise.formats import Claim
from quantattn.data.recognise.long_table import parquet_values, quoted
from quantattn.data.recognise.look import Look
from quantattn.data.recognise.time_forms import time_form
from quantattn.data.sources.bar_files import PRICES, STARTS, bar_places
from quantattn.data.sources.table_types import Clock
from quantattn.data.sources.ticks import WINTER, quote_places

_TRUEFX = re.compile(r"[A-Z]{3}/[A-Z]{3},\d{8} \d\d:\d\d:\d\d(\.\d+)?,[\d.]+,[\d.]+")
_HISTDATA = re.compile(r"\d{8} \d{9},\d+\.\d+,\d+\.\d+,\d+")
_HISTDATA_STAMP = re.compile(r"\d{8} \d{6}")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|nan|NaN|")
_FRACTION = re.compile(r"\d*\.(\d*[1-9])0*")
_KLINES = (
    *("open_time", *PRICES, "volume", "close_time", "quote_volume", "count", "taker_buy_volume"),
    *("taker_buy_quote_volume", "ignore"),
)
"""Columns of Binance's files of bars, which had no header until 2022."""
_CLOSES = ("close_time", "close time", "closetime")
_LENGTHS = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))


def ticks(look: Look) -> Claim | None:
    """A header with a time, a bid and an ask, or lines of TrueFX or of HistData."""
    if look.mostly(_TRUEFX, look.lines[:20]):
        return Claim("its lines are pair, time, bid and ask, as TrueFX writes them")
    if look.mostly(_HISTDATA, look.lines[:20]):
        return Claim("its lines are time, bid, ask and a volume, as HistData writes them")
    if look.text is None:
        return None
    found = quote_places(look.header, {})
    if not {"time", "bid", "ask"} <= found.keys() or "local_timestamp" in look.header:
        return None
    why, settings = _times([row[found["time"]] for row in look.rows])
    sizes = [row[found[name]] for name in ("bid_size", "ask_size") if name in found for row in look.rows]
    return Claim(f"its header names a time, a bid and an ask: {shown(look)}{why}", settings | _fractions(sizes))


def bars(look: Look) -> Claim | None:
    """A header with a time and a close, three header rows, a panel of closes, or rows that can be nothing but bars."""
    if len(look.header) == 1 and b"\n" in look.head:  # a title; the header stands after it
        below = bars(replace(look, head=look.head.partition(b"\n")[2]))
        return below and Claim(f"below a title, {below.why}", below.settings)
    if look.columns:
        return _of_columns(look, look.columns)
    if not look.header or look.text is None:
        return None
    third = look.rows[1] if len(look.rows) > 1 else ()
    if "close" in map(str.lower, look.header) and third[:1] == ("Date",) and not any(third[1:]):
        return Claim("it has three header rows: fields, tickers and the name of the index, as yfinance writes them")
    if look.header[0][:1].isdigit():
        return _without_header(look)
    names, found = bar_places(look.header, {})
    if "time" in found and "close" in found:
        return _of_rows(f"its header names a time and a close: {shown(look)}", names, found, look.rows)
    return _panel(look)


def _of_columns(look: Look, columns: pl.Schema) -> Claim | None:
    """Parquet with a time, an open, a high, a low and a close."""
    names, found = bar_places(list(columns), {})
    head = parquet_values(look)
    if not {"time", *PRICES} <= found.keys() or any(list(columns)[n] not in head for n in found.values()):
        return None
    nothing = [""] * len(next(iter(head.values())))
    rows = list(zip(*(head.get(name, nothing) for name in columns), strict=True))
    shown = ", ".join(columns)[:80]
    claim = _of_rows(f"it is Parquet with a time and open, high, low and close: {shown}", names, found, rows)
    # What holds times is written as ISO when it is read.
    native = isinstance(columns[list(columns)[found["time"]]], (pl.Date, pl.Datetime))
    own = {name: value for name, value in claim.settings.items() if not native or name != "time_format"}
    return Claim(claim.why, own)


def _of_rows(why: str, names: Sequence[str], found: Mapping[str, int], rows: Sequence[Sequence[str]]) -> Claim:
    """A bar a line: how its times and volumes are written, and how long its bars are where stamps are their starts."""
    settings: dict[str, str] = {}
    close = next((names.index(name) for name in _CLOSES if name in names), None)
    if close is not None and (form := time_form([row[close] for row in rows])) and form[0] in ("ms", "us"):
        # The last unit of time within the bar.
        settings |= {"columns": f"{{time:{quoted(names[close])}}}", "time_format": form[0], "length": f"1{form[0]}"}
    else:
        places = [found[name] for name in ("time", "clock") if name in found]
        more, settings = _times([" ".join(row[n] for n in places) for row in rows])
        why += more
        if names[found["time"]] in STARTS:
            settings |= _length([row[found["time"]] for row in rows], settings)
    if "volume" in found:
        settings |= _fractions([row[found["volume"]] for row in rows])
    return Claim(why, settings)


def _without_header(look: Look) -> Claim | None:
    """Rows of a time, or of a date and a clock, and then open, high, low, close and perhaps a volume."""
    rows = [look.header, *look.rows][:200]
    width = len(rows[0])
    if len(rows) < 0.9 * len(look.lines) or width < 1 + len(PRICES):
        return None
    if width == len(_KLINES) and all(time_form([row[n] for row in rows]) for n in (0, 6)):
        names, why = list(_KLINES), "its rows are those of Binance's klines, without a header"
    else:
        lead = ["date", "time"] if time_form([f"{row[0]} {row[1]}" for row in rows]) else ["time"]
        names = [*lead, *PRICES, "volume"][:width]
        if width < len(lead) + 4 or not time_form([" ".join(row[: len(lead)]) for row in rows]):
            return None
        names += [f"column_{n}" for n in range(len(names), width)]
        why = "its rows are a time, an open, a high, a low and a close, without a header"
    first = names.index("open")
    if not all(_is_bar(row[first : first + 4]) for row in rows):
        return None
    own: dict[str, str] = {}
    if look.separator == ";" and _HISTDATA_STAMP.fullmatch(rows[0][0]):
        own = {"zone": WINTER, "length": "1m"}
        why = "its rows are minutes as HistData writes them, in the winter time of New York"
    claim = _of_rows(why, *bar_places(names, {}), rows)
    return Claim(claim.why, {"names": f"[{','.join(names)}]"} | dict(claim.settings) | own)


def _is_bar(row: Sequence[str]) -> bool:
    if not all(cell and _NUMBER.fullmatch(cell) for cell in row):
        return False
    start, high, low, end = map(float, row)
    return 0 < low <= min(start, end) and max(start, end) <= high


def _panel(look: Look) -> Claim | None:
    """A date, and a number above 0 under each name."""
    rows, closes = look.rows[:20], [name.lower() for name in look.header[1:]]
    numbers = [cell for row in rows for cell in row[1:] if cell]
    panel = (
        "time" in bar_places(look.header[:1], {})[1]
        and closes
        and rows
        and time_form([row[0] for row in rows])
        and all(_NUMBER.fullmatch(cell) for cell in numbers)
        and sum(cell[:1] != "-" for cell in numbers) >= 0.9 * len(numbers)  # returns and rates are no prices
        and not any(_NUMBER.fullmatch(name) for name in closes)
        and not any(name.endswith(("id", "price", "amount", "size", "volume", "qty")) for name in closes)
        and not {"bid", "ask"} & quote_places(look.header, {}).keys()
    )
    if not panel:
        return None
    why, settings = _times([row[0] for row in rows])
    return Claim(
        f"its rows are a date and a number under each of {len(closes)} names, as a panel of closes is{why}", settings
    )


def _times(found: Sequence[str]) -> tuple[str, dict[str, str]]:
    """What to say of the form of times, and the setting that reads it."""
    forms = time_form(found)
    if not forms or forms[0] == "iso":
        return "", {}
    either = f"; nothing tells whether its times are {forms[0]!r} or {forms[1]!r}" if len(forms) > 1 else ""
    return either, {"time_format": quoted(forms[0])}


def _length(found: Sequence[str], settings: Mapping[str, str]) -> dict[str, str]:
    """The least step between stamps that differ, as the length of bars; none where they do not tell."""
    clock = Clock(settings.get("time_format", "iso").strip("'"))
    stamps = pl.DataFrame({"t": found}).select(clock.read(pl.col("t"), pl.String())).to_series().drop_nulls().to_list()
    steps = [abs(after - before) // 10**9 for before, after in pairwise(stamps) if after != before]
    if not steps or not (least := min(steps)):
        return {}
    name, unit = next((name, unit) for name, unit in _LENGTHS if least % unit == 0)
    return {"length": f"{least // unit}{name}"}


def _fractions(found: Sequence[str]) -> dict[str, str]:
    """The unit of sizes, where they have decimals."""
    places = [len(match[1]) for each in found if (match := _FRACTION.fullmatch(each))]
    return {"size_exponent": str(-min(18, max(8, *places)))} if places else {}
