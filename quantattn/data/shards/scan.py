"""A folder of shards as a source: the same table, instruments and report that the raw files gave."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import polars as pl

from quantattn.data.shards.layout import MANIFEST
from quantattn.data.shards.manifest import Manifest, read_manifest, sequence_offsets
from quantattn.data.shards.records import Shard
from quantattn.data.sources.source import Source, SourceReport, file_sha256
from quantattn.data.sources.table import TableSource


def scan_prepared(path: str | Path, *, entities: Sequence[str] | None = None, verify: bool = True) -> Source:
    """The events that `quantattn prepare` has written, in canonical order; read from the shards when asked for.

    Args:
        path: the folder, or its manifest.
        entities: those to read; None is all, and must be for a table.
        verify: compare the hash of every shard now; False compares sizes alone.

    Raises:
        ValueError: the folder has no manifest or is not finished; a shard is missing or damaged; an entity that is
            not there.
    """
    folder = Path(path).parent if Path(path).name == MANIFEST else Path(path)
    manifest = read_manifest(folder)
    if manifest.lacking:
        raise ValueError(
            f"{folder} is not finished: {manifest.lacking[0]}"
            + (f", and {len(manifest.lacking) - 1} more" if len(manifest.lacking) > 1 else "")
            + "; prepare again into this folder, which goes on where it stopped"
        )
    instruments, table = manifest.instruments, manifest.table
    names = {name for record in manifest.records for name in record.names}
    if entities is not None and table is not None:
        raise ValueError(f"{folder} holds a table, in runs of entities: read all, and filter the frame")
    if entities is not None and (unknown := sorted(set(entities) - names)):
        raise ValueError(f"{folder} has no {', '.join(unknown)}; it has {', '.join(sorted(names)[:20])}")
    chosen = names if entities is None else set(entities)
    shards = [shard for shard in manifest.shards if shard.place.entity in chosen]
    for shard in shards:
        _require_whole(folder, shard, verify)
    if not any(shard.rows for shard in shards):
        raise ValueError(f"{folder} holds no event")
    frame, report = pl.concat(_frames(folder, shards)), _report(folder, manifest, shards)
    if table is not None:
        return TableSource(frame, instruments, report, *table)
    return Source(frame, tuple(each for each in instruments if each.entity in chosen), report)


def _require_whole(folder: Path, shard: Shard, verify: bool) -> None:
    file = shard.path(folder)
    mend = "prepare again into this folder, which mends it"
    if not file.is_file():
        raise ValueError(f"{file} is missing; {mend}")
    if (size := file.stat().st_size) != shard.size:
        raise ValueError(f"{file} has {size} bytes, the manifest says {shard.size}; {mend}")
    if verify and (found := file_sha256(file)) != shard.sha256:
        raise ValueError(
            f"{file} is damaged: its sha256 is {found[:16]}…, the manifest says {shard.sha256[:16]}…; {mend}"
        )


def _frames(folder: Path, shards: Sequence[Shard]) -> list[pl.LazyFrame]:
    frames = []
    for _, run in groupby(shards, key=lambda shard: shard.place.entity):
        own = list(run)
        for offset, group in groupby(zip(sequence_offsets(own), own, strict=True), key=lambda pair: pair[0]):
            frame = pl.scan_parquet([shard.path(folder) for _, shard in group], glob=False, hive_partitioning=False)
            frames.append(frame.with_columns(pl.col("seq") + offset) if offset else frame)
    return frames


def _report(folder: Path, manifest: Manifest, shards: Sequence[Shard]) -> SourceReport:
    """The source's own report, with the manifest among its files."""
    found = manifest.report
    rows = sum(shard.rows for shard in shards)
    files = dict(found.files) | {MANIFEST: file_sha256(folder / MANIFEST)}
    return SourceReport(rows, found.rows_set_aside, files, found.notes)
