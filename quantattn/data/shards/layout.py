"""Names and files of a folder of shards. No part of a path is taken from what a file says: names are made here anew."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quantattn.data.files import clear_left, put
from quantattn.data.sources.source import file_sha256

FORMAT = 1
MANIFEST, PLAN, EVENTS, SOURCES = "manifest.json", "plan.json", "events", "sources"
PARSED = "parsed"
"""Folder of what was parsed of filings, kept beside their shards."""

_PERIOD = re.compile(r"\d{4}(-\d\d(-\d\d)?)?|none")
_HEX = re.compile(r"[0-9a-f]+")


@dataclass(frozen=True)
class Place:
    """Which stretch of which entity a shard holds.

    Attributes:
        entity: whose events.
        piece: identifier of the part of the source that they came from, 8 hexadecimal digits.
        period: day, month or year, as in ISO 8601; "none" for the one shard of an entity without events.
        part: number of the shard within the period.
        nth: number of the shard within the entity's events of the piece.
    """

    entity: str
    piece: str
    period: str
    part: int
    nth: int

    @property
    def file(self) -> Path:
        """The Parquet file, relative to the folder of shards; its sidecar has the suffix .json."""
        if not _PERIOD.fullmatch(self.period) or not _HEX.fullmatch(self.piece) or self.part < 0:
            raise ValueError(f"there is no shard of period {self.period!r}, piece {self.piece!r}, part {self.part}")
        return Path(EVENTS) / entity_folder(self.entity) / f"{self.period}-{self.piece}-{self.part:04d}.parquet"


def entity_folder(entity: str) -> str:
    """A name for the entity's folder: what is plain of the entity's name, and 16 digits of its sha256.

    Names that differ, by case or by their last character alone too, give folders that differ on every file system.
    """
    plain = re.sub(r"[^A-Za-z0-9]+", "_", entity)[:40].strip("_")
    return f"{plain or 'entity'}-{digest(entity)[:16]}"


def digest(value: object) -> str:
    """Hexadecimal sha256 of a text, or of plain values as JSON with sorted keys."""
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def put_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write plain values as JSON with the format and a hash over them; the bytes are a function of the values."""
    own = {"format": FORMAT, **value}
    own["sha256 of the rest"] = digest(own)
    put(path, (json.dumps(own, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n").encode())


def read_json(path: Path) -> dict[str, Any]:
    """What `put_json` wrote.

    Raises:
        ValueError: the file is no JSON object of this format, or not as it was written.
    """
    try:
        found = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: {error}; prepare again into this folder, which mends it") from error
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        shown = found.get("format") if isinstance(found, dict) else type(found).__name__
        raise ValueError(f"{path} has format {shown!r}, this version reads format {FORMAT}; prepare the data again")
    said = found.pop("sha256 of the rest", None)
    if said != digest(found):
        raise ValueError(f"{path} is damaged: its values do not have the hash that it says; prepare again")
    return found


def stands(path: Path, size: int, sha256: str) -> bool:
    """Whether the file is there with this size in bytes and this hash."""
    return path.is_file() and path.stat().st_size == size and file_sha256(path) == sha256


def sidecars(folder: Path, piece: str = "*") -> Iterator[Path]:
    """Sidecars of shards, in the order of their names; of one piece or of all."""
    yield from sorted((folder / EVENTS).glob(f"*/*-{piece}-*.json"))


def clear_unfinished(folder: Path) -> None:
    """Remove what processes of this machine that are no more were writing."""
    clear_left((*folder.glob(".*"), *folder.glob("*/.*"), *folder.glob("*/*/.*")))
