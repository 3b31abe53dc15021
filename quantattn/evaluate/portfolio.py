"""What trading on a score would have earned and cost: long the best quantile, short the worst, equal weights.

Weights at t are made from scores at t alone; the outcome over (t, end] is earned after. An entity whose outcome is
missing keeps its weight and earns nothing, since at t nobody knew that it would be missing; such rows are counted.
The notional is fixed: one unit long and one short at every rebalancing, profits are not reinvested. Returns are those
of the highest quantile less those of the lowest; alphalens, since 0.5, states half of that, at half a unit a side.

Dimensions: Q rows, P rebalancings, E entities.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from quantattn.evaluate.panel import Bools, Floats, Ints, Panel, ranks_within


@dataclass(frozen=True)
class LongShort:
    """A long–short portfolio, rebalanced every `horizon` steps, so that no outcome is counted twice.

    Attributes:
        times: (P,) int64 ns UTC of the rebalancings, up to the last that has an outcome.
        gross: (P,) return of each holding period before costs, on one unit long and one short.
        traded: (P,) Σ|bought or sold|, in the same units; the last one closes what is held.
        cost_bps: cost of trading one unit, in 1/10,000.
        weights: (Q,) weight of each row of the panel; 0 for rows that are not held or not at a rebalancing.
        by_entity: (E,) what each entity adds to the mean gross return.
        flat: rebalancings at which nothing was held, because a side had no entity.
        missing: rows held whose outcome is missing.
        step: the horizon, in steps of the table's times.
        pieces: rows, rebalancing and size (all (n,)) of every trade, for costs that depend on size.
    """

    times: Ints
    gross: Floats
    traded: Floats
    cost_bps: float
    weights: Floats
    by_entity: Floats
    flat: int
    missing: int
    step: int
    pieces: tuple[Ints, Ints, Floats]

    @property
    def net(self) -> Floats:
        """(P,) return of each holding period after costs."""
        return self.gross - self.cost_bps / 10_000 * self.traded

    @property
    def turnover(self) -> float:
        """Mean share of the book that is replaced at a rebalancing, opening and closing included: 1 is all of it.

        Replacing the whole book sells two units and buys two, so it is traded/4.
        """
        return float(self.traded.mean()) / 4

    @property
    def break_even_bps(self) -> float | None:
        """Cost a unit traded at which the mean net return is zero, in 1/10,000; None when nothing is traded."""
        return float(self.gross.sum() / self.traded.sum() * 10_000) if self.traded.sum() > 0 else None


def extremes(at: Ints, score: Floats, quantiles: int) -> tuple[Bools, Bools]:
    """Which rows (Q,) are in the lowest and which in the highest of `quantiles` parts of their time's scores.

    Low: (rank − ½)·quantiles < n with average ranks; high: the same from the other end, so that turning the sign of
    every score swaps the two. A side can be empty where many scores are equal.
    """
    count = np.bincount(at)[at]
    twice = np.rint(2 * ranks_within(at, score)).astype(np.int64)
    return (twice - 1) * quantiles < 2 * count, (2 * count - twice + 1) * quantiles < 2 * count


def quantile_weights(at: Ints, score: Floats, quantiles: int) -> Floats:
    """(Q,) weights: 1/n_high on the highest quantile of each time, −1/n_low on the lowest, 0 where a side is empty.

    Raises:
        ValueError: fewer than two quantiles.
    """
    if quantiles < 2:
        raise ValueError(f"a long–short portfolio needs two quantiles or more, got {quantiles}")
    low, high = extremes(at, score, quantiles)
    n_low, n_high = (np.bincount(at, side, minlength=int(at.max(initial=0)) + 1) for side in (low, high))
    held = ((n_low > 0) & (n_high > 0))[at]
    weights = high / np.maximum(n_high, 1)[at] - low / np.maximum(n_low, 1)[at]
    return np.where(held, weights, 0.0)


def long_short(data: Panel, score: ArrayLike, *, quantiles: int = 5, cost_bps: float = 10.0) -> LongShort:
    """Trade a score (Q,), NaN where there is none, at every `data.horizon`-th time from the first.

    Args:
        data: the panel; outcomes are simple returns.
        score: high is bought.
        quantiles: of which the highest is bought and the lowest sold.
        cost_bps: of trading one unit, in 1/10,000: half the spread and the fees.

    Raises:
        ValueError: shapes that differ, a cost that is negative or not finite, or see `quantile_weights`.
    """
    s = np.asarray(score, np.float64)
    if s.shape != data.at.shape:
        raise ValueError(f"score has shape {s.shape} but the panel {data.at.shape}")
    if not 0 <= cost_bps < np.inf:
        raise ValueError(f"cost_bps must be finite and not negative, got {cost_bps}")
    step = data.horizon
    rows = np.flatnonzero(np.isfinite(s) & (data.at % step == 0))
    at = data.at[rows] // step
    over = at[np.isfinite(data.outcome[rows])]
    if over.size == 0:
        raise ValueError(f"none of the {rows.size} scores at every {step}th time has an outcome")
    n = int(over.max()) + 1  # later holding periods have not ended
    rows, at = rows[at < n], at[at < n]
    weight = quantile_weights(at, s[rows], quantiles)
    earned = np.where(np.isnan(data.outcome[rows]), 0.0, data.outcome[rows])
    gross: Floats = np.bincount(at, weights=weight * earned, minlength=n).astype(np.float64)
    held = weight != 0
    pieces = _trades(rows[held], data.entity[rows][held], at[held], weight[held], earned[held], n)
    weights = np.zeros(s.size)
    weights[rows] = weight
    return LongShort(
        times=data.times[::step][:n],
        gross=gross,
        traded=np.bincount(pieces[1], weights=pieces[2], minlength=n).astype(np.float64),
        cost_bps=cost_bps,
        weights=weights,
        by_entity=np.bincount(data.entity[rows], weight * earned, minlength=len(data.names)) / n,
        flat=n - int(np.unique(at[held]).size),
        missing=int((held & np.isnan(data.outcome[rows])).sum()),
        step=step,
        pieces=pieces,
    )


def _trades(rows: Ints, entity: Ints, at: Ints, weight: Floats, earned: Floats, n: int) -> tuple[Ints, Ints, Floats]:
    """Row, rebalancing and size of every trade of positions (one an entity and rebalancing) that drift as they earn.

    A position of weight w is worth w(1 + r) at the next rebalancing; it is traded to the new weight, or closed. What
    is held at the last rebalancing is closed at its end, and counted there.
    """
    order = np.lexsort((at, entity))
    rows, entity, at, weight = rows[order], entity[order], at[order], weight[order]
    worth = weight * (1 + earned[order])
    goes_on = np.r_[(entity[1:] == entity[:-1]) & (at[1:] == at[:-1] + 1), False]
    came_from = np.r_[False, goes_on[:-1]][: rows.size]
    before = np.where(came_from, np.r_[0.0, worth[:-1]][: rows.size], 0.0)
    ends = ~goes_on[: rows.size]
    closed = np.minimum(at[ends] + 1, n - 1)
    return (
        np.r_[rows, rows[ends]],
        np.r_[at, closed],
        np.r_[np.abs(weight - before), np.abs(worth[ends])],
    )


@dataclass(frozen=True)
class Drawdown:
    """The deepest fall of a running total of returns below its earlier peak (0 at the start).

    Attributes:
        depth: of the fall, in units of notional; 0 when the total never falls.
        peak: position of the last return before the fall, −1 for the start.
        trough: position of the return that ends it.
    """

    depth: float
    peak: int
    trough: int


def drawdown(returns: ArrayLike) -> Drawdown:
    """The deepest drawdown of returns a period (n,) on a fixed notional."""
    total = np.r_[0.0, np.cumsum(np.asarray(returns, np.float64))]
    below = np.maximum.accumulate(total) - total
    trough = int(below.argmax())
    return Drawdown(float(below[trough]), int(total[: trough + 1].argmax()) - 1, trough - 1)


@dataclass(frozen=True)
class Capacity:
    """Mean net return a period as capital grows, with impact by the square-root law.

    A trade that is a share x of what its entity trades in a period moves the price by σ√x, σ being the standard
    deviation of the entity's returns a period (Almgren et al. 2005; Tóth et al. 2011): the impact of a portfolio grows
    with the square root of its capital.

    Attributes:
        net: mean net return a period at no capital, costs a unit paid.
        impact: mean impact a period at a capital of 1.
        unpriced: trades left out of `impact` for lack of a volume or a volatility.
    """

    net: float
    impact: float
    unpriced: int

    def at(self, capital: ArrayLike) -> Floats:
        """Mean net return a period at capital (n,), in the currency of the volumes."""
        return self.net - self.impact * np.sqrt(np.asarray(capital, np.float64))

    @property
    def most(self) -> float | None:
        """Capital at which nothing is left, (net/impact)²; 0 when nothing is there to lose, None without impact."""
        if self.impact <= 0:
            return None
        return max(self.net / self.impact, 0.0) ** 2


def capacity(book: LongShort, volume: ArrayLike, volatility: ArrayLike) -> Capacity:
    """The capacity of a portfolio.

    Args:
        book: the portfolio.
        volume: (Q,) traded value of each row's entity in a period, in any currency, known at the row's time.
        volatility: (Q,) standard deviation of its returns a period, known at the row's time.
    """
    rows, _, size = book.pieces
    v, sigma = (np.asarray(x, np.float64)[rows] for x in (volume, volatility))
    priced = np.isfinite(v) & (v > 0) & np.isfinite(sigma)
    impact = sigma[priced] * size[priced] ** 1.5 / np.sqrt(v[priced])
    return Capacity(float(book.net.mean()), float(impact.sum()) / book.times.size, int((~priced).sum()))
