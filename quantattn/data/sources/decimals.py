"""Decimal text as exact integers: no price and no size passes through a float."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

import numpy as np
import polars as pl

_DECIMAL = re.compile(r"(\d{1,40})(?:\.(\d{0,40}))?(?:[eE]([+-]?\d{1,3}))?", re.ASCII)
_PLAIN = r"^[0-9]{1,18}(\.[0-9]{0,18})?$"
_WHOLE = re.compile(r"\d{1,19}", re.ASCII)
LARGEST = 2**63 - 1


class NotExact(ValueError):
    """A text that is no decimal number, or that no integer of the asked unit equals."""


def require_exponent(name: str, exponent: int) -> None:
    """Raise ValueError unless `exponent` lies in −18 … 0."""
    if isinstance(exponent, bool) or not isinstance(exponent, int) or not -18 <= exponent <= 0:
        raise ValueError(f"{name} must be a whole number from -18 to 0, got {exponent!r}")


@lru_cache(maxsize=1 << 16)
def scaled(text: str, exponent: int) -> int:
    """The integer n with n · 10^exponent = `text`, an unsigned decimal, also in scientific notation ("1e-7").

    Raises:
        NotExact: it is no such number, has digits beyond 10^exponent, or n is not below 2^63.
    """
    match = _DECIMAL.fullmatch(text)
    if match is None:
        raise NotExact(f"found {_short(text)}, expected a decimal number without a sign")
    whole, part, power = match[1], match[2] or "", int(match[3] or 0)
    shift = power - len(part) - exponent
    number, lost = int(whole + part), 0
    if number and shift >= 0:
        number *= 10 ** min(shift, 60)
    elif number:
        number, lost = divmod(number, 10**-shift)
    if lost:
        raise NotExact(f"found {_short(text)}, expected no digit beyond 10^{exponent}; give a lower exponent")
    if number > LARGEST:
        raise NotExact(f"found {_short(text)}, beyond 2^63 in units of 10^{exponent}; give a higher exponent")
    return number


def scaled_column(text: pl.Series, exponent: int) -> pl.Series:
    """`scaled` of every text, Int64; null where it would raise, and where the text is null."""
    places = -exponent
    named = pl.DataFrame({"text": text})
    parts = pl.col("text").str.split_exact(".", 1).struct
    whole, part = parts.field("field_0"), parts.field("field_1").fill_null("").str.strip_chars_end("0")
    exact = pl.col("text").str.contains(_PLAIN) & (part.str.len_bytes() <= places)
    number = pl.when(exact).then(pl.concat_str(whole, part.str.pad_end(places, "0")).cast(pl.Int64, strict=False))
    found = named.select(number.alias(text.name))[text.name]
    # Scientific notation, and numbers of more than 18 digits, are rare: one by one.
    left = (found.is_null() & text.is_not_null()).arg_true()
    return found if not len(left) else found.scatter(left, [_or_none(each, exponent) for each in text.gather(left)])


def from_floats(numbers: pl.Series, exponent: int) -> tuple[pl.Series, int]:
    """Integers of 10^exponent that floats were meant to be, and how many floats are not the nearest to theirs.

    For files that hold floats already. An integer is taken when its decimal is a float at most four steps of the last
    binary place away, which is what arithmetic on a decimal leaves; null when there is none, and from 2^49
    on, where two integers may lie that near to one float.
    """
    given = numbers.cast(pl.Float64).fill_null(np.nan).to_numpy()
    with np.errstate(invalid="ignore", over="ignore"):
        nearest = np.rint(given * 10.0**-exponent)
        apart = np.abs(nearest / 10.0**-exponent - given)
        good = (apart <= 4 * np.spacing(np.abs(given))) & (nearest >= 0) & (nearest < 2**49)
    made = pl.Series(numbers.name, np.where(good, nearest, 0).astype(np.int64))
    return made.set(pl.Series(~good), None), int((good & (apart > 0)).sum())


def whole(text: str) -> int:
    """A time or an id: digits alone, below 2^63; raises NotExact."""
    if _WHOLE.fullmatch(text) is None or (number := int(text)) > LARGEST:
        raise NotExact(f"found {_short(text)}, expected a whole number below 2^63")
    return number


def greatest_step(prices: Iterable[pl.Series], unit: int) -> int:
    """The largest integer that divides `unit` and every price: the smallest step, where enough prices were seen."""
    step = unit
    for column in prices:
        step = int(np.gcd.reduce(column.drop_nulls().unique().to_numpy(), initial=step))
    return step


def _or_none(text: str, exponent: int) -> int | None:
    try:
        return scaled(text, exponent)
    except NotExact:
        return None


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:40]}…")
