"""NYSE TAQ: files of trades → trades, files of quotes → book events of the best bid and ask.

The dialects, units and what is set aside: docs/sources/taq.md. No price passes through a float.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import polars as pl

from quantattn.data.schema import CANONICAL_ORDER, EXECUTE, Instrument
from quantattn.data.sources.quotes import QUOTE, national_best, quote_events
from quantattn.data.sources.source import Source, SourceReport, files_sha256
from quantattn.data.sources.table_files import find_files
from quantattn.data.sources.table_types import Clock
from quantattn.data.sources.taq_rows import (
    SALE_CONDITIONS,
    TaqText,
    names,
    quote_columns,
    read_taq_text,
    times,
    trade_aside,
    trade_columns,
)
from quantattn.data.sources.text_rows import Checked, OnBad, check_on_bad, check_rows, leave_out, price_steps

ZONE = "America/New_York"
PRICE_EXPONENT = -6
_STEPS = {"ns": 1, "us": 10**3, "ms": 10**6}
_FLOAT_NOISE = 250
"""Ns by which a time in seconds since 1970 that a float has held is off, at most."""


@dataclass(frozen=True)
class TaqSource(Source):
    """A source of trades, or of book events made of quotes.

    Attributes:
        kind: "trades" or "quotes".
        left_out: rows that are no trade of the book, with `reason`; the report counts them.
    """

    kind: str
    left_out: pl.LazyFrame


def scan_taq(
    path: str | Path,
    *,
    conditions: str = "".join(SALE_CONDITIONS),
    duplicates: Literal["keep", "drop"] = "keep",
    book: Literal["national", "exchange"] = "national",
    zone: str = ZONE,
    clock_step: Literal["ns", "us", "ms"] = "ns",
    tick: str = "0.01",
    on_bad: OnBad = "refuse",
    set_aside: str | Path | None = None,
) -> TaqSource:
    """Read trades (schema `Trades`, with `exchange` and `condition`) or quotes (`BookEvents`, with `complete`).

    Every row is looked at once before this returns; the frame reads the files again when it is collected.
    `available_time` is `event_time`: the files carry one clock.

    Args:
        path: a text file (also .gz, .zst, .xz, .zip), a pattern, or a folder, all of trades or all of quotes.
        conditions: codes of sale conditions whose trades are set aside; "" keeps all.
        duplicates: "drop" sets lines aside that are equal to an earlier line of their file; they are counted anyway.
        book: of quotes of several exchanges, the best over them ("national"), or a book for each, under the name
            SYMBOL@EXCHANGE.
        zone: of the clock that the times show; exports to other programs often hold UTC.
        clock_step: what times are rounded to.
        tick: smallest price step in dollars, as text.
        on_bad: "refuse" raises at the first row that breaks a rule; "quarantine" leaves it out, counts it under its
            reason, and writes it to `set_aside`.
        set_aside: CSV file for what is left out as broken; needed with "quarantine".

    Raises:
        ValueError: one sentence that names the file, the line, what was found and what was expected.
    """
    check_on_bad(on_bad, set_aside)
    for name, value, allowed in (
        ("duplicates", duplicates, ("keep", "drop")),
        ("book", book, ("national", "exchange")),
        ("clock_step", clock_step, tuple(_STEPS)),
    ):
        if value not in allowed:
            raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {value!r}")
    step, clock = price_steps(tick, PRICE_EXPONENT), Clock("iso", zone)
    files = find_files(Path(path))
    texts = [read_taq_text(file) for file in files]
    kinds = {text.kind for text in texts}
    if len(kinds) > 1:
        raise ValueError(f"{path} holds files of trades and of quotes; name those of one kind")
    found = [
        _checked(file, text, clock, _STEPS[clock_step], duplicates == "drop", conditions, on_bad)
        for file, text in zip(files, texts, strict=True)
    ]
    kind = kinds.pop()
    frame = _ordered([each.kept for each in found])
    if kind == "quotes":
        frame = _quotes(frame, book)
    else:
        frame = frame.select(
            *(*CANONICAL_ORDER, "event_time"),
            pl.lit(EXECUTE, pl.UInt8).alias("kind"),
            pl.lit(0, pl.Int8).alias("side"),
            *("price", "size", "exchange", "condition"),
        )
    aside = leave_out([each.checked.bad for each in found], set_aside)
    counted = frame.select(pl.len(), pl.col("entity").unique().implode()).collect()
    rows, entities = counted.row(0)
    for each in found:
        for reason, count in each.aside.items():
            aside[reason] = aside.get(reason, 0) + count
    return TaqSource(
        frame=frame,
        instruments=tuple(Instrument(name, PRICE_EXPONENT, step) for name in sorted(entities)),
        report=SourceReport(
            rows_read=int(rows),
            rows_set_aside=dict(sorted(aside.items())),
            files=files_sha256({file.name: file for file in files}),
            notes=tuple(f"{file.name}: {note}" for file, each in zip(files, found, strict=True) for note in each.notes),
        ),
        kind=kind,
        left_out=pl.concat([each.left_out for each in found]),
    )


@dataclass(frozen=True)
class _File:
    """One file, looked at: what is kept of it and what is not."""

    checked: Checked
    kept: pl.LazyFrame
    left_out: pl.LazyFrame
    aside: dict[str, int]
    notes: list[str]


def _checked(file: Path, text: TaqText, clock: Clock, step: int, drop: bool, conditions: str, on_bad: OnBad) -> _File:
    own = trade_columns if text.kind == "trades" else quote_columns
    typed = {"entity": names(text.columns), "event_time": times(text.columns, clock, step)}
    aside = trade_aside(conditions) if text.kind == "trades" else pl.lit(None, pl.String)
    again = pl.col("text").is_first_distinct().not_()
    if drop:
        aside = pl.coalesce(pl.when(again).then(pl.lit("exact duplicate of an earlier row")), aside)
    facts = {
        "again": again.sum(),
        "aside": aside.drop_nulls().value_counts().implode(),
        **{unit: _distance(pl.col("event_time"), _STEPS[unit]).max() for unit in ("ms", "us")},
    }
    columns = typed | own(text, -PRICE_EXPONENT)
    checked = check_rows(text.part, file, columns, _rules(text.kind, clock.zone), on_bad, facts)
    frame = checked.frame.with_columns(reason=aside)
    return _File(
        checked,
        frame.filter(pl.col("reason").is_null()).drop("reason", "text"),
        frame.filter(pl.col("reason").is_not_null()).drop("text").with_columns(file=pl.lit(file.name)),
        {
            str(found[name]): int(found["count"])
            for found in checked.facts["aside"]
            for name in found
            if name != "count"
        },
        _notes(checked.facts, drop),
    )


def _notes(facts: Mapping[str, Any], drop: bool) -> list[str]:
    notes = []
    if facts["again"]:
        done = "set aside" if drop else "kept, as trades may be alike"
        notes.append(f"{facts['again']:,} rows are equal to an earlier row in every column; they were {done}")
    for unit in ("ms", "us"):
        if (noise := facts[unit]) and noise <= _FLOAT_NOISE:
            notes.append(
                f"times lie within {noise} ns of whole {unit} and not on them, as if a float had held them; "
                f"clock_step={unit} rounds them"
            )
            break
    return notes


def _distance(time: pl.Expr, unit: int) -> pl.Expr:
    return pl.min_horizontal(time % unit, unit - time % unit)


def _rules(kind: str, zone: str) -> dict[str, tuple[pl.Expr, str]]:
    rules = {
        "no time": (pl.col("event_time").is_null(), f"a date and a time of {zone} that exists once"),
        "no symbol": (pl.col("entity").is_null() | (pl.col("entity") == ""), "a symbol"),
    }
    if kind == "trades":
        rules["impossible price"] = (
            pl.col("price").is_null() | (pl.col("price") <= 0),
            f"a price above 0 with at most {-PRICE_EXPONENT} decimals",
        )
        rules["impossible size"] = (pl.col("size").is_null() | (pl.col("size") < 0), "a whole number of shares")
        return rules
    prices = [pl.col(f"raw_{name}").is_null() | (pl.col(f"raw_{name}") < 0) for name in ("bid", "ask")]
    sizes = [pl.col(name).is_null() | (pl.col(name) < 0) for name in ("bid_size", "ask_size")]
    rules["impossible price"] = (
        pl.any_horizontal(prices),
        f"prices from 0 with at most {-PRICE_EXPONENT} decimals",
    )
    rules["impossible size"] = (pl.any_horizontal(sizes), "whole numbers as sizes")
    return rules


def _ordered(frames: Sequence[pl.LazyFrame]) -> pl.LazyFrame:
    """The rows of all files in canonical order; `seq` is their place among the rows of all files."""
    frame = (
        pl.concat(frames).with_row_index("seq").with_columns(pl.col("seq").cast(pl.Int64), available_time="event_time")
    )
    same = pl.col("entity") == pl.col("entity").shift(1)
    falls = (pl.col("entity") < pl.col("entity").shift(1)) | (same & (pl.col("event_time").diff() < 0))
    in_order = not frame.select(falls.any()).collect().item()
    return frame if in_order else frame.sort(CANONICAL_ORDER, maintain_order=True)


def _quotes(frame: pl.LazyFrame, book: str) -> pl.LazyFrame:
    pairs = frame.select("entity", "exchange").unique().collect()
    exchanges = sorted(pairs["exchange"].unique())
    if book == "national":
        day = pl.from_epoch("event_time", "ns").dt.replace_time_zone("UTC").dt.convert_time_zone(ZONE).dt.date()
        best = frame if len(exchanges) < 2 else national_best(frame, exchanges, day)
        return quote_events(best.select(*CANONICAL_ORDER, "event_time", *QUOTE, "exchange"), ("exchange",))
    several = pairs["entity"].value_counts().filter(pl.col("count") > 1)["entity"].to_list()
    own = pl.when(pl.col("entity").is_in(several)).then(pl.col("entity") + "@" + pl.col("exchange"))
    named = frame.with_columns(own.otherwise(pl.col("entity")).alias("entity"))
    return quote_events(named.sort(CANONICAL_ORDER, maintain_order=True), ("exchange",))
