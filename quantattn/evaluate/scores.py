"""Any table of scores, ours or not: Parquet, CSV or Delta, read, checked and ordered for judging.

A row is what was said of one entity at one time, with what came after. What the columns are called is asked for; what a
row lacks is counted; what cannot be right is refused with the row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from quantattn.evaluate.baselines import HISTORY, PERSISTENCE
from quantattn.evaluate.panel import Floats, Panel, as_panel
from quantattn.evaluate.past import REVERSAL, ZERO

Kind = Literal["return", "value", "class"]
KINDS: tuple[Kind, ...] = ("return", "value", "class")
PROBABILITY = "prob_"
EARLIEST = 10**17
"""Whole numbers below this are no nanoseconds of a market: they would lie in 1973 or before."""


@dataclass(frozen=True)
class Columns:
    """What the columns of a table are called; None for one that is not there.

    Attributes:
        entity: who, any type.
        time: when the score was used: a date, a datetime (UTC where it names no zone) or whole nanoseconds UTC.
        score: a number, high for a high outcome; of kind "class" the columns `prob_<class>` are taken instead.
        outcome: what came after: a return, a value, or a class by its name or number; missing where there is none.
        horizon: a column of whole steps, from one time of the table to a later one, that an outcome spans.
        end: when the outcome was known, in the types of `time`.
        available: when the score was there to be used, in the types of `time`; no later than `time`.
        volume: traded value of the entity in a period, in any currency, for the capacity curve.
        volatility: standard deviation of its returns a period; from its known outcomes when there is none.
        regime: a name for the state of the market at the time, the same in all rows of a time.
        beside: scores of other methods, to stand beside as baselines.
    """

    entity: str = "entity"
    time: str = "time"
    score: str = "score"
    outcome: str = "outcome"
    horizon: str | None = None
    end: str | None = None
    available: str | None = None
    volume: str | None = None
    volatility: str | None = None
    regime: str | None = None
    beside: tuple[str, ...] = ()

    def named(self, kind: Kind) -> list[str]:
        """The columns that have to be there."""
        optional = (self.horizon, self.end, self.available, self.volume, self.volatility, self.regime)
        score = [] if kind == "class" else [self.score]
        return [self.entity, self.time, *score, self.outcome, *(c for c in optional if c), *self.beside]


@dataclass(frozen=True)
class Scores:
    """Scores of one horizon, checked and ordered by (time, entity).

    Attributes:
        data: (Q,) rows with their outcomes.
        score: (Q,) the method's scores; of kind "class" (Q, C) probabilities.
        beside: name → scores of other methods, all present.
        classes: C names, empty unless of kind "class".
        volume: (Q,), volatility: (Q,): NaN where not given.
        regime: (T,) names of times, None where there is none.
        rows: rows read.
        dropped: reason → rows set aside.
        notes: what else a reader has to know.
    """

    data: Panel
    score: Floats
    beside: Mapping[str, Floats] = field(default_factory=dict)
    classes: tuple[str, ...] = ()
    volume: Floats | None = None
    volatility: Floats | None = None
    regime: tuple[str | None, ...] | None = None
    rows: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def scan_table(path: str | Path) -> pl.LazyFrame:
    """A Parquet or CSV file, a Delta table, or a folder of Parquet files.

    Raises:
        ValueError: there is nothing, or something else.
    """
    place = Path(path)
    if (place / "_delta_log").is_dir():
        return pl.scan_delta(str(place))
    if place.is_dir():
        if not any(place.glob("*.parquet")):
            raise ValueError(f"{place} is a folder without *.parquet and without a Delta log")
        return pl.scan_parquet(place / "*.parquet")
    if not place.is_file():
        raise ValueError(f"{place}: there is no such file or folder")
    if place.suffix in (".parquet", ".pq"):
        return pl.scan_parquet(place)
    if place.suffix in (".csv", ".gz"):
        return pl.scan_csv(place, try_parse_dates=True, infer_schema_length=10_000)
    raise ValueError(f"{place} ends in {place.suffix!r}, expected .parquet, .csv, .csv.gz or a Delta table")


def with_outcomes(table: pl.LazyFrame, outcomes: pl.LazyFrame, columns: Columns) -> pl.LazyFrame:
    """Scores with the outcomes of another table, joined by entity and time, and by horizon where that has one.

    A score without a row there has no outcome. Where only the outcomes have a horizon, a score is judged at each.

    Raises:
        ValueError: a column that lacks, the scores have an outcome already, or an entity twice at one time.
    """
    c = columns
    ours, theirs = _names(table), _names(outcomes)
    if c.outcome not in theirs or c.outcome in ours:
        raise ValueError(f"the column {c.outcome!r} must stand in the outcomes and not in the scores")
    if lacking := [n for n in (c.entity, c.time) if n not in ours or n not in theirs]:
        raise ValueError(
            f"scores and outcomes are joined by {c.entity} and {c.time}; {lacking[0]!r} lacks in one of them"
        )
    keys = [c.entity, c.time, *([c.horizon] if c.horizon in theirs and c.horizon else [])]
    extra = [n for n in (c.outcome, c.end, c.volume, c.volatility, c.regime) if n in theirs and n not in ours and n]
    scores, after = (
        frame.with_columns(_nanoseconds(frame[c.time]), frame[c.entity].cast(pl.String))
        for frame in (_collect(table), _collect(outcomes.select([*keys, *extra])))
    )
    if (twice := after.filter(after.select(keys).is_duplicated())).height:
        raise ValueError(f"the outcomes have {twice.height:,} rows that share {', '.join(keys)}, expected one each")
    if c.horizon in theirs and c.horizon and c.horizon not in ours:
        scores = scores.join(after.select(c.horizon).unique(), how="cross")
    return scores.join(after, on=keys, how="left", maintain_order="left").lazy()


def read_scores(
    table: pl.LazyFrame | pl.DataFrame, kind: Kind, columns: Columns | None = None, *, horizon: int | None = None
) -> dict[int, Scores]:
    """Scores by horizon, shortest first.

    Args:
        table: see `scan_table`; needed columns alone are read.
        kind: "return": the outcome is a simple return and the score orders entities; "value": the score is a forecast
            of the outcome, in its units; "class": probabilities of an outcome that is a class.
        columns: what they are called.
        horizon: steps that every outcome spans, for a table without a column for it; None is one, and refused where
            entities do not share their times, because a step of such a table says nothing of when an outcome ends.

    Raises:
        ValueError: a column that lacks or has the wrong type, a score that was available after its time, a baseline
            without a score, no row that is left, probabilities that are none, or see `as_panel`.
    """
    c = columns or Columns()
    there = _names(table.lazy())
    probabilities = [name for name in there if name.startswith(PROBABILITY)] if kind == "class" else []
    needed = c.named(kind)
    if lacking := [name for name in needed if name not in there]:
        raise ValueError(f"the table has no column {', '.join(map(repr, lacking))}; it has {', '.join(there)}")
    if sum(given is not None for given in (c.horizon, c.end, horizon)) > 1:
        raise ValueError("give one of horizon, end and steps: each says when an outcome was known")
    if kind == "class" and c.beside:
        raise ValueError(f"kind=class takes no scores of other methods beside, got {', '.join(c.beside)}")
    if taken := sorted({"score", HISTORY, PERSISTENCE, REVERSAL, ZERO} & set(c.beside)):
        raise ValueError(f"{taken[0]!r} is what the page calls a method of its own: rename the column to set it beside")
    if kind == "class" and len(probabilities) < 2:
        raise ValueError(f"kind=class needs two columns {PROBABILITY}<class> or more, found {probabilities}")
    frame = _collect(table.lazy().select(list(dict.fromkeys([*needed, *probabilities]))).with_row_index("_row"))
    rows = frame.height
    times = {name: _nanoseconds(frame[name]) for name in (c.time, c.end, c.available) if name}
    classes = tuple(name.removeprefix(PROBABILITY) for name in probabilities)
    numbers = [*(probabilities or [c.score]), *c.beside, *(n for n in (c.volume, c.volatility) if n)]
    frame = frame.with_columns(
        *(series.alias(name) for name, series in times.items()),
        *(_numbers(frame[name]) for name in numbers),
        _classes(frame[c.outcome], classes) if kind == "class" else _numbers(frame[c.outcome]),
    )
    frame, dropped = _complete(frame, {"entity": [c.entity], "time": [c.time], "score": probabilities or [c.score]})
    if c.available:
        _not_late(frame, c.available, c.time)
    for name in c.beside:
        if empty := int((~frame[name].is_finite().fill_null(False)).sum()):
            raise ValueError(f"{name!r} has no score in {empty:,} rows in which the method has one")
    if frame.height == 0:
        raise ValueError(f"none of the {rows:,} rows has an entity, a time and a score")
    if horizon is None and not (c.horizon or c.end):
        _shared(frame, c)
    parts = {1 if horizon is None else horizon: frame}
    if c.horizon:
        if not frame[c.horizon].dtype.is_integer() or frame[c.horizon].null_count():
            raise ValueError(f"{c.horizon!r} must hold whole steps in every row, got {frame[c.horizon].dtype}")
        parts = {int(k[0]): v for k, v in sorted(frame.partition_by(c.horizon, as_dict=True).items())}
    return {steps: _scores(part, steps, c, probabilities, classes, rows, dropped) for steps, part in parts.items()}


def _names(table: pl.LazyFrame) -> list[str]:
    try:
        return table.collect_schema().names()
    except pl.exceptions.PolarsError as error:
        raise ValueError(f"the table cannot be read: {error}") from error


def _collect(table: pl.LazyFrame) -> pl.DataFrame:
    try:
        return table.collect()
    except pl.exceptions.PolarsError as error:
        raise ValueError(f"the table cannot be read: {error}") from error


def _scores(
    frame: pl.DataFrame,
    horizon: int,
    c: Columns,
    probabilities: list[str],
    classes: tuple[str, ...],
    rows: int,
    dropped: Mapping[str, int],
) -> Scores:
    end = frame[c.end].to_numpy() if c.end else None
    if c.end and frame[c.end].null_count():
        raise ValueError(f"{c.end!r} is missing in {frame[c.end].null_count():,} rows")
    data, order = as_panel(
        frame[c.time].to_numpy(), frame[c.entity].to_numpy(), _array(frame, c.outcome), horizon=horizon, end=end
    )
    score = np.column_stack([_array(frame, n) for n in probabilities]) if probabilities else _array(frame, c.score)
    if probabilities:
        score = _sum_to_one(score, frame["_row"].to_numpy())
    given = {name: _array(frame, name)[order] if name else None for name in (c.volume, c.volatility)}
    regime = _regimes(frame[c.regime].cast(pl.String).to_list(), order, data) if c.regime else None
    return Scores(
        data=data,
        score=score[order],
        beside={name: _array(frame, name)[order] for name in c.beside},
        classes=classes,
        volume=given[c.volume] if c.volume else None,
        volatility=given[c.volatility] if c.volatility else None,
        regime=regime,
        rows=rows,
        dropped=dict(dropped),
    )


def _array(frame: pl.DataFrame, name: str) -> Floats:
    return frame[name].cast(pl.Float64).fill_null(np.nan).to_numpy().astype(np.float64)


def _regimes(names: list[str | None], order: NDArray[np.int64], data: Panel) -> tuple[str | None, ...]:
    found: list[str | None] = [None] * data.times.size
    for row, at in zip(order.tolist(), data.at.tolist(), strict=True):
        if found[at] not in (None, names[row]):
            raise ValueError(f"time {data.times[at]} is in two regimes, {found[at]!r} and {names[row]!r}")
        found[at] = names[row]
    return tuple(found)


def _nanoseconds(column: pl.Series) -> pl.Series:
    """Times as int64 ns UTC."""
    kind = column.dtype
    if isinstance(kind, pl.Datetime):
        if kind.time_zone:
            column = column.dt.convert_time_zone("UTC").dt.replace_time_zone(None)
        return column.cast(pl.Datetime("ns")).cast(pl.Int64)
    if kind == pl.Date:
        return column.cast(pl.Datetime("ns")).cast(pl.Int64)
    if kind.is_integer():
        found = column.cast(pl.Int64)
        if isinstance(smallest := found.min(), int) and smallest < EARLIEST:
            raise ValueError(
                f"{column.name!r} holds {smallest}; whole numbers are nanoseconds UTC, expected ≥ {EARLIEST}"
            )
        return found
    raise ValueError(f"{column.name!r} is {kind}, expected a date, a datetime or whole nanoseconds UTC")


def _numbers(column: pl.Series) -> pl.Series:
    """Numbers as float64; infinite ones are refused."""
    if not column.dtype.is_numeric() and column.dtype != pl.Null:
        raise ValueError(f"{column.name!r} is {column.dtype}, expected numbers")
    found = column.cast(pl.Float64)
    if (bad := found.is_infinite().fill_null(False)).any():
        raise ValueError(f"{column.name!r} is infinite in row {bad.arg_true()[0]}, expected finite numbers or none")
    return found


def _classes(column: pl.Series, classes: tuple[str, ...]) -> pl.Series:
    """Classes by their names, or by their numbers 0 … C − 1, as float64."""
    names = column.cast(pl.String)
    numbers = {name: float(i) for i, name in enumerate(classes)}
    if unknown := sorted(set(names.drop_nulls().unique().to_list()) - set(numbers)):
        numbers = {str(i): float(i) for i in range(len(classes))}
        if sorted(set(names.drop_nulls().unique().to_list()) - set(numbers)):
            raise ValueError(
                f"{column.name!r} holds {unknown[0]!r}, expected one of {', '.join(classes)} or its number"
            )
    return names.replace_strict(numbers, default=None, return_dtype=pl.Float64).alias(column.name)


def _complete(frame: pl.DataFrame, needed: Mapping[str, list[str]]) -> tuple[pl.DataFrame, dict[str, int]]:
    """The rows in which nothing needed lacks, and how many lacked what."""
    dropped = {}
    for what, names in needed.items():
        there = pl.all_horizontal(
            *(pl.col(n).is_not_null() & (pl.col(n).is_not_nan() if frame[n].dtype.is_float() else True) for n in names)
        )
        kept = frame.filter(there)
        if kept.height < frame.height:
            dropped[f"no {what}"] = frame.height - kept.height
        frame = kept
    return frame, dropped


def _shared(frame: pl.DataFrame, c: Columns) -> None:
    times, entities = frame[c.time].n_unique(), frame[c.entity].n_unique()
    if entities > 1 and frame.height < 2 * times:
        raise ValueError(
            f"{frame.height:,} rows of {entities:,} entities lie at {times:,} times, which they do not share: say when "
            "each outcome was known (end), or how many of the table's times it spans (horizon, steps)"
        )


def _not_late(frame: pl.DataFrame, available: str, time: str) -> None:
    if unsaid := frame[available].null_count():
        raise ValueError(f"{available!r} is missing in {unsaid:,} rows that have a score")
    late = frame.filter(pl.col(available) > pl.col(time))
    if late.height:
        row = late.row(0, named=True)
        raise ValueError(
            f"a leak: {late.height:,} scores were available after the time at which they are used, the first in row "
            f"{row['_row']}: {available!r} is {row[available]}, {time!r} {row[time]}"
        )


def _sum_to_one(prob: Floats, rows: NDArray[np.uint32]) -> Floats:
    wrong = ~((prob >= 0).all(axis=1) & (np.abs(prob.sum(axis=1) - 1) <= 1e-3))
    if wrong.any():
        first = int(wrong.argmax())
        raise ValueError(
            f"the probabilities of row {rows[first]} are {prob[first].tolist()}, expected ≥ 0 and of sum 1"
        )
    return prob
