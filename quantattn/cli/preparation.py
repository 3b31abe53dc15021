"""From settings to prepared data: which source, which preparation, and the check of both before anything is read."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import hydra

from quantattn.cli.errors import UsageError, nearest
from quantattn.cli.instantiate import check_targets, instantiate
from quantattn.cli.settings import TrainSettings
from quantattn.data.filings.prepare import prepare_filings
from quantattn.data.filings.prices import read_prices, read_tickers
from quantattn.data.market.prepare import prepare_market
from quantattn.data.prepared import Prepared
from quantattn.learn.controls import shuffle_labels

PREPARATIONS: Mapping[str, Callable[..., Prepared]] = {"market": prepare_market, "filings": prepare_filings}
"""Kind of data → how it is prepared; a new kind is one entry."""
READERS: Mapping[str, Callable[[str], Any]] = {"prices": read_prices, "tickers": read_tickers}
"""Settings of a preparation that name a file → how it is read."""


def check_data(asked: TrainSettings) -> None:
    """Refuse unknown settings of source, preparation and labels, and paths that do not exist.

    Raises:
        UsageError: naming the setting.
    """
    data = asked.data
    paths = {"data.path": data.path} | {f"data.prepare.{name}": data.prepare.get(name) for name in READERS}
    for name, path in paths.items():
        if path is not None and not Path(path).exists():
            raise UsageError(f"{name}={path}: there is no such file or folder")
    check_targets(data.source, "data.source", asked.allow_targets)
    made = hydra.utils.get_object(str(data.source.get("_target_")))
    _check_keys(made, data.source, "data.source")
    _check_keys(PREPARATIONS[data.kind], data.prepare, "data.prepare")
    _check_keys(PREPARATIONS[data.kind], asked.labels, "labels")


def _check_keys(function: Callable[..., Any], node: Mapping[str, Any], where: str) -> None:
    known = inspect.signature(function).parameters
    for key in node:
        if key not in known and not key.startswith("_"):
            raise UsageError(f"unknown setting {where}.{key}{nearest(key, known)}")


def prepare(asked: TrainSettings, split: Any) -> Prepared:
    """Read the source and prepare it for training.

    Raises:
        ValueError: what the source or the preparation refuses, in one sentence.
    """
    data = asked.data
    source = instantiate(data.source, "data.source", asked.allow_targets)
    given = {
        **values(data.prepare, "data.prepare", asked.allow_targets),
        **values(asked.labels, "labels", asked.allow_targets),
    }
    prepared = PREPARATIONS[data.kind](source, split=split, max_seq_len=data.max_seq_len, **given)
    return shuffle_labels(prepared, asked.seed) if data.shuffle_labels else prepared


def values(node: Mapping[str, Any], where: str, allow: tuple[str, ...]) -> dict[str, Any]:
    """The settings with every `_target_` made and every file that has a reader read."""
    found: dict[str, Any] = {}
    for name, value in node.items():
        if isinstance(value, Mapping) and "_target_" in value:
            found[name] = instantiate(value, f"{where}.{name}", allow)
        else:
            found[name] = READERS[name](value) if name in READERS and value is not None else value
    return found
