"""A stream of events in canonical order → stretches of one entity and period, of bounded length."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import polars as pl

from quantattn.data.shards.layout import Place

Period = Literal["day", "month", "year", "none"]
_FORMS: Mapping[str, str] = {"day": "%Y-%m-%d", "month": "%Y-%m", "year": "%Y", "none": "none"}


@dataclass(frozen=True)
class Cutting:
    """Where shards end: with the entity, with the period, and after so many rows of a period.

    Attributes:
        period: "day", "month" or "year" of `available_time`; "none": with the rows alone.
        zone: time zone of the days.
        rows: the most rows of a shard.
    """

    period: Period = "day"
    zone: str = "UTC"
    rows: int = 500_000

    def __post_init__(self) -> None:
        if self.period not in get_args(Period):
            raise ValueError(f"period must be one of {', '.join(get_args(Period))}, got {self.period!r}")
        if self.rows < 1:
            raise ValueError(f"rows of a shard must be at least 1, got {self.rows}")

    def column(self) -> pl.Expr:
        """The day on which the period of each row begins; null for "none"."""
        if self.period == "none":
            return pl.lit(None, pl.Date).alias("period")
        time = pl.from_epoch("available_time", time_unit="ns").dt.replace_time_zone("UTC")
        date = time.dt.convert_time_zone(self.zone).dt.date()
        return (date if self.period == "day" else date.dt.truncate("1mo" if self.period == "month" else "1y")).alias(
            "period"
        )


@dataclass(frozen=True)
class Stretch:
    """Rows of one shard; `last` says that the entity has no more of them."""

    place: Place
    rows: pl.DataFrame
    last: bool


class Cutter:
    """Cuts batches, taken one after the other, into stretches. Holds the rows of one shard and of one batch.

    Args:
        cutting: where shards end.
        piece: identifier of the part of the source.
        done: entity → the last of its shards that stand; its stream then begins after that.
        by: column that says what an entity is here.
    """

    def __init__(self, cutting: Cutting, piece: str, done: Mapping[str, Place], by: str = "entity") -> None:
        self.cutting, self.piece, self.done, self.by = cutting, piece, done, by
        self._held: list[pl.DataFrame] = []
        self._next: Place | None = None

    def take(self, batch: pl.DataFrame) -> Iterator[Stretch]:
        """The stretches that end with this batch.

        Raises:
            ValueError: an entity comes after one that sorts behind it.
        """
        runs = batch.select(pl.struct(pl.col(self.by), self.cutting.column()).rle().alias("run")).unnest("run")
        start = 0
        for length, run in runs.iter_rows():
            begins, form = run["period"], _FORMS[self.cutting.period]
            yield from self._open(run[self.by], form if begins is None else begins.strftime(form))
            self._held.append(batch.slice(start, length))
            start += length
            while sum(each.height for each in self._held) > self.cutting.rows:
                yield self._close(last=False, rows=self.cutting.rows)

    def rest(self) -> Iterator[Stretch]:
        """What is left when the stream has ended."""
        if self._next is not None:
            yield self._close(last=True)
            self._next = None

    def _open(self, entity: str, period: str) -> Iterator[Stretch]:
        here = self._next
        if here is not None and (here.entity, here.period) == (entity, period):
            return
        if here is not None:
            if entity < here.entity:
                raise ValueError(
                    f"events of {entity!r} come after those of {here.entity!r}: a table is sorted by entity"
                )
            yield self._close(last=entity != here.entity)
            here = self._next
        if here is None or here.entity != entity:
            before = self.done.get(entity)
            here = Place(entity, self.piece, "", 0, 0) if before is None else _after(before)
        self._next = Place(entity, self.piece, period, here.part if here.period == period else 0, here.nth)

    def _close(self, *, last: bool, rows: int | None = None) -> Stretch:
        assert self._next is not None
        place, held = self._next, pl.concat(self._held)
        taken = held if rows is None else held.head(rows)
        self._held = [held.slice(taken.height)] if taken.height < held.height else []
        self._next = _after(place)
        return Stretch(place, taken, last)


def _after(place: Place) -> Place:
    """The next shard, if it is of the same period."""
    return Place(place.entity, place.piece, place.period, place.part + 1, place.nth + 1)
