"""Scoring what is new: `incremental=DIR`, in which a causal model's states are kept from job to job."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from quantattn.cli.errors import UsageError
from quantattn.cli.score_engine import EngineSettings
from quantattn.cli.score_outputs import OutputSettings
from quantattn.nn import Model
from quantattn.score import Plan, Work
from quantattn.score.incremental import Stream, begin, commit
from quantattn.score.installed import installed
from quantattn.score.outputs import Output


def check_incremental(asked: OutputSettings, engine: EngineSettings, model: Model, output: Output) -> None:
    """Refuse to keep states where the next job could not go on from them with the bits of one from scratch.

    Raises:
        UsageError: naming the setting.
    """
    if asked.incremental is None:
        return
    if not asked.incremental.strip():
        raise UsageError("incremental must name a folder, got nothing")
    wrong = {
        "filings have no stream that goes on": asked.data.kind == "filings",
        "as_of asks for moments, and what was asked before is not known": asked.as_of is not None,
        "the last sequence of an entity is another one when it has grown; give unit=event": asked.unit == "sequence",
        "its model must be causal: in this one a token sees those after it": not model.encoder.config.causal,
        "deterministic=batch is needed for the bits of a job from scratch": engine.mode != "batch",
        "all shards have to be done before the next job goes on from them, so shards is not taken": bool(engine.shards),
        "a decision without a score would leave its stream without a state, so on_bad=stop is needed": engine.on_bad
        != "stop",
    }
    for why, found in wrong.items():
        if found:
            raise UsageError(f"incremental={asked.incremental}: {why}")
    try:
        output.check(model, streamed=True)
    except ValueError as error:
        raise UsageError(f"incremental={asked.incremental}: {error}") from error


def only_new(
    asked: OutputSettings, work: Work, model: Model, policy: Mapping[str, Any], out: Console
) -> tuple[Work, Stream | None]:
    """The decisions that are new since the last job, and what their sequences go on from; all where none is kept.

    Raises:
        ValueError: see `begin`.
    """
    if asked.incremental is None:
        return work, None
    folder = Path(asked.incremental)
    fresh, stream, known = begin(folder.absolute(), work, _made_of(work, model, policy))
    out.print(f"{known:,} decisions are known from {folder}, {len(fresh.as_of):,} are new")
    return fresh, stream


def keep_states(
    asked: OutputSettings, work: Work, plan: Plan, model: Model, policy: Mapping[str, Any], out: Console
) -> None:
    """Let the next job go on from where this one, which is finished, has come to."""
    if asked.incremental is not None:
        entities, held = commit(Path(asked.incremental), work, plan, _made_of(work, model, policy))
        out.print(f"states of {entities:,} entities in {asked.incremental}, {held:,} bytes")


def _made_of(work: Work, model: Model, policy: Mapping[str, Any]) -> dict[str, Any]:
    """What the bits of a state depend on, but for the events."""
    assert model.artefact is not None
    described = {"model": model.artefact.sha, "settings": dict(work.settings), "policy": dict(policy)}
    plain: dict[str, Any] = json.loads(json.dumps({**described, "code": dict(installed())}))
    return plain
