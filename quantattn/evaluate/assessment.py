"""A score judged whole: how it ranks, what trading on it would earn, how sure, and the same for its baselines.

Dimensions: Q rows, T times, E entities.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import scipy  # whose parts are imported where they are used first

from quantattn.evaluate.inference import MeanTest, lag_of, lowest_interval_of, mean_test
from quantattn.evaluate.panel import Floats, Panel
from quantattn.evaluate.past import past_scores, past_volatility
from quantattn.evaluate.portfolio import Capacity, Drawdown, LongShort, capacity, drawdown, long_short
from quantattn.evaluate.ranking import (
    Ranking,
    by_age,
    by_entity,
    by_group,
    coefficients,
    hours,
    judge_ranking,
    quantile_returns,
    resampled,
    summary,
    turbulence,
)
from quantattn.evaluate.scores import Scores
from quantattn.evaluate.sharpe import Sharpe, deflated_sharpe, probabilistic_sharpe, sharpe_ratio
from quantattn.evaluate.significance import Interval

YEAR = 365.25 * 86_400 * 1e9
"""Nanoseconds."""
AGES = (1, 2, 3, 5, 10, 20)


@dataclass(frozen=True)
class Terms:
    """How a score is judged.

    Attributes:
        quantiles: of which the highest is bought and the lowest sold.
        cost_bps: of trading one unit, in 1/10,000.
        trials: how many scores were tried before this one was shown, itself included; None when nobody said.
        trial_variance: of the Sharpe ratios of the trials, a period; None takes that of worthless ones.
        level: coverage of the intervals.
        seed: of the resamples.
    """

    quantiles: int = 5
    cost_bps: float = 10.0
    trials: int | None = None
    trial_variance: float | None = None
    level: float = 0.95
    seed: int = 0


@dataclass(frozen=True)
class Judged:
    """One method.

    Attributes:
        ranking: its information coefficients; None for a baseline that never orders anything.
        rank_ic: (T,) rank IC, NaN at times that have none.
        book: its long–short portfolio.
        gross: test of the mean return a period before costs.
        net: after costs.
        sharpe: of the net returns; None where they do not vary.
        fall: deepest drawdown of the net returns.
    """

    name: str
    ranking: Ranking | None
    rank_ic: Floats
    book: LongShort
    gross: MeanTest
    net: MeanTest
    sharpe: Sharpe | None
    fall: Drawdown


@dataclass(frozen=True)
class Assessment:
    """Everything found of a score that orders entities by their returns.

    Attributes:
        model: the method.
        baselines: on the same rows; computed from earlier outcomes, or other columns of the table.
        differences: baseline → test of the mean of rank IC of the method − its own, at times that both have
            (Diebold and Mariano's test with −rank IC as the loss).
        intervals: mean rank IC by resampling blocks of time and entities.
        ages: rank IC by the steps that a score has aged; horizons: by the steps that the outcome spans.
        hours: rank IC by UTC hour; regimes: by regime.
        entities: name → rows, rank correlation over time, what it adds to the mean gross return a period.
        quantiles: mean outcome of each quantile, lowest first.
        capacity: None without a volume.
        deflated: probability that the true Sharpe ratio is above zero, given the trials; None without a ratio.
        adjusted: what → its p-value and the same after Benjamini and Hochberg (1995) for all that stand here.
        periods_a_year: holding periods, from the table's own times.
    """

    terms: Terms
    model: Judged
    baselines: tuple[Judged, ...]
    differences: Mapping[str, MeanTest]
    intervals: Mapping[str, Interval]
    ages: Mapping[int, MeanTest]
    horizons: Mapping[int, MeanTest]
    hours: Mapping[str, MeanTest]
    regimes: Mapping[str, MeanTest]
    entities: Mapping[str, tuple[int, float, float]]
    quantiles: tuple[MeanTest | None, ...]
    capacity: Capacity | None
    deflated: float | None
    adjusted: Mapping[str, tuple[float, float]]
    periods_a_year: float | None

    @property
    def best(self) -> Judged:
        """The baseline with the highest mean rank IC; one that never orders anything counts as zero."""
        return max(self.baselines, key=lambda one: 0.0 if one.ranking is None else one.ranking.test.value)

    @property
    def against_best(self) -> Interval:
        """The difference from the best baseline, which is the best on these rows and so looks better than it is."""
        return lowest_interval_of(self.differences[self.best.name], len(self.baselines), self.terms.level)


def assess(tables: Mapping[int, Scores], terms: Terms | None = None) -> Assessment:
    """Judge a score by the returns that followed.

    Args:
        tables: scores by horizon, see `read_scores`; the first is judged, the others for how the rank IC changes with
            the horizon.
        terms: quantiles, costs, trials and so on.

    Raises:
        ValueError: no time orders anything, no portfolio, or wrong terms; see `judge_ranking` and `long_short`.
    """
    asked = terms or Terms()
    scores = next(iter(tables.values()))
    data, score, level = scores.data, scores.score, asked.level
    if asked.trials is not None and asked.trials < 1 + len(scores.beside):
        raise ValueError(
            f"trials must count every score that was tried, {1 + len(scores.beside)} stand in the table; "
            f"got {asked.trials}"
        )
    model = _judged("score", data, score, asked)
    ranked = model.ranking or judge_ranking(data, score)  # which says why there is none
    others = {**scores.beside, **past_scores(data)}
    baselines = tuple(_judged(name, data, values, asked) for name, values in others.items())
    differences = {one.name: _difference(model.rank_ic, one.rank_ic, data.horizon, level) for one in baselines}
    volatility = past_volatility(data) if scores.volatility is None else scores.volatility
    longer = {steps: judge_ranking(one.data, one.score, level).test for steps, one in list(tables.items())[1:]}
    horizons = {next(iter(tables)): ranked.test, **longer}
    regime = turbulence(data) if scores.regime is None else list(scores.regime)
    clock = hours(data.times)
    found = by_entity(data, score)
    added = dict(zip(data.names, model.book.by_entity.tolist(), strict=True))
    return Assessment(
        terms=asked,
        model=model,
        baselines=baselines,
        differences=differences,
        intervals=resampled(data, score, ranked, level=level, seed=asked.seed),
        ages={0: ranked.test, **by_age(data, score, AGES, level)},
        horizons=horizons,
        hours=by_group(model.rank_ic, np.asarray(clock, object), data.horizon, level) if len(set(clock)) > 1 else {},
        regimes=by_group(model.rank_ic, np.asarray(regime, object), data.horizon, level),
        entities={name: (count, value, added[name]) for name, (count, value) in found.items()},
        quantiles=tuple(quantile_returns(data, score, asked.quantiles, level)),
        capacity=None if scores.volume is None else capacity(model.book, scores.volume, volatility),
        deflated=None
        if model.sharpe is None
        else deflated_sharpe(model.sharpe, asked.trials or 1, asked.trial_variance),
        adjusted=_adjusted(model, differences),
        periods_a_year=_periods_a_year(model.book),
    )


def _judged(name: str, data: Panel, score: Floats, terms: Terms) -> Judged:
    book = long_short(data, score, quantiles=terms.quantiles, cost_bps=terms.cost_bps)
    lag = lag_of(book.times.size)
    ic, rank_ic = coefficients(data, score)
    varies = book.times.size > 1 and float(np.ptp(book.net)) > 0
    return Judged(
        name=name,
        ranking=summary(data, ic, rank_ic, terms.level) if np.isfinite(rank_ic).any() else None,
        rank_ic=rank_ic,
        book=book,
        gross=mean_test(book.gross, lag, terms.level),
        net=mean_test(book.net, lag, terms.level),
        sharpe=sharpe_ratio(book.net) if varies else None,
        fall=drawdown(book.net),
    )


def _difference(ours: Floats, theirs: Floats, horizon: int, level: float) -> MeanTest:
    """Mean of one rank IC (T,) − another; where the other orders nothing its coefficient counts as zero."""
    series = (ours - np.nan_to_num(theirs))[np.isfinite(ours)]
    return mean_test(series, lag_of(series.size, horizon), level)


def _adjusted(model: Judged, differences: Mapping[str, MeanTest]) -> dict[str, tuple[float, float]]:
    """All p-values of the page, and what they are once it is granted that so many were looked at."""
    found = {"rank IC is not zero": model.ranking.test.p if model.ranking else None}
    found["IC is not zero"] = model.ranking.pearson.p if model.ranking else None
    found["gross return is not zero"] = model.gross.p
    if model.sharpe is not None:
        found["Sharpe ratio after costs is above zero"] = 1 - probabilistic_sharpe(model.sharpe)
    found |= {f"rank IC differs from that of {name}": test.p for name, test in differences.items()}
    there = {what: p for what, p in found.items() if p is not None}
    if not there:
        return {}
    return dict(
        zip(
            there,
            zip(there.values(), scipy.stats.false_discovery_control(list(there.values())).tolist(), strict=True),
            strict=True,
        )
    )


def _periods_a_year(book: LongShort) -> float | None:
    span = int(book.times[-1] - book.times[0])
    return (book.times.size - 1) / (span / YEAR) if span > 0 else None


def annual(one: Judged, periods: float | None) -> float | None:
    """The Sharpe ratio a year, √periods times that of a period."""
    return None if one.sharpe is None or periods is None else one.sharpe.ratio * math.sqrt(periods)


def shuffled(scores: Scores, seed: int) -> Scores:
    """The same scores with the outcomes of each time dealt out anew among its entities: what chance looks like."""
    data = scores.data
    rng = np.random.default_rng(seed)
    order = np.lexsort((rng.random(data.at.size), data.at))
    return replace(scores, data=replace(data, outcome=data.outcome[order]))
