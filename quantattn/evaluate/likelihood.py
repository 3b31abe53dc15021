"""The closing table of objectives that predict the data themselves: log loss, of a model and without its context."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike

from quantattn.evaluate.compare import Against, Row, Table
from quantattn.evaluate.drawing import Figure
from quantattn.evaluate.metrics import CLASSIFICATION
from quantattn.evaluate.significance import REPLICATES, Blocks, interval, resample


def likelihood_table(
    losses: Mapping[str, ArrayLike],
    counts: ArrayLike,
    blocks: Blocks,
    *,
    level: float = 0.95,
    replicates: int = REPLICATES,
    seed: int = 0,
) -> Table:
    """Mean log loss, in nats, of a model and its baselines with block-bootstrap intervals.

    Args:
        losses: method → (S,) summed losses of each sequence over its targets; the model first, then the baselines.
        counts: (S,) targets of each sequence, the same for every method.
        blocks: block of each of the S sequences.
        level: coverage of the intervals.
        replicates: bootstrap resamples.
        seed: of the resamples.

    Raises:
        ValueError: no baseline, shapes that differ, no target, or a loss that is not finite.
    """
    names, metric = tuple(losses), CLASSIFICATION[0]
    if len(names) < 2:
        raise ValueError(f"expected a model and one baseline or more, got {list(names)}")
    columns = [np.asarray(column, np.float64) for column in (counts, *losses.values())]
    if any(column.shape != blocks.ids.shape for column in columns):
        raise ValueError(f"shapes {[column.shape for column in columns]} differ from that of blocks {blocks.ids.shape}")
    sums = np.zeros((blocks.count, len(columns)))
    np.add.at(sums, blocks.ids, np.column_stack(columns))
    total = sums.sum(axis=0)
    if not total[0] or not np.isfinite(total).all():
        raise ValueError(
            f"expected targets and finite losses, got {total[0]:.0f} targets and sums {total[1:].tolist()}"
        )
    totals = np.vstack([total, resample(sums, replicates=replicates, seed=seed)])
    with np.errstate(invalid="ignore"):  # a resample without targets has no mean, and then there is no interval
        means = totals[:, 1:] / totals[:, :1]
    drawn = {name: {metric.name: means[:, place]} for place, name in enumerate(names)}
    against = Against(drawn, names[0], names[1:], metric.name, blocks.count, level)

    return Table(
        metrics=(metric,),
        rows=tuple(
            Row(
                name,
                "baseline" if place else "model",
                {metric.name: interval(float(means[0, place]), means[1:, place], blocks.count, level)},
            )
            for place, name in enumerate(names)
        ),
        loss=metric.name,
        best_baseline=against.best,
        difference={metric.name: against.difference(metric)},
        skill=against.interval(lambda ours, theirs: 1 - ours[metric.name] / theirs[metric.name]),
        gap_closed=None,
        decisions=int(total[0]),
        unlabelled=0,
        blocks=blocks.count,
        block_kind=blocks.kind,
        level=level,
        replicates=replicates,
    )


def likelihood_figures(table: Table, curves: Mapping[str, tuple[list[float], list[float]]]) -> tuple[Figure, ...]:
    """Every method's loss, and the loss while training beside the best baseline's."""
    from quantattn.evaluate.figures import loss_figure, methods_figure

    best = table.row(table.best_baseline)
    learning = [loss_figure(curves, {best.method: best.figures[table.loss].value})] if curves else []
    return (methods_figure(table), *learning)
