"""What a scoring job is asked to say, and of what: settings → an output, and decisions in the place of the model's."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from quantattn.cli.errors import UsageError
from quantattn.cli.settings import DataSettings
from quantattn.data.market.encode import Unlabelled
from quantattn.data.meanings import meanings
from quantattn.data.protocol.moments import at_moments, read_moments
from quantattn.data.units import every_event, every_sequence
from quantattn.evaluate.conformal import Conformal
from quantattn.nn import Model, NextEvent
from quantattn.score.attended_keys import AttendedKeys
from quantattn.score.next_events import NextEvents
from quantattn.score.outputs import Embeddings, Output, Scores

Unit = Literal["filing", "item", "decision", "event", "sequence"]
FILINGS = ("filing", "item")
"""Units of filings; the others are of events."""


@dataclass(frozen=True, kw_only=True)
class OutputSettings:
    """What of `score.yaml` says what is wanted.

    Attributes:
        data: what to score: its source and path alone; how sequences are made stands in the model's folder.
        output: "scores"; "embeddings": one vector a row, whatever heads the model has; "next_event": laws of the next
            event's fields and time; or "attention": the events that a decision attends to most.
        pooling: how states become an embedding: "mean" of those of all tokens, or "last", the one at the decision.
        unit: what a row is: of filings a "filing", or an "item" read by itself; of events a "decision" of the model,
            every "event", or a "sequence", each entity cut every so many events; None: filing or decision.
        as_of: of events, a CSV or Parquet file of moments that are rows instead, with columns entity and as_of.
        incremental: of events, a folder in which a causal model's states are kept, so that the next job computes what
            is new, in a table of its own.
        levels: of next_event, those of the quantiles of its time.
        top: of attention, how many events.
        layer: of attention, from 0, or from −1 for the last.
        head: of attention, from 0; None is the mean over heads.
    """

    data: DataSettings
    output: Literal["scores", "embeddings", "next_event", "attention"] = "scores"
    pooling: Literal["mean", "last"] = "mean"
    unit: Unit | None = None
    as_of: str | None = None
    incremental: str | None = None
    levels: tuple[float, ...] = (0.1, 0.5, 0.9)
    top: int = 8
    layer: int = -1
    head: int | None = None


def output_of(asked: OutputSettings, model: Model) -> Output:
    """What the job says of each decision.

    Raises:
        UsageError: the model or these data cannot have it.
    """
    assert model.artefact is not None
    extra = model.artefact.extra
    if asked.output in ("next_event", "attention") and asked.data.kind == "filings":
        raise UsageError(f"output={asked.output} is of events, but data is filings")
    try:
        made = _made(asked, model)
        made.check(model, streamed=False)
    except ValueError as error:
        raise UsageError(str(error)) from error
    if asked.output == "next_event" and not _predicts_next(objective := extra.get("objective")):
        raise UsageError(
            "output=next_event: this model does not say that it was trained with objective=next_event, but "
            + (
                "nothing of its objective, as models of older versions and those saved from Python: train it again"
                if objective is None
                else json.dumps(objective)
            )
        )
    return made


def _made(asked: OutputSettings, model: Model) -> Output:
    assert model.artefact is not None
    if asked.output == "embeddings":
        return Embeddings(asked.pooling)
    if asked.output == "next_event":
        return NextEvents(meanings(model.artefact.vocabulary_json), asked.levels)
    if asked.output == "attention":
        return AttendedKeys(asked.top, asked.layer, asked.head)
    extra = model.artefact.extra
    kept = extra.get("conformal")
    conformal = Conformal.from_dict(kept) if isinstance(kept, Mapping) else None
    return Scores(tuple(map(str, json.loads(json.dumps(extra.get("classes", []))))), conformal)


def _predicts_next(objective: Any) -> bool:
    """Whether the settings of an objective, or one of its parts, are those of the next event."""
    if not isinstance(objective, Mapping):
        return False
    parts = objective.get("parts")
    named = str(objective.get("_target_")).rpartition(".")[2] == NextEvent.__name__
    return named or (isinstance(parts, Mapping) and any(map(_predicts_next, parts.values())))


def check_unit(asked: OutputSettings) -> None:
    """Refuse a unit that these data do not have, and moments of what is no entity, before anything is read.

    Raises:
        UsageError: naming the setting.
    """
    filings = asked.data.kind == "filings"
    if asked.unit is not None and (asked.unit in FILINGS) != filings:
        has = "filing and item" if filings else "decision, event and sequence"
        raise UsageError(f"unit={asked.unit}, but data is {asked.data.kind}, whose units are {has}")
    if asked.as_of is None:
        return
    if filings:
        raise UsageError("as_of asks for entities at moments, but a filing is scored as of when it became public")
    if asked.unit not in (None, "decision"):
        raise UsageError(f"as_of names the rows, and unit={asked.unit} would name others; give one of them")
    if not Path(asked.as_of).is_file():
        raise UsageError(f"as_of={asked.as_of}: there is no such file")


def chooser(asked: OutputSettings, model: Model) -> Callable[[Unlabelled], Unlabelled]:
    """What puts the rows that are asked for in the place of the decisions of a source."""
    if asked.as_of is not None:
        moments = read_moments(Path(asked.as_of))
        return lambda made: at_moments(made, moments)
    if asked.unit == "event":
        return lambda made: every_event(made, model.encoder.config.causal)
    if asked.unit == "sequence":
        return every_sequence
    return _unmerged if asked.incremental is not None else lambda made: made


def _unmerged(made: Unlabelled) -> Unlabelled:
    if made.merged:
        raise ValueError(
            "incremental needs a model of one token an event: its last merged token changes as events follow"
        )
    return made


def policy_of(asked: OutputSettings, output: Output) -> Mapping[str, Any]:
    """Plain values that tell what is said, and of what, from other jobs on the same data."""
    unit = {"unit": asked.unit} if asked.unit in ("event", "sequence") else {}
    return {**output.policy, **unit}
