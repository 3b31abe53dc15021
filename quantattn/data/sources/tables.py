"""Several tables about the same entities → one stream of events: accounts, cards and transactions of a bank."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from quantattn.data.schema import CANONICAL_ORDER, Events
from quantattn.data.sources.source import SourceReport
from quantattn.data.sources.table import TableSource, scan_table
from quantattn.data.sources.table_rows import OnBad
from quantattn.data.sources.table_types import Column

TABLE = "table"
"""Column that says which table an event is from."""


def scan_tables(
    path: str | Path,
    tables: Mapping[str, Mapping[str, Any]],
    *,
    zone: str = "UTC",
    on_bad: OnBad = "refuse",
    set_aside: str | Path | None = None,
) -> TableSource:
    """The rows of every table in one order of time, with the column `table` that names where each came from.

    A column that a table lacks is missing in its rows. Of events known at the same time those of an earlier table come
    first, then the order of the source decides.

    Args:
        path: folder of the files.
        tables: name → settings of `scan_table`; `path` and `through.path` are taken from that folder. Columns of one
            name must be of one type.
        zone: of times that name none, and of the calendar.
        on_bad: see `scan_table`.
        set_aside: folder that gets one CSV file a table; needed with "quarantine".

    Raises:
        ValueError: no table, a column of two types, or what `scan_table` refuses.
    """
    if not tables:
        raise ValueError("tables must name one or more")
    read: dict[str, TableSource] = {}
    for name, given in tables.items():
        beside = None if set_aside is None else Path(set_aside) / f"{name}.csv"
        try:
            read[name] = scan_table(**_placed(given, Path(path)), zone=zone, on_bad=on_bad, set_aside=beside)
        except (TypeError, ValueError) as error:
            raise ValueError(f"tables.{name}: {str(error).removeprefix('scan_table() ')}") from error
    columns = _columns(read)
    frames = [
        source.frame.select(
            *Events.columns(),
            pl.lit(name).alias(TABLE),
            *(
                pl.col(column) if column in source.columns else pl.lit(None, dtype=kind.dtype).alias(column)
                for column, kind in columns.items()
            ),
        )
        for name, source in read.items()
    ]
    return TableSource(
        frame=pl.concat(frames)
        .drop("seq")
        .with_row_index("seq")
        .with_columns(pl.col("seq").cast(pl.Int64))
        .select(*Events.columns(), TABLE, *columns)
        .sort(CANONICAL_ORDER),
        instruments=(),
        report=_report(read),
        columns={TABLE: Column("category"), **columns},
        zone=zone,
    )


def _placed(given: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The settings of a table with its paths in the folder."""
    if "path" not in given:
        raise ValueError("path is missing")
    through = given.get("through")
    placed = {**given, "path": folder / given["path"]}
    return placed if through is None else placed | {"through": {**through, "path": folder / through.get("path", "")}}


def _columns(read: Mapping[str, TableSource]) -> dict[str, Column]:
    found: dict[str, Column] = {}
    for name, source in read.items():
        for column, kind in source.columns.items():
            if found.setdefault(column, kind) != kind or column == TABLE:
                raise ValueError(
                    f"tables.{name}: column {column!r} has another type in an earlier table, or is called {TABLE!r}; "
                    "rename it"
                )
    return found


def _report(read: Mapping[str, TableSource]) -> SourceReport:
    reports = {name: source.report for name, source in read.items()}
    counted = [f"{name}: {report.rows_read:,} rows" for name, report in reports.items()]
    said = [f"{name}: {note}" for name, report in reports.items() for note in report.notes]
    return SourceReport(
        rows_read=sum(report.rows_read for report in reports.values()),
        rows_set_aside={f"{name}: {why}": n for name, r in reports.items() for why, n in r.rows_set_aside.items()},
        files={file: digest for report in reports.values() for file, digest in report.files.items()},
        notes=(*counted, *said),
    )
