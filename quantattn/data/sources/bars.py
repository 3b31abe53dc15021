"""Bars of any length, from OHLCV files and panels of closes, one entity or many.

The layouts, units and what a file of bars cannot tell: docs/sources/bars.md. No price passes through a float.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import numpy as np
import polars as pl

from quantattn.data.market.sessions import exchange_sessions, exchange_zone
from quantattn.data.schema import CANONICAL_ORDER, Instrument
from quantattn.data.sources.bar_files import FIELDS, PRICES, STARTS, BarText, read_bar_text
from quantattn.data.sources.source import Source, SourceReport, files_sha256
from quantattn.data.sources.table_files import FAULT, LINE, TEXT, find_files, readable
from quantattn.data.sources.table_types import Clock, decimal, duration
from quantattn.data.sources.text_rows import (
    LEFT_OUT,
    OnBad,
    check_on_bad,
    is_rounded,
    leave_out,
    nothing_left,
    price_steps,
    rounded,
)

MISSING = ("", "nan", "NaN", "NA", "N/A", "null", "NULL", "None", "-")
"""Texts that say that a value is missing."""
_DAY = 86_400 * 10**9


@dataclass(frozen=True)
class BarSettings:
    """How the bars of a source are read; see `scan_bars`."""

    price_exponent: int
    size_exponent: int
    clock: Clock
    calendar: str | None
    length: int
    on_bad: OnBad

    def __post_init__(self) -> None:
        for name, value in (("price_exponent", self.price_exponent), ("size_exponent", self.size_exponent)):
            if isinstance(value, bool) or not isinstance(value, int) or not -18 <= value <= 0:
                raise ValueError(f"{name} must be a whole number from -18 to 0, got {value!r}")
        if self.calendar is not None:
            exchange_zone(self.calendar)


def scan_bars(
    path: str | Path,
    *,
    entity: str | None = None,
    names: Sequence[str] | None = None,
    columns: Mapping[str, str] | None = None,
    time_format: str = "iso",
    zone: str | None = None,
    calendar: str | None = None,
    length: str | int = 0,
    price_exponent: int = -8,
    size_exponent: int = 0,
    tick: str | None = None,
    on_bad: OnBad = "refuse",
    set_aside: str | Path | None = None,
) -> Source:
    """Read bars (schema `Bars`); a panel of closes has a close alone.

    A bar is known at its end, which is both `event_time` and `available_time`: for a day the close of its session by
    `calendar` or, without one, the midnight that ends it in `zone`; for other stamps the stamp plus `length`.

    Args:
        path: a text file (also .gz, .zst, .xz, .zip) or one of Parquet, a pattern, or a folder of them.
        entity: name for files of one instrument; None takes what a file says, or the start of its name.
        names: of the columns of files without a header: ["time", "open", "high", "low", "close", "volume"].
        columns: our name of a field ("open", "high", "low", "close", "volume", "time", "clock", "entity") → the file's
            name of its column, where the header does not say: {"close": "Adj Close", "volume": "cum_vol"}.
        time_format: of the stamps, see `quantattn.data.sources.table_types.Clock`.
        zone: time zone of stamps that name none; None is that of `calendar`, or UTC.
        calendar: exchange whose sessions daily bars belong to ("XNYS"); a day without a session is set aside.
        length: duration of a bar whose stamp is its start ("1m", "1h"); 0: the stamp is its end.
        price_exponent: a price is a whole number of 10^price_exponent. Text with more digits is rounded, half to even,
            and counted.
        size_exponent: the same for volumes, which are not rounded.
        tick: smallest price step as decimal text. None takes the greatest common divisor of an entity's prices, and one
            unit where prices were rounded; the report says so.
        on_bad: "refuse" raises at the first bar that breaks a rule; "quarantine" leaves it out, counts it under its
            reason, and writes it to `set_aside`.
        set_aside: CSV file for what is left out; needed with "quarantine".

    Raises:
        ValueError: one sentence that names the file, the line, what was found and what was expected.
    """
    check_on_bad(on_bad, set_aside)
    zone = zone or ("UTC" if calendar is None else exchange_zone(calendar))
    settings = BarSettings(price_exponent, size_exponent, Clock(time_format, zone), calendar, duration(length), on_bad)
    step = None if tick is None else price_steps(tick, price_exponent)
    files = find_files(Path(path))
    notes: dict[str, list[str]] = {}
    bad: list[pl.DataFrame] = []
    frames: list[pl.DataFrame] = []
    for number, file in enumerate(files):
        text = read_bar_text(file, columns or {}, entity, names)
        made = _Typed.of(file, text, settings)
        for note in made.notes:
            notes.setdefault(note, []).append(file.name)
        bad.append(made.bad)
        frames.append(made.frame.with_columns(file=pl.lit(number)))
    table, twice = _joined(pl.concat(frames), [file.name for file in files], on_bad)
    if not table.height:
        raise nothing_left(Path(path), "bar", [*bad, twice])
    instruments, ticks = _instruments(table, step, settings)
    return Source(
        frame=table.select(*CANONICAL_ORDER, "event_time", *FIELDS).lazy(),
        instruments=instruments,
        report=SourceReport(
            rows_read=table.height,
            rows_set_aside=leave_out([*bad, twice], set_aside),
            files=files_sha256({file.name: file for file in files}),
            notes=(*_by_file(notes), *ticks, _UNTOLD),
        ),
    )


def _by_file(notes: Mapping[str, list[str]]) -> list[str]:
    """What holds for many files is said once."""
    return [
        f"{files[0] if len(files) == 1 else f'{len(files)} files, {files[0]} the first'}: {note}"
        for note, files in notes.items()
    ]


_UNTOLD = (
    "whether prices are adjusted for splits and dividends is not told by the files; an adjusted history holds what "
    "was known only later, in the scale of its prices"
)


@dataclass(frozen=True)
class _Typed:
    """The bars of one file, checked."""

    frame: pl.DataFrame
    bad: pl.DataFrame
    notes: list[str]

    @staticmethod
    def of(file: Path, text: BarText, settings: BarSettings) -> _Typed:
        places = -settings.price_exponent
        cells = {name: pl.when(~pl.col(name).is_in(MISSING)).then(pl.col(name)) for name in FIELDS}
        rows = text.frame.with_columns(**cells)
        rows = rows.with_columns(
            stamp_time=settings.clock.read(pl.col("stamp"), pl.String()),
            rounded=pl.any_horizontal(is_rounded(pl.col(name), places).fill_null(False) for name in PRICES),
            **{f"{name}_value": rounded(pl.col(name), places) for name in PRICES},
            volume_value=decimal(pl.col("volume"), -settings.size_exponent),
        )
        frame = readable(rows, file)
        whole, empty = frame.height, frame["close"].is_null() & frame[FAULT].is_null()
        notes = [f"{text.layout}, {whole:,} {'cells' if text.layout.startswith('a column') else 'bars'}"]
        if empty.any():
            notes.append(_blanks(frame.with_columns(empty=empty)))
        frame = frame.filter(~empty)
        frame, note = _ends(frame, settings, file, text.time)
        notes += note
        reason = _reasons(settings)
        frame = frame.with_columns(pl.coalesce(FAULT, reason).alias(FAULT))
        bad = frame.filter(pl.col(FAULT).is_not_null())
        if bad.height and settings.on_bad == "refuse":
            first = bad.row(0, named=True)
            raise ValueError(
                f"{file.name}, line {first[LINE]}: {first[FAULT]} in {first[TEXT][:160]!r} ({bad.height} such bars)"
            )
        left = bad.select(
            pl.lit(file.name).alias("file"),
            pl.col(LINE).alias("line"),
            pl.col(FAULT).alias("reason"),
            pl.col(TEXT).str.slice(0, 160).alias("text"),
        )
        good = frame.filter(pl.col(FAULT).is_null())
        if text.passed_over:
            notes.append(f"columns that are not read: {', '.join(text.passed_over)}")
        notes += _oddities(good, places)
        values = {name: pl.col(f"{name}_value") for name in FIELDS}
        return _Typed(good.select("entity", LINE, "end", "rounded", **values), left.cast(LEFT_OUT), notes)


def _ends(frame: pl.DataFrame, settings: BarSettings, file: Path, name: str) -> tuple[pl.DataFrame, list[str]]:
    """Add `end`, ns UTC, null where it cannot be known, and say how it was found."""
    stamp = frame["stamp_time"]
    zone = settings.clock.zone
    local = pl.from_epoch("stamp_time", time_unit="ns").dt.replace_time_zone("UTC").dt.convert_time_zone(zone)
    days = frame.select(local.dt.replace_time_zone(None).to_physical() % _DAY == 0).to_series()
    if settings.length or not stamp.len() or not days.drop_nulls().all() or not days.drop_nulls().len():
        if name in STARTS and not settings.length:
            raise ValueError(
                f"{file.name}: its column {name!r} holds the starts of bars, which are known when they end; expected "
                "length=, such as length=1m"
            )
        how = (
            f"bars end {settings.length:,} ns after their stamps"
            if settings.length
            else "stamps are taken for the ends of bars (length= where they are the starts)"
        )
        return frame.with_columns(end=pl.col("stamp_time") + settings.length), [
            f"{how}, in {zone} where they name no zone"
        ]
    date = frame.select(local.dt.date().alias("date"))
    if settings.calendar is None:
        after = (
            (pl.col("date") + pl.duration(days=1))
            .cast(pl.Datetime("ns"))
            .dt.replace_time_zone(zone, ambiguous="earliest", non_existent="null")
        )
        end = date.select(after.dt.convert_time_zone("UTC").to_physical()).to_series()
        return frame.with_columns(end=end), [
            f"a day is known at the midnight that ends it in {zone}: no calendar was given"
        ]
    sessions = exchange_sessions(settings.calendar, int(stamp.min()), int(stamp.max()))  # type: ignore[arg-type]
    # A session belongs to the day on which it closes; one that closes at midnight to the day before.
    closing = pl.from_epoch(pl.Series("close", sessions.close) - 1, time_unit="ns").dt.replace_time_zone("UTC")
    table = pl.DataFrame({"date": closing.dt.convert_time_zone(zone).dt.date(), "end": sessions.close})
    end = date.join(table.unique("date", keep="last"), on="date", how="left", maintain_order="left")["end"]
    return frame.with_columns(end), [f"a day is known at the close of its session at {settings.calendar}"]


def _reasons(settings: BarSettings) -> pl.Expr:
    numbers = [pl.col(name).is_not_null() & pl.col(f"{name}_value").is_null() for name in PRICES]
    rules = {
        f"stamp that is not {settings.clock.expected}": pl.col("stamp_time").is_null(),
        "price that is no decimal number of 64 bits": pl.any_horizontal(numbers),
        f"volume that is no whole number of 10^{settings.size_exponent} (size_exponent= allows decimals)": pl.col(
            "volume"
        ).is_not_null()
        & pl.col("volume_value").is_null(),
        "volume below 0": pl.col("volume_value") < 0,
        "no name": pl.col("entity").is_null() | (pl.col("entity") == ""),
        f"no session at {settings.calendar} on that day": pl.col("end").is_null(),
    }
    return pl.coalesce(pl.when(rule.fill_null(False)).then(pl.lit(reason)) for reason, rule in rules.items())


def _blanks(frame: pl.DataFrame) -> str:
    """Where closes are missing: before the first of an entity, after its last, or between."""
    known = pl.col("empty").not_()
    place = pl.int_range(pl.len()).over("entity")
    found = frame.with_columns(
        first=place.filter(known).min().over("entity"), last=place.filter(known).max().over("entity"), place=place
    ).filter("empty")
    early, late = (int((found[a] < found[b]).sum()) for a, b in (("place", "first"), ("last", "place")))
    return (
        f"{found.height:,} of them have no close and are no bars: {early:,} before the first of their instrument, "
        f"{late:,} after its last, {found.height - early - late:,} between or without any"
    )


def _oddities(frame: pl.DataFrame, places: int) -> list[str]:
    high, low = pl.col("high_value"), pl.col("low_value")
    body = [pl.col("open_value"), pl.col("close_value")]
    counted = frame.select(
        rounded=pl.col("rounded").sum(),
        outside=((high < pl.max_horizontal(*body, low)) | (low > pl.min_horizontal(*body, high))).sum(),
        worthless=(pl.col("close_value") <= 0).sum(),
        first=pl.col("end").min(),
        last=pl.col("end").max(),
    ).row(0, named=True)
    said = {
        f"bars have prices with more digits, rounded to 10^-{places}": counted["rounded"],
        "bars have a high or a low that does not hold the other prices": counted["outside"],
        "bars have a close that is not above 0": counted["worthless"],
    }
    return [f"{rows:,} {what}" for what, rows in said.items() if rows]


def _joined(table: pl.DataFrame, names: list[str], on_bad: OnBad) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Bars in canonical order; of two with one entity and end the first stays."""
    table = table.with_row_index("seq").with_columns(
        pl.col("seq").cast(pl.Int64), event_time="end", available_time="end"
    )
    second = table.select(pl.struct("entity", "end").is_first_distinct().not_()).to_series()
    twice = (
        table.filter(second)
        .select(
            pl.Series(names).gather(table.filter(second)["file"]).alias("file"),
            pl.col(LINE).alias("line"),
            pl.lit("second bar of its time").alias("reason"),
            (pl.col("entity") + " " + pl.from_epoch("end", "ns").cast(pl.String)).alias("text"),
        )
        .cast(LEFT_OUT)
    )
    if twice.height and on_bad == "refuse":
        first = twice.row(0, named=True)
        raise ValueError(
            f"{first['file']}, line {first['line']}: found a second bar of {first['text']}, expected one "
            f"({twice.height} such bars)"
        )
    return table.filter(~second).sort(CANONICAL_ORDER, maintain_order=True), twice


def _instruments(
    table: pl.DataFrame, step: int | None, settings: BarSettings
) -> tuple[tuple[Instrument, ...], list[str]]:
    found: list[Instrument] = []
    derived: list[str] = []
    unit = 10**-settings.price_exponent
    for (name,), bars in table.partition_by("entity", as_dict=True).items():
        own = step
        if own is None:
            prices = pl.concat([bars[field].drop_nulls().rename("p") for field in PRICES]).unique().to_numpy()
            own = 1 if bars["rounded"].any() else int(np.gcd.reduce(prices, initial=unit))
            derived.append(f"{name} {Decimal(own).scaleb(settings.price_exponent).normalize():f}")
        found.append(Instrument(str(name), settings.price_exponent, own, settings.size_exponent))
    if not derived:
        return tuple(found), []
    more = f" and {len(derived) - 5} more" if len(derived) > 5 else ""
    return tuple(found), [
        f"ticks taken from the prices (one unit where they were rounded): {', '.join(derived[:5])}{more}"
    ]
