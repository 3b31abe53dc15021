"""Quote ticks of currencies: files of bid and ask → book events.

The layouts, units and what the files cannot tell: docs/sources/ticks.md. No price passes through a float.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import numpy as np
import polars as pl

from quantattn.data.schema import CANONICAL_ORDER, Instrument
from quantattn.data.sources.quotes import quote_events
from quantattn.data.sources.source import Source, SourceReport, files_sha256
from quantattn.data.sources.table_files import Part, TextForm, find_files, scan_text
from quantattn.data.sources.table_types import Clock, decimal
from quantattn.data.sources.text_rows import (
    Checked,
    OnBad,
    check_on_bad,
    check_rows,
    first_lines,
    leave_out,
    nothing_left,
    numbered,
    price_steps,
    split_header,
)

_NAMES: Mapping[str, tuple[str, ...]] = {
    "time": ("timestamp", "time", "datetime", "date_time", "date", "gmt time", "local time", "time (utc)"),
    "bid": ("bid", "bid_price", "bidprice", "bid price"),
    "ask": ("ask", "ask_price", "askprice", "ask price", "offer"),
    "bid_size": ("bid_size", "bidvolume", "bid volume", "bid_volume"),
    "ask_size": ("ask_size", "askvolume", "ask volume", "ask_volume"),
    "entity": ("symbol", "pair", "instrument"),
}
"""Our name → those that files use, in lower case."""
_TRUEFX = ("entity", "time", "bid", "ask")
_HISTDATA = ("time", "bid", "ask", "volume")
WINTER = "Etc/GMT+5"
"""The clock of HistData: New York's without daylight saving."""


def quote_places(header: Sequence[str], columns: Mapping[str, str]) -> dict[str, int]:
    """Our name → place of its column, for those that a header has; `columns` names others."""
    lower = [name.lower() for name in header]
    wanted = {ours: (columns[ours].lower(),) if ours in columns else theirs for ours, theirs in _NAMES.items()}
    return {
        ours: lower.index(found)
        for ours, theirs in wanted.items()
        if (found := next((name for name in theirs if name in lower), None)) is not None
    }


@dataclass(frozen=True)
class _Settings:
    """How the quotes of a source are read; see `scan_ticks`."""

    entity: str | None
    columns: Mapping[str, str]
    clock: Clock
    price_exponent: int
    size_exponent: int
    on_bad: OnBad

    def __post_init__(self) -> None:
        for name, value in (("price_exponent", self.price_exponent), ("size_exponent", self.size_exponent)):
            if isinstance(value, bool) or not isinstance(value, int) or not -18 <= value <= 0:
                raise ValueError(f"{name} must be a whole number from -18 to 0, got {value!r}")
        unknown = sorted(set(self.columns) - set(_NAMES))
        if unknown:
            raise ValueError(f"columns may give {', '.join(_NAMES)}, got {unknown[0]!r}")


def scan_ticks(
    path: str | Path,
    *,
    entity: str | None = None,
    columns: Mapping[str, str] | None = None,
    time_format: str = "iso",
    zone: str = "UTC",
    price_exponent: int = -6,
    size_exponent: int = 0,
    tick: str | None = None,
    on_bad: OnBad = "refuse",
    set_aside: str | Path | None = None,
) -> Source:
    """Read quotes as book events (schema `BookEvents`, with `complete`) of one level; see `quote_events`.

    Every row is looked at once before this returns; the frame reads the files again when it is collected.
    `available_time` is `event_time`: the files carry one clock. Where they give no sizes, the sizes of the book are
    null and those of the events 0.

    Args:
        path: a text file (also .gz, .zst, .xz, .zip), a pattern, or a folder of them.
        entity: name for files that name no pair; None takes the start of the file's name.
        columns: our name ("time", "bid", "ask", "bid_size", "ask_size", "entity") → the file's name of its column,
            where the header does not say.
        time_format: of the stamps, see `quantattn.data.sources.table_types.Clock`. Times of TrueFX's own files, which
            have no header, are known.
        zone: time zone of stamps that name none.
        price_exponent: a price is a whole number of 10^price_exponent, exactly.
        size_exponent: the same for sizes.
        tick: smallest price step as decimal text. None takes the greatest common divisor of an entity's prices (at
            most one), and the report says so.
        on_bad: "refuse" raises at the first row that breaks a rule; "quarantine" leaves it out, counts it under its
            reason, and writes it to `set_aside`.
        set_aside: CSV file for what is left out; needed with "quarantine".

    Raises:
        ValueError: one sentence that names the file, the line, what was found and what was expected.
    """
    check_on_bad(on_bad, set_aside)
    settings = _Settings(entity, columns or {}, Clock(time_format, zone), price_exponent, size_exponent, on_bad)
    step = None if tick is None else price_steps(tick, price_exponent)
    files = find_files(Path(path))
    found = [_read(file, settings) for file in files]
    frame = pl.concat([checked.frame for checked, _ in found]).with_row_index("seq")
    frame = frame.with_columns(pl.col("seq").cast(pl.Int64), available_time="event_time").drop("line")
    frame = frame.sort(CANONICAL_ORDER, maintain_order=True)
    prices = pl.concat_list("bid", "ask").list.explode(empty_as_null=True).unique()
    steps = frame.group_by("entity").agg(prices).sort("entity").collect()
    unit = 10**-price_exponent
    instruments = tuple(
        Instrument(name, price_exponent, step or int(np.gcd.reduce(np.array(own), initial=unit)), size_exponent)
        for name, own in steps.iter_rows()
    )
    if not instruments:
        raise nothing_left(Path(path), "quote", [checked.bad for checked, _ in found])
    events = quote_events(frame)
    notes = [f"{file.name}: {note}" for file, (_, own) in zip(files, found, strict=True) for note in own]
    if step is None:
        shown = ", ".join(
            f"{each.entity} {Decimal(each.tick).scaleb(price_exponent).normalize():f}" for each in instruments[:5]
        )
        notes.append(f"ticks taken from the prices: {shown}{' …' if len(instruments) > 5 else ''}; tick= gives them")
    return Source(
        frame=events,
        instruments=instruments,
        report=SourceReport(
            rows_read=int(events.select(pl.len()).collect().item()),
            rows_set_aside=leave_out([checked.bad for checked, _ in found], set_aside),
            files=files_sha256({file.name: file for file in files}),
            notes=tuple(notes),
        ),
    )


