"""What a source holds → how its table falls into shards: by entity and period, or by runs of entities."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from quantattn.data.market.encode import schema_of
from quantattn.data.schema import Bars, Events, Filings
from quantattn.data.shards.cut import Period
from quantattn.data.sources.source import Source
from quantattn.data.sources.table import TableSource


@dataclass(frozen=True)
class Partition:
    """A table that is ready to be cut.

    Attributes:
        frame: in canonical order, with the column `by`.
        schema: which every shard must obey.
        by: column whose values part the shards first: "entity", or one of runs of entities, which is in no shard.
        names: its values, ascending in the order of the frame.
        period: where shards end when nobody says; "none" is after so many rows alone.
    """

    frame: pl.LazyFrame
    schema: type[Events]
    by: str
    names: tuple[str, ...]
    period: Period

    @staticmethod
    def of(source: Source, rows: int) -> Partition:
        """How the table of a source is cut into shards of at most so many rows.

        A market has an entity for each of its instruments, and a shard is a day of one, or a year of bars. Of filings
        a shard is a year of one filer. The generic table may have millions of entities with few events each: there a
        shard is a run of whole entities, and only an entity with more rows than a shard has several.
        """
        names = source.frame.collect_schema().names()
        if isinstance(source, TableSource):
            by = "group".ljust(1 + max(map(len, names)), "_")  # as long as none of the table's own
            groups = _groups(source.frame, rows, by)
            frame = source.frame.join(groups.lazy(), on="entity", how="left", maintain_order="left")
            return Partition(frame, Events, by, tuple(groups[by].unique(maintain_order=True)), "none")
        if {"accession", "text"} <= set(names):
            entities = source.frame.select(pl.col("entity").drop_nulls().unique()).collect()["entity"]
            return Partition(source.frame, Filings, "entity", tuple(sorted(entities)), "year")
        schema = schema_of(names)
        instruments = tuple(sorted(each.entity for each in source.instruments))
        return Partition(source.frame, schema, "entity", instruments, "year" if schema is Bars else "day")


def _groups(frame: pl.LazyFrame, rows: int, name: str) -> pl.DataFrame:
    """Entity → its group, the column `name`, in order: as many entities as make `rows` rows, at least one."""
    counts = frame.select(pl.col("entity").drop_nulls()).group_by("entity").len().sort("entity").collect()
    numbers, number, held = [], 0, 0
    for count in counts["len"].to_list():
        if held and held + count > rows:
            number, held = number + 1, 0
        held += count
        numbers.append(number)
    return counts.select("entity", pl.Series(name, [f"{each:08d}" for each in numbers], pl.String))
