"""Entities at moments that somebody asks for: each is answered from what was available by then, and from nothing else.

An event belongs to what was available at a moment when its `available_time` is not after it; when it happened does not
matter. A token is made of its event and the one before it, so an answer depends on no later event.
"""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl

from quantattn.data.market.encode import Ints, Unlabelled
from quantattn.data.pack import Decisions, SequenceSet
from quantattn.data.sources.table_files import (
    FAULT,
    LINE,
    Part,
    TextForm,
    is_parquet,
    readable,
    scan_columns,
    scan_text,
)
from quantattn.data.sources.table_types import Clock
from quantattn.data.units import Chosen, Column, chosen, places

_ZONED = r"(?:Z|[+-]\d\d(?::?\d\d)?)$"
_WHOLE = r"^-?\d+$"


@dataclass(frozen=True)
class Moments:
    """M asked (entity, as_of), in the order of their file.

    Attributes:
        name: of the file.
        entity: (M,) names.
        as_of: (M,) int64 ns UTC.
        sha256: of both.
    """

    name: str
    entity: pl.Series
    as_of: Ints
    sha256: str


def read_moments(path: Path) -> Moments:
    """The columns `entity` and `as_of` of a CSV or Parquet file.

    Times are ISO 8601 with a time zone ("2024-01-02T14:30:00Z", "…+01:00"), whole numbers of ns since 1970, or in
    Parquet points in time with a zone.

    Raises:
        ValueError: the file cannot be read, is empty or lacks a column, or a row lacks an entity or has another time;
            the sentence names file and row.
    """
    wanted = ("entity", "as_of")
    part = scan_columns([path], wanted, path.name) if is_parquet(path) else scan_text(path, TextForm(), wanted)
    kind = part.frame.collect_schema()["as_of"]
    text = pl.col("as_of").cast(pl.String)
    if isinstance(kind, pl.Datetime) and kind.time_zone is not None:
        time = Clock().native(pl.col("as_of"), kind)
    elif isinstance(kind, (pl.Date, pl.Datetime)):
        raise ValueError(f"{path.name}: as_of is {kind} without a time zone; expected one, or ns since 1970")
    else:
        iso = pl.when(text.str.contains(_ZONED)).then(Clock().read(text, pl.String()))
        time = pl.when(text.str.contains(_WHOLE)).then(text.cast(pl.Int64, strict=False)).otherwise(iso)
    read = part.frame.select(LINE, FAULT, entity=pl.col("entity").cast(pl.String), text=text, time=time)
    rows = readable(read, path)
    _check(rows, part, "row" if is_parquet(path) else "line")
    as_of = rows["time"].to_numpy()
    digest = hashlib.sha256("\n".join(rows["entity"]).encode() + b"\0" + as_of.tobytes())
    return Moments(path.name, rows["entity"], as_of, digest.hexdigest())


def at_moments(made: Unlabelled, asked: Moments) -> Chosen:
    """The asked moments as rows: each is answered at the last event that was available by then.

    Each is read with a sequence of its own, the entity's last `max_seq_len` events up to there (layout "each"), so that
    a row is the same whatever else is asked. Moments between which nothing became known are one decision with a row
    each.

    `described`: event_time, available_time and place of the last event that was available. `notes` count what has no
    row: moments of entities that are not there, before the first event of their entity, and asked twice.

    Raises:
        ValueError: tokens are merged events, or no moment can be answered.
    """
    if made.merged:
        raise ValueError(
            "as_of needs a model of one token an event: merged tokens of this one end at its decisions, not at a moment"
        )
    table = made.sequences.table
    known = {name: number for number, name in enumerate(table.entities)}
    entity = asked.entity.replace_strict(known, default=-1, return_dtype=pl.Int64).to_numpy()
    row = np.full(len(entity), -1, np.int64)
    order = np.lexsort((asked.as_of, entity))
    for own in np.split(order, np.flatnonzero(np.diff(entity[order])) + 1):
        if entity[own[0]] >= 0:
            begin, end = table.offsets[entity[own[0]]], table.offsets[entity[own[0]] + 1]
            last = np.searchsorted(table.time[begin:end], asked.as_of[own], side="right") - 1
            row[own] = np.where(last >= 0, begin + last, -1)
    again = np.zeros(len(entity), np.bool_)
    again[order[1:]] = (np.diff(entity[order]) == 0) & (np.diff(asked.as_of[order]) == 0)
    why = {
        "the entity is not in these data": (entity < 0) & ~again,
        "before the first event of the entity": (entity >= 0) & (row < 0) & ~again,
        "asked before in the same file": again,
    }
    notes = tuple(_told(asked, cause, out) for cause, out in why.items() if out.any())
    kept = order[(row >= 0)[order] & ~again[order]]
    if not len(kept):
        raise ValueError(f"no moment of {asked.name} can be answered: {'; '.join(notes)}")
    rows, copies = np.unique(row[kept], return_counts=True)
    cut = SequenceSet(table, Decisions(rows), made.sequences.max_seq_len, "each")
    told: Mapping[str, Column] = {
        "event_time": made.events["event_time"][rows],
        "available_time": table.time[rows],
        "place": places(cut),
    }
    return replace(
        chosen(made, cut, {name: np.repeat(column, copies) for name, column in told.items()}),
        as_of=asked.as_of[kept],
        entity=tuple(asked.entity.gather(kept)),
        hashes={**made.hashes, "as_of": asked.sha256},
        notes=notes,
        copies=copies.astype(np.int64),
    )


def _told(asked: Moments, cause: str, out: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> str:
    first = int(np.flatnonzero(out)[0])
    when = dt.datetime.fromtimestamp(int(asked.as_of[first]) // 10**9, dt.UTC)
    return (
        f"{int(out.sum()):,} of {len(out):,} moments of {asked.name}, {cause} (the first is {asked.entity[first]} at "
        f"{when:%Y-%m-%d %H:%M:%S} UTC)"
    )


def _check(rows: pl.DataFrame, part: Part, unit: str) -> None:
    if not rows.height:
        raise ValueError(f"{part.name} asks for nothing; expected rows of entity and as_of")
    fault = rows.filter(pl.col(FAULT).is_not_null())
    if fault.height:
        raise ValueError(f"{part.name}, {unit} {fault[LINE][0]}: {fault[FAULT][0]}")
    nameless = rows.filter(pl.col("entity").is_null() | (pl.col("entity") == ""))
    if nameless.height:
        raise ValueError(f"{part.name}, {unit} {nameless[LINE][0]}: there is no entity")
    wrong = rows.filter(pl.col("time").is_null())
    if wrong.height:
        raise ValueError(
            f"{part.name}, {unit} {wrong[LINE][0]}: as_of is {wrong['text'][0]!r}; expected ISO 8601 with a time zone, "
            "such as 2024-01-02T14:30:00Z, or whole ns since 1970"
        )
