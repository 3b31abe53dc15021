"""Decimal text as integers against the decimal module, a column against its texts, floats against what was meant."""

from __future__ import annotations

from decimal import Decimal, localcontext

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantattn.data.sources.decimals import (
    NotExact,
    from_floats,
    greatest_step,
    require_exponent,
    scaled,
    scaled_column,
    whole,
)

DIGITS = st.text("0123456789", min_size=1, max_size=24)
NUMBERS = st.builds(
    lambda whole, part, power: whole + part + power,
    DIGITS,
    st.just("") | st.just(".") | DIGITS.map(lambda part: f".{part}"),
    st.just("") | st.integers(-30, 30).map(lambda n: f"e{n}") | st.integers(0, 30).map(lambda n: f"E+{n}"),
)
ANY = NUMBERS | st.text("0123456789.eE+-, \n٣", max_size=12) | st.text(max_size=6)


def expected(text: str, exponent: int) -> int | None:
    with localcontext() as context:
        context.prec = 200
        number = Decimal(text).scaleb(-exponent)
        return int(number) if number == number.to_integral_value() and number < 2**63 else None


def of(text: str, exponent: int) -> int | None:
    try:
        return scaled(text, exponent)
    except NotExact:
        return None


@given(text=NUMBERS, exponent=st.sampled_from([0, -2, -8, -18]))
@settings(max_examples=200, deadline=None)
def test_every_number_is_its_exact_integer_or_none(text: str, exponent: int) -> None:
    assert of(text, exponent) == expected(text, exponent)


@given(texts=st.lists(ANY, max_size=20), exponent=st.sampled_from([0, -2, -8, -18]))
@settings(max_examples=50, deadline=None)
def test_a_column_is_its_texts_one_by_one(texts: list[str], exponent: int) -> None:
    column = scaled_column(pl.Series("x", [*texts, None], dtype=pl.String), exponent)
    assert column.to_list() == [*(of(text, exponent) for text in texts), None]
    assert column.name == "x"


def test_worked_examples_and_the_edge_of_int64() -> None:
    assert scaled("2683.80000000", -8) == 268_380_000_000
    assert scaled("1e-7", -8) == 10
    assert scaled("92233720368.54775807", -8) == 2**63 - 1
    for text, words in {
        "92233720368.54775808": "beyond 2\\^63 in units of 10\\^-8; give a higher exponent",
        "0.000000001": "no digit beyond 10\\^-8; give a lower exponent",
        "-1": "a decimal number without a sign",
        "nan": "a decimal number",
        "": "found '', expected a decimal number",
        "1e999999999": "expected a decimal number",
        "9" * 5000: "expected a decimal number",
    }.items():
        with pytest.raises(NotExact, match=words) as caught:
            scaled(text, -8)
        assert len(str(caught.value)) < 200
    assert whole("9223372036854775807") == 2**63 - 1
    for text in ("9223372036854775808", "-1", "1.0", "", "٣"):
        with pytest.raises(NotExact, match=r"a whole number below 2\^63"):
            whole(text)
    for exponent in (1, -19, True, "-8"):
        with pytest.raises(ValueError, match=r"price_exponent must be a whole number from -18 to 0, got"):
            require_exponent("price_exponent", exponent)


@given(numbers=st.lists(st.integers(0, 2**49 - 1), max_size=30), exponent=st.sampled_from([-2, -8]))
@settings(max_examples=30, deadline=None)
def test_floats_are_the_decimals_that_they_were_written_as(numbers: list[int], exponent: int) -> None:
    floats = [number / 10**-exponent for number in numbers]
    moved = [number * 10.0**exponent for number in numbers]  # one rounding more, as arithmetic leaves it
    made, apart = from_floats(pl.Series(floats, dtype=pl.Float64), exponent)
    assert (made.to_list(), apart) == (numbers, 0)
    assert from_floats(pl.Series(moved, dtype=pl.Float64), exponent)[0].to_list() == numbers


def test_a_float_that_is_no_such_decimal_is_none() -> None:
    series = pl.Series([0.1, 1 / 3, -1.0, float("nan"), float("inf"), 2.0**50, None])
    made, moved = from_floats(series, -2)
    assert made.to_list() == [10, None, None, None, None, None, None]
    assert moved == 0
    assert from_floats(pl.Series([0.1 + 0.2]), -8)[0].to_list() == [30_000_000]


def test_the_step_divides_one_and_every_price() -> None:
    assert greatest_step([pl.Series([642_150, 642_200, None])], 100) == 50
    assert greatest_step([pl.Series([853_150])], 100) == 50
    assert greatest_step([pl.Series([], dtype=pl.Int64)], 100) == 100
