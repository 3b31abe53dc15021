"""A judged score in words and tables: what `return` scores fill a report with."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from quantattn.evaluate.assessment import Assessment, Judged, annual
from quantattn.evaluate.compare import Row, Table
from quantattn.evaluate.inference import MeanTest
from quantattn.evaluate.metrics import Metric
from quantattn.evaluate.portfolio import LongShort
from quantattn.evaluate.report import Cell, Sheet
from quantattn.evaluate.score_figures import BASIS
from quantattn.evaluate.sharpe import deflated_sharpe, expected_best, probabilistic_sharpe
from quantattn.evaluate.significance import REPLICATES, Interval

RETURNS = (
    Metric("rank_ic", "Rank IC", False),
    Metric("ic", "IC", False),
    Metric("icir", "ICIR", False),
    Metric("gross", "Gross return a period (bp)", False),
    Metric("net", "Net return a period (bp)", False),
    Metric("sharpe", "Sharpe ratio a year, net", False),
    Metric("turnover", "Turnover a period", True),
    Metric("drawdown", "Deepest fall (bp)", True),
)
MOST_ENTITIES = 50
TRIED = (1, 10, 100, 1000)


def closing_returns(judged: Assessment, unlabelled: int, decisions: int) -> Table:
    """The closing table: the score, then its baselines, each with intervals of the test of its mean."""
    best = judged.best.name
    kinds = [kind for kind in judged.intervals if kind != "entity"]
    ranked = judged.model.ranking
    return Table(
        metrics=RETURNS,
        rows=tuple(
            Row(one.name, "baseline" if place else "model", _figures(one, judged.periods_a_year))
            for place, one in enumerate((judged.model, *judged.baselines))
        ),
        loss="rank_ic",
        best_baseline=best,
        difference={"rank_ic": judged.against_best},
        skill=Interval(math.nan),
        gap_closed=None,
        decisions=decisions,
        unlabelled=unlabelled,
        blocks=0 if ranked is None else ranked.at.size,
        block_kind="day" if kinds == ["day"] else "time",
        level=judged.terms.level,
        replicates=REPLICATES,
    )


def _interval(test: MeanTest, scale: float = 1.0) -> Interval:
    if test.low is None or test.high is None:
        return Interval(scale * test.value)
    return Interval(scale * test.value, scale * test.low, scale * test.high)


def _figures(one: Judged, periods: float | None) -> dict[str, Interval]:
    found = {
        "gross": _interval(one.gross, BASIS),
        "net": _interval(one.net, BASIS),
        "turnover": Interval(one.book.turnover),
        "drawdown": Interval(BASIS * one.fall.depth),
    }
    if (ratio := annual(one, periods)) is not None:
        found["sharpe"] = Interval(ratio)
    if one.ranking is not None:
        found["rank_ic"], found["ic"] = _interval(one.ranking.test), _interval(one.ranking.pearson)
        if one.ranking.icir is not None:
            found["icir"] = Interval(one.ranking.icir)
    return found


def steps(count: int) -> str:
    """So many of the table's times."""
    return f"{count:,} step{'' if count == 1 else 's'} of the table's times"


def length(nanoseconds: float) -> str:
    """A length of time in words, "1 day" or "30 minutes"."""
    for unit, size in (("day", 86_400e9), ("hour", 3_600e9), ("minute", 60e9), ("second", 1e9)):
        if nanoseconds >= size or unit == "second":
            break
    count = f"{nanoseconds / size:.3g}"
    return f"{count} {unit}{'' if count == '1' else 's'}"


def money(value: float) -> str:
    """An amount with three digits that count, 141,000 for instance."""
    return f"{float(f'{value:.3g}'):,.0f}" if value >= 100 else f"{value:.3g}"


def number(value: float | None, form: str = ".3f", scale: float = 1.0) -> Cell:
    """A figure as a cell, "–" where there is none."""
    if value is None or not math.isfinite(value):
        return Cell("–")
    return Cell(f"{scale * value:{form}}", sort=repr(scale * value))


def p_value(value: float | None) -> Cell:
    """A p-value as a cell."""
    if value is None:
        return Cell("–")
    return Cell("<\u00a00.0001" if value < 1e-4 else f"{value:.4f}", sort=repr(value))


def mean_row(
    name: str, test: MeanTest, sort: str | None = None, form: str = ".3f", scale: float = 1.0
) -> tuple[Cell, ...]:
    """A row: name, mean with its interval, t, times."""
    between = ""
    if test.low is not None and test.high is not None:
        between = f"{scale * test.low:{form}} … {scale * test.high:{form}}"
    value = Cell(f"{scale * test.value:{form}}", between, repr(scale * test.value))
    return Cell(name, sort=name if sort is None else sort), value, number(test.t, ".2f"), number(test.n, ",.0f")


HEAD = ("rank IC", "Newey–West t", "times")


def sheets(judged: Assessment) -> tuple[Sheet, ...]:
    """Every table behind the figures."""
    level = judged.terms.level
    small = f"small figures are {level:.0%} intervals of the mean."
    found = [_against(judged), _p_values(judged), _tries(judged), _two_ways(judged)]
    by_steps = {"How fast it ages": ("age of the score, steps", judged.ages)}
    if len(judged.horizons) > 1:
        by_steps["How far it sees"] = ("steps the outcome spans", judged.horizons)
    for title, (column, tests) in by_steps.items():
        rows = tuple(mean_row(str(steps), test, repr(steps)) for steps, test in tests.items())
        found.append(Sheet(title, f"Mean rank IC; {small}", (column, *HEAD), rows))
    groups = {"By time of day": ("hour, UTC", judged.hours), "By regime": ("regime", judged.regimes)}
    for title, (column, by_name) in groups.items():
        if by_name:
            rows = tuple(mean_row(name, test) for name, test in by_name.items())
            found.append(Sheet(title, f"Mean rank IC at the times of each; {small}", (column, *HEAD), rows))
    rows = tuple(
        mean_row(f"{place + 1}", test, repr(place + 1), ".1f", BASIS)
        for place, test in enumerate(judged.quantiles)
        if test is not None
    )
    head = ("quantile", "mean outcome, bp", "Newey–West t", "times")
    found.append(Sheet("By quantile of the score", f"1 is lowest; {small}", head, rows))
    return (*found, _entities(judged))


