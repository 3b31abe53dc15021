"""One token an event of a table: its categories and numbers, and what the calendar says, as codes and scaled values.

A row's token is a function of that row and of the row before it of the same entity. Everything fitted comes from the
rows that `fit` is given, which must be training rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from quantattn.data.sources.table_types import Column
from quantattn.data.stored import categories_of, count_of, numeric_of, of_stored
from quantattn.data.tokens import FIRST_CODE, LINEAR, MISSING, MOST_BINS, NumericField, require_zone, wall_clock

OTHER = FIRST_CODE
"""Code of a value that is not missing but too seldom in training, or not there, to have a code of its own."""
FIRST_VALUE = OTHER + 1
MOST_VALUES = 2**16 - FIRST_VALUE
CALENDAR: tuple[str, ...] = ("gap", "clock", "weekday", "monthday")
"""Fields that come from the time of an event: ns since the entity's last event was known, ns since midnight, the day of
the week (1 is Monday) and of the month.
"""
_DAYS = frozenset({"weekday", "monthday"})
FORMAT = 1


@dataclass(frozen=True)
class TableTokenizer:
    """How events of a table become tokens; made by `fit`, stored as JSON.

    Attributes:
        categories: field → the values that were frequent enough in training, sorted; value i has code i + 3.
        numeric: field → its bins and scale.
        fitted_last: the latest `available_time` that was looked at, ns UTC.
        fitted_rows: how many rows were looked at.
        zone: time zone of the calendar.
        columns: the columns of the table that tokens are made of, with their types.
    """

    categories: Mapping[str, tuple[str, ...]]
    numeric: Mapping[str, NumericField]
    fitted_last: int
    fitted_rows: int
    zone: str
    columns: Mapping[str, Column]

    @staticmethod
    def fit(
        rows: pl.DataFrame,
        columns: Mapping[str, Column],
        *,
        fields: Sequence[str] | None = None,
        n_bins: int = 32,
        min_count: int = 5,
        zone: str = "UTC",
    ) -> TableTokenizer:
        """Learn categories, bins and scales from training rows.

        Args:
            rows: events in canonical order, whole histories from their first event on.
            columns: the typed columns among them.
            fields: which tokens to make, names among `columns` and `CALENDAR`; None is all of them.
            n_bins: the most bins of a numeric field.
            min_count: rows that a category must have to get a code of its own.
            zone: time zone of the calendar.

        Raises:
            ValueError: no row, or a setting that cannot be (see `known_fields`).
        """
        names = known_fields(columns, fields, n_bins, min_count)
        require_zone(zone)
        if not rows.height:
            raise ValueError("there is no training event to fit tokens on")
        seen = rows.select(**raw_fields(names, zone))
        named = {name for name in names if is_category(name, columns)}
        return TableTokenizer(
            categories={name: _frequent(seen[name], min_count) for name in names if name in named},
            numeric={
                name: NumericField.fit(name, seen[name].drop_nulls().to_numpy(), n_bins)
                for name in names
                if name not in named
            },
            fitted_last=int(rows["available_time"].to_numpy().max()),
            fitted_rows=rows.height,
            zone=zone,
            columns={name: columns[name] for name in names if name in columns},
        )

    @property
    def codes(self) -> dict[str, int]:
        """Token column → number of codes, those for missing, masked and other values included."""
        counts = {f"{name}_code": FIRST_VALUE + len(values) for name, values in self.categories.items()}
        return counts | {f"{name}_code": FIRST_CODE + len(field.edges) + 1 for name, field in self.numeric.items()}

    @property
    def values(self) -> tuple[str, ...]:
        """Names of the scaled float32 columns."""
        return tuple(f"{name}_value" for name in self.numeric)

    def transform(self, frame: pl.LazyFrame) -> pl.LazyFrame:
        """The columns of `codes` (UInt16) and of `values` (Float32), after `entity` and `available_time`.

        The frame must be in canonical order.
        """
        raw = frame.select("entity", "available_time", **raw_fields((*self.categories, *self.numeric), self.zone))
        made = [self._category(name, known).alias(f"{name}_code") for name, known in self.categories.items()]
        made += [field.tokens(name, pl.col(name)).alias(f"{name}_token") for name, field in self.numeric.items()]
        return raw.select("entity", "available_time", *made).unnest([f"{name}_token" for name in self.numeric])

    def require(self, columns: Mapping[str, Column]) -> None:
        """Refuse a table whose columns cannot be read by these tokens.

        Raises:
            ValueError: a column that is missing, or of another type or exponent.
        """
        for name, fitted in self.columns.items():
            if name not in columns:
                raise ValueError(f"the tokens are made of column {name!r}; the table has {', '.join(columns)}")
            if columns[name] != fitted:
                raise ValueError(f"column {name!r} is {columns[name]}, but the tokens were fitted on {fitted}")

    def to_json(self) -> str:
        """The tokenizer as JSON; `from_json` gives back an equal one (floats are written in full)."""
        plain = {
            "kind": "table",
            "format": FORMAT,
            "fitted_last": self.fitted_last,
            "fitted_rows": self.fitted_rows,
            "zone": self.zone,
            "columns": {name: [column.kind, column.exponent] for name, column in self.columns.items()},
            "categories": {name: list(values) for name, values in self.categories.items()},
            "numeric": {
                name: {"edges": list(field.edges), "center": field.center, "scale": field.scale}
                for name, field in self.numeric.items()
            },
        }
        return json.dumps(plain, indent=1, sort_keys=False, allow_nan=False)

    @staticmethod
    def from_json(text: str) -> TableTokenizer:
        """The tokenizer that `to_json` wrote; raises ValueError for anything else."""
        return of_stored(text, _of_plain)

    def _category(self, name: str, known: Sequence[str]) -> pl.Expr:
        codes = [FIRST_VALUE + i for i in range(len(known))]
        code = pl.col(name).replace_strict(list(known), codes, default=OTHER, return_dtype=pl.UInt16)
        return pl.when(pl.col(name).is_not_null()).then(code).otherwise(MISSING).cast(pl.UInt16)


def _of_plain(plain: Mapping[str, Any]) -> TableTokenizer:
    if (plain.get("kind"), plain.get("format")) != ("table", FORMAT):
        raise ValueError(f"this is no tokenizer of tables in format {FORMAT}: it says {plain.get('kind')!r:.40}")
    return TableTokenizer(
        categories=categories_of(plain, str),
        numeric=numeric_of(plain, NumericField),
        fitted_last=count_of(plain, "fitted_last"),
        fitted_rows=count_of(plain, "fitted_rows"),
        zone=require_zone(plain["zone"]),
        columns={name: Column(kind, exponent) for name, (kind, exponent) in plain["columns"].items()},
    )


def raw_fields(names: Iterable[str], zone: str) -> dict[str, pl.Expr]:
    """What tokens are made of: a column as it is, or what the calendar says of an event.

    The first event of an entity has no gap. The frame must be in canonical order.
    """
    known, time = pl.col("available_time"), pl.col("event_time")
    local = pl.from_epoch(time, time_unit="ns").dt.replace_time_zone("UTC").dt.convert_time_zone(zone)
    calendar = {
        "gap": pl.when(pl.col("entity") == pl.col("entity").shift(1)).then(known - known.shift(1)),
        "clock": wall_clock(time, zone),
        "weekday": local.dt.weekday().cast(pl.String),
        "monthday": local.dt.day().cast(pl.String),
    }
    return {name: calendar.get(name, pl.col(name)) for name in names}


def is_category(name: str, columns: Mapping[str, Column]) -> bool:
    """Whether a field has categories, and no bins."""
    return name in _DAYS or (name in columns and columns[name].kind == "category")


def known_fields(
    columns: Mapping[str, Column], fields: Sequence[str] | None, n_bins: int, min_count: int
) -> tuple[str, ...]:
    """The token fields that are asked for, all when None.

    Raises:
        ValueError: a column with a name of the calendar, a field that is not known or stands twice, or numbers that
            cannot be.
    """
    require_numbers(n_bins, min_count)
    taken = sorted({*CALENDAR, *LINEAR} & set(columns))
    if taken:
        raise ValueError(f"column {taken[0]!r} has the name of a field that tokens make; rename it in the source")
    known = (*columns, *CALENDAR)
    names = known if fields is None else tuple(fields)
    unknown = [name for name in names if name not in known]
    if unknown or not names or len(set(names)) != len(names):
        raise ValueError(f"fields must be some of {', '.join(known)}, each once, got {', '.join(names) or 'none'}")
    return names


def require_numbers(n_bins: int, min_count: int) -> None:
    """Refuse numbers of bins and rows that cannot be."""
    if not 2 <= n_bins <= MOST_BINS:
        raise ValueError(f"n_bins must lie in 2 … {MOST_BINS}, got {n_bins}")
    if min_count < 1:
        raise ValueError(f"min_count must be at least 1 row, got {min_count}")


def _frequent(column: pl.Series, min_count: int) -> tuple[str, ...]:
    """The values with `min_count` rows, at most as many as there are codes; ties go by the value."""
    counts = column.drop_nulls().value_counts().filter(pl.col("count") >= min_count)
    chosen = counts.sort(["count", column.name], descending=[True, False]).head(MOST_VALUES)
    return tuple(chosen[column.name].sort())
