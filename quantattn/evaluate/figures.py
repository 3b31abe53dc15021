"""The figures of a report: every method's loss, learning, confusion, reliability, advantage over time, predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from quantattn.evaluate.calibration import reliability
from quantattn.evaluate.compare import Table, advantage, decimals
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
from quantattn.evaluate.metrics import classified, confusion_matrix, finite

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Curves = Mapping[str, tuple[Sequence[float], Sequence[float]]]
"""Name → (training steps, losses)."""


def methods_figure(table: Table) -> Figure:
    """Loss of every method with its interval, one line each, and the bound as a vertical line."""
    metric = next(m for m in table.metrics if m.name == table.loss)
    rows = [row for row in table.rows if row.role != "bound" and table.loss in row.figures]
    bounds = [row for row in table.rows if row.role == "bound" and table.loss in row.figures]

    digits = decimals([row.figures[table.loss].value for row in rows])

    def paint(axes: Axes) -> None:
        for place, row in enumerate(reversed(rows)):
            figure, colour = row.figures[table.loss], MODEL if row.role == "model" else MUTED
            if figure.low is not None and figure.high is not None:
                axes.plot([figure.low, figure.high], [place, place], color=colour, linewidth=5, alpha=0.35)
            axes.plot([figure.value], [place], "o", color=colour, markersize=7)
            end = figure.value if figure.high is None else figure.high
            axes.annotate(f"{figure.value:.{digits}f}", (end, place), (7, 0), textcoords="offset points", va="center")
        for row in bounds:
            value = row.figures[table.loss].value
            axes.axvline(value, color=THIRD, linestyle=(0, (5, 3)), label=f"{short(row.method)}, {value:.{digits}f}")
            axes.legend(loc="lower left", bbox_to_anchor=(0, 1), borderpad=0)
        axes.set_yticks(range(len(rows)), [short(row.method) for row in reversed(rows)])
        axes.set_ylim(-0.6, len(rows) - 0.3)
        axes.grid(axis="y", visible=False)
        axes.margins(x=0.15)
        axes.spines["left"].set_visible(False)
        axes.set_xlabel(f"{metric.title}, {'lower' if metric.lower_is_better else 'higher'} is better")

    caption = f"{metric.title} on test rows: a dot is the value, the bar its {table.level:.0%} interval" + (
        "; the dashed line is the best that any forecaster could reach." if bounds else "."
    )
    return draw("methods", "Every method on the same decisions", caption, paint, (4.6, 0.3 * len(rows) + 0.85))


def loss_figure(curves: Curves, references: Mapping[str, float] | None = None) -> Figure:
    """Loss against training step.

    Args:
        curves: up to three names → (steps, losses in nats), "train" and "validation" for instance.
        references: up to two names → a loss to draw as a level line, the best baseline's for instance.
    """
    if not curves or len(curves) > 3:
        raise ValueError(f"expected one to three curves, got {len(curves)}")

    def paint(axes: Axes) -> None:
        for (name, (steps, losses)), colour in zip(curves.items(), (MODEL, OTHER, THIRD), strict=False):
            x, y = finite(steps, f"steps of {name!r}"), finite(losses, f"losses of {name!r}")
            keep = thinned(x.size)
            axes.plot(x[keep], y[keep], color=colour, label=short(name), marker="o" if x.size < 8 else "", markersize=4)
        for (name, level), style in zip((references or {}).items(), ((0, (5, 3)), (0, (1, 2))), strict=False):
            axes.axhline(level, color=MUTED, linewidth=1.2, linestyle=style, label=short(name))
        axes.set_xlabel("training step")
        axes.set_ylabel("loss")
        axes.legend()

    caption = (
        "Loss while training: " + ", ".join(curves) + ("; level lines: " + ", ".join(references) if references else "")
    )
    return draw("loss", "Learning", caption + ".", paint)


def confusion_figure(matrix: ArrayLike, classes: Sequence[str]) -> Figure:
    """Counts of true by predicted class (C, C), shaded by the share of the true class."""
    counts = np.asarray(matrix, dtype=np.int64)
    if counts.shape != (len(classes), len(classes)):
        raise ValueError(f"the confusion matrix has shape {counts.shape} for {len(classes)} classes")
    share = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)

    def paint(axes: Axes) -> None:
        from matplotlib.patches import Rectangle

        for (true, predicted), count in np.ndenumerate(counts):
            part = float(share[true, predicted])
            axes.add_patch(
                Rectangle((predicted - 0.5, true - 0.5), 1, 1, facecolor=MODEL, alpha=0.6 * part, linewidth=0)
            )
            axes.text(predicted, true, f"{part:.0%}\n{count:,}", ha="center", va="center", linespacing=1.5)
        places = range(len(classes))
        names = [short(name, 16) for name in classes]
        axes.set_xticks(places, names)
        axes.set_yticks(places, names)
        axes.set_xlim(-0.5, len(classes) - 0.5)
        axes.set_ylim(len(classes) - 0.5, -0.5)
        axes.grid(visible=False)
        axes.spines[:].set_visible(False)
        axes.set_xlabel("predicted")
        axes.set_ylabel("what happened")

    caption = "Each row is what happened, each column what was predicted; percentages are shares of the row."
    return draw("confusion", "Which outcomes are told apart", caption, paint)


def reliability_figure(y: ArrayLike, prob: ArrayLike) -> Figure:
    """Stated against observed frequency of the predicted class, 15 bins of equal mass."""
    data = classified(y, prob)
    curve = reliability(data.y, data.prob)

    def paint(axes: Axes) -> None:
        low = min(float(curve.confidence.min()), float(curve.accuracy.min()))
        high = max(float(curve.confidence.max()), float(curve.accuracy.max()))
        axes.plot([low, high], [low, high], color=MUTED, linewidth=1.2, linestyle=(0, (5, 3)), label="perfect")
        axes.plot(curve.confidence, curve.accuracy, color=MODEL, marker="o", markersize=4, label="model")
        axes.set_xlabel("stated probability of the predicted class")
        axes.set_ylabel("how often it came true")
        axes.legend(loc="upper left")

    caption = (
        f"On the dashed line a stated probability is what comes true. Mean distance from it: {curve.ece:.3f} "
        f"({curve.count.size} bins of {int(curve.count.mean()):,} decisions)."
    )
    return draw("reliability", "Do its probabilities come true", caption, paint)


def advantage_figure(gain: ArrayLike, time: ArrayLike, against: str, unit: str = "nats") -> Figure:
    """Running total of a gain in loss over another method, in time.

    Args:
        gain: (Q,) loss of the other method − loss of the model, one a decision.
        time: (Q,) int64 ns UTC.
        against: name of the other method.
        unit: of the loss.
    """
    won, when = finite(gain, "gain"), np.asarray(time, dtype=np.int64)
    if won.shape != when.shape:
        raise ValueError(f"gain has shape {won.shape} but time {when.shape}")
    order = np.argsort(when, kind="stable")
    total, first, last = np.cumsum(won[order]), int(when.min()), int(when.max())
    seconds = (when[order] - first) / SECOND

    def paint(axes: Axes) -> None:
        keep = thinned(total.size)
        axes.axhline(0, color=MUTED, linewidth=1)
        axes.plot(seconds[keep], total[keep], color=MODEL)
        axes.fill_between(seconds[keep], 0, total[keep], color=SHADE, alpha=0.12, linewidth=0)
        axes.set_ylabel(f"total gain ({unit})")
        clock_axis(axes, first, last)

    caption = f"Running total of the model's gain over {against}: rising is better, level is no better."
    return draw("advantage", "Where the advantage was earned", caption, paint)


def predictions_figure(y: ArrayLike, predicted: ArrayLike, unit: str = "") -> Figure:
    """Outcome against prediction, with means in ten bins of equal mass; at most 400 decisions are drawn."""
    actual, forecast = finite(y, "y"), finite(predicted, "predicted")
    if actual.shape != forecast.shape:
        raise ValueError(f"y has shape {actual.shape} but predicted {forecast.shape}")
    order = np.argsort(forecast, kind="stable")
    keep = order[thinned(actual.size)]
    groups = np.array_split(order, min(10, actual.size))

    def paint(axes: Axes) -> None:
        low, high = float(forecast.min()), float(forecast.max())
        axes.plot([low, high], [low, high], color=MUTED, linewidth=1.2, linestyle=(0, (5, 3)), label="perfect")
        many = actual.size >= 50  # of fewer a tenth is a handful, whose means would look like a finding
        size, alpha = (3, 0.4) if many else (5, 0.9)
        axes.plot(forecast[keep], actual[keep], "o", color=MODEL, markersize=size, alpha=alpha, markeredgewidth=0)
        if many:
            means = [(forecast[g].mean(), actual[g].mean()) for g in groups]
            axes.plot(*zip(*means, strict=True), color=OTHER, marker="o", markersize=4, label="mean of a tenth")
        axes.locator_params(axis="x", nbins=4)
        axes.ticklabel_format(axis="x", useOffset=False)
        axes.set_xlabel(f"predicted {unit}".strip())
        axes.set_ylabel(f"what happened {unit}".strip())
        axes.legend(loc="upper left")

    caption = f"{keep.size:,} of {actual.size:,} decisions; on the dashed line prediction and outcome agree."
    return draw("predictions", "Predicted and actual", caption, paint)


def classification_figures(
    y: ArrayLike,
    prob: ArrayLike,
    time: ArrayLike,
    classes: Sequence[str],
    baseline_prob: ArrayLike,
    table: Table,
    curves: Curves | None = None,
) -> tuple[Figure, ...]:
    """The figures of a classifier's report.

    Args:
        y: (Q,) classes, `IGNORE` for none.
        prob: (Q, C) probabilities of the model.
        time: (Q,) int64 ns UTC.
        classes: C names.
        baseline_prob: (Q, C) probabilities of the best baseline, `table.best_baseline`.
        table: the closing table of the same rows.
        curves: see `loss_figure`; no learning curves without them.
    """
    kept, gain = advantage(y, prob, baseline_prob)
    references = {row.method: row.figures[table.loss].value for row in table.rows if table.loss in row.figures}
    levels = {name: references[name] for name in (table.best_baseline, "Bayes bound") if name in references}
    figures = [methods_figure(table), advantage_figure(gain, np.asarray(time)[kept], table.best_baseline)]
    if drawn := _not_empty(curves):
        figures.append(loss_figure(drawn, levels))
    figures += [confusion_figure(confusion_matrix(y, prob), classes), reliability_figure(y, prob)]
    return tuple(figures)


def regression_figures(
    y: ArrayLike,
    predicted: ArrayLike,
    time: ArrayLike,
    baseline: ArrayLike,
    table: Table,
    curves: Curves | None = None,
    unit: str = "",
) -> tuple[Figure, ...]:
    """The figures of a regression's report; arguments as in `classification_figures`, with values for probabilities."""
    outcome = np.asarray(y, dtype=np.float64)
    kept = ~np.isnan(outcome)
    actual, model, other = (np.asarray(x, dtype=np.float64)[kept] for x in (outcome, predicted, baseline))
    gain = (actual - other) ** 2 - (actual - model) ** 2
    figures = [
        methods_figure(table),
        predictions_figure(actual, model, unit),
        advantage_figure(gain, np.asarray(time)[kept], table.best_baseline, "squared error"),
    ]
    return (*figures, loss_figure(drawn)) if (drawn := _not_empty(curves)) else tuple(figures)


def _not_empty(curves: Curves | None) -> Curves:
    return {name: curve for name, curve in (curves or {}).items() if len(curve[0])}
