"""Decisions with their labels, and which part of the split each belongs to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from quantattn.data.market.features import persistence
from quantattn.data.prepared import PARTS
from quantattn.data.protocol.findings import Fitted
from quantattn.data.protocol.labels import Label
from quantattn.data.protocol.splits import Intervals, Split, SplitPlan, choose, events_to_fit_on

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Cut:
    """Decisions that have a label, and which part each belongs to.

    Attributes:
        decisions: in canonical order, with `row`, `label`, the label's interval, and what was last known of the same
            quantity: `persistence` of a class, `history` of a value.
        split: row numbers of `decisions`.
        earlier_tests: test rows of the folds before, where a fold trains on what follows them.
        in_order: whether training is earlier than validation, and that than the test.
        fitted: what was fitted for the label.
        dropped: reason → decisions left out.
    """

    decisions: pl.DataFrame
    split: Split
    earlier_tests: tuple[Ints, ...]
    in_order: bool
    fitted: Fitted
    dropped: dict[str, int]

    @staticmethod
    def of(measured: pl.DataFrame, label: Label, plan: SplitPlan, fold: int) -> Cut:
        """Split the decisions of `label.measure`, fit on the training part what the label needs, and finish them all.

        Raises:
            ValueError: no decision has a label, a part is left without one, or all of training has the same.
        """
        able = measured.filter(pl.col("label_reason").is_null())
        dropped = _counted(measured)
        if not able.height:
            raise ValueError(_without_labels(measured.height, dropped))
        folds = plan.split(_intervals(able))
        chosen = choose(folds, fold)
        finished, fitted = label.finish(able, chosen.train)
        # With two classes a decision that was followed by no move drops out here: rows are numbered anew.
        kept = finished["label"].is_not_null().to_numpy()
        split = chosen.renumbered(kept)
        wanted = [name for name in PARTS if chosen.counts[name] or name != "valid"]
        empty = [name for name in wanted if not split.counts[name]]
        if empty:
            raise ValueError(f"no decision of {', '.join(empty)} has a label: use more data or another label")
        _require_variety(finished["label"].gather(chosen.train).drop_nulls(), label)
        dropped += _counted(finished) + Counter({why: len(rows) for why, rows in split.left_out.items()})
        if label.class_names:
            finished = finished.with_columns(persistence(finished).fill_null(-1))
        earlier = [each for each in folds if each.fold < chosen.fold] if plan.in_order else []
        return Cut(
            decisions=finished.filter(kept),
            split=split,
            earlier_tests=tuple(each.renumbered(kept).test for each in earlier),
            in_order=plan.in_order,
            fitted=fitted,
            dropped={why: count for why, count in dropped.items() if count},
        )

    @property
    def parts(self) -> dict[str, Ints]:
        """Name → row numbers of `decisions`."""
        return {name: getattr(self.split, name) for name in PARTS}

    @property
    def end_of_training(self) -> int:
        """The instant after the last training decision: what is fitted sees nothing from there on."""
        return int(self.decisions["available_time"].to_numpy()[self.split.train].max()) + 1

    @property
    def look_back_from(self) -> int:
        """A time at which to cut the future off and compute inputs again: the end of training, or the middle of all."""
        if self.in_order:
            return self.end_of_training - 1
        return int(np.sort(self.decisions["available_time"].to_numpy())[self.decisions.height // 2])

    def events_to_fit_on(self, events: pl.DataFrame) -> Bools:
        """(E,) events that what is fitted may see."""
        names = self.decisions["entity"].gather(self.split.train).unique()
        trained = events["entity"].is_in(names.implode()).to_numpy()
        return events_to_fit_on(events["available_time"].to_numpy(), trained, _intervals(self.decisions), self.split)


def _intervals(decisions: pl.DataFrame) -> Intervals:
    names = ("available_time", "label_start", "label_end", "entity")
    return Intervals(*(decisions[name].to_numpy() for name in names))


def _require_variety(learned: pl.Series, label: Label) -> None:
    found = learned.unique()
    if len(found) > 1:
        return
    value = repr(label.class_names[found[0]]) if label.class_names else f"{found[0]:g}"
    raise ValueError(
        f"every one of the {len(learned)} training decisions is {value}: nothing can be learned; use more data or "
        "another label"
    )


def _without_labels(decisions: int, dropped: Mapping[str, int]) -> str:
    """What to say where no decision has a label, and what may be wrong when their sessions are to blame alone."""
    said = f"none of {decisions} decisions has a label: {dict(dropped)}"
    if set(dropped) != {"session end"}:
        return said
    return (
        f"{said}; each of them is outside of a session or its horizon leads out of one: are day, clock and "
        "data.prepare.calendar right? null takes an instrument's whole table as one session"
    )


def _counted(decisions: pl.DataFrame) -> Counter[str]:
    """Reason → decisions without a label."""
    counts = decisions["label_reason"].drop_nulls().cast(pl.String).value_counts(sort=True)
    return Counter(dict(counts.sort("label_reason").iter_rows()))
