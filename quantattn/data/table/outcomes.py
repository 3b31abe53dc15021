"""What became of each entity: a label from a file, and the time from which it is to be foreseen.

A label may have a date: then only what was known strictly before that date is input, and the decision is made as of it.
Without a date the whole history is input, and the decision is made as of the entity's last event; nothing then shows
that the outcome was not known earlier.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from quantattn.data.sources.table_files import FAULT, LINE, TEXT, TextForm, readable
from quantattn.data.sources.table_rows import open_table
from quantattn.data.sources.table_types import Clock, duration, is_time

Ints = npt.NDArray[np.int64]
NO_LABEL, NO_EVENT, SAME_HISTORY = "no label", "no event before the label", "no event since an earlier label"


@dataclass(frozen=True)
class Outcomes:
    """A table of outcomes, read when the data are.

    Attributes:
        path: a text or Parquet file, as `scan_table` takes it.
        id: column of the entity.
        label: column of the outcome.
        date: column of the time from which the outcome is to be foreseen; None: as of the entity's last event.
        time_format: how `date` is written, see `Clock`.
        zone: of dates that name none.
        origin: YYYY-MM-DD of day number 0, for time_format "day".
        after: what is added to the date: "1d" lets the events of the date itself be input.
        horizon: how long after that the outcome is known; a split in time purges training decisions whose outcome was
            not known yet when a later part begins.
        classes: name of a class → the values of `label` in it, in order; None: every value is a class, in order.
        null_values: texts that say that there is no label.
        separator: of a text file; None finds it.

    Raises:
        ValueError: a setting that cannot be, or no such file.
    """

    path: str
    id: str
    label: str
    date: str | None = None
    time_format: str = "iso"
    zone: str = "UTC"
    origin: str = "1970-01-01"
    after: str | int = 0
    horizon: str | int = 0
    classes: Mapping[str, Sequence[str | int]] | None = None
    null_values: Sequence[str] = ("",)
    separator: str | None = None

    def __post_init__(self) -> None:
        Clock(self.time_format, self.zone, str(self.origin))
        duration(self.horizon)
        if duration(self.after) and self.date is None:
            raise ValueError("after=DURATION goes with date=COLUMN")
        values = [str(value) for values in (self.classes or {}).values() for value in values]
        if self.classes is not None and (len(self.classes) < 2 or len(set(values)) < len(values)):
            raise ValueError(f"classes must be two or more, with no value in two of them, got {dict(self.classes)}")
        if not Path(self.path).exists():
            raise ValueError(f"{self.path}: there is no such file of outcomes")

    @property
    def hashes(self) -> dict[str, str]:
        """Name → sha256 of the file."""
        return open_table(self.path, (self.id, self.label), TextForm(self.separator))[1]

    def notes(self) -> tuple[str, ...]:
        """What nobody can know from the file."""
        if self.date is None:
            return (
                "outcomes carry no date: each is predicted as of the entity's last event, and nothing shows that it "
                "was not known by then",
            )
        if not duration(self.horizon):
            return ("nothing says when an outcome was known: a split in time needs labels.horizon to purge by it",)
        return ()

    def read(self) -> pl.DataFrame:
        """Rows `entity`, `as_of` (Int64 ns UTC, null when there is no date) and `label` (null when there is none).

        Raises:
            ValueError: a row that cannot be used, by its line; two outcomes of one entity and date.
        """
        dated = () if self.date is None else (self.date,)
        parts, _ = open_table(self.path, (self.id, self.label, *dated), TextForm(self.separator))
        frames = []
        for part in parts:
            schema = part.frame.collect_schema()
            label = pl.col(self.label).cast(pl.String)
            time: pl.Expr = pl.lit(None, dtype=pl.Int64)
            wrong: pl.Expr = pl.lit(None, dtype=pl.String)
            if self.date is not None:
                clock, dtype = Clock(self.time_format, self.zone, str(self.origin)), schema[self.date]
                date = pl.col(self.date)
                time = clock.native(date, dtype) if is_time(dtype) else clock.read(date.cast(pl.String), dtype)
                wrong = pl.when(time.is_null()).then(pl.lit(f"column {self.date!r} is not {clock.expected}"))
            entity = pl.col(self.id).cast(pl.String)
            empty = pl.when(entity.is_null() | (entity == "")).then(pl.lit(f"column {self.id!r} is empty"))
            rows = part.frame.select(
                LINE,
                TEXT,
                pl.coalesce(pl.col(FAULT), empty, wrong).alias(FAULT),
                entity=entity,
                as_of=time + duration(self.after),
                label=pl.when(label.is_in(list(self.null_values)).not_()).then(label),
            )
            frames.append(_sound(readable(rows, Path(part.name)), part.name))
        found = pl.concat(frames)
        double = found.filter(pl.struct("entity", "as_of").is_duplicated())
        if double.height:
            raise ValueError(
                f"{Path(self.path).name} holds two outcomes of {double['entity'][0]!r}; expected one a date"
            )
        return found

    def names(self, labels: pl.Series) -> tuple[str, ...]:
        """Names of the classes in order of their codes; whole numbers in numerical order, other text by letter.

        Raises:
            ValueError: fewer than two classes.
        """
        if self.classes is not None:
            return tuple(self.classes)
        found = labels.drop_nulls().unique()
        numbers = found.cast(pl.Int64, strict=False)
        ordered = found.sort() if numbers.null_count() else found.gather(numbers.arg_sort())
        if len(ordered) < 2:
            raise ValueError(
                f"{Path(self.path).name} holds {len(ordered)} classes of {self.label!r}; expected two or more"
            )
        return tuple(ordered)

    def codes(self, labels: pl.Series) -> pl.Series:
        """Int64 class of each label; null where there is none.

        Raises:
            ValueError: a label that is in none of `classes`.
        """
        groups = {name: [name] for name in self.names(labels)} if self.classes is None else self.classes
        code = {str(value): number for number, values in enumerate(groups.values()) for value in values}
        stray = labels.drop_nulls().filter(labels.drop_nulls().is_in(list(code)).not_())
        if len(stray):
            raise ValueError(f"label {stray[0]!r} is in none of the classes {', '.join(groups)}")
        return labels.replace_strict(list(code), list(code.values()), default=None, return_dtype=pl.Int64)


def decide(events: pl.DataFrame, outcomes: pl.DataFrame) -> tuple[pl.DataFrame, dict[str, int]]:
    """The row of `events` with which each decision is made: the last one known strictly before `as_of`.

    Args:
        events: in canonical order.
        outcomes: `entity`, `as_of` (null: after the entity's last event), `label`.

    Returns:
        Decisions sorted by entity and time, with `row`, `first` (the entity's first row) and `as_of` filled in; and
        reason → outcomes left out.
    """
    runs = events["entity"].rle().struct.unnest()
    stop = runs["len"].cast(pl.Int64).cum_sum()
    spans = pl.DataFrame({"entity": runs["value"], "first": stop - runs["len"].cast(pl.Int64), "stop": stop})
    dropped = {NO_LABEL: outcomes["label"].null_count()}
    joined = outcomes.filter(pl.col("label").is_not_null()).join(spans, on="entity", how="left")
    known = joined.filter(pl.col("first").is_not_null())
    time = events["available_time"].to_numpy()
    first, stop_ = known["first"].to_numpy(), known["stop"].to_numpy()
    dated = known["as_of"].is_not_null().to_numpy()
    row = np.where(dated, _last_before(time, first, stop_, known["as_of"].fill_null(0).to_numpy()), stop_ - 1)
    found = known.with_columns(row=row).filter(pl.col("row") >= pl.col("first"))
    found = found.with_columns(as_of=pl.coalesce("as_of", pl.Series(time[found["row"].to_numpy()])))
    found = found.sort("entity", "as_of")
    kept = found.filter(pl.col("row").is_first_distinct())
    dropped[NO_EVENT] = joined.height - found.height
    dropped[SAME_HISTORY] = found.height - kept.height
    return kept.select("entity", "as_of", "label", "first", "row"), {why: n for why, n in dropped.items() if n}


def _last_before(time: Ints, first: Ints, stop: Ints, as_of: Ints) -> Ints:
    """For each decision the last row in first … stop − 1 with time < as_of, or first − 1; times rise in each span."""
    low, high = first.copy(), stop.copy()
    while (open_ := low < high).any():
        middle = (low + high) // 2
        earlier = open_ & (time[np.where(open_, middle, 0)] < as_of)
        low = np.where(earlier, middle + 1, low)
        high = np.where(open_ & ~earlier, middle, high)
    return np.asarray(low - 1, np.int64)


def _sound(rows: pl.DataFrame, name: str) -> pl.DataFrame:
    bad = rows.filter(pl.col(FAULT).is_not_null())
    if bad.height:
        line, text, fault = bad.select(LINE, TEXT, FAULT).row(0)
        raise ValueError(f"{name}:{line}: {fault}; the row is {text[:200]!r}")
    return rows.select("entity", "as_of", "label")