def _read(file: Path, settings: _Settings) -> tuple[Checked, list[str]]:
    part, named, clock = _open(file, settings)
    price, size = -settings.price_exponent, -settings.size_exponent
    sizes = [name for name in ("bid_size", "ask_size") if name in named]
    own = pl.lit(settings.entity or file.name.split(".")[0])
    columns = {
        "entity": pl.col("_entity").str.replace("/", "", literal=True) if "entity" in named else own,
        "event_time": clock.read(pl.col("_time"), pl.String()),
        **{name: decimal(pl.col(f"_{name}"), price) for name in ("bid", "ask")},
        **{
            name: decimal(pl.col(f"_{name}"), size) if name in named else pl.lit(None, pl.Int64)
            for name in ("bid_size", "ask_size")
        },
    }
    missing = [pl.col(name).is_null() | (pl.col(name) <= 0) for name in ("bid", "ask")]
    rules = {
        "no time": (pl.col("event_time").is_null(), clock.expected),
        "no name": (pl.col("entity") == "", "the name of a pair"),
        "impossible price": (pl.any_horizontal(missing), f"prices above 0 with at most {price} decimals"),
    }
    if sizes:
        none = [pl.col(name).is_null() | (pl.col(name) < 0) for name in sizes]
        rules["impossible size"] = (pl.any_horizontal(none), f"sizes with at most {size} decimals")
    time = pl.col("event_time")
    facts = {
        "falls": (time.diff() < 0).sum(),
        "crossed": (pl.col("bid") > pl.col("ask")).sum(),
        "locked": (pl.col("bid") == pl.col("ask")).sum(),
        "again": pl.struct(*columns).is_first_distinct().not_().sum(),
    }
    checked = check_rows(part, file, columns, rules, settings.on_bad, facts)
    said = {
        "quotes are older than the one before them and were sorted": checked.facts["falls"],
        "quotes have a bid above their ask": checked.facts["crossed"],
        "quotes have a bid equal to their ask": checked.facts["locked"],
        "quotes are equal to an earlier one, its time included, and were kept": checked.facts["again"],
    }
    notes = [f"{checked.rows:,} quotes", *(f"{count:,} {what}" for what, count in said.items() if count)]
    if len(sizes) < 2:
        notes.append("no sizes: those of the book are null, those of events 0")
    return checked, notes


def _open(file: Path, settings: _Settings) -> tuple[Part, tuple[str, ...], Clock]:
    """The columns under our names, with a line before each, and how times are written."""
    lines = first_lines(file, 1)
    if not lines:
        raise ValueError(f"{file.name} is empty; expected quotes")
    separator, header = split_header(file, lines[0])
    if len(header) == 4 and "/" in header[0] and header[1][:8].isdigit():
        part = scan_text(file, TextForm(separator, None, _TRUEFX), _TRUEFX)
        return _named(part, {name: name for name in _TRUEFX}), _TRUEFX, Clock("%Y%m%d %H:%M:%S%.f")
    if len(header) == 4 and len(header[0]) == 18 and header[0].replace(" ", "").isdigit():
        part = scan_text(file, TextForm(separator, None, _HISTDATA), _HISTDATA)
        clock = Clock("%Y%m%d %H%M%S%3f", WINTER)
        return _named(part, {name: name for name in _HISTDATA[:3]}), _HISTDATA[:3], clock
    places = quote_places(header, settings.columns)
    lacking = [name for name in ("time", "bid", "ask", *settings.columns) if name not in places]
    if lacking:
        raise ValueError(
            f"{file.name} has no column for {lacking[0]}; its header is {lines[0][:160]!r}: name it with columns"
        )
    part = numbered(file, separator, len(header), places.values())
    return _named(part, {name: f"c{place}" for name, place in places.items()}), tuple(places), settings.clock


def _named(part: Part, named: Mapping[str, str]) -> Part:
    renamed = (pl.col(theirs).str.strip_chars().alias(f"_{ours}") for ours, theirs in named.items())
    return Part(part.frame.with_columns(renamed), part.name, part.blank)
