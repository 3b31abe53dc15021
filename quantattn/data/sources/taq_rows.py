"""The columns of TAQ's files in their dialects, and which trades are set aside for what is said of them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from quantattn.data.sources.table_files import TEXT, Part
from quantattn.data.sources.table_types import Clock, decimal
from quantattn.data.sources.text_rows import first_lines, numbered, split_header

_NAMES: Mapping[str, tuple[str, ...]] = {
    "stamp": ("dt",),
    "date": ("date",),
    "clock": ("time_m", "time"),
    "symbol": ("symbol", "sym_root", "ticker"),
    "suffix": ("sym_suffix",),
    "exchange": ("ex", "exchange"),
    "condition": ("cond", "tr_scond", "qu_cond", "mode", "sale_condition", "quote_condition"),
    "correction": ("corr", "tr_corr", "trade_correction_indicator"),
    "price": ("price", "trade_price"),
    "size": ("size", "volume", "trade_volume"),
    "bid": ("bid", "best_bid", "bid_price"),
    "ask": ("ofr", "ask", "offer", "best_ask", "offer_price"),
    "bid_size": ("bidsiz", "bidsize", "bid_size"),
    "ask_size": ("ofrsiz", "asksiz", "ofrsize", "asksize", "ask_size", "offer_size"),
}
"""Our name → those that TAQ's releases use, in lower case and with _ for a space."""
_DAY = re.compile(r"(?<!\d)(19|20)\d{6}(?!\d)")
"""In names such as EQY_US_ALL_TRADE_20190107.gz."""
TRADES = ("price", "size")
QUOTES = ("bid", "ask", "bid_size", "ask_size")

SALE_CONDITIONS: Mapping[str, str] = {
    "4": "derivatively priced",
    "7": "qualified contingent trade",
    "9": "corrected consolidated close",
    "B": "average price",
    "C": "cash settlement",
    "G": "bunched sold",
    "H": "price variation",
    "M": "official close of a market center",
    "N": "next-day settlement",
    "P": "prior reference price",
    "Q": "official open of a market center",
    "R": "seller's settlement",
    "U": "extended hours, sold out of sequence",
    "V": "contingent",
    "W": "average price",
    "Z": "sold out of sequence",
}
"""Codes of trades that are late, priced by something else than the book, or no trade at all (Consolidated Tape
System, output specification, sale conditions). Other codes are kept: E, F, I, O, T, X, 5, 6, …."""


@dataclass(frozen=True)
class TaqText:
    """A file of trades or of quotes as text.

    Attributes:
        part: the columns under our names.
        kind: "trades" or "quotes".
        columns: our names of those that it has.
    """

    part: Part
    kind: str
    columns: tuple[str, ...]


def taq_places(header: Sequence[str], name: str) -> tuple[str, dict[str, int]] | None:
    """ "trades" or "quotes", and our name → place of its column; None for a header that has not what one of them needs.

    Args:
        header: names of the columns.
        name: of the file, which says the day where no column does.
    """
    lower = [each.lower().replace(" ", "_") for each in header]
    found = {ours: lower.index(own) for ours, theirs in _NAMES.items() for own in reversed(theirs) if own in lower}
    kinds = [kind for kind, needed in (("trades", TRADES), ("quotes", QUOTES)) if found.keys() >= {*needed}]
    dated = "date" in found or ("exchange" in found and _DAY.search(name) is not None)
    timed = "stamp" in found or ("clock" in found and dated)
    return (kinds[0], found) if len(kinds) == 1 and "symbol" in found and timed else None


