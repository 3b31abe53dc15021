"""Functions of one integer, worked out once a value instead of once a row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import polars as pl

WorkOut = Callable[[pl.Expr], Sequence[pl.Expr]]


def once_a_value(column: pl.Expr, work_out: WorkOut, kinds: dict[str, pl.DataType | type[pl.DataType]]) -> pl.Expr:
    """The struct of what `work_out` makes of a column, null included; bit for bit what it makes of every row.

    Args:
        column: Int64; of any other type every row is worked out.
        work_out: column → named expressions of its own row's value alone.
        kinds: their names and types.
    """
    return column.map_batches(partial(_rows, work_out=work_out), return_dtype=pl.Struct(kinds))


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
