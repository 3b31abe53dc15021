"""New York stamps → UTC, and the 17:30 rule, against the tz database and an independent calendar of holidays."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantattn.data.filings.clock import (
    FIRST_YEAR,
    LAST_YEAR,
    NEW_YORK,
    federal_holidays,
    is_business_day,
    latest_acceptance_ns,
    parse_acceptance,
    parse_filing_date,
    public_ns,
    to_ns,
)

SECOND = 10**9
seconds = st.integers(*(int(datetime(year, 1, 2, tzinfo=UTC).timestamp()) for year in (1993, 2034)))


def utc(text: str) -> int:
    return to_ns(datetime.fromisoformat(text + "+00:00"))


@pytest.mark.parametrize(
    ("stamp", "expected"),
    [
        ("20250115163025", "2025-01-15T21:30:25"),  # standard time
        ("20250715163025", "2025-07-15T20:30:25"),  # daylight time
        ("20240310015959", "2024-03-10T06:59:59"),  # the last second before the clocks go forward …
        ("20240310030000", "2024-03-10T07:00:00"),  # … and the next one
        ("20241103005959", "2024-11-03T04:59:59"),  # before the hour that comes twice …
        ("20241103020000", "2024-11-03T07:00:00"),  # … and after it
        ("20061029020000", "2006-10-29T07:00:00"),  # the rule before 2007
        ("19940321235959", "1994-03-22T04:59:59"),
    ],
)
def test_stamp_is_new_york_time(stamp: str, expected: str) -> None:
    assert parse_acceptance(stamp) == utc(expected)


def test_the_year_a_rule_changed() -> None:
    assert parse_acceptance("20060402030000") - parse_acceptance("20060402015959") == SECOND  # first Sunday of April
    assert parse_acceptance("20070311030000") - parse_acceptance("20070311015959") == SECOND  # second of March


@pytest.mark.parametrize(
    ("stamp", "what"),
    [
        ("20240310020000", "does not exist"),
        ("20240310025959", "does not exist"),
        ("20241103010000", "exists twice"),
        ("20241103015959", "exists twice"),
        ("20240230120000", "no date and time"),
        ("20240101246060", "no date and time"),
        ("2024010112", "14 digits"),
        ("2024-01-01T12:00", "14 digits"),
        ("２０２４０１０１１２００００", "14 digits"),
        ("", "14 digits"),
    ],
)
def test_stamp_without_one_meaning_is_an_error(stamp: str, what: str) -> None:
    with pytest.raises(ValueError, match=what):
        parse_acceptance(stamp)


@settings(max_examples=50, deadline=None)
@given(seconds)
def test_every_instant_survives_the_stamp_unless_its_hour_comes_twice(second: int) -> None:
    local = datetime.fromtimestamp(second, NEW_YORK)
    stamp = local.strftime("%Y%m%d%H%M%S")
    other = datetime.fromtimestamp(second + (3600 if local.fold == 0 else -3600), NEW_YORK)
    if other.strftime("%Y%m%d%H%M%S") == stamp:
        with pytest.raises(ValueError, match="twice"):
            parse_acceptance(stamp)
    else:
        assert parse_acceptance(stamp) == second * SECOND


@pytest.mark.parametrize(
    ("accepted", "public"),
    [
        ("20240315101500", "2024-03-15T14:15:00"),  # a Friday morning: at once
        ("20240315173000", "2024-03-15T21:30:00"),  # the last second that counts
        ("20240315173001", "2024-03-18T10:00:00"),  # after it: Monday, 06:00 New York
        ("20240308180000", "2024-03-11T10:00:00"),  # over the weekend on which the clocks go forward
        ("20241101180000", "2024-11-04T11:00:00"),  # … and back
        ("20240315050000", "2024-03-15T10:00:00"),  # before EDGAR opens
        ("20240316120000", "2024-03-18T10:00:00"),  # a Saturday
        ("20240328173500", "2024-04-01T10:00:00"),  # Good Friday: the exchange is shut
        ("20241011180000", "2024-10-15T10:00:00"),  # Columbus Day: the exchange is open, EDGAR is shut
        ("20241111120000", "2024-11-12T11:00:00"),  # Veterans Day itself
        ("20241224150000", "2024-12-24T20:00:00"),  # a half day of the exchange is a business day
        ("20241224180000", "2024-12-26T11:00:00"),
        ("20211230180000", "2022-01-03T11:00:00"),  # New Year 2022, a Saturday, is kept by Washington on 31 December
        ("20250108180000", "2025-01-10T11:00:00"),  # the exchange's day of mourning, 9 January 2025
        ("20010910180000", "2001-09-17T10:00:00"),  # the exchange shut from 11 to 14 September 2001
    ],
)
def test_half_past_five_rule(accepted: str, public: str) -> None:
    assert public_ns(parse_acceptance(accepted)) == utc(public)


@settings(max_examples=50, deadline=None)
@given(seconds, st.integers(0, 40 * 86_400))
def test_public_time_is_late_enough_monotone_and_final(second: int, later: int) -> None:
    public = public_ns(second * SECOND)
    assert public >= second * SECOND
    assert public_ns(public) == public
    assert public_ns((second + later) * SECOND) >= public
    local = datetime.fromtimestamp(public // SECOND, NEW_YORK)
    assert is_business_day(local.date())


@settings(max_examples=50, deadline=None)
@given(seconds)
def test_a_filing_date_alone_is_never_too_early(second: int) -> None:
    """EDGAR dates a filing by the day of acceptance, by the next business day when that was past 17:30."""
    public = public_ns(second * SECOND)
    filing_date = datetime.fromtimestamp(public // SECOND, NEW_YORK).date()
    assert public_ns(latest_acceptance_ns(filing_date)) >= public


def test_federal_holidays_against_another_calendar() -> None:
    from pandas.tseries.holiday import USFederalHolidayCalendar

    theirs = USFederalHolidayCalendar().holidays(f"{FIRST_YEAR}-01-01", f"{LAST_YEAR}-12-31")
    ours = sorted(day for year in range(FIRST_YEAR, LAST_YEAR + 1) for day in federal_holidays(year))
    assert ours == [moment.date() for moment in theirs]


def test_days_outside_the_calendar_are_refused() -> None:
    for day in (date(FIRST_YEAR, 1, 1) - timedelta(days=1), date(LAST_YEAR, 12, 31) + timedelta(days=1)):
        with pytest.raises(ValueError, match="outside the calendar"):
            is_business_day(day)


def test_filing_dates() -> None:
    assert parse_filing_date("20240229") == parse_filing_date("2024-02-29") == date(2024, 2, 29)
    for wrong in ("20230229", "2024", "1/2/2024", ""):
        with pytest.raises(ValueError, match="filing date"):
            parse_filing_date(wrong)
