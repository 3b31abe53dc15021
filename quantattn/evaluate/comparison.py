"""Two runs or more beside each other: their closing tables in one, their baselines, and what they did differently."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from quantattn.evaluate.compare import Row, Table, decimals
from quantattn.evaluate.figures import methods_figure
from quantattn.evaluate.metrics import Metric
from quantattn.evaluate.report import NO_COST, Cell, Check, ReportData, Sheet, Tone, Verdict
from quantattn.evaluate.significance import Interval

MADE = ("vocabulary", "tokens")
"""Hashes of what a run makes of its data."""


@dataclass(frozen=True)
class Run:
    """A run as its folder tells it.

    Attributes:
        name: how it is called on the page.
        table: its closing table.
        settings: name → value of its configuration.
        hashes: what → hash of its data.
        checks: of its audit.
        dropped: reason → decisions that were set aside.
    """

    name: str
    table: Table
    settings: Mapping[str, str] = field(default_factory=dict)
    hashes: Mapping[str, str] = field(default_factory=dict)
    checks: tuple[Check, ...] = ()
    dropped: Mapping[str, int] = field(default_factory=dict)


def table_of(document: Mapping[str, Any]) -> Table:
    """The closing table from its plain values, `Table.to_dict` read back; a figure that was not finite is NaN.

    Raises:
        ValueError: it is no closing table.
    """

    def figure(value: Mapping[str, Any]) -> Interval:
        known, low, high = value["value"], value["low"], value["high"]
        if not all(bound is None or type(bound) in (int, float) for bound in (known, low, high)):
            raise TypeError(f"a figure of {value!r:.80}")
        return Interval(math.nan if known is None else float(known), low, high)

    try:
        table = Table(
            metrics=tuple(Metric(**metric) for metric in document["metrics"]),
            rows=tuple(
                Row(row["method"], row["role"], {name: figure(value) for name, value in row["figures"].items()})
                for row in document["rows"]
            ),
            difference={name: figure(value) for name, value in document["difference"].items()},
            skill=figure(document["skill"]),
            gap_closed=None if document["gap_closed"] is None else figure(document["gap_closed"]),
            **{
                name: document[name]
                for name in (
                    "loss",
                    "best_baseline",
                    "decisions",
                    "unlabelled",
                    "blocks",
                    "block_kind",
                    "level",
                    "replicates",
                )
            },
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"no closing table: {type(error).__name__} {error}") from error
    if (found := _not_as_written(table)) is not None:
        raise ValueError(f"no closing table: {found}")
    return table


def _not_as_written(table: Table) -> str | None:
    """What of a table that was read back no run would have written."""
    kinds = {
        int: ("decisions", "unlabelled", "blocks", "replicates"),
        str: ("loss", "best_baseline", "block_kind"),
        float: ("level",),
    }
    for kind, names in kinds.items():
        for name in names:
            if type(getattr(table, name)) is not kind:
                return f"{name} must be {kind.__name__}, got {getattr(table, name)!r:.40}"
    texts = [text for metric in table.metrics for text in (metric.name, metric.title)]
    texts += [text for row in table.rows for text in (row.method, row.role)]
    if not all(isinstance(text, str) for text in texts):
        return "a name that is no text"
    methods, metrics = [row.method for row in table.rows], {metric.name for metric in table.metrics}
    if not methods or table.rows[0].role != "model" or len(set(methods)) < len(methods):
        return f"its rows must be the model and others of their own names, got {methods!r:.80}"
    if table.best_baseline not in methods[1:] or table.loss not in metrics:
        return f"it has no row {table.best_baseline!r:.40} or no figure {table.loss!r:.40}"
    if any(table.loss not in row.figures or not row.figures.keys() <= metrics for row in table.rows):
        return f"figures of other names than {sorted(metrics)!r:.160}"
    return None


def compare_runs(runs: Sequence[Run], created: str | None = None) -> ReportData:
    """The page of two runs or more.

    Runs that were tested on the same rows share their baselines; of others each brings its own, and the page says
    that their figures are not of the same decisions.

    Raises:
        ValueError: fewer than two runs, two of one name, or closing tables with different figures.
    """
    names = [run.name for run in runs]
    if len(runs) < 2 or len(set(names)) < len(names):
        raise ValueError(f"expected two runs or more with different names, got {names}")
    first = runs[0].table
    for run in runs[1:]:
        if run.table.metrics != first.metrics or run.table.loss != first.loss:
            raise ValueError(
                f"{names[0]} is judged by {first.loss} and {run.name} by {run.table.loss}, which cannot be compared"
                if run.table.loss != first.loss
                else f"{names[0]} and {run.name} have different figures"
            )
    same = len({_tested_on(run) for run in runs}) == 1
    table = replace(first, rows=_rows(runs, same))
    ordered = _in_order(runs)
    return ReportData(
        title=f"{len(runs)} runs beside each other",
        question=_question(runs)
        + (f", on the same {first.decisions:,} decisions." if same else ", each on its own rows."),
        table=table,
        figures=(methods_figure(table),),
        rows={f"test decisions, {run.name}": run.table.decisions for run in runs},
        dropped={f"{run.name}: {why}": count for run in runs for why, count in run.dropped.items()},
        checks=tuple(replace(check, name=f"{run.name}: {check.name}") for run in runs for check in run.checks),
        hashes={f"{run.name}: {what}": value for run in runs for what, value in run.hashes.items()},
        caveats=_caveats(runs, same),
        created=created,
        said=_in_words(ordered, same),
        table_note=f"Small figures are {first.level:.0%} intervals of each method by itself. Bold is a column's best.",
        sheets=(_skills(ordered), *_differences(runs)),
    )


def _question(runs: Sequence[Run]) -> str:
    """What was predicted, in the runs' own words where they have the same ones."""
    asked = {run.settings.get("question", "None").strip() for run in runs}
    words = asked.pop() if len(asked) == 1 else "None"
    return "The same outcome by several runs" if words in ("", "None") else f"{words} Answered by {len(runs)} runs"


