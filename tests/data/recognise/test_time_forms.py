"""Times written in the forms of many vendors are told, and the form that is told reads them."""

from __future__ import annotations

import datetime as dt

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantattn.data.recognise.time_forms import time_form
from quantattn.data.sources.table_types import Clock

WRITTEN = {
    "iso": "%Y-%m-%d %H:%M:%S",
    "%y%m%d %H:%M:%S": "%y%m%d %H:%M:%S",
    "%Y%m%d %H%M%S": "%Y%m%d %H%M%S",
    "%Y%m%d %H%M%S%3f": "%Y%m%d %H%M%S000",
    "%Y%m%d %H:%M:%S": "%Y%m%d %H:%M:%S",
    "%Y.%m.%d %H:%M:%S": "%Y.%m.%d %H:%M:%S",
    "%Y/%m/%d %H:%M:%S": "%Y/%m/%d %H:%M:%S",
    "%d.%m.%Y %H:%M:%S%.f": "%d.%m.%Y %H:%M:%S.000",
    "%d.%m.%Y %H:%M:%S%.f GMT%z": "%d.%m.%Y %H:%M:%S.000 GMT+0000",
    "%m/%d/%Y %H:%M:%S": "%m/%d/%Y %H:%M:%S",
    "%d/%m/%Y %H:%M:%S": "%d/%m/%Y %H:%M:%S",
    "%d%b%y:%H:%M:%S": "%d%b%y:%H:%M:%S",
    "%d-%b-%Y %H:%M:%S": "%d-%b-%Y %H:%M:%S",
    "%Y-%m-%dD%H:%M:%S%.f": "%Y-%m-%dD%H:%M:%S.000000000",
    "%Y-%m-%d %H:%M:%S UTC": "%Y-%m-%d %H:%M:%S UTC",
    "%m/%d/%Y %I:%M:%S %p": "%m/%d/%Y %I:%M:%S %p",
}
"""Form → how Python writes it."""
SECONDS = st.datetimes(dt.datetime(2001, 1, 1), dt.datetime(2060, 1, 1)).map(lambda t: t.replace(microsecond=0))


def read(text: str, form: str) -> int:
    return int(pl.select(Clock(form).read(pl.lit(text), pl.String())).item())


@pytest.mark.parametrize("form", WRITTEN)
@settings(max_examples=15, deadline=None)
@given(when=SECONDS)
def test_the_form_that_is_told_reads_what_was_written(form: str, when: dt.datetime) -> None:
    text = when.strftime(WRITTEN[form])
    if "%b" not in form and "%y" in form:
        when = when.replace(year=when.year if when.year < 2069 else when.year - 100)
    forms = time_form([text, "", text])
    assert form in forms
    assert read(text, form) == int(when.replace(tzinfo=dt.UTC).timestamp()) * 10**9
    # Another form is told only where a day could be a month.
    assert (len(forms) == 2) == ("/%Y" in form and when.day <= 12)


@pytest.mark.parametrize(
    ("texts", "forms"),
    [
        (["1612137600000", "1612137600001"], ("ms",)),
        (["1612137600"], ("s",)),
        (["1612137600.1", "1612137600.123456"], ("s",)),
        (["0612137600.1"], ()),
        (["930131", "991231"], ("yymmdd",)),
        (["20110505"], ("%Y%m%d",)),
        (["20230718T"], ("%Y%m%dT",)),
        (["Jan 05, 2024"], ("%b %d, %Y",)),
        (["29-Jun-17"], ("%d-%b-%y",)),
        (["02/03/2010", "13/03/2010"], ("%d/%m/%Y",)),
        (["02/03/2010", "03/13/2010"], ("%m/%d/%Y",)),
        (["02/03/2010", "02/04/2010"], ("%m/%d/%Y", "%d/%m/%Y")),
        (["1.2.2020 10:00:00", "1.2.2020 10:00:00.5"], ("%d.%m.%Y %H:%M:%S%.f",)),
        ([], ()),
        (["", ""], ()),
        (["1974-Q1"], ()),
        (["1.5", "2.5"], ()),
        (["13/13/2010"], ()),
        (["20111301"], ()),
        (["1612137600000", "161213760000"], ()),
        (["9999999999"], ()),
    ],
)
def test_by_hand(texts: list[str], forms: tuple[str, ...]) -> None:
    assert time_form(texts) == forms
