"""One self-contained page a run: what was predicted, how much better than what, how sure, and everything behind it."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from quantattn.evaluate.compare import Row, Table, decimals
from quantattn.evaluate.drawing import Figure
from quantattn.evaluate.metrics import Metric
from quantattn.evaluate.page import drawn, render_page, write_page
from quantattn.evaluate.significance import Interval

Tone = Literal["better", "unclear", "worse"]

ACCURACY = "accuracy"
NO_COST = (
    "Not counted",
    "Forecasts are not trades, and nothing is bought or sold here. quantattn evaluate --kind return says of scores "
    "and returns what trading on them would have earned and cost.",
)
"""What a page without a portfolio says of costs."""
NO_CLOCK = 365 * 86_400 * 10**9
"""Times that all lie within the first year of the epoch, ns, are counts."""
ROUGH = 10
"""With fewer blocks than this an interval is called rough."""
_UNITS = {"day": ("day", "days"), "entity": ("entity", "entities"), "time": ("stretch of time", "stretches of time")}


@dataclass(frozen=True)
class Check:
    """One check of the audit, or of the certificate; `passed` is None for a check that was not run."""

    name: str
    passed: bool | None
    detail: str = ""


@dataclass(frozen=True)
class Cell:
    """A figure of a table, formatted; `sort` is what columns are sorted by, empty where there is no figure."""

    text: str
    between: str = ""
    sort: str = ""
    best: bool = False


@dataclass(frozen=True)
class Sheet:
    """A table behind the figures; its first column names the row.

    Attributes:
        title: one line.
        note: what stands in it.
        head: names of the columns.
        rows: one cell a column.
    """

    title: str
    note: str
    head: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True)
class Verdict:
    """What was found, in words.

    Attributes:
        tone: "better" or "worse" when chance is unlikely to explain the difference, else "unclear".
        headline: one sentence.
        figure: how much better, "25.6 % lower log loss" for instance.
        better: how much better than what.
        chance: "Unlikely to be chance" or "May be chance".
        sure: how sure, in sentences.
        cost: what it would have cost, as a figure and in sentences; empty where nothing says.
    """

    tone: Tone
    headline: str
    figure: str
    better: str
    chance: str
    sure: str
    cost: tuple[str, str] = ("", "")


@dataclass(frozen=True)
class ReportData:
    """Everything a report shows, as plain values; texts are plain text, whatever is in them.

    Attributes:
        title: of the run, "synthetic market, tiny encoder" for instance.
        question: one sentence for a reader who does not model: what is predicted, for what, from what.
        table: the closing table on test rows.
        figures: drawings, in order; the first stands on the first screen.
        rows: what → rows, in order: read, training, validation, test and so on.
        dropped: reason → rows set aside for it; an empty mapping is shown as "none".
        checks: of the audit.
        certificate: one line on the exactness of the attention that was used, and whether it passed.
        settings: name → value of the run's settings.
        hashes: what → hash: data, vocabulary, model, commit.
        caveats: what these figures cannot show, one sentence each.
        created: when, as text; None leaves it out, and the page depends on its data alone.
        said: the first screen's words; None says what the closing table shows by `verdict`.
        sheets: tables behind the figures.
        table_note: what stands above the closing table; None says that its intervals are those of resampled blocks.
    """

    title: str
    question: str
    table: Table
    figures: tuple[Figure, ...] = ()
    rows: Mapping[str, int] = field(default_factory=dict)
    dropped: Mapping[str, int] = field(default_factory=dict)
    checks: tuple[Check, ...] = ()
    certificate: Check | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    hashes: Mapping[str, str] = field(default_factory=dict)
    caveats: tuple[str, ...] = ()
    created: str | None = None
    said: Verdict | None = None
    sheets: tuple[Sheet, ...] = ()
    table_note: str | None = None


def days_of(times: NDArray[np.int64]) -> str:
    """The days of the earliest and the latest of the times, ns UTC, in words; "" where they are counts and no clock."""
    if not len(times) or int(times.max()) < NO_CLOCK:
        return ""
    first, last = (datetime.fromtimestamp(int(at) // 10**9, UTC).date() for at in (times.min(), times.max()))
    return f"on {first}" if first == last else f"from {first} to {last}"


def verdict(table: Table) -> Verdict:
    """Say what a closing table shows, to somebody who does not model."""
    metric = next(m for m in table.metrics if m.name == table.loss)
    name = metric.title.split(" (")[0].lower()
    model, best, skill = table.model, table.best_baseline, table.skill
    ours, theirs = (row.figures[table.loss].value for row in (model, table.row(best)))
    tone: Tone = "unclear"
    if skill.excludes(0):
        tone = "better" if skill.value > 0 else "worse"
    headline = {
        "better": f"The {model.method} is better than the best baseline.",
        "unclear": f"No evidence that the {model.method} is better than the best baseline.",
        "worse": f"The {model.method} is worse than the best baseline.",
    }[tone]
    better = f"{_beside(metric, ours, theirs)} for {best}, the best baseline."
    if (right := [row.figures[ACCURACY].value for row in (model, table.row(best)) if ACCURACY in row.figures])[1:]:
        better += f" What it holds likeliest comes true in {right[0]:.1%} of decisions, against {right[1]:.1%}."
    share = table.gap_closed
    if share is not None and share.value > 0:
        better += f" That is {share.value:.0%} of the way to the best that is possible{_between(share, '{:.0%}')}."
    figure = f"{_change(skill.value)} {name}" if math.isfinite(skill.value) else f"{name} {ours:.{decimals([ours])}f}"
    chance = "May be chance" if tone == "unclear" else "Unlikely to be chance"
    return Verdict(tone, headline, figure, better, chance, _sureness(table, name), NO_COST)


def _beside(metric: Metric, ours: float, theirs: float) -> str:
    title, digits = metric.title, decimals([ours, theirs])
    if metric.name == "log_loss":  # the one figure that readers who do not model have not met
        title = f"{title}, how surprised a forecast is by what comes,"
    return f"{title} {ours:.{digits}f} against {theirs:.{digits}f}"


def _sureness(table: Table, name: str) -> str:
    skill, one_or_many = table.skill, _UNITS[table.block_kind]
    blocks = f"{table.blocks:,} {one_or_many[table.blocks != 1]}"
    if skill.low is None or skill.high is None:
        return f"No interval: the test decisions form {blocks}, and an interval needs two or more that vary."
    text = f"With {table.level:.0%} confidence the {name} is {_range(skill.low, skill.high)}"
    text += ". " if skill.excludes(0) else ": no difference at all is among the possibilities. "
    text += f"{table.decisions:,} test decisions in {blocks}; {table.replicates:,} resamples of whole blocks."
    return text + (f" With only {blocks} the interval is rough." if table.blocks < ROUGH else "")


def _change(skill: float) -> str:
    return f"{abs(skill):.1%} {'lower' if skill >= 0 else 'higher'}"


def _range(low: float, high: float) -> str:
    if low < 0 <= high:
        return f"anywhere from {_change(low)} to {_change(high)}"
    near, far = sorted((low, high), key=abs)
    return f"{abs(near):.1%} to {_change(far)}"


def _between(figure: Interval, form: str) -> str:
    if figure.low is None or figure.high is None:
        return ""
    return f" (interval {form.format(figure.low)} to {form.format(figure.high)})"


def cells(table: Table) -> list[tuple[Row, list[Cell]]]:
    """The table's rows with their figures formatted column by column; the best of a column (bound apart) is marked."""
    columns = [_column(table, metric) for metric in table.metrics]
    return [(row, [column[place] for column in columns]) for place, row in enumerate(table.rows)]