def _tested_on(run: Run) -> tuple[object, ...]:
    """What says which decisions a run was tested on; how it turns them into tokens is its own affair."""
    return run.table.decisions, *sorted(item for item in run.hashes.items() if item[0] not in MADE)


def _rows(runs: Sequence[Run], same: bool) -> tuple[Row, ...]:
    rows = [replace(run.table.model, method=run.name) for run in runs]
    seen: set[tuple[str, float]] = set()
    for run in runs:
        for row in run.table.rows[1:]:
            key = row.method, row.figures[run.table.loss].value if run.table.loss in row.figures else math.nan
            if not same:
                rows.append(replace(row, method=f"{row.method}, {run.name}"))
            elif key not in seen:
                taken = any(name == row.method for name, _ in seen)
                rows.append(replace(row, method=f"{row.method}, {run.name}") if taken else row)
            seen.add(key)
    return tuple(sorted(rows, key=lambda row: ("model", "baseline", "bound").index(row.role)))


def _in_order(runs: Sequence[Run]) -> list[Run]:
    """Best first; what is not finite last."""
    loss = runs[0].table.loss
    metric = next(m for m in runs[0].table.metrics if m.name == loss)
    sign = 1 if metric.lower_is_better else -1
    values = {run.name: run.table.model.figures[loss].value for run in runs}
    return sorted(runs, key=lambda run: (not math.isfinite(values[run.name]), sign * values[run.name]))


def apart(one: Interval, other: Interval) -> Interval:
    """The difference of two figures as if they came from different rows; on the same rows it is usually too wide.

    The half-widths are added in quadrature, on each side its own.
    """
    value = one.value - other.value
    if one.low is None or one.high is None or other.low is None or other.high is None:
        return Interval(value)
    down = math.hypot(one.value - one.low, other.high - other.value)
    up = math.hypot(one.high - one.value, other.value - other.low)
    return Interval(value, value - down, value + up)


