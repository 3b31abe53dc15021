"""How a run ends: figures on the test rows beside the baselines, the closing table, and the report."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from torch import Tensor

from quantattn.data.documents import Pieces
from quantattn.data.pack import SequenceSet
from quantattn.data.prepared import PARTS, Prepared
from quantattn.evaluate import (
    CLASSIFICATION,
    NOT_INSTALLED,
    REGRESSION,
    Check,
    Figure,
    ReportData,
    Table,
    Words,
    aggregate_probabilities,
    baseline_probabilities,
    baseline_values,
    boosting_is_installed,
    choose_blocks,
    classification_figures,
    closing_table,
    regression_figures,
    regression_table,
    word_values,
)
from quantattn.evaluate.report import days_of

Curves = Mapping[str, tuple[list[float], list[float]]]
TEST_FIGURES = (
    *(f"test/{metric.name}" for metric in (*CLASSIFICATION, *REGRESSION)),
    "test/skill",
    "test/gap_closed",
)
"""Every name that `figures_of` may give."""
VERDICTS = {"passed": True, "failed": False, "not run": None}
"""Verdict of a check of the audit → what the report shows."""


@dataclass(frozen=True)
class Exactness:
    """What was found of the attention that a run uses: whether it passed, one sentence, and the whole certificate."""

    passed: bool
    sentence: str
    document: Mapping[str, Any]


@dataclass(frozen=True)
class Story:
    """What a report says beside its figures: title, question, settings, hashes, exactness, caveats and when."""

    title: str
    question: str
    settings: Mapping[str, str]
    hashes: Mapping[str, str]
    exactness: Exactness | None = None
    caveats: tuple[str, ...] = ()
    created: str | None = None


def close(
    prepared: Prepared,
    target: str,
    scores: Mapping[str, Tensor],
    curves: Curves,
    story: Story,
    *,
    seed: int = 0,
    method: str = "encoder",
    beside: Mapping[str, Mapping[str, Tensor]] = MappingProxyType({}),
) -> tuple[Table, ReportData]:
    """The closing table and the report of a model's scores of `target` on the test rows of `prepared`.

    `method` is what it is called, and `beside` are scores of other models, which stand in the table as its rivals.
    The values of a document that was cut into windows are one decision: their mean over windows, weighed by tokens.
    """
    table, others = judged(prepared, target, scores, seed=seed, method=method, beside=beside)
    pieces, learning = pieces_of(prepared, "test"), learning_curves(curves)
    y, as_of = pieces.one(prepared.test.decisions.targets[target]), pieces.one(prepared.as_of["test"])
    baseline = others[table.best_baseline]
    if prepared.classes:
        prob = scores["prob"].numpy()
        figures = classification_figures(y, prob, as_of, prepared.classes, baseline, table, learning)
    else:
        figures = regression_figures(y, pieces.mean(scores["value"].numpy()), as_of, baseline, table, learning)
    limits = caveats(table, int(as_of.max() - as_of.min()))
    trees = numbers_of(prepared, "test") is not None if prepared.classes else has_words(prepared)
    if trees and not boosting_is_installed():
        limits = (*limits, NOT_INSTALLED)
    return table, report(prepared, story, table, figures, limits)


def judged(
    prepared: Prepared,
    target: str,
    scores: Mapping[str, Tensor],
    *,
    seed: int = 0,
    method: str = "encoder",
    beside: Mapping[str, Mapping[str, Tensor]] = MappingProxyType({}),
) -> tuple[Table, Mapping[str, Any]]:
    """The closing table of a model's scores of `target` on the test rows, and name → forecasts of every baseline.

    `method` and `beside` as in `close`.
    """
    pieces = pieces_of(prepared, "test")
    y = pieces.one(prepared.test.decisions.targets[target])
    as_of = pieces.one(prepared.as_of["test"])
    blocks = choose_blocks(as_of, pieces.one(prepared.entity["test"]), kind=prepared.block_kind)
    if prepared.classes:
        others = {name: said["prob"].numpy() for name, said in beside.items()}
        others |= classifiers_beside(prepared, target, seed)
        bayes = None
        if prepared.bayes is not None:
            bayes = {"log_loss": prepared.bayes.log_loss, "accuracy": prepared.bayes.accuracy}
        prob = scores["prob"].numpy()
        return closing_table(y, as_of, blocks, prob, others, bayes, method=method, seed=seed), others
    training = pieces_of(prepared, "train")
    y_train = training.one(prepared.train.decisions.targets[target])
    past, now = (of.one(prepared.baselines[name]["last_value"]) for name, of in (("train", training), ("test", pieces)))
    forecasts: dict[str, Any] = {name: pieces.mean(said["value"].numpy()) for name, said in beside.items()}
    forecasts |= baseline_values(past, y_train, now)
    if has_words(prepared):
        train, valid, test = (words_of(prepared, part, target) for part in PARTS)
        said = word_values(train, valid, test, prepared.codes["token"], seed=seed)
        forecasts |= {name: pieces.one(values) for name, values in said.items()}
    value = pieces.mean(scores["value"].numpy())
    return regression_table(y, as_of, blocks, value, forecasts, method=method, seed=seed), forecasts


def pieces_of(prepared: Prepared, part: str) -> Pieces:
    """The decisions of a part, those of one document together; classes are judged decision by decision."""
    sequences: SequenceSet = getattr(prepared, part)
    return Pieces.each(len(sequences.decisions)) if prepared.classes else Pieces.among(sequences)


def classifiers_beside(prepared: Prepared, target: str, seed: int = 0) -> dict[str, Any]:
    """Name → (Q, C) probabilities of every baseline that the prepared inputs allow, on the test rows."""
    y_train, y_valid = (part.decisions.targets[target] for part in (prepared.train, prepared.valid))
    train, valid, test = (numbers_of(prepared, part) for part in PARTS)
    inputs = {
        part: {"as_of": prepared.as_of[part]}
        | {name: rows for name, rows in prepared.baselines[part].items() if name in ("persistence", "imbalance")}
        for part in ("train", "test")
    }
    found = baseline_probabilities(inputs["train"], y_train, inputs["test"], len(prepared.classes))
    if train is not None and valid is not None and test is not None:
        found |= aggregate_probabilities(train, y_train, valid, y_valid, test, len(prepared.classes), seed=seed)
    return found


def numbers_of(prepared: Prepared, part: str) -> Any:
    """(Q, F) numbers of each decision for lines and trees: aggregates of a history or features of a market; or None."""
    found = prepared.baselines[part]
    return found.get("aggregates", found.get("features"))


def has_words(prepared: Prepared) -> bool:
    """Whether the sequences are documents, or pieces of documents, of one field of tokens."""
    return prepared.test.layout == "document" and set(prepared.codes) == {"token"}


def words_of(prepared: Prepared, part: str, target: str) -> Words:
    """The documents of a part, for the forecasts from their words."""
    sequences: SequenceSet = getattr(prepared, part)
    table, decisions = sequences.table, sequences.decisions
    return Words.of_pieces(
        table.fields["token"],
        table.offsets,
        table.entities,
        table.entity_of(decisions.row),
        prepared.baselines[part]["last_value"],
        decisions.targets[target],
    )


def learning_curves(curves: Curves) -> dict[str, tuple[list[float], list[float]]]:
    """The losses among the figures of a history, by part."""
    return {name: curves[f"{name}/loss"] for name in ("train", "valid") if f"{name}/loss" in curves}


def report(
    prepared: Prepared, story: Story, table: Table, figures: tuple[Figure, ...], limits: tuple[str, ...]
) -> ReportData:
    """A closing table with everything that stands behind it; `limits` are what it cannot show."""
    exactness = story.exactness
    certificate = None if exactness is None else Check("attention is exact", exactness.passed, exactness.sentence)
    days = days_of(prepared.as_of["test"])
    return ReportData(
        title=story.title,
        question=f"{story.question.strip()} Tested {days}." if days else story.question,
        table=table,
        figures=figures,
        rows={
            **prepared.counts,
            **{f"{name} decisions": len(pieces_of(prepared, name)) for name in PARTS},
        },
        dropped=prepared.dropped,
        checks=tuple(
            Check(c.name, VERDICTS[c.verdict], c.sentence or f"{c.looked_at:,} looked at")
            for c in prepared.audit.checks
        ),
        certificate=certificate,
        settings=story.settings,
        hashes={**prepared.hashes, **story.hashes},
        caveats=(*story.caveats, *limits, *prepared.notes),
        created=story.created,
    )


def caveats(table: Table, nanoseconds: int) -> tuple[str, ...]:
    """What the size of the test set, and the time from its first decision to its last, forbid to conclude."""
    said = []
    if table.block_kind == "time":
        said.append(
            f"The test decisions span {span(nanoseconds)}, in {table.blocks} stretches for the intervals; how the "
            "model does in another month or market cannot be seen from them."
        )
    if table.decisions < 1000:
        said.append(f"{table.decisions:,} test decisions are few: small differences cannot be told from chance.")
    return tuple(said)


def span(nanoseconds: int) -> str:
    """A length of time in words."""
    seconds = nanoseconds / 1e9
    for unit, size in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} seconds"


def figures_of(table: Table) -> dict[str, float]:
    """Flat figures for metrics.json and for sweeps: test/<figure>, and skill against the best baseline."""
    found = {f"test/{name}": figure.value for name, figure in table.model.figures.items()}
    found["test/skill"] = table.skill.value
    if table.gap_closed is not None:
        found["test/gap_closed"] = table.gap_closed.value
    return {name: value for name, value in found.items() if math.isfinite(value)}