def _column(table: Table, metric: Metric) -> list[Cell]:
    found = [row.figures.get(metric.name) for row in table.rows]
    digits = decimals([figure.value for figure in found if figure is not None])
    values = [f.value for f, row in zip(found, table.rows, strict=True) if f is not None and row.role != "bound"]
    best = (min if metric.lower_is_better else max)(values, default=None)
    column = []
    for figure, row in zip(found, table.rows, strict=True):
        if figure is None:
            column.append(Cell("–"))
            continue
        between = ""
        if figure.low is not None and figure.high is not None:
            between = f"{figure.low:.{digits}f} … {figure.high:.{digits}f}"
        column.append(
            Cell(
                f"{figure.value:.{digits}f}", between, repr(figure.value), row.role != "bound" and figure.value == best
            )
        )
    return column


def render_report(data: ReportData) -> str:
    """The report as one HTML page: no network, no fonts or scripts from outside; the same data give the same bytes.

    Raises:
        ValueError: two figures of one name, or a figure whose SVG is not a plain drawing.
    """
    names = [figure.name for figure in data.figures]
    if len(set(names)) < len(names):
        raise ValueError(f"figures must have different names, got {names}")
    return render_page(
        "report.html.j2",
        data=data,
        verdict=data.said or verdict(data.table),
        table=data.table,
        rows=cells(data.table),
        drawings=[(figure, drawn(figure)) for figure in data.figures],
        unit=_UNITS[data.table.block_kind][1],
    )


def write_report(path: str | os.PathLike[str], data: ReportData) -> Path:
    """Render to `path`: written beside it, flushed, and renamed, so that a reader never sees half a page."""
    return write_page(path, render_report(data))
