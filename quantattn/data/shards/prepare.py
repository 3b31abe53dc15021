"""Source → a folder of sorted Parquet shards with a manifest: out of core, incremental, resumable, without locks."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from quantattn.data.shards.cut import Cutting, Period
from quantattn.data.shards.layout import (
    PLAN,
    SOURCES,
    clear_unfinished,
    entity_folder,
    put_json,
    read_json,
    sidecars,
)
from quantattn.data.shards.manifest import Manifest, write_manifest
from quantattn.data.shards.partition import Partition
from quantattn.data.shards.pieces import Piece
from quantattn.data.shards.records import Record
from quantattn.data.shards.write import Standing, Tally, Writing, remove
from quantattn.data.sources.table import TableSource


@dataclass(frozen=True)
class Written:
    """What a preparation left behind: the manifest, and what became of the shards."""

    manifest: Manifest
    tally: Tally


@dataclass
class Progress:
    """How far a preparation is, in rows; `total` is an estimate while parts of the source are unread."""

    pieces: int
    done: int = 0
    standing: int = 0
    began: float = field(default_factory=time.monotonic)
    _known: list[int] = field(default_factory=list)

    @property
    def total(self) -> int:
        """Rows in all, those of unread parts taken to be as many as of the others on average."""
        return sum(self._known) * self.pieces // max(len(self._known), 1)

    @property
    def seconds_left(self) -> float:
        """An estimate from the pace of the rows that were written now."""
        pace = self.done / max(time.monotonic() - self.began, 1e-9)
        return (self.total - self.done - self.standing) / pace if self.done else float("nan")

    def add_piece(self, rows: int) -> None:
        """A part of the source has so many rows."""
        self._known.append(rows)


Watch = Callable[[Progress], None]


def prepare_shards(
    pieces: Sequence[Piece],
    folder: str | Path,
    *,
    asked: Mapping[str, Any] | None = None,
    training: Mapping[str, Any] | None = None,
    entities: Collection[str] | None = None,
    period: Period | None = None,
    zone: str = "UTC",
    rows: int = 500_000,
    watch: Watch | None = None,
) -> Written:
    """Write what is lacking of a source into a folder of shards, and remove what the source no longer has.

    A shard is written beside its place and renamed, so a process may be killed at any time: the next one goes on after
    the last shard that stands with its hash. Several processes on several machines may write different entities into
    one folder; the manifest of whoever ends last holds them all.

    Args:
        pieces: of the source, see `pieces_of`.
        folder: of the shards; made when it does not exist.
        asked: plain values: how the source was asked for. A folder belongs to one of them.
        training: plain values to keep beside them, with which the source is trained on; they may change.
        entities: those that this process writes; None is all.
        period: where shards end, "day", "month" or "year" of `available_time`, or "none": with the rows alone. None is
            a year for bars and for filings, else a day. A table has runs of whole entities and no periods.
        zone: time zone of the days.
        rows: the most rows of a shard.
        watch: is told how far it is.

    Raises:
        ValueError: a row that breaks its schema or its order; a folder that belongs to other data; an entity that the
            source does not have; pieces that contradict each other.
    """
    root = Path(folder)
    cutting = Cutting(period or "day", zone, rows)
    claim = {"source": dict(asked or {}), "shards": {"period": period, "zone": zone, "rows": rows}}
    _claim(root, claim, {"training": dict(training or {}), "pieces": [[piece.id, piece.name] for piece in pieces]})
    clear_unfinished(root)
    job = _Job(root, cutting, period is not None, entities, Progress(len(pieces)), watch or (lambda _: None))
    tally = sum((job.take(piece) for piece in pieces), Tally())
    if unknown := sorted(set(entities or ()) - job.known):
        raise ValueError(f"the source has no {', '.join(unknown)}; it has {', '.join(sorted(job.known)[:20])}")
    return Written(write_manifest(root), tally + _remove_other_pieces(root, {piece.id for piece in pieces}))


@dataclass
class _Job:
    """One process's share of a preparation; `known` are the entities that were met."""

    root: Path
    cutting: Cutting
    asked: bool  # for this period
    entities: Collection[str] | None
    progress: Progress
    watch: Watch
    known: set[str] = field(default_factory=set)

    def take(self, piece: Piece) -> Tally:
        """Write what is lacking of one part of the source."""
        record = Record.read(self.root, piece.id)
        record = record if record is not None and record.key == piece.key else None
        if record is None and piece.entity is not None and not self._mine({piece.entity}):
            self.known.add(piece.entity)
            return Tally()
        standing = Standing.of(self.root, piece.id, piece.key)
        if record is not None:
            mine = self._mine(set(record.names))
            if all(standing.complete(name) for name in mine):
                shards = [shard for name in mine for shard in standing.runs[name]]
                self.progress.add_piece(sum(shard.rows for shard in shards))
                self._stand(sum(shard.rows for shard in shards))
                return Tally(kept=len(shards)) + self._forget(piece, record)
        return self._write(piece, standing)

    def _write(self, piece: Piece, standing: Standing) -> Tally:
        source = piece.read()
        parted = Partition.of(source, self.cutting.rows)
        about = (source.columns, source.zone) if isinstance(source, TableSource) else ()
        record = Record(piece.id, piece.name, piece.key, source.instruments, source.report, parted.names, *about)
        record.write(self.root)
        mine = self._mine(set(record.names))
        self.progress.add_piece(source.report.rows_read)
        self._stand(sum(shard.rows for name in mine for shard in standing.runs.get(name, ())))
        writing = Writing(
            folder=self.root,
            piece=piece.id,
            key=piece.key,
            schema=parted.schema,
            cutting=self._cutting(parted),
            named=frozenset(parted.names),
            by=parted.by,
            watch=self._move,
        )
        return writing.write(parted.frame, mine, standing) + self._forget(piece, record)

    def _mine(self, names: set[str]) -> set[str]:
        self.known |= names
        return names if self.entities is None else names & set(self.entities)

    def _cutting(self, parted: Partition) -> Cutting:
        if not self.asked:
            return replace(self.cutting, period=parted.period)
        if parted.by != "entity" and self.cutting.period != "none":
            raise ValueError(f"shards of a table are runs of entities and end with no {self.cutting.period}; give none")
        return self.cutting

    def _forget(self, piece: Piece, record: Record) -> Tally:
        """Remove the shards of entities that the piece no longer has."""
        folders = {entity_folder(name) for name in record.names}
        return _remove(path for path in list(sidecars(self.root, piece.id)) if path.parent.name not in folders)

    def _stand(self, rows: int) -> None:
        self.progress.standing += rows
        self.watch(self.progress)

    def _move(self, rows: int) -> None:
        self.progress.done += rows
        self.watch(self.progress)


