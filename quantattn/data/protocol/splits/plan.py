"""What every plan of splits can do, and how a fold is made of blocks of time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from quantattn.data.protocol.splits.intervals import Intervals, Split, follows, purge, require_rows

Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


class SplitPlan(Protocol):
    """A way to cut decisions into training, validation and test rows, once for every fold."""

    @property
    def n_folds(self) -> int:
        """How many folds it makes of any rows."""

    @property
    def embargo(self) -> int:
        """Nanoseconds after the end of a test block's labels in which nothing is trained on."""

    @property
    def in_order(self) -> bool:
        """Whether training is earlier than validation, and validation earlier than the test, in every fold."""

    def split(self, rows: Intervals) -> tuple[Split, ...]:
        """One split a fold; row numbers count from 0 in `rows`, and every row is accounted for in every fold.

        Raises:
            ValueError: a part has no row.
        """


def choose(folds: tuple[Split, ...], fold: int) -> Split:
    """One of the folds by its number, negative from the end; ValueError when there is none of that number."""
    require_fold(fold, len(folds))
    return folds[fold]


def require_fold(fold: int, n_folds: int) -> None:
    """Refuse the number of a fold that there is not."""
    if isinstance(fold, bool) or not isinstance(fold, int | np.integer) or not -n_folds <= fold < n_folds:
        raise ValueError(
            f"fold {fold} of {n_folds}: folds are numbered 0 … {n_folds - 1}, or -1 … -{n_folds} from the end"
        )


def require_embargo(embargo: int) -> None:
    """Refuse an embargo below 0."""
    if isinstance(embargo, bool) or not isinstance(embargo, int | np.integer) or embargo < 0:
        raise ValueError(f"embargo is a time in whole nanoseconds and must be at least 0, got {embargo!r}")


def forward_fold(
    rows: Intervals,
    number: int,
    train: BoolArray,
    valid: BoolArray,
    test: BoolArray,
    earlier: Sequence[BoolArray],
    embargo: int,
) -> Split:
    """A fold whose parts follow one another in time.

    Validation is purged by the test block, training by both, and the embargo holds after the test blocks of `earlier`
    folds, since what a fold trains on is earlier than its own.
    """
    kept_valid, _ = purge(rows, valid, test)
    kept, _ = purge(rows, train, valid)
    kept, _ = purge(rows, kept, test)
    embargoed = np.zeros_like(train)
    for block in earlier:
        embargoed |= kept & follows(rows, block, embargo)
    split = Split(
        train=np.flatnonzero(kept & ~embargoed),
        valid=np.flatnonzero(kept_valid),
        test=np.flatnonzero(test),
        purged=np.flatnonzero((valid & ~kept_valid) | (train & ~kept)),
        embargoed=np.flatnonzero(embargoed),
        outside=np.flatnonzero(~(train | valid | test)),
        fold=number,
    )
    return require_rows(split, rows, lambda name: name != "valid" or bool(valid.any()))


def surrounded_fold(
    rows: Intervals,
    number: int,
    train: BoolArray,
    valid: BoolArray,
    blocks: Sequence[BoolArray],
    embargo: int,
    *,
    groups: tuple[int, ...] = (),
    per_entity: bool = False,
) -> Split:
    """A fold that may train on both sides of its test blocks.

    Validation and training are purged by the span of every test block and keep the embargo after each; training is
    purged by the span of validation as well.
    """
    test = np.logical_or.reduce(blocks)
    kept, kept_valid = train & ~valid & ~test, valid & ~test
    wanted = kept | kept_valid
    embargoed = np.zeros_like(train)
    for block in blocks:
        embargoed |= purge(rows, wanted, block, embargo, per_entity=per_entity)[1]
        kept, _ = purge(rows, kept, block, per_entity=per_entity)
        kept_valid, _ = purge(rows, kept_valid, block, per_entity=per_entity)
    kept, _ = purge(rows, kept, valid & ~test, per_entity=per_entity)
    embargoed &= kept | kept_valid
    split = Split(
        train=np.flatnonzero(kept & ~embargoed),
        valid=np.flatnonzero(kept_valid & ~embargoed),
        test=np.flatnonzero(test),
        purged=np.flatnonzero(wanted & ~kept & ~kept_valid),
        embargoed=np.flatnonzero(embargoed),
        outside=np.flatnonzero(~(train | valid | test)),
        fold=number,
        blocks=tuple(np.flatnonzero(block) for block in blocks),
        groups=groups,
        per_entity=per_entity,
    )
    return require_rows(split, rows, lambda name: name != "valid" or bool(valid.any()))


def between(time: Int64Array, order: Int64Array, first: float, end: float) -> BoolArray:
    """Rows from the time of the decision at share `first` of the sorted `order` up to that at share `end`."""
    start, stop = (round(share * len(order)) for share in (first, end))
    if start >= min(stop, len(order)):
        return np.zeros(len(time), np.bool_)
    inside: BoolArray = time >= order[max(start, 0)]
    if stop < len(order):
        inside &= time < order[stop]
    return inside
