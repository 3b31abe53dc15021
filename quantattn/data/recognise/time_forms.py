"""How a column of text writes times: ISO, counts since 1970, or one of the forms that vendors have."""

from __future__ import annotations

import re
from collections.abc import Sequence

import polars as pl

_ISO = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d([.,]\d{1,9})?)? ?(Z|[+-]\d\d(:?\d\d)?)?)?")
_EPOCHS = {10: "s", 13: "ms", 16: "us", 19: "ns"}
_FRACTION_OF_SECONDS = re.compile(r"\d{10}\.\d{1,9}")
_NS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
_SHAPES: tuple[tuple[str, tuple[str, ...]], ...] = (
    (r"\d{6} \d\d:\d\d:\d\d", ("%y%m%d %H:%M:%S",)),
    (r"\d{8} \d{9}", ("%Y%m%d %H%M%S%3f",)),
    (r"\d{8} \d{6}", ("%Y%m%d %H%M%S",)),
    (r"\d{8} \d\d:\d\d(:\d\d(\.\d{1,9})?)?", ("%Y%m%d",)),
    (r"\d{8}T", ("%Y%m%dT",)),
    (r"\d{4}-\d\d-\d\dD\d\d:\d\d:\d\d\.\d{1,9}", ("%Y-%m-%dD%H:%M:%S%.f",)),
    (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", ("%Y-%m-%d %H:%M:%S UTC",)),
    (
        r"\d\d?/\d\d?/\d{4} \d\d?:\d\d:\d\d [AP]M",
        ("%m/%d/%Y %I:%M:%S %p", "%d/%m/%Y %I:%M:%S %p"),
    ),
    (r"\d{8}", ("%Y%m%d",)),
    (r"\d{4}\.\d\d\.\d\d( \d\d:\d\d(:\d\d(\.\d{1,9})?)?)?", ("%Y.%m.%d",)),
    (r"\d{4}/\d\d?/\d\d?( \d\d?:\d\d(:\d\d(\.\d{1,9})?)?)?", ("%Y/%m/%d",)),
    (r"\d\d?\.\d\d?\.\d{4}( \d\d:\d\d(:\d\d(\.\d{1,9})?)?)?( GMT[+-]\d{4})?", ("%d.%m.%Y",)),
    (r"\d\d?/\d\d?/\d{4}( \d\d?:\d\d(:\d\d(\.\d{1,9})?)?)?", ("%m/%d/%Y", "%d/%m/%Y")),
    (r"\d\d[A-Za-z]{3}\d\d:\d\d:\d\d:\d\d", ("%d%b%y:%H:%M:%S",)),
    (r"\d\d?-[A-Za-z]{3}-\d{4}( \d\d:\d\d(:\d\d)?)?", ("%d-%b-%Y",)),
    (r"\d\d?-[A-Za-z]{3}-\d\d", ("%d-%b-%y",)),
    (r"[A-Za-z]{3} \d\d?, \d{4}", ("%b %d, %Y",)),
)
"""Shape of a text → the forms of its date, to which that of its clock is added where the shape leaves it open."""
_CLOCK = re.compile(r" \d\d?:\d\d(?P<s>:\d\d(?P<f>\.\d{1,9})?)?(?P<zone> GMT[+-]\d{4})?")


def time_form(found: Sequence[str]) -> tuple[str, ...]:
    """The forms, as `table_types.Clock` names them, in which all of these texts are times; empty texts are none.

    Two forms where nothing tells day and month apart; none where the texts are no times, or there is none.
    """
    some = [each for each in found if each]
    if not some:
        return ()
    if all(_ISO.fullmatch(each) for each in some):
        return ("iso",)
    lengths = {len(each) for each in some}
    if len(lengths) == 1 and all(each.isascii() and each.isdigit() for each in some):
        unit = _EPOCHS.get(next(iter(lengths)))
        if unit is not None and all(_plausible(int(each), unit) for each in some):
            return (unit,)
        if lengths == {6} and _parse(some, "%y%m%d"):
            return ("yymmdd",)
    if all(_FRACTION_OF_SECONDS.fullmatch(each) for each in some) and _plausible(int(float(some[0])), "s"):
        return ("s",)
    for shape, dates in _SHAPES:
        if all(re.fullmatch(shape, each) for each in some):
            return tuple(form for date in dates if _parse(some, form := date + _clock(some, date)))
    return ()


def _clock(some: Sequence[str], date: str) -> str:
    """The form of what follows the date."""
    if "%H" in date or "%I" in date or (match := _CLOCK.search(some[0])) is None:
        return ""
    seconds = ":%S" if match["s"] else ""
    # Vendors drop the zeros of a fraction, all of them too.
    fraction = "%.f" if any("." in each.rpartition(":")[2] for each in some) else ""
    return f" %H:%M{seconds}{fraction}{' GMT%z' if match['zone'] else ''}"


def _plausible(stamp: int, unit: str) -> bool:
    return 946_684_800 <= stamp * _NS[unit] // 10**9 < 4_102_444_800  # 2000 to 2100


def _parse(some: Sequence[str], form: str) -> bool:
    parsed = pl.Series(some, dtype=pl.String).str.to_datetime(form, time_unit="us", strict=False)
    return parsed.null_count() == 0
