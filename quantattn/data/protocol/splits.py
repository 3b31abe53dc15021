"""Training, validation and test rows, cut by time: walk-forward, purged by label interval, with an embargo.

A row is a decision with its label interval (label_start, label_end]. Two rows share information when their intervals
touch; a training row that touches the span [min label_start, max label_end] of a later part is purged from it. The
maximum matters: with horizons in events, the row that starts last need not be the one that looks furthest ahead.

Beside skfolio: its `WalkForward` drops a fixed number of rows before the test block (`purged_size`); that is what this
purge does when every label looks that number of rows ahead. Its `CombinatorialPurgedCV` embargoes a number of rows
after a test block; here the embargo is a time. `purge` is the rule by itself, for any other way of cutting.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Intervals:
    """When each decision was made and what its label looks at; all (Q,), ns UTC, in any order.

    Attributes:
        as_of: time of the decision.
        start: start of the label interval, not before `as_of`.
        end: end of the label interval, not before `start`.
    """

    as_of: Int64Array
    start: Int64Array
    end: Int64Array

    def __post_init__(self) -> None:
        shapes = {a.shape for a in (self.as_of, self.start, self.end)}
        if len(shapes) != 1 or self.as_of.ndim != 1:
            raise ValueError(f"as_of, start and end must be vectors of one length, got {sorted(shapes)}")
        for name, times in (("as_of", self.as_of), ("start", self.start), ("end", self.end)):
            if times.dtype != np.int64:
                raise ValueError(f"{name} must be int64 nanoseconds, got {times.dtype}")
        for name, wrong in (("before its as_of", self.start < self.as_of), ("after its end", self.start > self.end)):
            if wrong.any():
                row = int(np.flatnonzero(wrong)[0])
                raise ValueError(f"the label interval of row {row} starts {name}: {self._row(row)}")

    def __len__(self) -> int:
        return len(self.as_of)

    def _row(self, row: int) -> str:
        return f"as_of {self.as_of[row]}, start {self.start[row]}, end {self.end[row]}"


@dataclass(frozen=True)
class Split:
    """Row numbers (int64, ascending) of the three parts, and of what was taken out between them.

    Attributes:
        train: rows to fit on.
        valid: rows to choose by; later than `train`, earlier than `test`.
        test: rows to report on.
        purged: rows of the stretches before `valid` and `test` whose labels reach into those.
        embargoed: rows that were dropped because they follow a test block too closely.
        outside: rows that this fold does not use: earlier than a rolling window, or later than the test block.
        fold: number of the fold, from 0.
    """

    train: Int64Array
    valid: Int64Array
    test: Int64Array
    purged: Int64Array
    embargoed: Int64Array
    outside: Int64Array = field(default_factory=lambda: np.zeros(0, np.int64))
    fold: int = 0

    @property
    def counts(self) -> dict[str, int]:
        """Name of each part → number of rows; every row is in exactly one."""
        names = ("train", "valid", "test", "purged", "embargoed", "outside")
        return {name: len(getattr(self, name)) for name in names}

    @property
    def left_out(self) -> dict[str, Int64Array]:
        """Reason → rows that are in none of the three parts, for the reasons that occur."""
        why = {"purged": self.purged, "embargoed": self.embargoed, "outside the fold": self.outside}
        return {name: rows for name, rows in why.items() if len(rows)}


@dataclass(frozen=True)
class WalkForward:
    """Test blocks in order of time, training strictly before each of them.

    The decisions are put in order of time and cut by their number; decisions of one instant are never parted. The
    last `n_folds` · `test` of them are the test blocks; `valid` of them lie before each block; what is earlier is for
    training: all of it ("expanding"), or the last `train` of all decisions ("rolling").

    Attributes:
        n_folds: number of test blocks.
        test: share of all decisions in one test block.
        valid: share of all decisions in the validation block; 0 for none.
        window: "expanding" or "rolling".
        train: share of all decisions to train on, for a rolling window.
        embargo: nanoseconds after the end of a test block's labels in which nothing is trained on. What a fold trains
            on is earlier than its own block, so this concerns the blocks of earlier folds, after which later folds
            would train.
    """

    n_folds: int = 1
    test: float = 0.2
    valid: float = 0.1
    window: Literal["expanding", "rolling"] = "expanding"
    train: float | None = None
    embargo: int = 0

    def __post_init__(self) -> None:
        used = self.n_folds * self.test + self.valid + (self.train or 0)
        if self.n_folds < 1 or not 0 < self.test < 1 or not 0 <= self.valid < 1 or used > 1 + 1e-12:
            raise ValueError(
                f"n_folds · test + valid + train must not exceed 1 with n_folds ≥ 1 and test > 0, "
                f"got {self.n_folds} · {self.test} + {self.valid} + {self.train or 0}"
            )
        if (self.window == "rolling") != (self.train is not None) or self.window not in ("expanding", "rolling"):
            raise ValueError(f"a rolling window needs train=SHARE and only it does, got {self.window!r}, {self.train}")
        if self.embargo < 0:
            raise ValueError(f"embargo is a time in nanoseconds and must be at least 0, got {self.embargo}")

    def split(self, rows: Intervals) -> tuple[Split, ...]:
        """One split a fold, in order of time; row numbers count from 0 in `rows`.

        Raises:
            ValueError: a part has no row, because there are too few decisions or their labels reach too far.
        """
        order = np.sort(rows.as_of)
        return tuple(self._fold(rows, order, fold) for fold in range(self.n_folds))

    @staticmethod
    def choose(folds: tuple[Split, ...], fold: int) -> Split:
        """One of the folds by its number, negative from the end; ValueError when there is none of that number."""
        if not -len(folds) <= fold < len(folds):
            n = len(folds)
            raise ValueError(f"fold {fold} of {n}: folds are numbered 0 … {n - 1}, or -1 … -{n} from the end")
        return folds[fold]

    def _fold(self, rows: Intervals, order: Int64Array, fold: int) -> Split:
        begin, end = self._block(fold)
        first = 0.0 if self.train is None else begin - self.valid - self.train
        train, valid, test = (
            _between(rows.as_of, order, *shares)
            for shares in ((first, begin - self.valid), (begin - self.valid, begin), (begin, end))
        )
        kept_valid, _ = purge(rows, valid, test)
        kept, _ = purge(rows, train, valid)
        kept, _ = purge(rows, kept, test)
        embargoed = np.zeros_like(train)
        for earlier in range(fold):
            embargoed |= kept & _follows(rows, _between(rows.as_of, order, *self._block(earlier)), self.embargo)
        purged = (valid & ~kept_valid) | (train & ~kept)
        split = Split(
            train=np.flatnonzero(kept & ~embargoed),
            valid=np.flatnonzero(kept_valid),
            test=np.flatnonzero(test),
            purged=np.flatnonzero(purged),
            embargoed=np.flatnonzero(embargoed),
            outside=np.flatnonzero(~(train | valid | test)),
            fold=fold,
        )
        for name, wanted in (("train", True), ("valid", self.valid > 0), ("test", True)):
            if wanted and not split.counts[name]:
                raise ValueError(
                    f"fold {fold} has no {name} rows: of {len(rows)} decisions {len(split.purged)} were purged because "
                    f"their labels reach into a later part and {len(split.embargoed)} fell into an embargo; use more "
                    f"data, larger shares, a shorter horizon or a shorter embargo"
                )
        return split

    def _block(self, fold: int) -> tuple[float, float]:
        """Shares of the decisions at which the test block of a fold begins and ends."""
        return 1 - (self.n_folds - fold) * self.test, 1 - (self.n_folds - fold - 1) * self.test


def purge(rows: Intervals, train: BoolArray, test: BoolArray, embargo: int = 0) -> tuple[BoolArray, BoolArray]:
    """Take out of `train` what shares information with `test`.

    A training row is purged when its interval touches [min start, max end] of the test rows, of all entities
    together and so also of its own; it is embargoed when it was made after that span and at most `embargo` ns later.

    Returns:
        (Q,) masks: what is left of `train`, and what the embargo took.
    """
    if not test.any():
        return train, np.zeros_like(train)
    touching = (rows.end >= rows.start[test].min()) & (rows.start <= rows.end[test].max())
    embargoed = train & ~touching & _follows(rows, test, embargo)
    return train & ~touching & ~embargoed, embargoed


def _follows(rows: Intervals, test: BoolArray, embargo: int) -> BoolArray:
    last = rows.end[test].max()
    # A difference of times fits int64 where the end of a long embargo would not.
    following: BoolArray = (rows.as_of > last) & (rows.as_of - last <= embargo)
    return following


def _between(time: Int64Array, order: Int64Array, first: float, end: float) -> BoolArray:
    """Rows from the time of the decision at share `first` of the sorted `order` up to that at share `end`."""
    start, stop = (round(share * len(order)) for share in (first, end))
    if start >= min(stop, len(order)):
        return np.zeros(len(time), np.bool_)
    inside: BoolArray = time >= order[max(start, 0)]
    if stop < len(order):
        inside &= time < order[stop]
    return inside
