"""Text of a table → exact integers: decimals with a declared exponent, times as nanoseconds UTC.

Every function makes expressions, so nothing is computed here; a value that cannot be read becomes null, which is a
fault when its text was not missing.
"""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass
from typing import Literal
from zoneinfo import ZoneInfo

import polars as pl

DAY = 86_400 * 10**9
MOST_PLACES = 18
EPOCHS = {"s": 9, "ms": 6, "us": 3, "ns": 0}
"""Unit of an epoch → decimal places with which its text becomes nanoseconds."""
_KIND = re.compile(r"category|integer|float|decimal(\d\d?)")
_UNITS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3_600 * 10**9, "d": DAY}
_ISO = (
    r"^(?P<date>\d{4}-\d\d-\d\d)(?:[T ](?P<h>\d\d):(?P<m>\d\d)(?::(?P<s>\d\d)(?:[.,](?P<f>\d{1,9}))?)?"
    r" ?(?P<zone>Z|[+-]\d\d(?::?\d\d)?)?)?$"
)
_DAY_AND_CLOCK = r"^(?P<day>-?\d+)(?: (?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d))?$"


@dataclass(frozen=True)
class Column:
    """A typed column of a table.

    Attributes:
        kind: "category" (String), "integer" (Int64) or "float" (Float64).
        exponent: an integer v stands for v · 10^exponent.
    """

    kind: Literal["category", "integer", "float"]
    exponent: int = 0

    @staticmethod
    def parse(text: str) -> Column:
        """Read "category", "integer", "float", or "decimal2" and the like, a number with so many decimal places.

        Raises:
            ValueError: another word.
        """
        match = _KIND.fullmatch(text) if isinstance(text, str) else None
        if match is None or int(match[1] or 0) > MOST_PLACES:
            raise ValueError(
                f"a column's type must be category, integer, float, or decimal0 … decimal{MOST_PLACES} for a number "
                f"with so many decimal places, got {text!r}"
            )
        if match[1] is not None:
            return Column("integer", -int(match[1]))
        return Column("category" if text == "category" else "float" if text == "float" else "integer")

    def __str__(self) -> str:
        return f"decimal{-self.exponent}" if self.exponent else self.kind

    @property
    def dtype(self) -> type[pl.DataType]:
        """What the column holds."""
        return {"category": pl.String, "integer": pl.Int64, "float": pl.Float64}[self.kind]

    @property
    def expected(self) -> str:
        """What its text must be, for an error."""
        if self.kind == "float":
            return "a finite number"
        if self.kind == "category":
            return "text"
        number = f"a decimal number with at most {-self.exponent} places" if self.exponent else "a whole number"
        return f"{number} that fits 64 bits"

    def read(self, text: pl.Expr, decimal_comma: bool) -> pl.Expr:
        """The value of a String expression, null where it is missing or cannot be read."""
        if self.kind == "category":
            return text
        number = text.str.replace(",", ".", literal=True) if decimal_comma else text
        if self.kind == "integer":
            return decimal(number, -self.exponent)
        value = number.cast(pl.Float64, strict=False)
        return pl.when(value.is_finite()).then(value)


def decimal(text: pl.Expr, places: int) -> pl.Expr:
    """Int64 x · 10^places of plain decimal text, exactly; null for other text, more places or more than 64 bits."""
    fraction = rf"[.]\d{{0,{places}}}0*"
    plain = text.str.contains(rf"^[+-]?(?:\d+(?:{fraction})?|{fraction})$") & text.str.contains(r"\d")
    # A decimal of 38 digits holds an integer of 128 bits, x · 10^places.
    value = text.cast(pl.Decimal(38, places), strict=False).to_physical()
    return pl.when(plain).then(value.cast(pl.Int64, strict=False))


def duration(text: str | int) -> int:
    """Nanoseconds of "90s", "2h", "1d" (units ns, us, ms, s, m, h, d) or of a whole number of nanoseconds.

    Raises:
        ValueError: something else, or less than nothing.
    """
    match = re.fullmatch(r"(\d+) ?(ns|us|ms|s|m|h|d)?", str(text))
    if match is None or isinstance(text, bool):
        raise ValueError(f"a duration must be a whole number with one of {', '.join(_UNITS)}, such as 1d; got {text!r}")
    return int(match[1]) * _UNITS[match[2] or "ns"]


def is_time(dtype: pl.DataType) -> bool:
    """Whether a column of this type holds points in time, which need no parsing."""
    return isinstance(dtype, (pl.Date, pl.Datetime))


