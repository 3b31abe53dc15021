"""The best that any model can do on a synthetic market, by enumeration.

A decision's outcome is up with probability σ(a·flow + b·marker). `flow` is the sum of F fair signs, `marker` one fair
sign, all independent, so every expectation below is a finite sum over C(F, ·)/2^F; nothing is estimated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Bayes:
    """Expected figures of the predictor that knows the generator, natural logarithms, two classes.

    Attributes:
        log_loss: expected −log p(outcome), nats; no model can have less.
        accuracy: expected share of right answers of the same predictor.
        entropy: that of the outcome before anything is seen, nats (log 2: the classes are balanced by symmetry).
        brier: expected squared error of the probability of "up".
        context: how many events, the decision's own included, the predictor sees; None is all of them.
        marker_seen: share of decisions whose marker lies inside that context.
    """

    log_loss: float
    accuracy: float
    entropy: float
    brier: float
    context: int | None
    marker_seen: float

    @staticmethod
    def mixture(parts: Sequence[Bayes], weights: npt.ArrayLike) -> Bayes:
        """Averages over decisions of which weights[i] are in the situation of parts[i]; `context` is the shortest."""
        share = np.asarray(weights, np.float64) / np.sum(weights)

        def mean(name: str) -> float:
            return float(share @ [getattr(part, name) for part in parts])

        contexts = [part.context for part in parts if part.context is not None]
        return Bayes(
            **{name: mean(name) for name in ("log_loss", "accuracy", "entropy", "brier", "marker_seen")},
            context=min(contexts, default=None),
        )


@dataclass(frozen=True)
class OutcomeLaw:
    """P(up | flow, marker) = σ(flow_weight · flow + marker_weight · marker), flow a sum of `flow_events` fair signs."""

    flow_events: int
    flow_weight: float
    marker_weight: float

    def probability_up(self, flow: npt.ArrayLike, marker: npt.ArrayLike) -> Floats:
        """P(up) for known flow and marker; broadcasts."""
        score = self.flow_weight * np.asarray(flow, np.float64) + self.marker_weight * np.asarray(marker, np.float64)
        return np.asarray(1.0 / (1.0 + np.exp(-score)), np.float64)

    def table(self, flow_seen: int, marker_seen: bool) -> Floats:
        """P(up) given what is seen, shape (flow_seen + 1, 3).

        Row i: i of the `flow_seen` visible signs are +1. Column j: the marker is j − 1; when it is not seen the three
        columns are equal, the average over its two values. Hidden signs of the flow are averaged over as well.
        """
        visible = 2.0 * np.arange(flow_seen + 1) - flow_seen
        hidden, weight = signed_sums(self.flow_events - flow_seen)
        flow = visible[:, None, None] + hidden[None, None, :]
        by_marker: Floats = (self.probability_up(flow, np.array([-1.0, 0.0, 1.0])[None, :, None]) * weight).sum(axis=-1)
        if not marker_seen:
            by_marker[:] = (by_marker[:, :1] + by_marker[:, 2:]) / 2
        return by_marker

    def expected(self, flow_seen: int, marker_seen: bool) -> tuple[float, float, float]:
        """Expected log loss (nats), accuracy and Brier score of the predictor that sees this much."""
        _, weight = signed_sums(flow_seen)
        up = self.table(flow_seen, marker_seen)[:, [0, 2]]
        loss = -(up * np.log(up) + (1 - up) * np.log1p(-up))
        figures = (loss, np.maximum(up, 1 - up), up * (1 - up))
        log_loss, accuracy, brier = (float((weight @ figure).mean()) for figure in figures)
        return log_loss, accuracy, brier


def signed_sums(count: int) -> tuple[Floats, Floats]:
    """Values −n, −n + 2, …, n of a sum of `count` fair signs and their probabilities."""
    ways = np.array([comb(count, ups) for ups in range(count + 1)], np.float64)
    return np.asarray(2.0 * np.arange(count + 1) - count, np.float64), np.asarray(ways / 2.0**count, np.float64)
