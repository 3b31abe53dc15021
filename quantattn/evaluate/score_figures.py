"""The figures of a score's report: rank IC in time, what trading it earned, ageing, quantiles, capacity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from quantattn.evaluate.assessment import Assessment
from quantattn.evaluate.drawing import (
    MODEL,
    MUTED,
    OTHER,
    SECOND,
    SHADE,
    THIRD,
    Figure,
    clock_axis,
    draw,
    short,
    thinned,
)
from quantattn.evaluate.inference import MeanTest, lag_of, mean_test
from quantattn.evaluate.panel import Panel

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STRETCHES = 24
BASIS = 10_000
"""Basis points in one."""


def rank_ic_figure(data: Panel, judged: Assessment) -> Figure:
    """Mean rank IC in at most 24 stretches of time, with intervals, beside the mean of all."""
    found = judged.model.ranking
    if found is None:
        raise ValueError("a score that orders nothing has no rank IC to draw")
    parts = np.array_split(np.arange(found.at.size), min(STRETCHES, max(1, found.at.size // 5)))
    tests = [mean_test(found.rank_ic[p], lag_of(p.size, data.horizon), judged.terms.level) for p in parts]
    first, last = (int(data.times[found.at[end]]) for end in (0, -1))
    middles = [(float(data.times[found.at[p]].mean()) - first) / SECOND for p in parts]

    def paint(axes: Axes) -> None:
        axes.axhline(0, color=MUTED, linewidth=1)
        mean = found.test
        if mean.low is not None and mean.high is not None:
            axes.axhspan(mean.low, mean.high, color=SHADE, alpha=0.15, linewidth=0)
        axes.axhline(mean.value, color=MODEL, linewidth=1.2, label=f"mean, {mean.value:.3f}")
        _bars(axes, middles, tests)
        axes.set_ylabel("rank IC")
        clock_axis(axes, first, last)
        axes.legend(loc="upper left")

    caption = (
        f"Each dot is the mean over a stretch of about {parts[0].size:,} times, the bar its {judged.terms.level:.0%} "
        "interval; the band is the interval of the mean of all. At 0 the score orders nothing."
    )
    return draw("rank-ic", "How well it ordered, in time", caption, paint)


def earned_figure(judged: Assessment) -> Figure:
    """Running totals of the long–short portfolio: before costs, after, and of the best baseline after costs."""
    model, best = judged.model, judged.best
    times = model.book.times
    first, last = int(times[0]), int(times[-1])
    curves = {
        "score, before costs": (model.book.times, model.book.gross, THIRD, (0, (5, 3))),
        "score, after costs": (model.book.times, model.book.net, MODEL, "solid"),
        f"{short(best.name)}, after costs": (best.book.times, best.book.net, OTHER, "solid"),
    }

    def paint(axes: Axes) -> None:
        axes.axhline(0, color=MUTED, linewidth=1)
        for name, (when, returns, colour, style) in curves.items():
            total, keep = np.cumsum(returns) * 100, thinned(returns.size)
            axes.plot((when[keep] - first) / SECOND, total[keep], color=colour, linestyle=style, label=name)
        axes.set_ylabel("total return, % of one side")
        clock_axis(axes, first, last)
        axes.legend(loc="upper left")

    caption = (
        f"Long the best of {judged.terms.quantiles} parts and short the worst, equal weights, {times.size:,} holding "
        f"periods, profits not reinvested; costs {judged.terms.cost_bps:g} bp a unit traded. "
        f"Total after costs {model.book.net.sum():.1%}, deepest fall {model.fall.depth:.1%}."
    )
    return draw("earned", "What trading it would have earned", caption, paint)


def ageing_figure(tests: Mapping[int, MeanTest], level: float, name: str = "ageing") -> Figure:
    """Rank IC of scores that are some steps old ("ageing"), or of outcomes that span some steps ("horizon")."""
    titles = {
        "ageing": ("How fast it ages", "age of the score, steps", "Rank IC of scores that old with what comes next"),
        "horizon": ("How far it sees", "steps that the outcome spans", "Rank IC with outcomes over so many steps"),
    }
    title, label, text = titles[name]
    places = list(range(len(tests)))

    def paint(axes: Axes) -> None:
        axes.axhline(0, color=MUTED, linewidth=1)
        axes.plot(places, [test.value for test in tests.values()], color=MODEL, linewidth=1, alpha=0.5)
        _bars(axes, places, list(tests.values()))
        axes.set_xticks(places, [str(steps) for steps in tests])
        axes.set_xlabel(label)
        axes.set_ylabel("rank IC")

    return draw(name, title, f"{text}; bars are {level:.0%} intervals.", paint)


def quantiles_figure(tests: Sequence[MeanTest | None], level: float) -> Figure:
    """Mean outcome of each quantile of the score: does more score mean more return?"""
    there = [(place, test) for place, test in enumerate(tests) if test is not None]

    def paint(axes: Axes) -> None:
        axes.axhline(0, color=MUTED, linewidth=1)
        axes.bar([p for p, _ in there], [BASIS * t.value for _, t in there], color=MODEL, alpha=0.35, width=0.7)
        _bars(axes, [p for p, _ in there], [t for _, t in there], BASIS)
        places = range(len(tests))
        axes.set_xticks(places, [f"{p + 1}" for p in places])
        axes.set_xlabel("quantile of the score, 1 is lowest")
        axes.set_ylabel("mean outcome, bp")

    caption = f"Mean outcome of each quantile with its {level:.0%} interval; a good score rises from left to right."
    return draw("quantiles", "Does a higher score mean a higher return", caption, paint)


def capacity_figure(judged: Assessment) -> Figure | None:
    """Mean net return a period as capital grows; None without volumes, or when nothing is earned at first."""
    found = judged.capacity
    if found is None or not found.most:
        return None
    most = found.most
    capital = np.geomspace(most / 1000, 2 * most, 60)

    def paint(axes: Axes) -> None:
        axes.axhline(0, color=MUTED, linewidth=1)
        axes.plot(capital, BASIS * found.at(capital), color=MODEL)
        axes.axvline(most, color=OTHER, linewidth=1.2, linestyle=(0, (5, 3)), label="nothing left")
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0e}".replace("e+0", "e").replace("e+", "e"))
        axes.minorticks_off()
        axes.set_xlabel("capital a side, in the currency of the volumes")
        axes.set_ylabel("net return a period, bp")
        axes.legend(loc="lower left")

    caption = "Mean net return a period as more is traded, with impact by the square-root law and a constant of one."
    return draw("capacity", "How much money it can carry", caption, paint)


def return_figures(data: Panel, judged: Assessment) -> tuple[Figure, ...]:
    """Every figure that the assessment allows, the most telling first."""
    level = judged.terms.level
    found: list[Figure | None] = [
        earned_figure(judged),
        rank_ic_figure(data, judged),
        ageing_figure(judged.ages, level),
    ]
    if len(judged.horizons) > 1:
        found.append(ageing_figure(judged.horizons, level, "horizon"))
    found += [quantiles_figure(judged.quantiles, level), capacity_figure(judged)]
    return tuple(figure for figure in found if figure is not None)


def _bars(axes: Axes, places: Sequence[float], tests: Sequence[MeanTest], scale: float = 1.0) -> None:
    for place, test in zip(places, tests, strict=True):
        if test.low is not None and test.high is not None:
            axes.plot([place, place], [scale * test.low, scale * test.high], color=MODEL, linewidth=2, alpha=0.4)
        axes.plot([place], [scale * test.value], "o", color=MODEL, markersize=4)
