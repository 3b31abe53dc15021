"""Edges of bins: quantiles by hand, each training row once, nothing of any other row."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from quantattn.data.pack import Decisions, SequenceSet, TokenTable
from quantattn.data.value_edges import value_edges


def sequences(values: list[float], rows: list[int], length: int = 3) -> SequenceSet:
    """One entity; a sequence of the last `length` rows for each decision."""
    column = np.asarray(values, np.float32)
    table = TokenTable({"x": column}, np.arange(len(column)), np.asarray([0, len(column)]), ("E",))
    return SequenceSet(table, Decisions(np.asarray(rows)), length, "each")


def test_edges_are_the_least_the_quantiles_and_the_largest() -> None:
    train = sequences([8, 0, 1, 7, 2, 6, 3, 5, 4], [8], length=9)
    assert value_edges(train, ["x"], 4) == {"x": (0, 2, 4, 6, 8)}
    assert value_edges(train, ["x"], 1) == {"x": (0, 8)}
    # Ranks 0, 2, 5 and 8 of nine.
    assert value_edges(train, ["x"], 3) == {"x": (0, 2, 5, 8)}
    assert value_edges(train, ["x"], 4, max_rows=3) == {"x": (3, 7, 8)}, "rows 0, 3 and 6 hold 8, 7 and 3"
    with pytest.raises(ValueError, match="n_bins must be at least 1, got 0"):
        value_edges(train, ["x"], 0)


def test_equal_edges_are_one_and_missing_values_none() -> None:
    assert value_edges(sequences([1, 1, 1, 1, 2, np.nan], [5], 6), ["x"], 4) == {"x": (1, 2)}
    assert value_edges(sequences([3, 3, np.nan], [2]), ["x"], 4) == {}
    assert value_edges(sequences([np.nan, np.nan], [1]), ["x"], 4) == {}


def test_a_row_in_two_sequences_counts_once() -> None:
    """Rows 0 … 3 of values 0, 1, 2, 9: with rows 1 and 2 counted twice the middle would be 2."""
    train = sequences([0, 1, 2, 9], [2, 3])
    assert value_edges(train, ["x"], 2) == {"x": (0, 1, 9)}


def test_rows_outside_of_training_change_nothing() -> None:
    train = sequences([50, 0, 1, 2, 60, 3, 4, 5, 70], [3, 7])
    other = np.where(np.isin(np.arange(9), [0, 4, 8]), np.float32(-1e6), train.table.fields["x"])
    moved = replace(train, table=replace(train.table, fields={"x": other}))
    assert value_edges(train, ["x"], 5) == value_edges(moved, ["x"], 5) == {"x": (0, 1, 2, 3, 4, 5)}
    inside = replace(train, table=replace(train.table, fields={"x": np.where(np.arange(9) == 7, 99, other)}))
    assert value_edges(inside, ["x"], 5) != value_edges(train, ["x"], 5)
