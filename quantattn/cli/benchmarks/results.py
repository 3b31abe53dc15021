"""Rows of a benchmark and the file that keeps them."""

from __future__ import annotations

import csv
import io
import re
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from quantattn.learn.files import write_text


@dataclass(frozen=True)
class Row:
    """One shape, implementation and pass.

    Attributes:
        impl: implementation.
        dtype: of the operands.
        D: head size.
        N: tokens of a sequence.
        batch: sequences.
        heads: query heads.
        mask: full, causal, or the window's bounds.
        stage: forward, backward or both; the column is called `pass`.
        ms: median milliseconds.
        tflops: 10¹² floating-point operations a second, by the FlashAttention convention.
        peak_mib: peak device memory of one call above its inputs, MiB.
        error_ratio: worst error against float64 over that of standard attention in the same dtype.
    """

    impl: str
    dtype: str
    D: int
    N: int
    batch: int
    heads: int
    mask: str
    stage: str
    ms: float
    tflops: float
    peak_mib: float
    error_ratio: float


def results_file(folder: Path, bench: str, device: str, suffix: str) -> Path:
    """<folder>/<bench>-<device>.<suffix>, the device's name in lower case with hyphens."""
    return folder / f"{bench}-{re.sub(r'[^a-z0-9]+', '-', device.lower()).strip('-')}.{suffix}"


def write_rows(
    rows: Sequence[Any], folder: Path, bench: str, device: str, key: Sequence[str] = (),
    complete: Callable[[dict[str, str]], dict[str, str]] = dict,
) -> Path:  # fmt: skip
    """Write <folder>/<bench>-<device>.csv of dataclasses of one class; every row carries commit and versions.

    With `key`, names of columns, rows that stand in the file already are kept, before these, where none of these has
    the same key; `complete` gives a line of an older file the columns that it lacks.
    """
    path = results_file(folder, bench, device, "csv")
    stamp = {
        "commit": _commit(),
        "torch": metadata.version("torch"),
        "triton": metadata.version("triton"),
        "date": datetime.now(UTC).date().isoformat(),
    }
    table = [{("pass" if name == "stage" else name): value for name, value in asdict(row).items()} for row in rows]
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, [*table[0], *stamp])
    writer.writeheader()
    if key and path.exists():
        new = {tuple(str(row[name]) for name in key) for row in table}
        with path.open(newline="") as file:
            kept = [complete(row) for row in csv.DictReader(file)]
        writer.writerows(row for row in kept if tuple(row[name] for name in key) not in new)
    writer.writerows(row | stamp for row in table)
    write_text(path, text.getvalue())
    return path


@cache
def _commit() -> str:
    """Once a run: short hash of the checkout, with + when it has changes; "unknown" outside a checkout."""
    root = Path(__file__).resolve().parents[3]
    asked = ["git", "-C", str(root), "describe", "--always", "--dirty=+", "--exclude=*"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else "unknown"
