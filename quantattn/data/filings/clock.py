"""When a filing was accepted and when it became public: New York wall clock → nanoseconds UTC.

EDGAR stamps acceptance in New York time with no offset (`<ACCEPTANCE-DATETIME>20250415163025`). A filing accepted
after 17:30 is disseminated from 06:00 of the next business day; one accepted between 06:00 and 17:30 of a business day
counts as public at the moment of acceptance. A business day here is a day on which the New York Stock Exchange trades
and the federal government works: EDGAR keeps federal holidays (Columbus Day, Veterans Day) on which the exchange is
open.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

import numpy as np
import numpy.typing as npt

from quantattn.data.market.sessions import Sessions, exchange_sessions

NEW_YORK = ZoneInfo("America/New_York")
CUT_OFF = time(17, 30)
"""Accepted later than this (New York) means public on the next business day."""
OPENING = time(6, 0)
"""EDGAR starts to disseminate at this time (New York) of a business day."""
LAST_ACCEPTANCE = time(22, 0)
"""EDGAR takes no filing later than this (New York)."""
FIRST_YEAR, LAST_YEAR = 1990, 2035
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def to_ns(moment: datetime) -> int:
    """Nanoseconds since 1970 UTC of an aware datetime, exact (integer arithmetic on microseconds)."""
    return (moment - _EPOCH) // timedelta(microseconds=1) * 1_000


def new_york_ns(local: datetime) -> int:
    """Nanoseconds UTC of a naive New York wall-clock time.

    Raises:
        ValueError: the time does not exist (the clock was put forward over it) or exists twice (it was put back).
    """
    first = to_ns(local.replace(tzinfo=NEW_YORK, fold=0))
    second = to_ns(local.replace(tzinfo=NEW_YORK, fold=1))
    if first == second:
        return first
    trouble = "exists twice (clocks are put back)" if first < second else "does not exist (clocks are put forward)"
    raise ValueError(f"New York time {local.isoformat(sep=' ')} {trouble}; expected a time with one meaning")


def parse_acceptance(stamp: str) -> int:
    """Nanoseconds UTC of an SGML acceptance stamp, 14 digits `YYYYMMDDhhmmss` in New York time.

    Raises:
        ValueError: not 14 digits, no such date, or a local time that is missing or ambiguous.
    """
    text = stamp.strip()
    if len(text) != 14 or not (text.isascii() and text.isdigit()):
        raise ValueError(f"acceptance time {text[:40]!r}: expected 14 digits YYYYMMDDhhmmss")
    try:
        local = datetime.strptime(text, "%Y%m%d%H%M%S")
    except ValueError as error:
        raise ValueError(f"acceptance time {text!r} is no date and time: {error}") from None
    return new_york_ns(local)


def parse_filing_date(text: str) -> date:
    """A filing date written `YYYYMMDD` or `YYYY-MM-DD`; ValueError for anything else."""
    digits = text.strip().replace("-", "")
    if len(digits) != 8 or not (digits.isascii() and digits.isdigit()):
        raise ValueError(f"filing date {text[:40]!r}: expected YYYYMMDD or YYYY-MM-DD")
    try:
        return date(int(digits[:4]), int(digits[4:6]), int(digits[6:]))
    except ValueError as error:
        raise ValueError(f"filing date {text!r} is no date: {error}") from None


def latest_acceptance_ns(filing_date: date) -> int:
    """The last moment at which a filing dated `filing_date` can have been accepted: 22:00 New York of that day.

    Under the 17:30 rule such a filing is public on the next business day, never earlier than it really was.
    """
    return new_york_ns(datetime.combine(filing_date, LAST_ACCEPTANCE))


def public_ns(accepted_ns: int) -> int:
    """Nanoseconds UTC at which a filing accepted at `accepted_ns` counts as public (the 17:30 rule above)."""
    local = (_EPOCH + timedelta(seconds=accepted_ns // 10**9)).astimezone(NEW_YORK)
    day = local.date()
    cut_off = new_york_ns(datetime.combine(day, CUT_OFF))
    if is_business_day(day) and accepted_ns <= cut_off:
        return max(accepted_ns, new_york_ns(datetime.combine(day, OPENING)))
    day += timedelta(days=1)
    while not is_business_day(day):
        day += timedelta(days=1)
    return new_york_ns(datetime.combine(day, OPENING))


def is_business_day(day: date) -> bool:
    """Whether EDGAR disseminates and the New York Stock Exchange trades on `day`.

    Raises:
        ValueError: the day lies outside the years that the calendar covers.
    """
    if not FIRST_YEAR <= day.year <= LAST_YEAR:
        raise ValueError(f"{day.isoformat()} lies outside the calendar, which covers {FIRST_YEAR} to {LAST_YEAR}")
    return session_on(day) is not None and day not in federal_holidays(day.year)


@lru_cache(maxsize=LAST_YEAR - FIRST_YEAR + 3)
def federal_holidays(year: int) -> frozenset[date]:
    """Days of `year` on which the federal government does not work: the holidays of 5 U.S.C. 6103 as observed.

    A holiday on a Saturday is observed on the Friday before, one on a Sunday on the Monday after.
    """

    def nth(month: int, weekday: int, n: int) -> date:
        first = date(year, month, 1)
        return first + timedelta(days=(weekday - first.weekday()) % 7 + 7 * (n - 1))

    def observed(day: date) -> date:
        return day + timedelta(days={5: -1, 6: 1}.get(day.weekday(), 0))

    last_monday_of_may = date(year, 5, 31) - timedelta(days=date(year, 5, 31).weekday())
    days = {
        observed(date(year, 1, 1)),
        observed(date(year + 1, 1, 1)),
        nth(1, 0, 3),  # Martin Luther King
        nth(2, 0, 3),  # Washington
        last_monday_of_may,
        observed(date(year, 7, 4)),
        nth(9, 0, 1),  # Labor Day
        nth(10, 0, 2),  # Columbus
        observed(date(year, 11, 11)),
        nth(11, 3, 4),  # Thanksgiving
        observed(date(year, 12, 25)),
    }
    if year >= 2021:
        days.add(observed(date(year, 6, 19)))
    return frozenset(day for day in days if day.year == year)


@lru_cache(maxsize=1)
def new_york_sessions() -> Sessions:
    """Sessions of the New York Stock Exchange over the years FIRST_YEAR … LAST_YEAR, ascending."""
    first = to_ns(datetime(FIRST_YEAR, 1, 2, tzinfo=UTC))
    last = to_ns(datetime(LAST_YEAR, 12, 30, tzinfo=UTC))
    return exchange_sessions("XNYS", first, last)


def session_on(day: date) -> int | None:
    """Number of the New York session held on `day`; None when there is none."""
    days = session_days()
    wanted = np.datetime64(day, "D")
    at = int(np.searchsorted(days, wanted))
    return at if at < len(days) and days[at] == wanted else None


@lru_cache(maxsize=1)
def session_days() -> npt.NDArray[np.datetime64]:
    """(S,) datetime64[D], the date of every New York session; New York opens in the middle of the same UTC day."""
    return new_york_sessions().open.astype("datetime64[ns]").astype("datetime64[D]")
