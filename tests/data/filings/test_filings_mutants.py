"""Damaged real filings: no crash, no hang, no silent emptiness; every file is read or set aside with a reason."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import polars as pl
import pytest

from quantattn.data.sources.filings import scan_filings

NAMES = (
    "full_submission/ABVC_8-K_0001213900-25-032135.txt.gz",
    "full_submission/MINIMAL_0001564590-20-004475.txt",
    "full_submission/ACORN_8-K_0001493152-25-001317.nc.gz",
    "old_ascii/FOODCONCEPTS_8-K_0000703901-98-000003.txt",
    "html_8-K/ORACLE_2024_8-K.html",
)


def damaged(content: bytes, other: bytes, dice: random.Random) -> bytes:
    at, size = dice.randrange(len(content)), dice.choice([1, 20, 2_000])
    kind = dice.randrange(6)
    if kind == 0:
        return content[:at]
    if kind == 1:
        return content[:at] + content[at + size :]
    if kind == 2:
        return content[:at] + dice.randbytes(size) + content[at:]
    if kind == 3:
        start = dice.randrange(len(other))
        return content[:at] + other[start : start + size] + content[at:]
    if kind == 4:
        return content[:at] + b"<div>" * size + content[at:]
    return content[:at].decode("latin-1").encode("utf-16") + content[at:]


@pytest.fixture
def mutants(realdata: Path, tmp_path: Path) -> Path:
    paths = [realdata / "filings" / name for name in NAMES]
    if not all(path.is_file() for path in paths):
        pytest.skip("the real data holds other filings")
    contents = [gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes() for path in paths]
    dice = random.Random(20261129)
    for number in range(60):
        content, other = dice.sample(contents, 2)
        for _ in range(dice.randint(1, 3)):
            content = damaged(content, other, dice) or b"\n"
        (tmp_path / f"{number:02}.txt").write_bytes(content)
    return tmp_path


def test_every_mutant_is_read_or_set_aside_with_a_reason(mutants: Path) -> None:
    source = scan_filings(mutants, filing_dates="latest")
    documents = source.documents
    assert documents.height == 60
    assert source.report.rows_read + sum(source.report.rows_set_aside.values()) == 60
    assert documents.filter((pl.col("status") != "ok") & (pl.col("detail") == "")).height == 0
    kept = documents.filter(pl.col("status") == "ok")
    assert kept.filter((pl.col("n_chars") < 1) | (pl.col("available_time") < pl.col("event_time"))).height == 0
    assert documents.filter(pl.col("n_chars") > 0).height > 20