def read_taq_text(file: Path) -> TaqText:
    """Find out what a file holds from its header.

    Raises:
        ValueError: it has neither trades nor quotes, no time or no symbol.
    """
    lines = first_lines(file, 1)
    if not lines:
        raise ValueError(f"{file.name} is empty; expected a header line")
    separator, header = split_header(file, lines[0])
    told = taq_places(header, file.name)
    if told is None:
        raise ValueError(
            f"{file.name}: its header is {lines[0][:160]!r}, expected columns of TAQ: DT, or DATE (or a day in the "
            "file's name) and TIME_M; SYMBOL; and either PRICE and SIZE, or BID, BIDSIZ, ASK and ASKSIZ"
        )
    kind, found = told
    part = numbered(file, separator, len(header), found.values())
    columns = {f"_{ours}": pl.col(f"c{n}").str.strip_chars() for ours, n in found.items()}
    if not {"stamp", "date"} & found.keys() and (day := _DAY.search(file.name)) is not None:
        columns["_date"] = pl.lit(day[0])
    # NYSE's own files end with a line that counts their rows.
    named = part.frame.filter(~pl.col(TEXT).str.starts_with(f"END{separator}")).with_columns(**columns)
    return TaqText(Part(named, part.name, part.blank), kind, tuple(each[1:] for each in columns))


def times(columns: Sequence[str], clock: Clock, step: int) -> pl.Expr:
    """Int64 ns UTC; `step` ns rounds to the nearest whole number of them."""
    if "stamp" in columns:
        text = pl.col("_stamp")
    else:
        # 20180102 and 2018-01-02, 9:30:00.5 and 09:30:00.5 and 093000500000000.
        date = pl.col("_date").str.replace(r"^(\d{4})(\d\d)(\d\d)$", "${1}-${2}-${3}")
        clocks = pl.col("_clock").str.replace(r"^(\d):", "0${1}:")
        clocks = clocks.str.replace(r"^(\d\d)(\d\d)(\d\d)(\d{3,9})$", "${1}:${2}:${3}.${4}")
        text = date + " " + clocks
    time = clock.read(text, pl.String())
    return time if step == 1 else (time + step // 2) // step * step


def names(columns: Sequence[str]) -> pl.Expr:
    """SYMBOL, and after a point its suffix where it has one."""
    symbol = pl.col("_symbol")
    if "suffix" not in columns:
        return symbol
    suffix = pl.col("_suffix")
    return pl.when(suffix != "").then(symbol + "." + suffix).otherwise(symbol)


def trade_columns(text: TaqText, places: int) -> dict[str, pl.Expr]:
    """Price, size, exchange, condition, correction and the line itself."""
    return {
        "price": decimal(pl.col("_price"), places),
        "size": decimal(pl.col("_size"), 0),
        **{name: pl.col(f"_{name}") if name in text.columns else pl.lit("") for name in ("exchange", "condition")},
        "correction": pl.col("_correction") if "correction" in text.columns else pl.lit("0"),
        "text": pl.col(TEXT),
    }


def quote_columns(text: TaqText, places: int) -> dict[str, pl.Expr]:
    """Bid, ask and their sizes; a price of 0 says that there is none."""
    prices = {name: decimal(pl.col(f"_{name}"), places) for name in ("bid", "ask")}
    return {
        **{f"raw_{name}": price for name, price in prices.items()},
        **{name: pl.when(price > 0).then(price) for name, price in prices.items()},
        **{name: decimal(pl.col(f"_{name}"), 0) for name in ("bid_size", "ask_size")},
        **{name: pl.col(f"_{name}") if name in text.columns else pl.lit("") for name in ("exchange", "condition")},
        "text": pl.col(TEXT),
    }


def trade_aside(conditions: str) -> pl.Expr:
    """Why a trade is set aside for what its tape says of it, null where it is kept."""
    correction = pl.col("correction").str.strip_chars_start("0")
    reasons = [pl.when(correction != "").then(pl.lit("correction ") + pl.col("correction"))]
    for code in conditions:
        meaning = f": {SALE_CONDITIONS[code]}" if code in SALE_CONDITIONS else ""
        found = pl.col("condition").str.contains(code, literal=True)
        reasons.append(pl.when(found).then(pl.lit(f"sale condition {code}{meaning}")))
    return pl.coalesce(reasons)
