"""Trading sessions: when an exchange opens and closes, in UTC nanoseconds, half days and daylight saving included."""

from __future__ import annotations

import datetime as dt
import warnings
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import numpy.typing as npt

Int64Array = npt.NDArray[np.int64]

SECOND = 1_000_000_000
"""Nanoseconds in a second."""

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


@dataclass(frozen=True)
class Sessions:
    """Sessions of one exchange in order of time.

    Attributes:
        calendar: its code, "XNYS" or "XNAS" for example.
        open: (S,) int64, nanoseconds UTC.
        close: (S,) int64, nanoseconds UTC; later than the open and not later than the next open.
    """

    calendar: str
    open: Int64Array
    close: Int64Array

    def __post_init__(self) -> None:
        if self.open.shape != self.close.shape or self.open.ndim != 1:
            raise ValueError(f"{self.open.shape} opens but {self.close.shape} closes")
        if (self.open >= self.close).any() or (self.close[:-1] > self.open[1:]).any():
            raise ValueError(f"sessions of {self.calendar} must follow one another without overlap")

    def locate(self, time: Int64Array) -> Int64Array:
        """Number of the session that each time lies in, both ends included, and −1 outside every session."""
        number = np.searchsorted(self.open, time, side="right").astype(np.int64) - 1
        inside = (number >= 0) & (time <= self.close[np.maximum(number, 0)]) if len(self.open) else number >= 0
        return np.where(inside, number, -1)


def exchange_sessions(calendar: str, first: int, last: int) -> Sessions:
    """The sessions of an exchange that touch the days of `first` … `last` (nanoseconds UTC).

    Args:
        calendar: a code that exchange_calendars knows, such as "XNYS", "XNAS" or "CMES".
        first: the earliest time of interest.
        last: the latest; a day is added at both ends, so that every time zone is covered.

    Raises:
        ValueError: an unknown calendar, or times that the calendar does not cover.
    """
    if last < first:
        raise ValueError(f"the last time {last} lies before the first {first}")
    start, end = _day(first) - dt.timedelta(days=1), _day(last) + dt.timedelta(days=1)
    opens, closes = _schedule(calendar, start.year, end.year)
    touches = (closes >= _midnight_utc(start)) & (opens < _midnight_utc(end + dt.timedelta(days=1)))
    return Sessions(calendar, opens[touches], closes[touches])


@lru_cache(maxsize=8)
def exchange_zone(calendar: str) -> str:
    """The time zone of an exchange ("America/New_York"); ValueError for an unknown calendar."""
    return str(_calendar(calendar, 2024, 2024).tz)


def midnight(date: dt.date, zone: str) -> int:
    """The start of a civil day in a time zone, in nanoseconds UTC.

    Raises:
        ValueError: the clocks change on that day, so that "seconds after midnight" would be ambiguous.
    """
    here = ZoneInfo(zone)
    start = dt.datetime.combine(date, dt.time(), tzinfo=here)
    end = dt.datetime.combine(date + dt.timedelta(days=1), dt.time(), tzinfo=here)
    if start.utcoffset() != end.utcoffset():
        raise ValueError(f"the clocks of {zone} change on {date}, so seconds after midnight are ambiguous on that day")
    return _nanoseconds(start)


@lru_cache(maxsize=8)
def _schedule(calendar: str, first_year: int, last_year: int) -> tuple[Int64Array, Int64Array]:
    schedule = _calendar(calendar, first_year, last_year).schedule
    opens, closes = (schedule[name].to_numpy("datetime64[ns]").astype(np.int64) for name in ("open", "close"))
    opens.flags.writeable = closes.flags.writeable = False
    return opens, closes


def _calendar(calendar: str, first_year: int, last_year: int) -> Any:
    # The calendars bring pandas along: they are imported on first use and asked once per span of years.
    import exchange_calendars

    try:
        with warnings.catch_warnings():
            # The calendars use what pandas 3.1 deprecates; nobody who calls this can do anything about it.
            warnings.simplefilter("ignore", DeprecationWarning)
            return exchange_calendars.get_calendar(calendar, f"{first_year}-01-01", f"{last_year}-12-31")
    except (exchange_calendars.errors.CalendarError, ValueError) as error:
        raise ValueError(f"no calendar {calendar!r} for the years {first_year} to {last_year}: {error}") from error


def _day(time: int) -> dt.date:
    return (_EPOCH + dt.timedelta(seconds=time // SECOND)).date()


def _midnight_utc(date: dt.date) -> int:
    return _nanoseconds(dt.datetime.combine(date, dt.time(), tzinfo=dt.UTC))


def _nanoseconds(moment: dt.datetime) -> int:
    since = moment - _EPOCH
    return (since.days * 86_400 + since.seconds) * SECOND
