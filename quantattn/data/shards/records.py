"""What stands beside the shards: a sidecar for each, a record for each part of the source, a plan for the folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from quantattn.data.schema import Instrument
from quantattn.data.shards.layout import SOURCES, Place, put_json, read_json, stands
from quantattn.data.sources.source import SourceReport
from quantattn.data.sources.table_types import Column

T = TypeVar("T", int, str)


@dataclass(frozen=True)
class Shard:
    """One Parquet file and what its sidecar says of it.

    Attributes:
        place: what it holds; its path follows from that.
        key: sha256 over the source files and settings that it was made from.
        last: whether the entity has no more events in the piece.
        rows: of the file.
        first, final: `available_time` and `seq` of its first and last row; 0 where it has no row.
        columns: names and types, in order.
        sha256: of the file's bytes.
        size: of the file in bytes.
    """

    place: Place
    key: str
    last: bool
    rows: int
    first: tuple[int, int]
    final: tuple[int, int]
    columns: tuple[tuple[str, str], ...]
    sha256: str
    size: int

    def path(self, folder: Path) -> Path:
        """The Parquet file."""
        return folder / self.place.file

    def write(self, folder: Path) -> None:
        """Write the sidecar."""
        put_json(self.path(folder).with_suffix(".json"), self.as_dict())

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        own = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "place"}
        return asdict(self.place) | own

    @staticmethod
    def of(plain: Mapping[str, Any], where: str) -> Shard:
        """A shard from what JSON holds.

        Raises:
            ValueError: a value is missing or of another type.
        """
        places = ("entity", str), ("piece", str), ("period", str), ("part", int), ("nth", int)
        own = ("key", str), ("last", bool), ("rows", int), ("columns", list), ("sha256", str), ("size", int)
        found = _typed(plain, own, where)
        found["columns"] = tuple(_pair(each, str, where) for each in found["columns"])
        found |= {name: _pair(plain.get(name), int, where) for name in ("first", "final")}
        shard = Shard(Place(**_typed(plain, places, where)), **found)
        shard.place.file  # noqa: B018  refuses a period that is none
        return shard

    @staticmethod
    def parse(sidecar: Path) -> Shard | None:
        """The shard that a sidecar speaks of; None where it is damaged, or lies where it does not belong."""
        try:
            shard = Shard.of(read_json(sidecar), str(sidecar))
        except ValueError:
            return None
        return shard if shard.path(sidecar.parents[2]).with_suffix(".json") == sidecar else None

    @staticmethod
    def read(sidecar: Path) -> Shard | None:
        """The same, and None too where the file does not have the bytes that its sidecar says."""
        shard = Shard.parse(sidecar)
        return shard if shard is not None and shard.stands(sidecar.parents[2]) else None

    def stands(self, folder: Path) -> bool:
        """Whether the file is there, with its size and its hash."""
        return stands(self.path(folder), self.size, self.sha256)


@dataclass(frozen=True)
class Record:
    """A part of the source that can be read on its own, as it was read.

    Attributes:
        piece: its identifier, 8 hexadecimal digits; a function of the names of its files.
        name: how it is called in sentences.
        key: sha256 over its files' hashes and the settings.
        instruments: of the entities in it.
        report: what was read and what was set aside.
        names: of its entities, or of its runs of entities; those of the instruments where there are any.
        columns, zone: of a table, what `TableSource` says of them; None of other data.
    """

    piece: str
    name: str
    key: str
    instruments: tuple[Instrument, ...]
    report: SourceReport
    names: tuple[str, ...]
    columns: Mapping[str, Column] | None = None
    zone: str | None = None

    def write(self, folder: Path) -> None:
        """Write it into the folder of shards."""
        put_json(folder / SOURCES / f"{self.piece}.json", self.as_dict())

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        own: dict[str, Any] = {"piece": self.piece, "name": self.name, "key": self.key}
        own |= {"instruments": [asdict(each) for each in self.instruments], "report": self.report.as_dict()}
        if not self.instruments:
            own["names"] = list(self.names)
        if self.columns is not None:
            columns = [{"name": name} | asdict(each) for name, each in self.columns.items()]
            own["table"] = {"columns": columns, "zone": self.zone}
        return own

    @staticmethod
    def of(plain: Mapping[str, Any], where: str) -> Record:
        """A record from what JSON holds.

        Raises:
            ValueError: a value is missing or of another type.
        """
        own = _typed(
            plain, (("piece", str), ("name", str), ("key", str), ("instruments", list), ("report", dict)), where
        )
        typed = ("entity", str), ("price_exponent", int), ("tick", int), ("size_exponent", int)
        instruments = tuple(Instrument(**_typed(each, typed, where)) for each in own.pop("instruments"))
        known = ("rows_read", int), ("rows_set_aside", dict), ("files", dict), ("notes", list)
        found = _typed(own.pop("report"), known, where)
        names = plain.get("names", [each.entity for each in instruments])
        if not isinstance(names, list) or not all(isinstance(each, str) for each in names):
            raise ValueError(f"{where}: names must be a list of texts, got {names!r}")
        columns, zone = None, None
        if "table" in plain:
            table = _typed(plain["table"], (("columns", list), ("zone", str)), where)
            kinds = ("name", str), ("kind", str), ("exponent", int)
            each_typed = [_typed(each, kinds, where) for each in table["columns"]]
            columns, zone = {each.pop("name"): Column(**each) for each in each_typed}, table["zone"]
        report = SourceReport(**found | {"notes": tuple(found["notes"])})
        return Record(**own, instruments=instruments, report=report, names=tuple(names), columns=columns, zone=zone)

    @staticmethod
    def read(folder: Path, piece: str) -> Record | None:
        """The record of a piece, or None where there is none that can be read."""
        path = folder / SOURCES / f"{piece}.json"
        try:
            return Record.of(read_json(path), str(path)) if path.is_file() else None
        except ValueError:
            return None


def _typed(plain: Any, expected: tuple[tuple[str, type], ...], where: str) -> dict[str, Any]:
    if not isinstance(plain, Mapping):
        raise ValueError(f"{where}: expected named values, got {type(plain).__name__}")
    for name, kind in expected:
        if not isinstance(plain.get(name), kind) or (kind is int and isinstance(plain[name], bool)):
            raise ValueError(f"{where}: {name} must be {kind.__name__}, got {plain.get(name)!r}")
    return {name: plain[name] for name, _ in expected}


def _pair(found: Any, kind: type[T], where: str) -> tuple[T, T]:
    if not isinstance(found, (list, tuple)) or len(found) != 2 or not all(type(each) is kind for each in found):
        raise ValueError(f"{where}: expected a pair of {kind.__name__}, got {found!r}")
    return found[0], found[1]