def _in_words(ordered: Sequence[Run], same: bool) -> Verdict:
    best, second = ordered[0], ordered[1]
    table = best.table
    metric = next(m for m in table.metrics if m.name == table.loss)
    title = metric.title.split(" (")[0]
    ours, theirs = (run.table.model.figures[table.loss] for run in (best, second))
    digits = decimals([ours.value, theirs.value])
    difference = apart(ours, theirs)
    certain, skill = same and difference.excludes(0), table.skill
    beats, loses = (skill.excludes(0) and sign * skill.value > 0 for sign in (1, -1))
    tone: Tone = "worse" if loses else "better" if certain else "unclear"
    baseline = f"It is {'better' if beats else 'worse' if loses else 'not shown to be better'} than "
    baseline += f"{table.best_baseline}, its best baseline."
    headline = f"{best.name} has the best {title.lower()} of {len(ordered)} runs"
    headline += "" if certain else ", but the difference may be chance" if same else ", on rows of its own"
    headline += ", and is worse than its best baseline." if loses else "."
    sure = "No interval."
    if difference.low is not None and difference.high is not None:
        sure = (
            f"The difference from {second.name} is between {difference.low:.{digits}f} and "
            f"{difference.high:.{digits}f} with {table.level:.0%} confidence, taken as if the two came from different "
            "rows, which is usually wider than it need be."
        )
    if len(ordered) > 2:
        sure += f" The best of {len(ordered)} runs looks better than it is: some of its lead is luck."
    return Verdict(
        tone=tone,
        headline=headline,
        figure=f"{title} {ours.value:.{digits}f}",
        better=f"{ours.value:.{digits}f} against {theirs.value:.{digits}f} of {second.name}, the next. {baseline}",
        chance="Unlikely to be chance" if certain else "May be chance",
        sure=sure,
        cost=NO_COST,
    )


def _caveats(runs: Sequence[Run], same: bool) -> tuple[str, ...]:
    said = ["Predictions are not kept in a run's folder, so the runs are not compared decision by decision."]
    if not same:
        said.append(
            "The runs were tested on different data or rows: a better figure may only mean that the rows were easier."
        )
    if failed := [run.name for run in runs if any(check.passed is False for check in run.checks)]:
        said.append(f"A check of the audit failed in {', '.join(failed)}.")
    return tuple(said)


def _skills(ordered: Sequence[Run]) -> Sheet:
    def cell(value: float | None) -> Cell:
        if value is None or not math.isfinite(value):
            return Cell("–")
        return Cell(f"{value:.1%}", sort=repr(value))

    rows = tuple(
        (
            Cell(run.name, sort=run.name),
            Cell(run.table.best_baseline, sort=run.table.best_baseline),
            *(cell(value) for value in (run.table.skill.value, run.table.skill.low, run.table.skill.high)),
            Cell(f"{run.table.decisions:,}", sort=str(run.table.decisions)),
        )
        for run in ordered
    )
    note = "1 − loss/loss of the run's best baseline, decision by decision, with the interval of resampled blocks."
    head = ("run", "best baseline", "skill", "low", "high", "decisions")
    return Sheet("Each run against its best baseline", note, head, rows)


def _differences(runs: Sequence[Run]) -> tuple[Sheet, ...]:
    """Settings in which the runs differ."""
    known = sorted({name for run in runs for name in run.settings})
    rows = []
    for name in known:
        values = [run.settings.get(name, "–") for run in runs]
        if len(set(values)) > 1:
            rows.append((Cell(name, sort=name), *(Cell(value, sort=value) for value in values)))
    if not known:
        return ()
    note = f"{len(rows):,} of {len(known):,} settings differ." if rows else "No setting differs."
    return (Sheet("What was done differently", note, ("setting", *(run.name for run in runs)), tuple(rows)),)
