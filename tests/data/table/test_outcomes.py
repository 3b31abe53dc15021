"""Which events a decision sees: strictly before its date, or all of them; and what is said of the others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_tables import DAY, outcomes

from quantattn.data.table.outcomes import NO_EVENT, NO_LABEL, SAME_HISTORY, decide


def table(days: dict[str, list[int]]) -> pl.DataFrame:
    rows = [(name, day * DAY) for name in sorted(days) for day in sorted(days[name])]
    frame = pl.DataFrame(rows, schema={"entity": pl.String, "available_time": pl.Int64}, orient="row")
    return frame.with_columns(event_time="available_time", seq=pl.int_range(pl.len(), dtype=pl.Int64))


def asked(rows: list[tuple[str, int | None, int | None]]) -> pl.DataFrame:
    schema = {"entity": pl.String, "as_of": pl.Int64, "label": pl.Int64}
    return pl.DataFrame([(n, None if d is None else d * DAY, y) for n, d, y in rows], schema=schema, orient="row")


def test_only_what_was_known_strictly_before_the_date_is_input() -> None:
    events = table({"a": [1, 2, 2, 5], "b": [7]})
    found, dropped = decide(events, asked([("a", 2, 0), ("b", 7, 1), ("a", 6, 1), ("c", 1, 1), ("a", 9, None)]))
    assert found.select("entity", "as_of", "first", "row").rows() == [("a", 2 * DAY, 0, 0), ("a", 6 * DAY, 0, 3)]
    assert dropped == {NO_LABEL: 1, NO_EVENT: 2}


def test_without_a_date_the_whole_history_is_input_as_of_its_last_event() -> None:
    events = table({"a": [1, 2], "b": [7]})
    found, dropped = decide(events, asked([("b", None, 1), ("a", None, 0)]))
    assert found.select("entity", "as_of", "row").rows() == [("a", 2 * DAY, 1), ("b", 7 * DAY, 2)]
    assert dropped == {}


def test_two_dates_without_an_event_between_them_are_one_decision() -> None:
    found, dropped = decide(table({"a": [1]}), asked([("a", 2, 0), ("a", 3, 1)]))
    assert found.select("as_of", "label").rows() == [(2 * DAY, 0)]
    assert dropped == {SAME_HISTORY: 1}


@settings(max_examples=40, deadline=None)
@given(
    st.dictionaries(st.sampled_from("abcd"), st.lists(st.integers(0, 9), min_size=1, max_size=8), min_size=1),
    st.sets(st.tuples(st.sampled_from("abcde"), st.integers(0, 10)), max_size=12),
)
def test_a_decision_sees_every_earlier_event_and_no_other(
    days: dict[str, list[int]], dates: set[tuple[str, int]]
) -> None:
    events = table(days)
    found, dropped = decide(events, asked([(name, day, 0) for name, day in sorted(dates)]))
    entity, time = events["entity"].to_numpy(), events["available_time"].to_numpy()
    for name, as_of, first, row in found.select("entity", "as_of", "first", "row").iter_rows():
        seen = np.arange(first, row + 1)
        assert seen.tolist() == np.flatnonzero((entity == name) & (time < as_of)).tolist()
    assert found.height + sum(dropped.values()) == len(dates)


def test_a_file_of_outcomes(tmp_path: Path) -> None:
    file = outcomes(tmp_path, ["a,1,10", "b,2,9", "c,3,"], date="day", after="1d")
    rows = file.read()
    assert rows["as_of"].to_list() == [2 * DAY, 3 * DAY, 4 * DAY]
    assert file.names(rows["label"]) == ("9", "10"), "whole numbers are in the order of numbers"
    assert file.codes(rows["label"]).to_list() == [1, 0, None]
    named = outcomes(tmp_path, ["a,1,B", "b,2,A", "c,3,C"], classes={"good": ["A", "C"], "bad": ["B"]})
    labels = named.read()["label"]
    assert (named.names(labels), named.codes(labels).to_list()) == (("good", "bad"), [1, 0, 0])
    assert named.read()["as_of"].to_list() == [None] * 3
    with pytest.raises(ValueError, match="label 'C' is in none of the classes good, bad"):
        outcomes(tmp_path, ["a,1,C"], classes={"good": ["A"], "bad": ["B"]}).codes(labels)


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        (["a,1,x", ",2,y"], r"outcomes\.csv:3: column 'who' is empty; the row is ',2,y'"),
        (["a,soon,x"], r"outcomes\.csv:2: column 'day' is not a day number"),
        (["a,1"], r"outcomes\.csv:2: another number of fields than 3"),
        (["a,1,x", "a,1,y"], r"outcomes\.csv holds two outcomes of 'a'; expected one a date"),
    ],
)
def test_outcomes_that_cannot_be_used_are_named(tmp_path: Path, lines: list[str], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        outcomes(tmp_path, lines, date="day").read()


def test_settings_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no such file of outcomes"):
        outcomes(tmp_path, [], path=str(tmp_path / "none"))
    with pytest.raises(ValueError, match="a duration must be a whole number"):
        outcomes(tmp_path, [], horizon="a year")
    with pytest.raises(ValueError, match="after=DURATION goes with date=COLUMN"):
        outcomes(tmp_path, [], after="1d")
    with pytest.raises(ValueError, match="classes must be two or more, with no value in two of them"):
        outcomes(tmp_path, [], classes={"good": ["A"], "bad": ["A"]})
    with pytest.raises(ValueError, match="holds 1 classes of 'label'; expected two or more"):
        outcomes(tmp_path, []).names(pl.Series(["x", "x"]))
