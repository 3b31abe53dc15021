"""The closing table: a model beside its baselines and, where it is known, the best that is possible."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quantattn.evaluate.metrics import (
    CLASSIFICATION,
    REGRESSION,
    Metric,
    classification_figures,
    classification_sums,
    classified,
    finite,
    log_losses,
    regression_figures,
    regression_sums,
)
from quantattn.evaluate.significance import (
    REPLICATES,
    Blocks,
    Interval,
    choose_blocks,
    interval,
    lowest_interval,
    resample,
)

Floats = NDArray[np.float64]
Role = Literal["model", "baseline", "bound"]

ROUNDING = 1e-6
"""A share of a loss that is none: models answer in float32, and resampled blocks agree on the sign of a rounding."""


@dataclass(frozen=True)
class Row:
    """One method of the table: its figures by name, each with an interval."""

    method: str
    role: Role
    figures: Mapping[str, Interval]


@dataclass(frozen=True)
class Table:
    """A closing table.

    Attributes:
        metrics: the columns.
        rows: the model, the baselines in the order given, the bound last when there is one.
        loss: name of the figure by which methods are ranked, "log_loss" or "mse".
        best_baseline: the baseline with the lowest loss on these rows.
        difference: model − best baseline, by figure, paired: both see the same resampled blocks.
        skill: 1 − loss(model)/loss(best baseline).
        gap_closed: (loss(best baseline) − loss(model))/(loss(best baseline) − loss(bound)); None without a bound, or
            when the best baseline is not above it.
        decisions: rows used.
        unlabelled: rows left out because they carry no label.
        blocks: how many blocks were resampled.
        block_kind: what a block is: "day", "entity" or "time".
        level: coverage of the intervals.
        replicates: bootstrap resamples.
    """

    metrics: tuple[Metric, ...]
    rows: tuple[Row, ...]
    loss: str
    best_baseline: str
    difference: Mapping[str, Interval]
    skill: Interval
    gap_closed: Interval | None
    decisions: int
    unlabelled: int
    blocks: int
    block_kind: str
    level: float
    replicates: int

    @property
    def model(self) -> Row:
        """The model's row."""
        return self.rows[0]

    def row(self, method: str) -> Row:
        """The row of a method; raises KeyError when there is none."""
        for row in self.rows:
            if row.method == method:
                return row
        raise KeyError(method)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; what is not finite becomes None."""
        return dict(_plain(asdict(self)))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


Drawn = Mapping[str, Mapping[str, Floats]]
"""Method → figure → (1 + R,): on all rows and then on each resample, the same for every method."""


def closing_table(
    y: ArrayLike,
    time: ArrayLike,
    blocks: Blocks | None,
    model_prob: ArrayLike,
    baselines: Mapping[str, ArrayLike],
    bayes: Mapping[str, float] | ArrayLike | None = None,
    *,
    method: str = "encoder",
    level: float = 0.95,
    replicates: int = REPLICATES,
    seed: int = 0,
) -> Table:
    """Figures of a classifier and its baselines with block-bootstrap intervals.

    Args:
        y: (Q,) classes, `IGNORE` for a decision without a label (left out and counted).
        time: (Q,) int64 ns UTC of the decisions.
        blocks: block of each of the Q decisions; None chooses by `choose_blocks(time)`.
        model_prob: (Q, C) probabilities of the model.
        baselines: name → (Q, C) probabilities, at least one.
        bayes: the optimum: either figures by name ("log_loss", "accuracy"), which carry no interval, or the
            (Q, C) probabilities of an oracle.
        method: the model's name in the table.
        level: coverage of the intervals.
        replicates: bootstrap resamples.
        seed: of the resamples.

    Raises:
        ValueError: see `classified`; no baselines; or two methods of one name.
    """
    named: dict[str, ArrayLike] = {method: model_prob, **baselines}
    if not baselines or method in baselines:
        raise ValueError(f"expected one baseline or more, none of them named {method!r}, got {sorted(baselines)}")
    bound = "Bayes bound"
    if bayes is not None and not isinstance(bayes, Mapping):
        named[bound] = bayes
    data = {name: classified(y, prob, f"probabilities of {name!r}") for name, prob in named.items()}
    first = data[method]
    if (other := next((d for d in data.values() if d.n_classes != first.n_classes), None)) is not None:
        raise ValueError(f"the model has {first.n_classes} classes but another method {other.n_classes}")
    chosen = _blocks(blocks, time, first.kept)
    sums = {name: classification_sums(d, chosen.ids, chosen.count) for name, d in data.items()}

    def figures(s: Floats) -> dict[str, Floats]:
        return classification_figures(s, first.n_classes)

    drawn = _draw(sums, figures, replicates, seed)
    known = dict(bayes) if isinstance(bayes, Mapping) else None
    return _table(CLASSIFICATION, drawn, tuple(baselines), bound, known, first.kept, chosen, level, replicates)


def regression_table(
    y: ArrayLike,
    time: ArrayLike,
    blocks: Blocks | None,
    model_values: ArrayLike,
    baselines: Mapping[str, ArrayLike],
    history: str = "history",
    *,
    method: str = "encoder",
    level: float = 0.95,
    replicates: int = REPLICATES,
    seed: int = 0,
) -> Table:
    """Figures of a regression and its baselines with block-bootstrap intervals.

    Args:
        y: (Q,) outcomes, NaN for a decision without one (left out and counted).
        time: (Q,) int64 ns UTC of the decisions.
        blocks: block of each of the Q decisions; None chooses by `choose_blocks(time)`.
        model_values: (Q,) predictions.
        baselines: name → (Q,) predictions.
        history: the baseline that R² is measured against.
        method: the model's name in the table.
        level: coverage of the intervals.
        replicates: bootstrap resamples.
        seed: of the resamples.

    Raises:
        ValueError: no baseline of that name, shapes that differ, or a prediction that is not finite.
    """
    if history not in baselines or method in baselines:
        raise ValueError(f"expected a baseline {history!r} and none named {method!r}, got {sorted(baselines)}")
    outcome = np.asarray(y, dtype=np.float64)
    kept = ~np.isnan(outcome)
    named: dict[str, ArrayLike] = {method: model_values, **baselines}
    for name, value in named.items():
        if np.shape(value) != outcome.shape:
            raise ValueError(f"predictions of {name!r} have shape {np.shape(value)}, y has {outcome.shape}")
    target = finite(outcome[kept], "y")
    predicted = {
        name: finite(np.asarray(value, dtype=np.float64)[kept], f"predictions of {name!r}")
        for name, value in named.items()
    }
    chosen = _blocks(blocks, time, kept)
    sums = {
        name: regression_sums(target, value, predicted[history], chosen.ids, chosen.count)
        for name, value in predicted.items()
    }
    drawn = _draw(sums, regression_figures, replicates, seed)
    return _table(REGRESSION, drawn, tuple(baselines), "", None, kept, chosen, level, replicates)


def advantage(y: ArrayLike, model_prob: ArrayLike, baseline_prob: ArrayLike) -> tuple[NDArray[np.bool_], Floats]:
    """Which rows carry a label (Q_all,), and on those ln p_model − ln p_baseline of the true class (Q,), in nats."""
    model, baseline = classified(y, model_prob), classified(y, baseline_prob)
    return model.kept, log_losses(baseline) - log_losses(model)


def decimals(values: list[float]) -> int:
    """Digits after the point that show about four significant digits of the largest of `values`, 3 for 0.01 … 10."""
    largest = max((abs(v) for v in values if math.isfinite(v)), default=0.0)
    if largest == 0 or 0.01 <= largest < 10:
        return 3
    return min(12, max(0, 3 - math.floor(math.log10(largest))))


def _blocks(blocks: Blocks | None, time: ArrayLike, kept: NDArray[np.bool_]) -> Blocks:
    if np.shape(time) != kept.shape:
        raise ValueError(f"time has shape {np.shape(time)} but there are {kept.size} decisions")
    if blocks is None:
        return choose_blocks(np.asarray(time)[kept])
    if blocks.ids.shape != kept.shape:
        raise ValueError(f"blocks have shape {blocks.ids.shape} but there are {kept.size} decisions")
    return blocks.of(kept)


def _draw(
    sums: Mapping[str, Floats], figures: Callable[[Floats], dict[str, Floats]], replicates: int, seed: int
) -> Drawn:
    all_of_them = np.hstack(list(sums.values()))
    totals = np.vstack([all_of_them.sum(axis=0), resample(all_of_them, replicates=replicates, seed=seed)])
    return {name: figures(total) for name, total in zip(sums, np.split(totals, len(sums), axis=1), strict=True)}


def _table(
    metrics: tuple[Metric, ...],
    drawn: Drawn,
    baselines: tuple[str, ...],
    bound: str,
    known: Mapping[str, float] | None,
    kept: NDArray[np.bool_],
    blocks: Blocks,
    level: float,
    replicates: int,
) -> Table:
    loss, model = metrics[0].name, next(iter(drawn))

    def row(name: str, role: Role) -> Row:
        figures = {
            m.name: interval(float(found[0]), found[1:], blocks.count, level)
            if m.resampled
            else Interval(float(found[0]))
            for m, found in ((m, drawn[name][m.name]) for m in metrics)
        }
        return Row(name, role, figures)

    rows = [row(model, "model"), *(row(name, "baseline") for name in baselines)]
    least: Floats | None = None
    if bound in drawn:
        rows.append(row(bound, "bound"))
        least = drawn[bound][loss]
    elif known is not None:
        rows.append(Row(bound, "bound", {m.name: Interval(known[m.name]) for m in metrics if m.name in known}))
        least = np.full(replicates + 1, known[loss]) if loss in known else None
    against = Against(drawn, model, baselines, loss, blocks.count, level)
    gap = None
    if least is not None and drawn[against.best][loss][0] > least[0]:
        gap = against.interval(lambda ours, theirs: _closed(ours[loss], theirs[loss], least))
    return Table(
        metrics=metrics,
        rows=tuple(rows),
        loss=loss,
        best_baseline=against.best,
        difference={metric.name: against.difference(metric) for metric in metrics},
        skill=_possible(against.interval(lambda ours, theirs: _skill(ours[loss], theirs[loss]))),
        gap_closed=gap,
        decisions=int(kept.sum()),
        unlabelled=int((~kept).sum()),
        blocks=blocks.count,
        block_kind=blocks.kind,
        level=level,
        replicates=replicates,
    )


class Against:
    """A model against its best baseline, which is the best on these rows and so looks better than it is."""

    def __init__(
        self, drawn: Drawn, model: str, baselines: tuple[str, ...], loss: str, n_blocks: int, level: float
    ) -> None:
        lowest = np.stack([drawn[name][loss] for name in baselines]).argmin(axis=0)
        self.best = baselines[lowest[0]]
        # A baseline that is best in no resample was never in danger of being taken.
        self._rivals = [baselines[place] for place in np.unique(lowest)]
        self._drawn, self._model, self._n_blocks, self._level = drawn, model, n_blocks, level

    def interval(self, figure: Callable[[Any, Any], Floats], sign: int = 1) -> Interval:
        """Of a figure of two methods that the best baseline makes low; `sign` −1 where it makes it high."""
        found = np.stack([sign * figure(self._drawn[self._model], self._drawn[name]) for name in self._rivals])
        best = self._rivals.index(self.best)
        low = lowest_interval(found[:, 0], found[:, 1:], best, self._n_blocks, self._level)
        return low if sign > 0 else low.turned()

    def difference(self, metric: Metric) -> Interval:
        """Model − best baseline."""
        name, sign = metric.name, -1 if metric.lower_is_better else 1
        found = self.interval(lambda ours, theirs: ours[name] - theirs[name], sign)
        return found if metric.resampled else Interval(found.value)


def _skill(loss: Floats, baseline: Floats) -> Floats:
    """1 − loss/baseline, 0 within `ROUNDING`; NaN against a perfect baseline, which leaves no room for skill."""
    ratio: Floats = 1 - loss / np.where(baseline > 0, baseline, np.nan)
    return np.where(np.abs(ratio) < ROUNDING, 0.0, ratio)


def _possible(skill: Interval) -> Interval:
    """No loss is below zero, so no skill is above 1, where few blocks would put the end of an interval."""
    if skill.low is None or skill.high is None:
        return skill
    return Interval(skill.value, min(skill.low, 1.0), min(skill.high, 1.0))


def _closed(loss: Floats, baseline: Floats, least: Floats) -> Floats:
    """(baseline − loss)/(baseline − least); NaN where the baseline leaves no room."""
    room = baseline - least
    closed: Floats = (baseline - loss) / np.where(room > 0, room, np.nan)
    return closed
