"""From a table of scores to the page that is read: every kind of score, always beside its baselines."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from quantattn.evaluate.assessment import Terms, assess
from quantattn.evaluate.figures import classification_figures, regression_figures
from quantattn.evaluate.forecasts import Forecasts, judge_classes, judge_values
from quantattn.evaluate.metrics import IGNORE
from quantattn.evaluate.report import Cell, Check, ReportData, Sheet, Tone, verdict
from quantattn.evaluate.score_figures import return_figures
from quantattn.evaluate.score_report import (
    closing_returns,
    mean_row,
    number,
    p_value,
    settings_of,
    sheets,
    steps,
)
from quantattn.evaluate.score_words import in_words
from quantattn.evaluate.scores import Kind, Scores

FEW = 30
"""With fewer times than this the page says that they are few."""
TOO_GOOD = 0.5
"""Mean rank IC above which a page says that a leak is likely."""
HOW = (
    "Baselines are computed from the rows themselves, from outcomes that were known by the time of each row: history "
    "is the mean of the entity's outcomes, persistence its last one, "
)
HOW_CLASSES = (
    "Baselines are computed from the rows themselves, from outcomes that were known by the time of each row: the "
    "majority class is the frequencies of all, persistence what followed the entity's last class, history its own "
    "frequencies."
)


@dataclass(frozen=True)
class Told:
    """What the page says beside the figures.

    Attributes:
        title: of the page.
        question: one sentence for a reader who does not model: what was predicted.
        hashes: what → hash.
        available: whether the table says when a score was available.
        created: when, as text.
    """

    title: str
    question: str
    hashes: Mapping[str, str]
    available: bool = False
    created: str | None = None


def report_on(tables: Mapping[int, Scores], kind: Kind, told: Told, terms: Terms | None = None) -> ReportData:
    """The report on a table of scores, by horizon; see `read_scores` for kinds.

    Raises:
        ValueError: no row has an outcome, or what the judging of the kind refuses.
    """
    asked = terms or Terms()
    scores = next(iter(tables.values()))
    if not np.isfinite(scores.data.outcome).any():
        raise ValueError(f"none of the {scores.data.at.size:,} scores has an outcome, so there is nothing to judge")
    if len(tables) > 1 and kind != "return":
        raise ValueError(
            f"kind={kind} judges one horizon, the table has {', '.join(map(str, tables))}; keep the rows of one"
        )
    page = _returns(tables, told, asked) if kind == "return" else _forecasts(scores, kind, told, asked)
    known = int(np.isfinite(scores.data.outcome).sum())
    longer = sum(int(one.data.at.size) for one in tables.values()) - int(scores.data.at.size)
    checks = (
        Check(
            "Scores were available when they were used",
            True if told.available else None,
            "" if told.available else "no column says when a score was available",
        ),
        Check("Each entity once at a time", True, f"{scores.data.at.size:,} rows"),
        Check("Baselines know no outcome before its end", True, f"outcomes span {steps(scores.data.horizon)}"),
    )
    return replace(
        page,
        rows={
            "rows read": scores.rows,
            **({"of longer horizons": longer} if longer else {}),
            "scores judged": int(scores.data.at.size),
            "of these with an outcome": known,
            "entities": len(scores.data.names),
            "times": int(scores.data.times.size),
        },
        dropped=scores.dropped,
        checks=checks,
        hashes=told.hashes,
        created=told.created,
        caveats=(*page.caveats, *scores.notes),
    )


def _returns(tables: Mapping[int, Scores], told: Told, asked: Terms) -> ReportData:
    judged = assess(tables, asked)
    scores, book = next(iter(tables.values())), judged.model.book
    data = scores.data
    known = int(np.isfinite(data.outcome).sum())
    caveats = [
        f"{HOW}reversal minus that.",
        f"Costs are assumed, {asked.cost_bps:g} bp of every unit traded; borrowing, taxes and fills are left out.",
    ]
    if judged.model.ranking is not None and judged.model.ranking.test.value > TOO_GOOD:
        caveats.append("A score that orders so well mostly knows its outcome: look for a leak before anything else.")
    if asked.trials is None:
        caveats.append("How many scores were tried before this one is not stated, so its Sharpe ratio is not deflated.")
    if book.missing:
        caveats.append(f"{book.missing:,} positions had no outcome; they are held and earn nothing.")
    if book.flat:
        caveats.append(f"At {book.flat:,} of {book.times.size:,} rebalancings nothing was held: a side had no entity.")
    if scores.volume is None:
        caveats.append("Without a column of volumes nothing is said of how much money the score can carry.")
    elif judged.capacity is not None and judged.capacity.unpriced:
        caveats.append(f"{judged.capacity.unpriced:,} trades have no volume or volatility; their impact is left out.")
    if book.times.size < FEW:
        caveats.append(f"{book.times.size:,} holding periods are few: a year of luck looks like skill.")
    if book.step > 1:
        caveats.append(
            f"Outcomes span {book.step} steps, so the portfolio is rebalanced every {book.step}th time; it shows one "
            f"of {book.step} ways to start."
        )
    return ReportData(
        title=told.title,
        question=told.question,
        table=closing_returns(judged, data.at.size - known, known),
        figures=return_figures(data, judged),
        settings=settings_of(judged, book),
        caveats=tuple(caveats),
        said=in_words(judged),
        table_note=(
            f"{known:,} scores with an outcome at {data.times.size:,} times. Small figures are {asked.level:.0%} "
            "intervals of means over times (Newey–West). Returns are of the highest quantile less the lowest, a "
            "holding period; 1 bp is 0.01 % of one side. Bold is the best of a column."
        ),
        sheets=sheets(judged),
    )


def _forecasts(scores: Scores, kind: Kind, told: Told, asked: Terms) -> ReportData:
    judge = judge_classes if kind == "class" else judge_values
    found = judge(scores, level=asked.level, seed=asked.seed)
    data, table = scores.data, found.table
    best, time = found.baselines[table.best_baseline], data.times[data.at]
    if kind == "class":
        y = np.where(np.isfinite(data.outcome), data.outcome, IGNORE).astype(np.int64)
        figures = classification_figures(y, scores.score, time, scores.classes, best, table)
    else:
        figures = regression_figures(data.outcome, scores.score, time, best, table)
    said = verdict(table)
    if said.tone != "unclear" and found.by_entity is not None and not found.by_entity.skill.excludes(0):
        unclear: Tone = "unclear"
        said = replace(
            said,
            tone=unclear,
            headline=f"No evidence that the {table.model.method} is better than the best baseline.",
            chance="May be chance",
            sure=f"{said.sure} But with other entities the difference could be none: a few of them may carry it.",
        )
    return ReportData(
        title=told.title,
        question=told.question,
        table=table,
        figures=figures,
        settings={"outcomes span": steps(data.horizon), "confidence": f"{asked.level:.0%}"},
        caveats=(HOW_CLASSES if kind == "class" else f"{HOW}zero is zero.",),
        said=said,
        sheets=_forecast_sheets(found, asked.level),
    )


def _forecast_sheets(found: Forecasts, level: float) -> tuple[Sheet, ...]:
    title = next(m.title for m in found.table.metrics if m.name == found.table.loss)
    rows = tuple((*mean_row(name, test, form=".4g"), p_value(test.p)) for name, test in found.tests.items())
    note = (
        f"Mean over times of the score's {title.split(' (')[0].lower()} less the baseline's, below zero when the score "
        f"is better (Diebold, Mariano 1995); small figures are {level:.0%} intervals."
    )
    against = Sheet("Against each baseline", note, ("baseline", "difference", "Newey–West t", "times", "p"), rows)
    ways = {"blocks of time": found.table, **({"entities": found.by_entity} if found.by_entity else {})}
    skills = tuple(
        (
            Cell(name, sort=name),
            *(number(v) for v in (t.skill.value, t.skill.low, t.skill.high)),
            number(t.blocks, ",.0f"),
        )
        for name, t in ways.items()
    )
    note = f"1 − loss/loss of the best baseline, with {level:.0%} intervals from resampled blocks."
    sure = Sheet("How sure, in other ways", note, ("resampled", "skill", "low", "high", "blocks"), skills)
    return (against, sure, *_coverage_sheet(found))


def _coverage_sheet(found: Forecasts) -> tuple[Sheet, ...]:
    held = found.coverage
    if held is None:
        return ()
    row = (
        Cell(f"{held.stated:.0%}", sort=repr(held.stated)),
        *(number(value, ".1%") for value in (held.found.value, held.found.low, held.found.high)),
        Cell("∞") if math.isinf(held.size) else number(held.size, ".4g"),
    )
    note = (
        f"Split conformal: {held.calibrated:,} rows of the earlier half of the times set the width, {held.tested:,} "
        "rows of the later half say how often the outcome was inside. If the two halves are alike, what was stated "
        "lies in the interval."
    )
    head = ("stated", "found", "low", "high", "mean width, or classes a set")
    return (Sheet("Do intervals hold what they promise", note, head, (row,)),)
