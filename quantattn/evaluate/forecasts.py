"""Forecasts of values and of classes, from a table of scores: beside their baselines, with tests and coverage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from quantattn.evaluate.baselines import HISTORY
from quantattn.evaluate.compare import Table, closing_table, regression_table
from quantattn.evaluate.conformal import Coverage, interval_coverage, set_coverage
from quantattn.evaluate.inference import MeanTest, diebold_mariano
from quantattn.evaluate.metrics import IGNORE, classified, log_losses
from quantattn.evaluate.panel import Floats, Panel
from quantattn.evaluate.past import past_probabilities, past_values
from quantattn.evaluate.scores import Scores
from quantattn.evaluate.significance import REPLICATES, Blocks, choose_blocks


@dataclass(frozen=True)
class Forecasts:
    """Forecasts beside their baselines.

    Attributes:
        table: figures with intervals by resampling blocks of time.
        by_entity: the same table with whole entities resampled; None for fewer than two.
        tests: baseline → Diebold and Mariano's test of the method's loss − its own, below zero when better.
        coverage: of conformal intervals or sets; None where there are too few rows.
        baselines: name → (Q,) values or (Q, C) probabilities of the rows.
    """

    table: Table
    by_entity: Table | None
    tests: Mapping[str, MeanTest]
    coverage: Coverage | None
    baselines: Mapping[str, Floats]


def judge_values(
    scores: Scores, *, stated: float = 0.9, level: float = 0.95, replicates: int = REPLICATES, seed: int = 0
) -> Forecasts:
    """Forecasts of a value: errors, R² against the entity's history, Diebold–Mariano, coverage of intervals.

    Args:
        scores: see `read_scores`, of kind "value".
        stated: share of outcomes that conformal intervals should hold.
        level: coverage of the confidence intervals.
        replicates: bootstrap resamples.
        seed: of the resamples.

    Raises:
        ValueError: no row has an outcome.
    """
    data, y = scores.data, scores.data.outcome
    kept = np.isfinite(y)
    others = {**scores.beside, **past_values(data)}
    time = data.times[data.at]

    def table(blocks: Blocks) -> Table:
        return regression_table(
            y,
            time,
            blocks,
            scores.score,
            others,
            HISTORY,
            method="score",
            level=level,
            replicates=replicates,
            seed=seed,
        )

    losses = {name: (y - value)[kept] ** 2 for name, value in {"score": scores.score, **others}.items()}
    return Forecasts(
        table=table(_blocks(data, kept)),
        by_entity=table(_entities(data)) if np.unique(data.entity[kept]).size > 1 else None,
        tests={
            name: diebold_mariano(losses["score"], losses[name], time[kept], horizon=data.horizon) for name in others
        },
        coverage=interval_coverage(data, scores.score, stated, seed),
        baselines=others,
    )


def judge_classes(
    scores: Scores,
    *,
    beside: Mapping[str, ArrayLike] | None = None,
    stated: float = 0.9,
    level: float = 0.95,
    replicates: int = REPLICATES,
    seed: int = 0,
) -> Forecasts:
    """Probabilities of classes: every figure of `classification_metrics`, Diebold–Mariano, coverage of sets.

    Args: as in `judge_values`; `beside` has (Q, C) probabilities of other methods.
    """
    data = scores.data
    kept = np.isfinite(data.outcome)
    y = np.where(kept, data.outcome, IGNORE).astype(np.int64)
    others = {n: np.asarray(p, np.float64) for n, p in (beside or {}).items()}
    others |= past_probabilities(data, len(scores.classes))
    time = data.times[data.at]

    def table(blocks: Blocks) -> Table:
        return closing_table(
            y, time, blocks, scores.score, others, method="score", level=level, replicates=replicates, seed=seed
        )

    losses = {name: log_losses(classified(y, prob)) for name, prob in {"score": scores.score, **others}.items()}
    return Forecasts(
        table=table(_blocks(data, kept)),
        by_entity=table(_entities(data)) if np.unique(data.entity[kept]).size > 1 else None,
        tests={
            name: diebold_mariano(losses["score"], losses[name], time[kept], horizon=data.horizon) for name in others
        },
        coverage=set_coverage(data, scores.score, stated, seed),
        baselines=others,
    )


def _blocks(data: Panel, kept: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Blocks:
    """Blocks of time for all rows, made from the rows with an outcome; the others get any block, and are left out."""
    ids = np.zeros(kept.size, np.int64)
    found = data.blocks(data.at[kept])
    ids[kept] = found.ids
    return Blocks(ids, found.kind, found.count)


def _entities(data: Panel) -> Blocks:
    return choose_blocks(data.times[data.at], data.entity, kind="entity")
