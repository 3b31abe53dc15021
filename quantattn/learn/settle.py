"""The budget of tokens of a run that was told to find one: tried once, and kept with the run."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from quantattn.data.prepared import Prepared
from quantattn.learn.budget import HELPS, find_budget
from quantattn.learn.files import write_json
from quantattn.learn.module import OptimizerFactory, Training
from quantattn.learn.rows import training_rows
from quantattn.learn.run import RunSettings, begin, schedule_of
from quantattn.nn import EncoderConfig, Objective
from quantattn.nn.memory import OutOfMemory

BUDGET = "budget.json"
"""File of a run folder that keeps the budget that was found: the order of batches depends on it."""


def with_budget(
    folder: Path,
    prepared: Prepared,
    encoder: EncoderConfig,
    objective: Objective,
    optimizer: OptimizerFactory,
    settings: RunSettings,
    resume: Path | None,
    said: Callable[[str], None],
) -> RunSettings:
    """The settings with as many tokens a batch as fit into memory, or as did when the run was begun.

    Raises:
        OutOfMemory: not even the longest sequence fits.
        ValueError: the run that it goes on with has not kept its budget.
    """

    def find() -> int | None:
        fitted = objective.fitted(training_rows(prepared))
        model, _, frozen = begin(encoder, fitted, prepared, settings.tuning)
        module = Training(
            model,
            fitted,
            optimizer=optimizer,
            schedule=schedule_of(settings.trainer, 2),
            layer_decay=settings.tuning.layer_decay,
            frozen=frozen,
        )
        return find_budget(module, prepared.train, settings.trainer, said)

    longest = int(prepared.train.lengths.max())
    found = settled_budget(folder, resume if settings.train else None, find, longest)
    said(f"batches have at most {found:,} tokens")
    return replace(settings, max_tokens=found)


def settled_budget(folder: Path, resume: Path | None, find: Callable[[], int | None], longest: int) -> int:
    """The budget of a run that was told to find one, kept in its folder: who goes on with it needs the same order.

    Args:
        folder: the run folder.
        resume: checkpoint that it goes on from; the budget was found then.
        find: tries, see `find_budget`.
        longest: tokens of the longest sequence.

    Raises:
        OutOfMemory: not even that one fits.
        ValueError: the run that it goes on with has not kept its budget.
    """
    if resume is None:
        found = find()
    else:
        kept = resume.parent.parent / BUDGET
        if not kept.is_file():
            raise ValueError(
                f"{kept} is not there: {resume} is of a run that was given a number of tokens; give "
                "data.max_tokens_per_batch the same"
            )
        try:
            found = int(json.loads(kept.read_text(encoding="utf-8"))["max_tokens_per_batch"])
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{kept} does not hold max_tokens_per_batch as a whole number") from error
    if found is None:
        raise OutOfMemory(f"memory is out: not even one sequence of {longest:,} tokens fits; {HELPS}")
    write_json(folder / BUDGET, {"max_tokens_per_batch": found})
    return found