@dataclass(frozen=True)
class Clock:
    """How the times of a table are written.

    Attributes:
        format: "iso" (2020-01-31, 2020-01-31 10:00:00.5, …T…Z, …+02:00); "day" (a number of days since `origin`, with
            or without a clock: "12", "12 10:23:26"); "s", "ms", "us", "ns" (since 1970, UTC); "yymmdd" (years 69 … 99
            are 1969 … 1999); or a strptime format such as "%d.%m.%Y %H:%M".
        zone: of times that name none; those of an epoch are UTC.
        origin: YYYY-MM-DD, the day with number 0.

    Raises:
        ValueError: a format, zone or day that is none.
    """

    format: str = "iso"
    zone: str = "UTC"
    origin: str = "1970-01-01"

    def __post_init__(self) -> None:
        known = ("iso", "day", "yymmdd", *EPOCHS)
        if self.format not in known and "%" not in str(self.format):
            raise ValueError(
                f"time_format must be one of {', '.join(known)} or a strptime format with '%', got {self.format!r}"
            )
        try:
            ZoneInfo(self.zone)
        except (KeyError, ValueError, OSError) as error:
            raise ValueError(f"no time zone {self.zone!r}; expected a name such as 'Europe/Prague'") from error
        dt.date.fromisoformat(str(self.origin))

    @property
    def expected(self) -> str:
        """What the text of a time must be, for an error."""
        if self.format == "day":
            return "a day number, with or without HH:MM:SS"
        if self.format in EPOCHS:
            return f"a number of {self.format} since 1970 between the years 1678 and 2261"
        zone = "" if self.zone == "UTC" else f", a local time that exists once in {self.zone}"
        return f"a time in the form {self.format!r} between the years 1678 and 2261{zone}"

    def read(self, text: pl.Expr, dtype: pl.DataType) -> pl.Expr:
        """Int64 ns UTC of a String expression that was `dtype` in the file, null where it cannot be read."""
        if self.format == "yymmdd" and dtype.is_integer():
            text = text.str.zfill(6)  # a file of numbers has lost the zeros of 000131
        if self.format in EPOCHS:
            return decimal(text, EPOCHS[self.format])
        if self.format == "iso":
            return self._iso(text)
        if self.format == "day":
            part = text.str.replace(r"\.0$", "").str.extract_groups(_DAY_AND_CLOCK).struct
            first = dt.date.fromisoformat(str(self.origin)).toordinal() - dt.date(1970, 1, 1).toordinal()
            days = part.field("day").cast(pl.Int64, strict=False) + first
            return self._local(_assemble(days, part))
        form = "%y%m%d" if self.format == "yymmdd" else self.format
        parsed = text.str.to_datetime(form, time_unit="ns", strict=False).to_physical()
        # Nanoseconds wrap silently beyond their range where microseconds do not.
        coarse = text.str.to_datetime(form, time_unit="us", strict=False).to_physical()
        parsed = pl.when(coarse == parsed.floordiv(1000)).then(parsed)
        return parsed if "%z" in form or "%:z" in form or "%#z" in form else self._local(parsed)

    def native(self, column: pl.Expr, dtype: pl.DataType) -> pl.Expr:
        """Int64 ns UTC of a Date or Datetime expression."""
        coarse = column.cast(pl.Datetime("us", getattr(dtype, "time_zone", None))).to_physical()
        fine = column.cast(pl.Datetime("ns", getattr(dtype, "time_zone", None))).to_physical()
        time = pl.when(coarse == fine.floordiv(1000)).then(fine)
        return time if getattr(dtype, "time_zone", None) else self._local(time)

    def _iso(self, text: pl.Expr) -> pl.Expr:
        part = text.str.extract_groups(_ISO).struct
        days = part.field("date").str.to_date("%Y-%m-%d", strict=False).to_physical().cast(pl.Int64)
        time = _assemble(days, part, part.field("f"))
        zone = part.field("zone")
        sign = pl.when(zone.str.starts_with("-")).then(-1).otherwise(1)
        hours = zone.str.slice(1, 2).cast(pl.Int64, strict=False)
        minutes = zone.str.extract(r"(\d\d)$").cast(pl.Int64, strict=False)
        minutes = pl.when(zone.str.len_bytes() > 3).then(minutes).otherwise(0)
        offset = pl.when(zone == "Z").then(0).when(minutes < 60).then(sign * (hours * 60 + minutes) * 60 * 10**9)
        return pl.when(zone.is_null()).then(self._local(time)).otherwise(time - offset)

    def _local(self, time: pl.Expr) -> pl.Expr:
        """UTC of ns since 1970 on the wall clock of the zone; null for a time that occurs twice or never."""
        if self.zone == "UTC":
            return time
        naive = pl.from_epoch(time, time_unit="ns")
        return naive.dt.replace_time_zone(self.zone, ambiguous="null", non_existent="null").to_physical()


def _assemble(days: pl.Expr, part: pl.expr.struct.ExprStructNameSpace, fraction: pl.Expr | None = None) -> pl.Expr:
    """Ns since 1970 of a day and of the groups h, m and s, when the clock exists and the year is 1678 … 2261."""
    h, m, s = (part.field(name).cast(pl.Int64).fill_null(0) for name in ("h", "m", "s"))
    clock = ((h * 60 + m) * 60 + s) * 10**9
    if fraction is not None:
        clock = clock + fraction.fill_null("").str.pad_end(9, "0").cast(pl.Int64)
    inside = (h < 24) & (m < 60) & (s < 60) & days.is_between(-106_000, 106_000)
    return pl.when(inside).then(days * DAY + clock)
