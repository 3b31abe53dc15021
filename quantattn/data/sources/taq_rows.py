"""The columns of TAQ's files in their dialects, and which trades are set aside for what is said of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from quantattn.data.sources.table_files import TEXT, Part, TextForm, scan_text
from quantattn.data.sources.table_types import Clock, decimal
from quantattn.data.sources.text_rows import first_lines, split_header

_NAMES: Mapping[str, tuple[str, ...]] = {
    "stamp": ("dt",),
    "date": ("date",),
    "clock": ("time_m", "time"),
    "symbol": ("symbol", "sym_root", "ticker"),
    "suffix": ("sym_suffix",),
    "exchange": ("ex", "exchange"),
    "condition": ("cond", "tr_scond", "qu_cond", "mode"),
    "correction": ("corr", "tr_corr"),
    "price": ("price",),
    "size": ("size", "volume"),
    "bid": ("bid", "best_bid"),
    "ask": ("ofr", "ask", "offer", "best_ask"),
    "bid_size": ("bidsiz", "bidsize", "bid_size"),
    "ask_size": ("ofrsiz", "asksiz", "ofrsize", "asksize", "ask_size"),
}
"""Our name → those that TAQ's releases use, in lower case."""
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


def read_taq_text(file: Path) -> TaqText:
    """Find out what a file holds from its header.

    Raises:
        ValueError: it has neither trades nor quotes, no time or no symbol.
    """
    lines = first_lines(file, 1)
    if not lines:
        raise ValueError(f"{file.name} is empty; expected a header line")
    separator, header = split_header(file, lines[0])
    lower = [name.lower() for name in header]
    found = {
        ours: header[lower.index(name)] for ours, theirs in _NAMES.items() for name in reversed(theirs) if name in lower
    }
    kinds = [kind for kind, needed in (("trades", TRADES), ("quotes", QUOTES)) if found.keys() >= {*needed}]
    if len(kinds) != 1 or "symbol" not in found or ("stamp" not in found and not {"date", "clock"} <= found.keys()):
        raise ValueError(
            f"{file.name}: its header is {lines[0][:160]!r}, expected columns of TAQ: DT, or DATE and TIME_M; SYMBOL; "
            "and either PRICE and SIZE, or BID, BIDSIZ, ASK and ASKSIZ"
        )
    part = scan_text(file, TextForm(separator), list(dict.fromkeys(found.values())))
    named = part.frame.with_columns(
        pl.col(theirs).str.strip_chars().alias(f"_{ours}") for ours, theirs in found.items()
    )
    return TaqText(Part(named, part.name, part.blank), kinds[0], tuple(found))


def times(columns: Sequence[str], clock: Clock, step: int) -> pl.Expr:
    """Int64 ns UTC; `step` ns rounds to the nearest whole number of them."""
    if "stamp" in columns:
        text = pl.col("_stamp")
    else:
        # 20180102 and 2018-01-02, 9:30:00.5 and 09:30:00.5.
        date = pl.col("_date").str.replace(r"^(\d{4})(\d\d)(\d\d)$", "${1}-${2}-${3}")
        text = date + " " + pl.col("_clock").str.replace(r"^(\d):", "0${1}:")
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
