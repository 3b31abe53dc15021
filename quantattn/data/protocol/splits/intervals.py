"""Decisions with their label intervals, the parts that they are cut into, and the rule by which parts are kept apart.

A row is a decision with its label interval (label_start, label_end]. Two rows share information when their intervals
touch; a training row that touches the span [min label_start, max label_end] of a later part is purged from it. The
maximum matters: with horizons in events, the row that starts last need not be the one that looks furthest ahead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


def _no_rows() -> Int64Array:
    return np.zeros(0, np.int64)


@dataclass(frozen=True)
class Intervals:
    """When each decision was made and what its label looks at; all (Q,), ns UTC, in any order.

    Attributes:
        as_of: time of the decision.
        start: start of the label interval, not before `as_of`.
        end: end of the label interval, not before `start`.
        entity: whose decision it is; only splits by entity ask for it.
        stratum: (Q,) class of each decision, for a split that is to have the classes in equal shares.
    """

    as_of: Int64Array
    start: Int64Array
    end: Int64Array
    entity: npt.NDArray[np.generic] | None = None
    stratum: Int64Array | None = None

    def __post_init__(self) -> None:
        shapes = {a.shape for a in (self.as_of, self.start, self.end)}
        if len(shapes) != 1 or self.as_of.ndim != 1:
            raise ValueError(f"as_of, start and end must be vectors of one length, got {sorted(shapes)}")
        if self.entity is not None and self.entity.shape != self.as_of.shape:
            raise ValueError(f"entity must have one name a row, got {self.entity.shape} for {self.as_of.shape}")
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

    def names(self) -> npt.NDArray[np.generic]:
        """(Q,) entities; ValueError when there are none."""
        if self.entity is None:
            raise ValueError("a split by entity needs the entity of every decision, and none was given")
        return self.entity


@dataclass(frozen=True)
class Split:
    """Row numbers (int64, ascending) of the three parts, and of what was taken out between them.

    Attributes:
        train: rows to fit on.
        valid: rows to choose by; where the plan is in order, later than `train`, earlier than `test`.
        test: rows to report on.
        purged: rows of the stretches beside `valid` and `test` whose labels reach into those.
        embargoed: rows that were dropped because they follow a test block too closely.
        outside: rows that this fold does not use: earlier than a rolling window, later than the test block, or of
            entities that are held out.
        fold: number of the fold, from 0.
        blocks: test rows of each test block, in order of time; what is purged is purged by the span of each. Empty: all
            of `test` is one.
        groups: number of each of `blocks` among the groups that the plan cuts time into.
        per_entity: labels of different entities are taken to share nothing, and no entity is in two parts.
    """

    train: Int64Array
    valid: Int64Array
    test: Int64Array
    purged: Int64Array
    embargoed: Int64Array
    outside: Int64Array = field(default_factory=_no_rows)
    fold: int = 0
    blocks: tuple[Int64Array, ...] = ()
    groups: tuple[int, ...] = ()
    per_entity: bool = False

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

    @property
    def test_blocks(self) -> tuple[Int64Array, ...]:
        """`blocks`, or all of `test` as one."""
        return self.blocks or (self.test,)

    def renumbered(self, kept: BoolArray) -> Split:
        """The same split of the rows that are kept, (Q,), by their new numbers."""
        number = np.cumsum(kept) - 1

        def of(rows: Int64Array) -> Int64Array:
            return np.asarray(number[rows[kept[rows]]], np.int64)

        parts = {name: of(getattr(self, name)) for name in self.counts}
        blocks = tuple(of(block) for block in self.blocks)
        return Split(**parts, fold=self.fold, blocks=blocks, groups=self.groups, per_entity=self.per_entity)


def purge(
    rows: Intervals, train: BoolArray, test: BoolArray, embargo: int = 0, *, per_entity: bool = False
) -> tuple[BoolArray, BoolArray]:
    """Take out of `train` what shares information with `test`.

    A training row is purged when its interval touches [min start, max end] of the test rows, of all entities
    together and so also of its own; it is embargoed when it was made after that span and at most `embargo` ns later.

    Args:
        rows: all decisions.
        train: (Q,) which may be trained on.
        test: (Q,) one test block.
        embargo: ns.
        per_entity: compare a training row with the test rows of its own entity alone.

    Returns:
        (Q,) masks: what is left of `train`, and what the embargo took.
    """
    if per_entity:
        return _purge_each(rows, train, test, embargo)
    if not test.any():
        return train, np.zeros_like(train)
    touching = (rows.end >= rows.start[test].min()) & (rows.start <= rows.end[test].max())
    embargoed = train & ~touching & follows(rows, test, embargo)
    return train & ~touching & ~embargoed, embargoed


def follows(rows: Intervals, test: BoolArray, embargo: int) -> BoolArray:
    """Rows made after the labels of a test block end and at most `embargo` ns later."""
    if not test.any():
        return np.zeros(len(rows), np.bool_)
    last = rows.end[test].max()
    # A difference of times fits int64 where the end of a long embargo would not.
    following: BoolArray = (rows.as_of > last) & (rows.as_of - last <= embargo)
    return following


def _purge_each(rows: Intervals, train: BoolArray, test: BoolArray, embargo: int) -> tuple[BoolArray, BoolArray]:
    names, code = np.unique(rows.names(), return_inverse=True)
    first = np.full(len(names), np.iinfo(np.int64).max)
    last = np.full(len(names), np.iinfo(np.int64).min)
    np.minimum.at(first, code[test], rows.start[test])
    np.maximum.at(last, code[test], rows.end[test])
    tested = (first <= last)[code]
    touching = tested & (rows.end >= first[code]) & (rows.start <= last[code])
    following = tested & (rows.as_of > last[code])
    since = np.where(following, rows.as_of - np.where(following, last[code], rows.as_of), 0)
    embargoed = train & ~touching & following & (since <= embargo)
    return train & ~touching & ~embargoed, embargoed


def require_rows(split: Split, rows: Intervals, wanted: Callable[[str], bool]) -> Split:
    """The split itself if the parts that are wanted have rows.

    Raises:
        ValueError: saying which has none, and what took them.
    """
    for name in ("train", "valid", "test"):
        if wanted(name) and not split.counts[name]:
            raise ValueError(
                f"fold {split.fold} has no {name} rows: of {len(rows)} decisions {len(split.purged)} were purged "
                f"because their labels reach into a later part and {len(split.embargoed)} fell into an embargo; use "
                "more data, larger shares, a shorter horizon or a shorter embargo"
            )
    return split