def _claim(root: Path, claim: Mapping[str, Any], more: Mapping[str, Any]) -> None:
    """Write the plan into the folder.

    Raises:
        ValueError: the folder belongs to other data, or to something else.
    """
    path = root / PLAN
    plan = {**claim, **more}
    if path.is_file():
        before = read_json(path)
        before.pop("format")
        if difference := _difference("", {name: before.get(name) for name in claim}, claim):
            raise ValueError(
                f"{root} holds shards that were asked for with another {difference}; name another folder, or remove it"
            )
    elif root.exists() and (not root.is_dir() or any(not each.name.startswith(".") for each in root.iterdir())):
        raise ValueError(f"{root} is no folder of shards and not empty; name another folder")
    if not path.is_file() or before != plan:
        put_json(path, plan)


def _difference(name: str, before: Any, now: Any) -> str | None:
    """The first value that differs, with both."""
    if before == now:
        return None
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for key in sorted({*before, *now}):
            if found := _difference(f"{name}.{key}" if name else str(key), before.get(key), now.get(key)):
                return found
    return f"{name} ({before!r}, now {now!r})"


def _remove_other_pieces(root: Path, kept: set[str]) -> Tally:
    """Remove what came from parts that the source no longer has."""
    for path in (root / SOURCES).glob("*.json"):
        if path.stem not in kept:
            path.unlink(missing_ok=True)
    return _remove(path for path in list(sidecars(root)) if _piece(path) not in kept)


def _piece(sidecar: Path) -> str:
    return sidecar.stem.rsplit("-", 2)[-2]


def _remove(paths: Iterable[Path]) -> Tally:
    removed = 0
    for path in paths:
        remove(path)
        removed += 1
    return Tally(removed=removed)
