"""FI-2010: the text matrices of the benchmark, with its own labels, one protocol at a time.

The files, the two protocols and what they cannot tell: docs/sources/fi2010.md.
"""

from __future__ import annotations

import datetime as dt
import gzip
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from quantattn.data.schema import Events, Instrument, check
from quantattn.data.sources.source import Source, SourceReport, files_sha256

HORIZONS = (10, 20, 30, 50, 100)
"""Events ahead, in the order of the last five rows of a file."""
FEATURES = 144
ROWS = FEATURES + len(HORIZONS)
ENTITY = "FI-2010"
DAYS = tuple(dt.date(2010, 6, day) for day in (1, 2, 3, 4, 7, 8, 9, 10, 11, 14))
"""The ten days of the data."""
_NAME = re.compile(
    r"^(?P<part>train|test)_dst_(?P<auction>noauction|auction)_(?P<norm>zscore|minmax|decpre)_cf_(?P<fold>[1-9])\.txt"
    r"(\.gz)?$",
    re.IGNORECASE,
)
_STEP = 10**6  # ns between two events: the files give no times
_EPOCH = dt.date(1970, 1, 1)
Protocol = Literal["seven and three", "anchored"]
FILES: dict[Protocol, tuple[tuple[str, int], ...]] = {
    "seven and three": (("train", 7), ("test", 7), ("test", 8), ("test", 9)),
    "anchored": (("train", 1), *(("test", fold) for fold in range(1, 10))),
}
"""Protocol → the files (part, fold) that it takes, in order of time."""


@dataclass(frozen=True)
class Fi2010Source(Source):
    """A source of features with shipped labels.

    Attributes:
        protocol: in words, to be printed beside every figure.
    """

    protocol: str


def scan_fi2010(path: str | Path, *, protocol: Protocol = "seven and three") -> Fi2010Source:
    """Read the files of one protocol: schema `Events`, `feature_1` … `feature_144`, `label_10` … `label_100`, `file`.

    Features are Float32 as in the files, rows 1 to 144; labels Int8 as shipped, 1 up, 2 stationary, 3 down; `file` is
    the number of the file. The files give no times: events follow each other by a millisecond, from the midnight (UTC)
    of their day. Where the first seven days are one file, each gets a seventh of its events, in order.

    Args:
        path: folder with the files under their names (`Train_Dst_NoAuction_ZScore_CF_7.txt`, plain or .gz), all of
            one variant.
        protocol: "seven and three": trained on the first seven days (Train_CF_7), tested on the other three (Test_CF_7,
            8, 9). "anchored": one day a file (Train_CF_1, Test_CF_1 … 9), for nine folds that train on all earlier
            days. Figures of the two cannot be compared.

    Raises:
        ValueError: one sentence that names the file, the line, what was found and what was expected.
    """
    if protocol not in FILES:
        raise ValueError(f"protocol must be one of {', '.join(FILES)}, got {protocol!r}")
    found, variant = _find(Path(path), protocol)
    frames: list[pl.DataFrame] = []
    counts: list[str] = []
    for (part, fold), file in found.items():
        matrix = _read(file)
        days = DAYS[:fold] if part == "train" else DAYS[fold : fold + 1]
        start = sum(frame.height for frame in frames)
        frames.append(_frame(matrix, days, start).with_columns(file=pl.lit(len(frames), pl.UInt8)))
        shares = np.bincount(matrix[FEATURES].astype(np.int64), minlength=4)[1:]
        counts.append(
            f"{file.name}: {matrix.shape[1]:,} events, up {shares[0]:,}, stationary {shares[1]:,}, down "
            f"{shares[2]:,} over 10 events"
        )
    said = f"FI-2010 {variant}, protocol {protocol}: {' then '.join(file.name for file in found.values())}"
    frame = check(pl.concat(frames), Events)
    return Fi2010Source(
        frame=frame.lazy(),
        instruments=(Instrument(ENTITY, 0, 1),),
        report=SourceReport(
            rows_read=frame.height,
            files=files_sha256({file.name: file for file in found.values()}),
            notes=(
                said,
                *counts,
                "the files give no times and do not say where one of their five stocks ends: events follow each other "
                "by a millisecond, days of one file get equal parts of it, and a sequence may hold two stocks",
            ),
        ),
        protocol=said,
    )


