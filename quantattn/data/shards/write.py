"""Writing one part of a source as shards: what stands already is left alone, what was begun is gone on with."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from pathlib import Path

import polars as pl

from quantattn.data.files import put
from quantattn.data.schema import CANONICAL_ORDER, Events, check
from quantattn.data.shards.cut import Cutter, Cutting, Stretch
from quantattn.data.shards.layout import Place, entity_folder, sidecars
from quantattn.data.shards.records import Shard

BATCH = 65_536
"""Rows that are asked of the source at once, and rows of a row group."""


@dataclass
class Tally:
    """What became of the shards: written, found standing with the same bytes, removed; and rows that were read."""

    written: int = 0
    kept: int = 0
    removed: int = 0
    rows: int = 0

    def __add__(self, other: Tally) -> Tally:
        return Tally(*(getattr(self, name) + getattr(other, name) for name in vars(self)))


@dataclass(frozen=True)
class Standing:
    """Shards of one piece that are in the folder, whole.

    Attributes:
        by_file: every one, by the file that holds it.
        runs: entity → those made from this very source that follow each other from its first event.
    """

    by_file: Mapping[Path, Shard]
    runs: Mapping[str, tuple[Shard, ...]] = field(default_factory=dict)

    @staticmethod
    def of(folder: Path, piece: str, key: str) -> Standing:
        """Those whose bytes have the hash of their sidecar."""
        found = [shard for path in sidecars(folder, piece) if (shard := Shard.read(path)) is not None]
        runs: dict[str, list[Shard]] = {}
        for shard in sorted(found, key=lambda each: each.place.nth):
            run = runs.setdefault(shard.place.entity, [])
            if shard.key == key and shard.place.nth == len(run):
                run.append(shard)
        return Standing(
            {shard.place.file: shard for shard in found}, {name: tuple(run) for name, run in runs.items() if run}
        )

    def complete(self, entity: str) -> bool:
        """Whether nothing of the entity is left to write."""
        return entity in self.runs and self.runs[entity][-1].last


@dataclass(frozen=True)
class Writing:
    """One piece on its way into the folder.

    Attributes:
        folder: of the shards.
        piece: identifier of the part of the source.
        key: sha256 of what it is made from.
        schema: which every shard must obey.
        cutting: where shards end.
        named: entities that the source is known to have: those with an instrument, where it has instruments.
        by: column that says what an entity is here.
        watch: is told of rows as they are done.
    """

    folder: Path
    piece: str
    key: str
    schema: type[Events]
    cutting: Cutting
    named: frozenset[str]
    by: str
    watch: Callable[[int], None]

    def write(self, frame: pl.LazyFrame, entities: Collection[str], standing: Standing) -> Tally:
        """Write what is lacking of these entities, and remove their shards that the source no longer has.

        Raises:
            ValueError: a row breaks the schema or the order.
        """
        tally = Tally(kept=sum(len(standing.runs.get(name, ())) for name in entities))
        lacking = [name for name in sorted(entities) if not standing.complete(name)]
        if not lacking:
            return tally
        done = {name: standing.runs[name][-1] for name in lacking if name in standing.runs}
        known = {shard.place.file for name in lacking for shard in standing.runs.get(name, ())}
        before = dict(done)
        for stretch in self._stretches(frame.filter(self._wanted(lacking, done) | self._unnamed()), done):
            made, fresh = self._put(stretch, before.get(stretch.place.entity), standing)
            before[stretch.place.entity] = made
            known.add(made.place.file)
            tally += Tally(written=int(fresh), kept=int(not fresh), rows=made.rows)
            self.watch(made.rows)
        for name in lacking:
            if name not in before:
                made, fresh = self._put(self._nothing(frame, name), None, standing)
                known.add(made.place.file)
                tally += Tally(written=int(fresh), kept=int(not fresh))
            elif not before[name].last:
                self._end(before[name])
        folders = {entity_folder(name) for name in lacking}
        for path in list(sidecars(self.folder, self.piece)):
            if path.parent.name in folders and path.relative_to(self.folder).with_suffix(".parquet") not in known:
                remove(path)
                tally.removed += 1
        return tally

    def _stretches(self, frame: pl.LazyFrame, done: Mapping[str, Shard]) -> Iterator[Stretch]:
        cutter = Cutter(self.cutting, self.piece, {name: shard.place for name, shard in done.items()}, self.by)
        for batch in frame.collect_batches(chunk_size=BATCH, maintain_order=True):
            if not batch.height:
                continue
            if batch.select(*{"entity", self.by, "available_time"}).null_count().sum_horizontal()[0]:
                check(batch, self.schema)
            yield from cutter.take(batch)
        yield from cutter.rest()

    def _put(self, stretch: Stretch, before: Shard | None, standing: Standing) -> tuple[Shard, bool]:
        """The shard, and whether its file had to be written."""
        rows, place = check(stretch.rows, self.schema), stretch.place
        if self.by != "entity":
            rows = rows.drop(self.by)
        if place.entity not in self.named:
            raise ValueError(f"no instrument is given for {place.entity}, so its tick is unknown")
        times = rows.select("available_time", "seq").sort("available_time", "seq")
        first, final = (times.row(0), times.row(-1)) if rows.height else ((0, 0), (0, 0))
        if before is not None and rows.height and first <= before.final:
            raise ValueError(
                f"events of {place.entity!r} are out of order: available_time and seq {first} follow {before.final}"
            )
        buffer = io.BytesIO()
        rows.rechunk().write_parquet(buffer, compression="zstd", statistics=True, row_group_size=BATCH)
        data = buffer.getbuffer()
        columns = tuple((name, str(kind)) for name, kind in rows.schema.items())
        digest = hashlib.sha256(data).hexdigest()
        shard = Shard(place, self.key, stretch.last, rows.height, first, final, columns, digest, len(data))
        old = standing.by_file.get(place.file)
        fresh = old is None or old.sha256 != digest
        # The sidecar comes first: killed in between, it speaks of bytes that are not there, and they are made again.
        if shard != old:
            shard.write(self.folder)
        if fresh:
            put(shard.path(self.folder), bytes(data))
        return shard, fresh

    def _nothing(self, frame: pl.LazyFrame, entity: str) -> Stretch:
        """The one shard, without rows, of an entity that the source names and of which it has no event."""
        empty = pl.DataFrame(schema=frame.collect_schema())  # with `by`, as the other stretches have
        return Stretch(Place(entity, self.piece, "none", 0, 0), empty, True)

    def _end(self, shard: Shard) -> None:
        """Say that this is the entity's last shard: the rows that were left to read were none."""
        Shard(**{**vars(shard), "last": True}).write(self.folder)

    def _wanted(self, lacking: Collection[str], done: Mapping[str, Shard]) -> pl.Expr:
        """The rows of these entities that come after the shards that stand."""
        parts = [pl.col(self.by).is_in([name for name in lacking if name not in done])]
        for name, shard in done.items():
            time, seq = shard.final
            later = (pl.col("available_time") > time) | ((pl.col("available_time") == time) & (pl.col("seq") > seq))
            parts.append((pl.col(self.by) == name) & later)
        return reduce(or_, parts)

    def _unnamed(self) -> pl.Expr:
        """The rows that no reading may leave out unseen, because something is wrong with them."""
        lacking = [pl.col(name).is_null() for name in {*CANONICAL_ORDER, self.by}]
        return reduce(or_, lacking) | pl.col(self.by).is_in(sorted(self.named)).not_()


def remove(sidecar: Path) -> None:
    """Remove a shard, its sidecar last, so that no file is ever without one."""
    sidecar.with_suffix(".parquet").unlink(missing_ok=True)
    sidecar.unlink(missing_ok=True)
    if not any(sidecar.parent.iterdir()):
        sidecar.parent.rmdir()
