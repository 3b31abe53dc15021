"""A small market as pieces, and what stands in a folder of shards."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import polars as pl

from quantattn.data.shards import Piece, pieces_of
from quantattn.data.sources import Source
from quantattn.data.synthetic import SyntheticMarket

MARKET = SyntheticMarket(entities=("A", "B", "C"), events_per_entity=1_200, events_per_session=500)


def whole(source: Source, key: str = "0") -> tuple[Piece, ...]:
    """A source as one piece, whose bytes have the hash `key`."""
    return (Piece("00000000", "the market", key, lambda: source),)


def market(asked: SyntheticMarket = MARKET) -> tuple[Piece, ...]:
    return pieces_of(SyntheticMarket, vars(asked), lambda _: asked.source())


def files(folder: Path, pattern: str = "*") -> dict[str, bytes]:
    return {str(f.relative_to(folder)): f.read_bytes() for f in sorted(folder.rglob(pattern)) if f.is_file()}


def written(folder: Path) -> dict[str, int]:
    """Shard → when it was written."""
    return {str(f.relative_to(folder)): f.stat().st_mtime_ns for f in sorted(folder.rglob("*.parquet"))}


def changed(name: str, value: pl.Expr | object) -> Source:
    source = MARKET.source()
    at = (pl.col("entity") == "B") & (pl.col("seq") == 900)
    frame = source.frame.with_columns(pl.when(at).then(value).otherwise(name).alias(name))
    return replace(source, frame=frame)
