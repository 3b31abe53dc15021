"""The manifest of a folder of shards: a function of the sidecars and records that stand in it, whoever wrote them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from typing import Any

from quantattn.data.schema import CANONICAL_ORDER, Instrument
from quantattn.data.shards.layout import MANIFEST, PLAN, SOURCES, put_json, read_json, sidecars
from quantattn.data.shards.records import Record, Shard
from quantattn.data.sources.source import SourceReport
from quantattn.data.sources.table_types import Column


@dataclass(frozen=True)
class Manifest:
    """What a folder of shards holds.

    Attributes:
        plan: how it was asked for: source, settings, where shards end, the pieces of the source in order.
        records: of the pieces, in that order.
        shards: in canonical order: by entity, and then by time.
        lacking: sentences that say what has not been written yet; () when everything is there.
    """

    plan: Mapping[str, Any]
    records: tuple[Record, ...]
    shards: tuple[Shard, ...]
    lacking: tuple[str, ...]

    @property
    def instruments(self) -> tuple[Instrument, ...]:
        """One for each entity, in order of their names.

        Raises:
            ValueError: two pieces say different things of one entity.
        """
        found: dict[str, tuple[Instrument, str]] = {}
        for record in self.records:
            for each in record.instruments:
                before, where = found.setdefault(each.entity, (each, record.name))
                if before != each:
                    raise ValueError(
                        f"{each.entity!r} is {_read_as(before)} in {where} and {_read_as(each)} in {record.name}; give "
                        "the source's settings for tick and exponents, so that both are read alike"
                    )
        return tuple(found[name][0] for name in sorted(found))

    @property
    def table(self) -> tuple[Mapping[str, Column], str] | None:
        """Columns and time zone of a generic table; None of other data.

        Raises:
            ValueError: pieces differ.
        """
        found = [(record.columns, record.zone) for record in self.records if record.columns is not None]
        if not found:
            return None
        if len(found) < len(self.records) or any(each != found[0] for each in found):
            raise ValueError("the parts of this table differ in their columns or in their time zone; prepare again")
        columns, zone = found[0]
        assert columns is not None  # those alone are in `found`
        assert zone is not None
        return columns, zone

    @property
    def report(self) -> SourceReport:
        """What was read of the source, all pieces together."""
        aside: dict[str, int] = {}
        files: dict[str, str] = {}
        for record in self.records:
            files |= record.report.files
            for why, rows in record.report.rows_set_aside.items():
                aside[why] = aside.get(why, 0) + rows
        notes = dict.fromkeys(note for record in self.records for note in record.report.notes)
        return SourceReport(sum(record.report.rows_read for record in self.records), aside, files, tuple(notes))

    @property
    def columns(self) -> tuple[tuple[str, str], ...]:
        """Names and types, in order, of every shard.

        Raises:
            ValueError: shards differ.
        """
        for one, other in pairwise(self.shards):
            if one.columns != other.columns:
                raise ValueError(
                    f"{one.place.file} has the columns {_listed(one)}, but {other.place.file} has {_listed(other)}; "
                    "give the source's settings (levels, for instance), so that all files are read alike"
                )
        return self.shards[0].columns if self.shards else ()

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        held = [shard for shard in self.shards if shard.rows]
        return {
            "library": metadata.version("quantattn"),
            "canonical_order": list(CANONICAL_ORDER),
            "columns": self.columns,
            "rows": sum(shard.rows for shard in held),
            "first_time": min((shard.first[0] for shard in held), default=None),
            "last_time": max((shard.final[0] for shard in held), default=None),
            "plan": dict(self.plan),
            "sources": [record.as_dict() for record in self.records],
            "shards": [shard.as_dict() for shard in self.shards],
            "lacking": list(self.lacking),
        }


def gather(folder: Path) -> Manifest:
    """The manifest as the files of the folder say; shards that have no plan any more are left out.

    Raises:
        ValueError: the folder has no plan, or pieces of one entity overlap in time.
    """
    plan = read_plan(folder)
    names = [(str(piece), str(name)) for piece, name in plan["pieces"]]
    records, lacking = [], []
    shards: list[Shard] = []
    for piece, name in names:
        record = Record.read(folder, piece)
        if record is None:
            lacking.append(f"{name} has not been read")
            continue
        records.append(record)
        wanted = set(record.names)
        runs: dict[str, list[Shard]] = {entity: [] for entity in wanted}
        for path in sidecars(folder, piece):
            shard = Shard.parse(path)  # one that is damaged counts as not there
            if shard is not None and shard.key == record.key and shard.place.entity in wanted:
                runs[shard.place.entity].append(shard)
        for entity, run in sorted(runs.items()):
            run.sort(key=lambda each: each.place.nth)
            if [each.place.nth for each in run] != list(range(len(run))) or not run or not run[-1].last:
                lacking.append(f"{entity} of {name} is not whole")
            shards += run
    shards.sort(key=lambda each: (each.place.entity, each.first, each.place.nth))
    _require_apart(shards, dict(names))
    return Manifest(plan, tuple(records), tuple(shards), tuple(lacking))


def write_manifest(folder: Path) -> Manifest:
    """Write the manifest of what stands in the folder, and again until nothing was added meanwhile.

    Several machines may do so at once: the last to rename its manifest into place looks again after that.
    """
    while True:
        seen = _listing(folder)
        found = gather(folder)
        put_json(folder / MANIFEST, found.as_dict())
        if _listing(folder) == seen:
            return found


def read_plan(folder: Path) -> dict[str, Any]:
    """How the folder was asked for: `source`, `shards`, `training` and `pieces`.

    Raises:
        ValueError: there is no plan, or it is damaged.
    """
    if not (folder / PLAN).is_file():
        raise ValueError(f"{folder} holds no {PLAN}: it is no folder of shards that `quantattn prepare` has made")
    return read_json(folder / PLAN)


def read_manifest(folder: Path) -> Manifest:
    """The manifest that stands in the folder, as it was written.

    Raises:
        ValueError: there is none, or it is damaged.
    """
    path = folder / MANIFEST
    if not path.is_file():
        raise ValueError(f"{folder} holds no {MANIFEST}: it is no folder that `quantattn prepare` has finished")
    plain = read_json(path)
    return Manifest(
        plan=plain["plan"],
        records=tuple(Record.of(each, str(path)) for each in plain["sources"]),
        shards=tuple(Shard.of(each, str(path)) for each in plain["shards"]),
        lacking=tuple(plain["lacking"]),
    )


def sequence_offsets(shards: Sequence[Shard]) -> list[int]:
    """What is added to `seq` of each shard of one entity, so that it rises from piece to piece too."""
    offsets: list[int] = []
    offset, highest, piece = 0, -1, None
    for shard in shards:
        if piece is not None and shard.place.piece != piece:
            offset = highest + 1
        piece = shard.place.piece
        offsets.append(offset)
        highest = max(highest, offset + shard.final[1])
    return offsets


def _require_apart(shards: Sequence[Shard], names: Mapping[str, str]) -> None:
    held = [shard for shard in shards if shard.rows]
    for one, other in pairwise(held):
        if one.place.entity == other.place.entity and other.first[0] < one.final[0]:
            files = f"{names[one.place.piece]} and {names[other.place.piece]}"
            raise ValueError(
                f"{files} overlap: {one.place.entity!r} has events up to {one.final[0]} in the first and from "
                f"{other.first[0]} on in the second; they must follow each other in time"
            )


def _listing(folder: Path) -> list[tuple[str, int]]:
    files = (folder / PLAN, *sorted((folder / SOURCES).glob("*.json")), *sidecars(folder))
    return [(str(path), path.stat().st_mtime_ns) for path in files if path.is_file()]


def _listed(shard: Shard) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in shard.columns)


def _read_as(instrument: Instrument) -> str:
    own = replace(instrument, entity="")
    return f"in 10^{own.price_exponent} with tick {own.tick} and sizes in 10^{own.size_exponent}"