def _find(path: Path, protocol: Protocol) -> tuple[dict[tuple[str, int], Path], str]:
    if not path.is_dir():
        raise ValueError(f"{path} is no folder; expected one with the files of FI-2010")
    named = [(match, file) for file in sorted(path.rglob("*")) if (match := _NAME.match(file.name)) and file.is_file()]
    if not named:
        raise ValueError(f"{path} holds no file such as Train_Dst_NoAuction_ZScore_CF_7.txt")
    variants = sorted({f"{match['auction']} {match['norm']}" for match, _ in named})
    if len(variants) > 1:
        raise ValueError(f"{path} holds several variants: {', '.join(variants)}; name a folder with one")
    every: dict[tuple[str, int], Path] = {}
    for match, file in named:
        key = (match["part"].lower(), int(match["fold"]))
        if key in every:
            raise ValueError(f"{every[key].name} and {file.name} are the same file twice; keep one")
        every[key] = file
    lacking = [f"{part} CF_{fold}" for part, fold in FILES[protocol] if (part, fold) not in every]
    if lacking:
        raise ValueError(f"{path} lacks {', '.join(lacking)} of {variants[0]}, which protocol {protocol} needs")
    return {key: every[key] for key in FILES[protocol]}, variants[0]


def _read(file: Path) -> NDArray[np.float64]:
    """(149, events) numbers of a file."""
    rows: list[NDArray[np.float64]] = []
    try:
        for number, line in enumerate(_lines(file), 1):
            fields = line.split()
            if not fields:
                continue
            try:
                rows.append(np.array(fields, np.float64))
            except ValueError:
                bad = next(place for place, field in enumerate(fields, 1) if not _is_number(field))
                what = f"{fields[bad - 1][:40]!r} as field {bad}"
                raise ValueError(f"{file.name}, line {number}: found {what}, expected a number") from None
            if len(rows[-1]) != len(rows[0]) or not np.isfinite(rows[-1]).all():
                what = f"{len(fields):,} numbers" if len(rows[-1]) != len(rows[0]) else "a number without end"
                raise ValueError(f"{file.name}, line {number}: found {what}, expected {len(rows[0]):,} numbers")
    except (EOFError, OSError, zlib.error, UnicodeDecodeError) as error:
        raise ValueError(f"{file.name} cannot be read: {' '.join(str(error).split())}") from error
    if len(rows) != ROWS:
        raise ValueError(
            f"{file.name} has {len(rows)} rows of numbers, expected {ROWS}: {FEATURES} features and labels for "
            f"{', '.join(map(str, HORIZONS))} events"
        )
    matrix = np.stack(rows)
    wrong = np.argwhere(~np.isin(matrix[FEATURES:], (1, 2, 3)))
    if len(wrong):
        row, event = wrong[0]
        raise ValueError(
            f"{file.name}, line {FEATURES + row + 1}: found {matrix[FEATURES + row, event]:g} as the label of event "
            f"{event + 1}, expected 1 (up), 2 (stationary) or 3 (down)"
        )
    return matrix


def _lines(file: Path) -> Iterator[str]:
    with gzip.open(file, "rt") if file.suffix == ".gz" else file.open() as lines:
        yield from lines


def _is_number(field: str) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True


def _frame(matrix: NDArray[np.float64], days: Sequence[dt.date], first: int) -> pl.DataFrame:
    events = matrix.shape[1]
    row = np.arange(events, dtype=np.int64)
    day = row * len(days) // max(events, 1)
    start = np.array([(each - _EPOCH).days * 86_400 * 10**9 for each in days], np.int64)
    time = start[day] + (row - np.searchsorted(day, day)) * _STEP
    features = {f"feature_{n + 1}": matrix[n].astype(np.float32) for n in range(FEATURES)}
    labels = {f"label_{k}": matrix[FEATURES + n].astype(np.int8) for n, k in enumerate(HORIZONS)}
    return pl.DataFrame(
        {
            "entity": pl.Series([ENTITY], dtype=pl.String).new_from_index(0, events),
            "event_time": time,
            "available_time": time,
            "seq": row + first,
            **features,
            **labels,
        }
    )
