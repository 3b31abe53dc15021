"""Tokens of a table: worked out by hand, past-only, and told apart from what they were not fitted for."""

from __future__ import annotations

import math
from typing import Any

import polars as pl
import pytest

from quantattn.data.protocol import perturb_future
from quantattn.data.sources.table_types import Column
from quantattn.data.table import CALENDAR, TableTokenizer
from quantattn.data.tokens import MISSING

DAY, HOUR = 86_400 * 10**9, 3_600 * 10**9
COLUMNS = {"kind": Column("category"), "amount": Column("integer", -2), "rate": Column("float")}
MISSES, OTHER, FIRST = MISSING, 2, 3


def events(rows: list[tuple[str, int, str | None, int | None, float | None]]) -> pl.DataFrame:
    schema = {"entity": pl.String, "event_time": pl.Int64, "kind": pl.String, "amount": pl.Int64, "rate": pl.Float64}
    frame = pl.DataFrame(rows, schema=schema, orient="row")
    return frame.with_columns(available_time="event_time", seq=pl.int_range(pl.len(), dtype=pl.Int64))


TRAIN = events(
    [
        ("a", 0, "x", 100, 0.5),  # Thursday, 1 January 1970
        ("a", 2 * DAY + HOUR, "x", 300, 1.5),
        ("b", 0, "y", None, 2.5),
        ("b", 0, None, 200, None),
    ]
)


def coded(frame: pl.DataFrame, tokenizer: TableTokenizer) -> dict[str, list[Any]]:
    return tokenizer.transform(frame.lazy()).collect().to_dict(as_series=False)


def test_codes_and_values_by_hand() -> None:
    tokenizer = TableTokenizer.fit(TRAIN, COLUMNS, n_bins=2, min_count=2)
    found = coded(TRAIN, tokenizer)
    assert tokenizer.categories == {"kind": ("x",), "weekday": ("4",), "monthday": ("1",)}
    assert found["kind_code"] == [FIRST, FIRST, OTHER, MISSES], "seldom is a value of its own, and so is missing"
    # The upper median of 100, 200, 300 parts the two bins; the lowest bin has code 2.
    assert tokenizer.numeric["amount"].edges == (200,)
    assert found["amount_code"] == [2, 3, MISSES, 3]
    assert tokenizer.numeric["rate"].edges == (1.5,), "floats keep their edges"
    assert found["rate_code"] == [2, 3, 3, MISSES]
    assert found["gap_code"] == [MISSES, 3, MISSES, 2], "the first event of an entity has no gap"
    assert found["weekday_code"] == [FIRST, OTHER, FIRST, FIRST]
    logs = [math.log1p(value) for value in (100, 300, 200)]
    mean = sum(logs) / 3
    deviation = math.sqrt(sum((each - mean) ** 2 for each in logs) / 3)
    assert found["amount_value"] == pytest.approx(
        [(logs[0] - mean) / deviation, (logs[1] - mean) / deviation, 0.0, (logs[2] - mean) / deviation], abs=1e-6
    )
    assert set(tokenizer.codes) | set(tokenizer.values) | {"entity", "available_time"} == set(found)
    for name, size in tokenizer.codes.items():
        assert max(found[name]) < size


def test_the_calendar_goes_by_the_zone() -> None:
    frame = events([("a", 23 * HOUR + HOUR // 2, "x", 1, 1.0), ("a", 24 * HOUR, "x", 1, 1.0)])
    utc = TableTokenizer.fit(frame, COLUMNS, fields=["weekday", "monthday"], min_count=1)
    prague = TableTokenizer.fit(frame, COLUMNS, fields=["weekday", "monthday"], min_count=1, zone="Europe/Prague")
    assert utc.categories["weekday"] == ("4", "5")
    assert prague.categories["weekday"] == ("5",), "half past eleven in UTC is the next day in Prague"


def test_equal_after_json_and_again_on_the_same_rows() -> None:
    tokenizer = TableTokenizer.fit(TRAIN, COLUMNS, min_count=1, zone="Europe/Prague")
    again = TableTokenizer.from_json(tokenizer.to_json())
    assert again == tokenizer
    assert coded(TRAIN, again) == coded(TRAIN, tokenizer)
    with pytest.raises(ValueError, match="no tokenizer of tables"):
        TableTokenizer.from_json('{"kind": "market", "format": 1}')


def test_another_future_changes_no_earlier_token() -> None:
    rows = [(name, day * DAY, kind, day, day / 7) for name in "abc" for day, kind in enumerate("xyxyzzyx")]
    frame = events(rows)
    tokenizer = TableTokenizer.fit(frame, COLUMNS)
    for as_of in (0, 3 * DAY, 6 * DAY):
        known = frame["available_time"] <= as_of
        other = perturb_future(frame, as_of, seed=1)
        before = tokenizer.transform(frame.lazy()).collect().filter(known)
        assert before.equals(tokenizer.transform(other.lazy()).collect().filter(other["available_time"] <= as_of))


def test_values_that_training_never_saw() -> None:
    tokenizer = TableTokenizer.fit(TRAIN, COLUMNS, n_bins=2, min_count=1)
    frame = events([("n", 0, "new", 10**15, -1e300)])
    found = coded(frame, tokenizer)
    assert found["kind_code"] == [OTHER]
    assert found["amount_code"] == [3]
    assert found["rate_code"] == [2]
    assert found["rate_value"] == [-8.0], "values beyond training are clipped"
    nothing = TableTokenizer.fit(events([("n", 0, None, None, None)]), COLUMNS)
    assert coded(frame, nothing)["kind_code"] == [OTHER]
    assert coded(frame, nothing)["amount_code"] == [2], "a field without training values has one bin"


def test_tables_that_the_tokens_were_not_fitted_for_are_refused() -> None:
    tokenizer = TableTokenizer.fit(TRAIN, COLUMNS, fields=["amount"])
    tokenizer.require({"amount": Column("integer", -2)})
    with pytest.raises(ValueError, match=r"column 'amount' is decimal3, but the tokens were fitted on decimal2"):
        tokenizer.require({"amount": Column("integer", -3)})
    with pytest.raises(ValueError, match="the tokens are made of column 'amount'; the table has kind"):
        tokenizer.require({"kind": Column("category")})


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"fields": ["amount", "colour"]}, f"fields must be some of kind, amount, rate, {', '.join(CALENDAR)}"),
        ({"fields": []}, "each once, got none"),
        ({"n_bins": 1}, "n_bins must lie in 2"),
        ({"min_count": 0}, "min_count must be at least 1 row"),
        ({"zone": "Nowhere"}, "no time zone 'Nowhere'"),
    ],
)
def test_settings_that_cannot_be(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        TableTokenizer.fit(TRAIN, COLUMNS, **given)


def test_tables_that_cannot_be_fitted_on() -> None:
    with pytest.raises(ValueError, match="column 'gap' has the name of a field that tokens make; rename it"):
        TableTokenizer.fit(TRAIN, {"gap": Column("integer")})
    with pytest.raises(ValueError, match="no training event"):
        TableTokenizer.fit(TRAIN.clear(), COLUMNS)
