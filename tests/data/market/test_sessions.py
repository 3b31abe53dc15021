"""Sessions in UTC: half days, daylight saving, and what lies outside."""

from __future__ import annotations

import datetime as dt
import subprocess
import sys

import numpy as np
import pytest

from quantattn.data.market.sessions import SECOND, Sessions, exchange_sessions, exchange_zone, midnight


def ns(text: str) -> int:
    return int(dt.datetime.fromisoformat(text).replace(tzinfo=dt.UTC).timestamp()) * SECOND


@pytest.mark.parametrize(
    ("day", "opens", "closes"),
    [
        ("2012-06-21", "2012-06-21T13:30", "2012-06-21T20:00"),  # summer time
        ("2012-01-17", "2012-01-17T14:30", "2012-01-17T21:00"),  # winter time
        ("2012-07-03", "2012-07-03T13:30", "2012-07-03T17:00"),  # closes at one o'clock
    ],
)
def test_open_and_close_in_utc(day: str, opens: str, closes: str) -> None:
    noon = ns(f"{day}T16:00")
    sessions = exchange_sessions("XNAS", noon, noon)
    number = int(sessions.locate(np.array([noon]))[0])
    assert (sessions.open[number], sessions.close[number]) == (ns(opens), ns(closes))


def test_locate_knows_both_ends_and_the_outside() -> None:
    sessions = Sessions("test", np.array([10, 30]), np.array([20, 40]))
    times = np.array([9, 10, 20, 21, 29, 30, 40, 41])
    assert sessions.locate(times).tolist() == [-1, 0, 0, -1, -1, 1, 1, -1]
    assert Sessions("none", np.array([], np.int64), np.array([], np.int64)).locate(times).tolist() == [-1] * 8


def test_weekends_and_holidays_have_no_session() -> None:
    sessions = exchange_sessions("XNYS", ns("2012-07-04T00:00"), ns("2012-07-08T00:00"))
    for day, trading in (("07-04", False), ("07-05", True), ("07-06", True), ("07-07", False), ("07-08", False)):
        assert (sessions.locate(np.array([ns(f"2012-{day}T15:00")]))[0] >= 0) == trading


def test_zones() -> None:
    assert exchange_zone("XNAS") == "America/New_York"
    assert exchange_zone("XLON") == "Europe/London"
    with pytest.raises(ValueError, match="no calendar 'NYSEE'"):
        exchange_zone("NYSEE")


def test_midnight_is_the_exchanges() -> None:
    assert midnight(dt.date(2012, 6, 21), "America/New_York") == ns("2012-06-21T04:00")
    assert midnight(dt.date(2012, 1, 17), "America/New_York") == ns("2012-01-17T05:00")
    for day in (dt.date(2012, 3, 11), dt.date(2012, 11, 4)):
        with pytest.raises(ValueError, match="clocks of America/New_York change"):
            midnight(day, "America/New_York")


def test_what_cannot_be_answered_is_said() -> None:
    with pytest.raises(ValueError, match="no calendar 'NOWHERE'"):
        exchange_sessions("NOWHERE", 0, 0)
    with pytest.raises(ValueError, match="lies before the first"):
        exchange_sessions("XNYS", 1, 0)
    with pytest.raises(ValueError, match="without overlap"):
        Sessions("test", np.array([10, 15]), np.array([20, 40]))


def test_importing_sessions_does_not_import_the_calendars() -> None:
    code = "import sys, quantattn.data.market.sessions; print({'exchange_calendars', 'pandas'} & set(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "set()"
