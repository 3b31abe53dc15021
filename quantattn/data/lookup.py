"""Functions of one value, worked out once a value or once a run instead of once a row; and bins, a block at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import polars as pl

WorkOut = Callable[[pl.Expr], Sequence[pl.Expr]]

_BLOCK = 2**14  # rows; eight bytes each stay in the nearest caches
_COUNTED = 64
"""Edges up to which to compare all of them with a block takes less than to search each value's place."""


def once_a_value(column: pl.Expr, work_out: WorkOut, kinds: dict[str, pl.DataType | type[pl.DataType]]) -> pl.Expr:
    """The struct of what `work_out` makes of a column, null included; bit for bit what it makes of every row.

    Args:
        column: Int64; of any other type every row is worked out.
        work_out: column → named expressions of its own row's value alone.
        kinds: their names and types.
    """
    return column.map_batches(partial(_rows, work_out=work_out), return_dtype=pl.Struct(kinds))


def once_a_run(column: pl.Expr, known: Mapping[str, int]) -> pl.Expr:
    """Int64 number of each name, looked up once for every run of equal names.

    Computing it fails, as `replace_strict` does, for a name that is not known.
    """
    return column.map_batches(partial(_runs, known=known), return_dtype=pl.Int64)


def edges_not_above(column: pl.Expr, edges: Sequence[int] | Sequence[float]) -> pl.Expr:
    """UInt32 number of the rising edges that are not above each value; anything where it is null.

    Args:
        column: Int64, or of the edges' type, where NaN is above every edge.
        edges: integers or floats.
    """
    if not edges:
        return pl.lit(0, pl.UInt32)
    return column.map_batches(partial(_counted, edges=edges), return_dtype=pl.UInt32)


def _runs(column: pl.Series, known: Mapping[str, int]) -> pl.Series:
    runs = column.rle().struct.unnest()
    numbers = runs["value"].replace_strict(list(known), list(known.values()), return_dtype=pl.Int64)
    return pl.Series(np.repeat(numbers.to_numpy(), runs["len"].to_numpy()))


def _counted(column: pl.Series, edges: Sequence[int] | Sequence[float]) -> pl.Series:
    if column.dtype != pl.Int64 or len(edges) > _COUNTED:
        return pl.Series(edges).search_sorted(column, side="right")
    values = column.fill_null(0).to_numpy()
    count, reached = np.zeros(len(values), np.uint32), np.empty(_BLOCK, np.bool_)
    few = np.empty(_BLOCK, np.uint8)
    for first in range(0, len(values), _BLOCK):
        block = values[first : first + _BLOCK]
        here, within = few[: len(block)], reached[: len(block)]
        here.fill(0)
        for edge in edges:
            np.greater_equal(block, edge, out=within)
            np.add(here, within.view(np.uint8), out=here)
        count[first : first + _BLOCK] = here
    return pl.Series(count)


def _rows(column: pl.Series, work_out: WorkOut) -> pl.Series:
    low, high = column.min(), column.max()
    if column.dtype != pl.Int64 or not isinstance(low, int) or not isinstance(high, int):
        return _made(column, work_out)
    # To work out a value costs many times a look-up, so a table half as long as the column pays already.
    if high - low >= len(column) // 2:
        return _made(column, work_out)
    # Counted from 0, because the number after the highest may not exist.
    values = (pl.int_range(high - low + 1, eager=True) + low).extend(pl.Series([None], dtype=pl.Int64))
    return _made(values, work_out).gather((column - low).fill_null(high - low + 1))


def _made(column: pl.Series, work_out: WorkOut) -> pl.Series:
    return column.to_frame("x").select(pl.struct(work_out(pl.col("x")))).to_series()
