"""The rows of a table as typed columns, and why some of them cannot be used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import polars as pl

from quantattn.data.schema import Events
from quantattn.data.sources.source import files_sha256
from quantattn.data.sources.table_files import (
    FAULT,
    LINE,
    TEXT,
    Part,
    TextForm,
    find_files,
    from_frame,
    is_delta,
    is_parquet,
    readable,
    scan_columns,
    scan_text,
)
from quantattn.data.sources.table_types import Clock, Column, is_time

OnBad = Literal["refuse", "quarantine"]
_SET_ASIDE = (pl.col(LINE).alias("line"), pl.col(FAULT).alias("reason"), pl.col(TEXT).alias("text"))


@dataclass(frozen=True)
class Through:
    """Id → entity, from another table."""

    path: Path
    id: str
    to: str

    @staticmethod
    def of(given: Mapping[str, str]) -> Through:
        """Read the setting `through`; ValueError when it lacks something or has more."""
        if set(given) != {"path", "id", "to"}:
            raise ValueError(f"through must have path, id and to, got {', '.join(sorted(given)) or 'nothing'}")
        return Through(Path(given["path"]), given["id"], given["to"])

    def table(self) -> pl.LazyFrame:
        """Columns `_key` and `_entity`, one row a key."""
        parts, _ = open_table(self.path, (self.id, self.to), TextForm())
        read = [
            part.frame.select(_key=pl.col(self.id).cast(pl.String), _entity=pl.col(self.to).cast(pl.String))
            for part in parts
        ]
        table = readable(pl.concat(read), self.path)
        double = table.filter(pl.col("_key").is_duplicated())
        if double.height:
            raise ValueError(
                f"{self.path.name} holds {self.id} {double['_key'][0]!r} twice; expected one {self.to} for each"
            )
        return table.lazy()


@dataclass(frozen=True)
class Plan:
    """What is read from a table, and how."""

    id: str
    time: tuple[str, ...]
    columns: Mapping[str, Column]
    origin_of: Mapping[str, str]
    clock: Clock
    available: str | None
    delay: int
    keep: Mapping[str, tuple[str, ...]]
    through: Through | None
    null_values: tuple[str, ...]
    decimal_comma: bool

    def __post_init__(self) -> None:
        taken = {*Events.columns(), LINE, TEXT, FAULT} & set(self.columns)
        if taken or not self.columns:
            raise ValueError(
                f"columns must name one or more, none of them {', '.join(Events.columns())}; rename others"
            )
        if not self.time:
            raise ValueError("time must name a column")
        if self.available is not None and self.delay:
            raise ValueError("available=COLUMN and delay=DURATION exclude each other: one says when a row is known")

    @property
    def wanted(self) -> tuple[str, ...]:
        """Columns of the file, each once."""
        also = () if self.available is None else (self.available,)
        return tuple(dict.fromkeys((self.id, *self.time, *also, *self.origin_of.values(), *self.keep)))

    def text(self, column: str, dtype: pl.DataType) -> pl.Expr:
        """A column as String, null where it says that its value is missing."""
        value = pl.col(column).fill_nan(None) if dtype.is_float() else pl.col(column)
        text = value.cast(pl.String)
        return pl.when(text.is_in(list(self.null_values)).not_()).then(text)

    def read_time(self, columns: tuple[str, ...], schema: pl.Schema) -> pl.Expr:
        """Int64 ns UTC of these columns."""
        dtype = schema[columns[0]]
        if len(columns) == 1 and is_time(dtype):
            return self.clock.native(pl.col(columns[0]), dtype)
        return self.clock.read(pl.concat_str([self.text(c, schema[c]) for c in columns], separator=" "), dtype)


@dataclass(frozen=True)
class Looked:
    """What the look at every row of a part found."""

    rows: int
    passed_over: int
    blank: int
    left_out: pl.DataFrame = field(repr=False)


@dataclass(frozen=True)
class Typed:
    """A part with its typed columns; `FAULT` says why a row cannot be used."""

    part: Part
    frame: pl.LazyFrame
    passed_over: pl.LazyFrame | None

    @staticmethod
    def of(part: Part, plan: Plan) -> Typed:
        """Type the columns of a part; ValueError when the id can be none."""
        frame, schema = part.frame, part.frame.collect_schema()
        if schema[plan.id].is_float() or schema[plan.id].is_nested():
            raise ValueError(f"{part.name}: the id {plan.id!r} is {schema[plan.id]}, expected text or whole numbers")
        kept = [pl.col(name).cast(pl.String).is_in(list(values)) for name, values in plan.keep.items()]
        passed_over = None
        if kept:
            # A row that is not well formed cannot be judged, and stays to be counted as bad.
            chosen = pl.col(FAULT).is_not_null() | pl.all_horizontal(kept).fill_null(False)
            passed_over, frame = frame.filter(chosen.not_()), frame.filter(chosen)
        entity = plan.text(plan.id, schema[plan.id])
        whose = f"column {plan.id!r} is empty"
        if plan.through is not None:
            frame = frame.with_columns(_key=entity).join(
                plan.through.table(), on="_key", how="left", maintain_order="left"
            )
            entity, whose = pl.col("_entity"), f"{plan.id} is not in {plan.through.path.name}"
        time = plan.read_time(plan.time, schema)
        known = time + plan.delay if plan.available is None else plan.read_time((plan.available,), schema)
        faults = [
            pl.col(FAULT),
            pl.when(entity.is_null()).then(pl.lit(whose)),
            pl.when(time.is_null()).then(pl.lit(f"column {' '.join(plan.time)!r} is not {plan.clock.expected}")),
            pl.when(known.is_null()).then(pl.lit(f"column {plan.available!r} is not {plan.clock.expected}")),
            pl.when(known < time).then(pl.lit("available before it happened")),
        ]
        made = {}
        for name, column in plan.columns.items():
            text = plan.text(plan.origin_of[name], schema[plan.origin_of[name]])
            made[name] = column.read(text, plan.decimal_comma)
            faulty = text.is_not_null() & made[name].is_null()
            faults.append(pl.when(faulty).then(pl.lit(f"column {plan.origin_of[name]!r} is not {column.expected}")))
        typed = frame.select(
            LINE, TEXT, pl.coalesce(faults).alias(FAULT), entity=entity, event_time=time, available_time=known, **made
        )
        return Typed(part, typed, passed_over)

    def look(self, on_bad: OnBad) -> Looked:
        """Read every row once, and bad ones again.

        Raises:
            ValueError: a bad row, when they are refused.
        """
        name = Path(self.part.name)
        good = pl.col(FAULT).is_null()
        found = readable(self.frame.select(rows=good.sum(), bad=good.not_().sum()), name)
        bad = self.frame.filter(good.not_()).select(pl.lit(self.part.name).alias("file"), *_SET_ASIDE)
        left_out = readable(bad.head(1 if on_bad == "refuse" else found["bad"][0]), name)
        if on_bad == "refuse" and left_out.height:
            _, line, reason, text = left_out.row(0)
            raise ValueError(f"{self.part.name}:{line}: {reason}; the row is {text[:200]!r}")
        passed, blank = (
            0 if frame is None else int(readable(frame.select(pl.len()), name).item())
            for frame in (self.passed_over, self.part.blank)
        )
        return Looked(found["rows"][0], passed, blank, left_out)


def open_table(
    path: str | Path | pl.LazyFrame, wanted: Sequence[str], form: TextForm
) -> tuple[list[Part], dict[str, str]]:
    """The parts of a table in order, and the hashes of its files."""
    if isinstance(path, pl.LazyFrame):
        return [from_frame(path, wanted, "the frame")], {}
    root = Path(path)
    if is_delta(root):
        files = sorted(file for file in root.rglob("*") if file.is_file())
        parts = [scan_columns(root, wanted, root.name)]
    else:
        files = find_files(root)
        if is_parquet(files[0]):
            parts = [scan_columns(files, wanted, root.name)]
        else:
            parts = [scan_text(file, form, wanted) for file in files]
    inside = root.is_dir()
    return parts, files_sha256({str(file.relative_to(root)) if inside else file.name: file for file in files})
