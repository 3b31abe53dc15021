"""What every source returns: a lazy table, how to read its prices, and an account of what was read."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from quantattn.data.files import put
from quantattn.data.schema import Instrument
from quantattn.data.threads import each


@dataclass(frozen=True)
class SourceReport:
    """What a source read and what it left out.

    Attributes:
        rows_read: rows that are in the table.
        rows_set_aside: reason → rows that are not in the table. Nothing is left out without being counted here.
        files: name → sha256 of the bytes as they lie on disk.
        notes: sentences about what the source decided or fell back to.
    """

    rows_read: int
    rows_set_aside: Mapping[str, int] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, object]:
        """Plain values, for JSON."""
        return {
            "rows_read": self.rows_read,
            "rows_set_aside": dict(self.rows_set_aside),
            "files": dict(self.files),
            "notes": list(self.notes),
        }


@dataclass(frozen=True)
class Source:
    """An event table that has not been computed yet.

    Attributes:
        frame: the table in canonical order, in one of the schemas of `quantattn.data.schema`.
        instruments: one for each entity that has prices.
        report: what was read and what was set aside.
    """

    frame: pl.LazyFrame
    instruments: tuple[Instrument, ...]
    report: SourceReport


def file_sha256(path: Path) -> str:
    """Hexadecimal sha256 of a file's bytes, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def files_sha256(files: Mapping[str, Path]) -> dict[str, str]:
    """Name of each file → `file_sha256`, several at a time."""
    return dict(zip(files, each(file_sha256, tuple(files.values())), strict=True))


def write_set_aside(rows: pl.DataFrame, path: Path) -> None:
    """Write what a source left out as CSV, whole or not at all."""
    put(path, rows.write_csv().encode())
