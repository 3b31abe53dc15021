"""Where event tables come from: one file a format, each a function that returns a `Source`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any

from quantattn.data.sources.bars import scan_bars
from quantattn.data.sources.crypto import (
    scan_binance,
    scan_binance_depth,
    scan_bitstamp,
    scan_capture,
    scan_hftbacktest,
    scan_tardis,
)
from quantattn.data.sources.dbn import scan_dbn
from quantattn.data.sources.fi2010 import scan_fi2010
from quantattn.data.sources.itch import scan_itch
from quantattn.data.sources.lobster import scan_lobster
from quantattn.data.sources.source import Source, SourceReport
from quantattn.data.sources.table import scan_table
from quantattn.data.sources.tables import scan_tables
from quantattn.data.sources.taq import scan_taq
from quantattn.data.sources.ticks import scan_ticks

__all__ = [
    "SOURCES",
    "Source",
    "SourceReport",
    "scan_bars",
    "scan_binance",
    "scan_binance_depth",
    "scan_bitstamp",
    "scan_capture",
    "scan_dbn",
    "scan_fi2010",
    "scan_hftbacktest",
    "scan_itch",
    "scan_lobster",
    "scan_table",
    "scan_tables",
    "scan_taq",
    "scan_tardis",
    "scan_ticks",
]


def _synthetic(**settings: Any) -> Source:
    source: Source = import_module("quantattn.data.synthetic").SyntheticMarket(**settings).source()
    return source


def _filings(*args: Any, **settings: Any) -> Source:
    source: Source = import_module("quantattn.data.sources.filings").scan_filings(*args, **settings)
    return source


def _prepared(*args: Any, **settings: Any) -> Source:
    source: Source = import_module("quantattn.data.shards").scan_prepared(*args, **settings)
    return source


SOURCES: Mapping[str, Callable[..., Source]] = MappingProxyType(
    {
        "lobster": scan_lobster,
        "itch": scan_itch,
        "databento": scan_dbn,
        "bars": scan_bars,
        "taq": scan_taq,
        "ticks": scan_ticks,
        "fi2010": scan_fi2010,
        "prepared": _prepared,
        "synthetic": _synthetic,
        "filings": _filings,
        "table": scan_table,
        "tables": scan_tables,
        "tardis": scan_tardis,
        "binance": scan_binance,
        "binance_depth": scan_binance_depth,
        "bitstamp": scan_bitstamp,
        "hftbacktest": scan_hftbacktest,
        "capture": scan_capture,
    }
)
"""Name → function that makes the source. A new format is one file in this folder and one entry here."""
