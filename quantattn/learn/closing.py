"""How a run ends: figures on the test rows beside the baselines, the closing table, and the report."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from quantattn.data.prepared import Prepared
from quantattn.evaluate import (
    Check,
    ReportData,
    Table,
    baseline_probabilities,
    baseline_values,
    choose_blocks,
    classification_figures,
    closing_table,
    regression_figures,
    regression_table,
)

Curves = Mapping[str, tuple[list[float], list[float]]]


@dataclass(frozen=True)
class Story:
    """What a report says beside its figures: title, question, settings, hashes, caveats and when."""

    title: str
    question: str
    settings: Mapping[str, str]
    hashes: Mapping[str, str]
    caveats: tuple[str, ...] = ()
    created: str | None = None


def close(
    prepared: Prepared, target: str, scores: Mapping[str, Tensor], curves: Curves, story: Story, *, seed: int = 0
) -> tuple[Table, ReportData]:
    """The closing table and the report of a model's scores of `target` on the test rows of `prepared`."""
    y = prepared.test.decisions.targets[target]
    as_of, entity = prepared.as_of["test"], prepared.entity["test"]
    blocks = choose_blocks(as_of, entity)
    train, test = (dict(prepared.baselines[part]) for part in ("train", "test"))
    y_train = prepared.train.decisions.targets[target]
    learning = {name: curves[f"{name}/loss"] for name in ("train", "valid") if f"{name}/loss" in curves}
    if prepared.classes:
        prob = scores["prob"].numpy()
        inputs = ("persistence", "imbalance", "features")
        train, test = ({k: v for k, v in part.items() if k in inputs} for part in (train, test))
        others = baseline_probabilities(train, y_train, test, len(prepared.classes))
        bayes = None
        if prepared.bayes is not None:
            bayes = {"log_loss": prepared.bayes.log_loss, "accuracy": prepared.bayes.accuracy}
        table = closing_table(y, as_of, blocks, prob, others, bayes, seed=seed)
        figures = classification_figures(y, prob, as_of, prepared.classes, others[table.best_baseline], table, learning)
    else:
        value = scores["value"].numpy()
        forecasts = baseline_values(train["last_value"], y_train, test["last_value"])
        table = regression_table(y, as_of, blocks, value, forecasts, seed=seed)
        figures = regression_figures(y, value, as_of, forecasts[table.best_baseline], table, learning)
    data = ReportData(
        title=story.title,
        question=story.question,
        table=table,
        figures=figures,
        rows={
            **prepared.counts,
            **{f"{name} decisions": len(part.decisions) for name, part in parts(prepared).items()},
        },
        dropped=prepared.dropped,
        checks=tuple(
            Check(c.name, c.verdict != "failed", f"{c.verdict}; {c.sentence or f'{c.looked_at:,} looked at'}")
            for c in prepared.audit.checks
        ),
        settings=story.settings,
        hashes={**prepared.hashes, **story.hashes},
        caveats=(*story.caveats, *caveats(table)),
        created=story.created,
    )
    return table, data


def parts(prepared: Prepared) -> dict[str, Any]:
    """Name → sequences of the three parts."""
    return {"train": prepared.train, "valid": prepared.valid, "test": prepared.test}


def caveats(table: Table) -> tuple[str, ...]:
    """What the size of the test set forbids to conclude."""
    said = []
    if table.block_kind == "time" and table.row(table.model.method).figures:
        said.append(
            f"The test decisions lie in {table.blocks} stretches of a few days; how the model does in another month or "
            "market cannot be seen from them."
        )
    if table.decisions < 1000:
        said.append(f"{table.decisions:,} test decisions are few: small differences cannot be told from chance.")
    return tuple(said)


def figures_of(table: Table) -> dict[str, float]:
    """Flat figures for metrics.json and for sweeps: test/<figure>, and skill against the best baseline."""
    found = {f"test/{name}": figure.value for name, figure in table.model.figures.items()}
    found["test/skill"] = table.skill.value
    if table.gap_closed is not None:
        found["test/gap_closed"] = table.gap_closed.value
    return {name: value for name, value in found.items() if math.isfinite(value)}
