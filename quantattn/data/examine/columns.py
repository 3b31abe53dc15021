"""What the columns of a long table hold, and how long the histories of its entities are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from quantattn.data.examine.prices import text
from quantattn.data.sources.table_types import Column

_COMMON = 3


@dataclass(frozen=True)
class ColumnFacts:
    """One column.

    Attributes:
        name: its name.
        type: "category", "integer", "decimal2", "float".
        missing: rows without a value.
        distinct: values.
        common: the most frequent of a category and their rows.
        least, median, greatest: of a number, as decimal text; the median is one that there is.
    """

    name: str
    type: str
    missing: int
    distinct: int
    common: tuple[tuple[str, int], ...] = ()
    least: str | None = None
    median: str | None = None
    greatest: str | None = None


def measure_columns(events: pl.DataFrame, columns: Mapping[str, Column]) -> list[ColumnFacts]:
    """Of the columns that a table was asked for."""
    return [_one(events[name], kind) for name, kind in columns.items()]


def measure_histories(events: pl.LazyFrame) -> tuple[int, int, int]:
    """Events of an entity: the fewest, the median, the most."""
    counts = (
        events.group_by("entity")
        .agg(pl.len())
        .select(pl.col("len").min(), pl.col("len").median().cast(pl.Int64).alias("m"), pl.col("len").max().alias("x"))
    )
    least, median, most = counts.collect(engine="streaming").row(0)
    return int(least or 0), int(median or 0), int(most or 0)


def _one(values: pl.Series, kind: Column) -> ColumnFacts:
    known = values.drop_nulls()
    known = known.filter(known != "") if kind.kind == "category" else known
    missing, distinct = values.len() - known.len(), known.n_unique()
    if kind.kind == "category":
        common = known.value_counts(sort=True).head(_COMMON).rows()
        shown = tuple((str(value), int(rows)) for value, rows in common)
        return ColumnFacts(values.name, str(kind), missing, distinct, shown)
    ordered = known.sort().to_list()
    if not ordered:
        return ColumnFacts(values.name, str(kind), missing, distinct)
    places = (ordered[0], ordered[len(ordered) // 2], ordered[-1])
    least, middle, most = (text(each, kind.exponent) if kind.kind == "integer" else f"{each:.6g}" for each in places)
    return ColumnFacts(values.name, str(kind), missing, distinct, (), least, middle, most)