def _against(judged: Assessment) -> Sheet:
    rows = tuple((*mean_row(name, test), p_value(test.p)) for name, test in judged.differences.items())
    note = (
        "Mean of the score's rank IC less the baseline's at the same times, above zero when the score is better: "
        "Diebold and Mariano's test with −rank IC as the loss. A baseline that orders nothing at a time counts as 0."
    )
    return Sheet("Against each baseline", note, ("baseline", "difference", "Newey–West t", "times", "p"), rows)


def _p_values(judged: Assessment) -> Sheet:
    rows = tuple((Cell(what, sort=what), p_value(p), p_value(q)) for what, (p, q) in judged.adjusted.items())
    note = (
        "Of twenty p-values of a worthless score one is below 0.05. Adjusted by Benjamini and Hochberg (1995): "
        "calling significant what is below 0.05 there, one in twenty of the calls is expected to be false. "
        "The tables by hour, regime, age and entity show intervals one by one and are not adjusted."
    )
    return Sheet("All tests together", note, ("what is tested", "p", "adjusted"), rows)


def _tries(judged: Assessment) -> Sheet:
    found, asked = judged.model.sharpe, judged.terms
    rows: list[tuple[Cell, ...]] = []
    if found is not None:
        spread = 1 / (found.n - 1) if asked.trial_variance is None else asked.trial_variance
        for trials in sorted({*TRIED, *([asked.trials] if asked.trials else [])}):
            probability = deflated_sharpe(found, trials, spread)
            name = f"{trials:,}" + (" (stated)" if trials == asked.trials else "")
            best = number(expected_best(trials, spread), ".4f")
            rows.append((Cell(name, sort=repr(trials)), best, number(probability, ".3f")))
    ratio = (
        "no ratio: the returns do not vary" if found is None else f"{found.ratio:.4f} a period over {found.n:,} periods"
    )
    probabilistic = (
        ""
        if found is None
        else f", above zero with probability {probabilistic_sharpe(found):.3f} if it was the only one tried"
    )
    variance = (
        "that of worthless scores, 1/(periods − 1)" if asked.trial_variance is None else f"{asked.trial_variance:g}"
    )
    note = (
        f"Sharpe ratio after costs {ratio}{probabilistic}. The best of many worthless scores has a high one by luck; "
        "the deflated ratio (Bailey, López de Prado 2014) asks whether this one is higher still. Variance of the "
        f"ratios of the trials: {variance}."
    )
    head = ("scores tried", "expected best by luck", "probability that it is above zero")
    return Sheet("If so many were tried", note, head, tuple(rows))


def _two_ways(judged: Assessment) -> Sheet:
    names = {"day": "days", "time": "stretches of time", "entity": "entities"}

    def row(name: str, found: Interval) -> tuple[Cell, ...]:
        return Cell(name, sort=name), number(found.value), number(found.low), number(found.high)

    rows = [row(f"resampled {names[kind]}", found) for kind, found in judged.intervals.items()]
    if judged.model.ranking is not None:
        rows.append(row("Newey–West", _interval(judged.model.ranking.test)))
    note = f"{judged.terms.level:.0%} intervals of the mean rank IC. Far apart, one of them leaves out what matters."
    return Sheet("How sure, in other ways", note, ("interval from", "rank IC", "low", "high"), tuple(rows))


def _entities(judged: Assessment) -> Sheet:
    by_size = sorted(judged.entities.items(), key=lambda item: (-abs(item[1][2]), item[0]))
    shown = by_size[:MOST_ENTITIES]
    rows = tuple(
        (Cell(name, sort=name), number(count, ",.0f"), number(value), number(added, ".2f", BASIS))
        for name, (count, value, added) in shown
    )
    positive = sum(value > 0 for _, value, _ in judged.entities.values())
    told = sum(math.isfinite(value) for _, value, _ in judged.entities.values())
    note = (
        f"{len(shown):,} of {len(by_size):,} entities, those that add most to the gross return or take most away. "
        f"Over time the rank correlation is above zero for {positive:,} of the {told:,} with ten rows or more."
    )
    return Sheet(
        "By entity", note, ("entity", "rows", "rank correlation over time", "adds to gross, bp a period"), rows
    )


def settings_of(judged: Assessment, book: LongShort) -> dict[str, str]:
    """What the page rests on, name → value."""
    terms = judged.terms
    return {
        "quantiles": str(terms.quantiles),
        "cost a unit traded": f"{terms.cost_bps:g} bp",
        "rebalanced every": steps(book.step),
        "holding periods": f"{book.times.size:,}",
        "holding periods a year": "–" if judged.periods_a_year is None else f"{judged.periods_a_year:.1f}",
        "scores tried": "not stated" if terms.trials is None else f"{terms.trials:,}",
        "Newey–West lags of the rank IC": "–" if judged.model.ranking is None else str(judged.model.ranking.test.lag),
    }


def plain(tables: Sequence[Sheet]) -> Mapping[str, object]:
    """Sheets as plain values for JSON: title → rows, each name → text."""
    return {
        sheet.title: [dict(zip(sheet.head, (c.text for c in row), strict=True)) for row in sheet.rows]
        for sheet in tables
    }
