"""From settings to prepared data: which source, which preparation, and the check of both before anything is read."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import hydra

from quantattn.cli.errors import UsageError, nearest
from quantattn.cli.instantiate import check_targets, instantiate
from quantattn.cli.settings import TrainSettings
from quantattn.cli.sharding import write_shards
from quantattn.data.filings.encode import UnlabelledFilings, encode_filings
from quantattn.data.filings.prepare import check_filings, prepare_filings
from quantattn.data.filings.prices import read_prices, read_tickers
from quantattn.data.market.encode import Unlabelled, encode_market
from quantattn.data.market.prepare import check_market, prepare_market
from quantattn.data.prepared import Prepared
from quantattn.data.shards import scan_prepared
from quantattn.data.table import check_table, prepare_table
from quantattn.data.table.encode import encode_table
from quantattn.data.units import Chosen
from quantattn.learn.controls import shuffle_labels
from quantattn.nn import Artefact, Coles, NextEvent, NextWindow, Several

if TYPE_CHECKING:
    from quantattn.score import Work

PREPARATIONS: Mapping[str, Callable[..., Prepared]] = {
    "market": prepare_market,
    "filings": prepare_filings,
    "table": prepare_table,
}
"""Kind of data → how it is prepared; a new kind is one entry."""
CHECKS: Mapping[str, Callable[..., None]] = {
    "market": check_market,
    "filings": check_filings,
    "table": check_table,
}
"""Kind of data → what refuses settings of its preparation before anything is read."""
ENCODERS: Mapping[str, Callable[..., Unlabelled]] = {
    "market": encode_market,
    "filings": encode_filings,
    "table": encode_table,
}
"""Kind of data → how decisions without labels are made of it, for scoring."""
NO_LABELS: Mapping[str, Any] = {"objective": "masked"}
"""What `labels=none` says."""
READERS: Mapping[str, Callable[[Any], Any]] = {"prices": read_prices, "tickers": read_tickers, "market": read_prices}
"""Settings of a preparation that name a file, tickers several too → how it is read."""


def check_data(asked: TrainSettings) -> None:
    """Refuse unknown settings of source, preparation and labels, values that they cannot have, and missing paths.

    Raises:
        UsageError: naming the setting.
    """
    data = asked.data
    check_source(data.source, data.path, asked.allow_targets)
    for name in READERS:
        given = data.prepare.get(name)
        for path in given if name == "tickers" and isinstance(given, list | tuple) else (given,):
            if path is not None and not Path(str(path)).exists():
                raise UsageError(f"data.prepare.{name}={path}: there is no such file or folder")
    _check_keys(PREPARATIONS[data.kind], data.prepare, "data.prepare")
    of_labels = labels(asked)
    if "_target_" not in asked.labels:
        _check_keys(PREPARATIONS[data.kind], of_labels, "labels")
    try:
        CHECKS[data.kind](**clipped(dict(data.prepare) | of_labels | {"max_seq_len": data.max_seq_len}))
    except (ValueError, TypeError) as error:
        raise UsageError(f"data.prepare and labels: {error}") from error


def check_source(source: Mapping[str, Any], path: str | None, allow: tuple[str, ...]) -> None:
    """Refuse a source that may not be named, settings that it does not take, and a path that does not exist."""
    check_targets(source, "data.source", allow)
    known = parameters(hydra.utils.get_object(str(source.get("_target_"))))
    _check_keys(known, source, "data.source")
    for name, value in source.items():
        if isinstance(value, Mapping) and "_target_" in value:
            instantiate(value, f"data.source.{name}", allow)
    seed = source.get("seed", 0)
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise UsageError(f"data.source.seed must be a whole number from 0, got {seed!r}")
    if path is None:
        return
    if "path" not in known:
        raise UsageError(
            f"data.path={path}: this data are made, not read; name another with data=lobster, for instance"
        )
    if not Path(path).exists():
        raise UsageError(f"data.path={path}: there is no such file or folder")


def decisions_of(
    source: Mapping[str, Any],
    trained: Mapping[str, Any],
    artefact: Artefact,
    allow: tuple[str, ...],
    chosen: Mapping[str, Any] = MappingProxyType({}),
    choose: Callable[[Unlabelled], Unlabelled] = lambda made: made,
    **where: Any,
) -> Work:
    """The decisions of a source, in the tokens and the cut of sequences that a model was trained on.

    Args:
        source: `_target_` of what reads the data, with its settings.
        trained: the data settings that stand in the model's folder.
        artefact: the model's vocabulary.
        allow: more prefixes that a `_target_` may have.
        chosen: settings of the encoder of this kind of data that go before those of training.
        choose: puts other decisions in the place of these.
        where: `room` and `progress` of what is read in runs, see `encode_market`.

    Raises:
        UsageError: a setting that this kind of data does not take.
    """
    encode = ENCODERS[trained["kind"]]
    _check_keys(encode, chosen, "")
    kept = {name: value for name, value in where.items() if name in parameters(encode)}
    known = parameters(encode) - {"room", "progress"}
    given = {name: value for name, value in trained["prepare"].items() if name in known} | dict(chosen)
    given = clipped(given | {"max_seq_len": trained["max_seq_len"]})
    made = choose(encode(instantiate(source, "data.source", allow), artefact.vocabulary_json, **given, **kept))
    from quantattn.score import Work  # whose table format training does not need

    pieces: dict[str, Any] = {"events": made.events}
    if isinstance(made, UnlabelledFilings):
        pieces = {"row": made.row, "described": made.described, "notes": made.notes}
    if isinstance(made, Chosen):
        pieces |= {"copies": made.copies, "described": made.described, "notes": made.notes}
    return Work(made.sequences, made.as_of, made.entity, made.hashes, given, **pieces)


def clipped(given: dict[str, Any]) -> dict[str, Any]:
    """The settings with `min_context` at most `max_seq_len`, so that one setting is enough to cut the context."""
    if given.get("min_context") is None:
        return given
    return given | {"min_context": min(given["min_context"], given["max_seq_len"])}


def parameters(function: Callable[..., Any]) -> set[str]:
    """Names of what a function takes."""
    return set(inspect.signature(function).parameters)


def _check_keys(known: Callable[..., Any] | set[str], node: Mapping[str, Any], where: str) -> None:
    names = known if isinstance(known, set) else parameters(known)
    for key in node:
        if key not in names and key != "_target_":
            raise UsageError(f"unknown setting {f'{where}.' if where else ''}{key}{nearest(key, names)}")


def check_goal(asked: TrainSettings, objective: Any) -> None:
    """Refuse an objective that does not go with the labels, the encoder or the way in which sequences are cut.

    Raises:
        UsageError: naming the setting.
    """
    layout = asked.data.prepare.get("layout", "document")
    parts = list(objective.parts.values()) if isinstance(objective, Several) else [objective]
    for part in parts:
        check_sight(asked, part)
    if objective.goal != "data":
        if asked.labels == NO_LABELS:
            raise UsageError("labels=none goes with objectives that predict the data themselves; name other labels")
        _check_kind_of_label(labels(asked).get("label"), objective.goal == "classes")
        if not asked.model.causal and layout in ("chunks", "windows"):
            raise UsageError(
                f"data.prepare.layout={layout} puts decisions inside of sequences, where a bidirectional encoder would "
                "see what follows them; use model.causal=true, or data.prepare.layout=each"
            )
        return
    if asked.test and any(isinstance(part, (Coles, NextWindow)) for part in parts):
        raise UsageError(
            "embeddings by comparison have no closing table of their own: give test=false, and judge them with "
            "experiment=probe tuning.start=RUN"
        )
    if asked.data.kind == "market" and layout != "windows":
        raise UsageError(
            f"with data.prepare.layout={layout} test sequences would begin with training events, which this objective "
            "predicts too; use data.prepare.layout=windows"
        )


def check_sight(asked: TrainSettings, objective: Any) -> None:
    """Refuse to predict the next event where the encoder, or the way in which events were merged, knows it already."""
    if isinstance(objective, NextEvent) and not asked.model.causal:
        raise UsageError("objective=next_event needs model.causal=true: any other encoder sees the event it predicts")
    if isinstance(objective, NextEvent) and asked.data.prepare.get("merges"):
        raise UsageError(
            "objective=next_event needs data.prepare.merges=0: which events a merged token says depends on those after "
            "it, up to the next decision, so it would be told of what it predicts; or use objective=masked_events"
        )


def _check_kind_of_label(label: Any, wants_classes: bool) -> None:
    """Refuse an objective over classes for a label that is a value, and the other way round."""
    classes = getattr(label, "class_names", None)
    if classes is not None and bool(classes) != wants_classes:
        found, wanted = ("classes", "outcome") if classes else ("a value", "regression")
        raise UsageError(f"labels: {label.name} is {found}, so objective={wanted} is needed")


def labels(asked: TrainSettings) -> dict[str, Any]:
    """What the preparation is told of labels: one object under `label`, or plain settings."""
    if "_target_" not in asked.labels:
        # A market is cut in time by its default label, whatever is predicted; filings are told that there is none.
        return {} if asked.data.kind == "market" and asked.labels == NO_LABELS else dict(asked.labels)
    return {"label": instantiate(asked.labels, "labels", asked.allow_targets)}


def prepare(asked: TrainSettings, split: Any) -> Prepared:
    """Read the source and prepare it for training.

    Raises:
        ValueError: what the source or the preparation refuses, in one sentence.
    """
    data = asked.data
    if asked.shards is not None:
        write_shards(data, Path(asked.shards), allow=asked.allow_targets)
        source = scan_prepared(asked.shards)
    else:
        source = instantiate(data.source, "data.source", asked.allow_targets)
    given = clipped(read_files(data.prepare) | labels(asked) | {"max_seq_len": data.max_seq_len})
    prepared = PREPARATIONS[data.kind](source, split=split, **given)
    return shuffle_labels(prepared, asked.seed) if data.shuffle_labels else prepared


def read_files(node: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with what has a reader read."""
    return {
        name: READERS[name](value) if name in READERS and value is not None else value for name, value in node.items()
    }
