"""What is predicted, and which part of the split each decision belongs to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import polars as pl

from quantattn.data.market.features import persistence
from quantattn.data.prepared import PARTS
from quantattn.data.protocol.labels import CLASS_NAMES, MidMove, Threshold
from quantattn.data.protocol.splits import Intervals, WalkForward

Ints = npt.NDArray[np.int64]
RULES = ("fixed", "mean", "quantile", "spread")
"""How the threshold between flat and a move may be found."""


@dataclass(frozen=True)
class MidLabel:
    """The class of the move that follows a decision.

    Attributes:
        horizon: how far the label looks, in `unit`.
        unit: "events" or "seconds".
        method: 0 the move to the end of the horizon, 1 to its mean, 2 from mean to mean; see `MidMove`.
        classes: 3 (down, flat, up), or 2 (down, up), where a decision followed by no move has no label.
        rule: how the threshold between flat and a move is found: "fixed", or fitted on training rows by "mean",
            "quantile" or "spread"; see `Threshold.fit`.
        theta: the threshold when fixed, a relative move; text such as "1/50000" is exact.
        quantile: for the rule of that name.

    Raises:
        ValueError: a setting that is not one of these.
    """

    horizon: int = 100
    unit: Literal["events", "seconds"] = "events"
    method: Literal[0, 1, 2] = 1
    classes: Literal[2, 3] = 3
    rule: Literal["fixed", "mean", "quantile", "spread"] = "mean"
    theta: float | str = 0
    quantile: float = 1 / 3

    def __post_init__(self) -> None:
        MidMove(self.horizon, self.unit, self.method)
        if self.classes not in tuple(CLASS_NAMES):
            raise ValueError(f"classes must be 2 or 3, got {self.classes!r}")
        if self.rule not in RULES:
            raise ValueError(f"rule must be one of {', '.join(RULES)}, got {self.rule!r}")
        if not 0 <= self.quantile <= 1:
            raise ValueError(f"quantile must lie in [0, 1], got {self.quantile}")
        if self.rule == "fixed":
            Threshold.fixed(self.theta)

    @property
    def move(self) -> MidMove:
        """What is measured."""
        return MidMove(self.horizon, self.unit, self.method)

    def threshold(self, decisions: pl.DataFrame, train: Ints) -> Threshold:
        """The fixed threshold, or the one fitted on these rows of `decisions`."""
        if self.rule == "fixed":
            return Threshold.fixed(self.theta)
        return Threshold.fit(decisions, train, self.rule, self.quantile)


@dataclass(frozen=True)
class Cut:
    """Decisions that have a label, and which part each belongs to.

    Attributes:
        decisions: in canonical order, with `row`, `label`, `persistence` and the label's interval.
        parts: name → row numbers of `decisions`.
        earlier_tests: test rows of the folds before.
        threshold: what parted the classes.
        dropped: reason → decisions left out.
    """

    decisions: pl.DataFrame
    parts: dict[str, Ints]
    earlier_tests: tuple[Ints, ...]
    threshold: Threshold
    dropped: dict[str, int]

    @staticmethod
    def of(measured: pl.DataFrame, label: MidLabel, split: WalkForward, fold: int) -> Cut:
        """Split the decisions of `mid_moves`, fit the threshold on the training part, and class them all.

        Raises:
            ValueError: no decision has a label, a part is left without one, or training holds one class alone.
        """
        moved = measured.filter(pl.col("label_reason").is_null())
        dropped = _counted(measured)
        if not moved.height:
            raise ValueError(f"none of {measured.height} decisions has a label: {dropped}")
        times = (moved[name].to_numpy() for name in ("available_time", "label_start", "label_end"))
        folds = split.split(Intervals(*times))
        chosen = split.choose(folds, fold)
        threshold = label.threshold(moved, chosen.train)
        classed = threshold.classify(moved, label.classes)
        # With two classes a decision that was followed by no move drops out here: rows are numbered anew.
        kept = classed["label"].is_not_null().to_numpy()
        number = np.cumsum(kept) - 1

        def renumbered(rows: Ints) -> Ints:
            return np.asarray(number[rows[kept[rows]]], np.int64)

        parts = {name: renumbered(getattr(chosen, name)) for name in PARTS}
        empty = [name for name, rows in parts.items() if not len(rows)]
        if empty:
            raise ValueError(f"no decision of {', '.join(empty)} has a label: use more data or another label")
        learned = classed["label"].gather(chosen.train).drop_nulls().unique()
        if len(learned) == 1:
            raise ValueError(
                f"every one of the {len(parts['train'])} training decisions is "
                f"{CLASS_NAMES[label.classes][learned[0]]!r}: nothing can be learned; use more data or another label"
            )
        dropped |= _counted(classed) | {why: len(renumbered(rows)) for why, rows in chosen.left_out.items()}
        return Cut(
            decisions=classed.with_columns(persistence(classed).fill_null(-1)).filter(kept),
            parts=parts,
            earlier_tests=tuple(renumbered(each.test) for each in folds if each.fold < chosen.fold),
            threshold=threshold,
            dropped={why: count for why, count in dropped.items() if count},
        )

    @property
    def end_of_training(self) -> int:
        """The instant after the last training decision: what is fitted sees nothing from there on."""
        return int(self.decisions["available_time"].to_numpy()[self.parts["train"]].max()) + 1


def _counted(decisions: pl.DataFrame) -> dict[str, int]:
    """Reason → decisions without a label."""
    counts = decisions["label_reason"].drop_nulls().cast(pl.String).value_counts(sort=True)
    return dict(counts.sort("label_reason").iter_rows())
