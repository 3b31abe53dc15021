"""Purged k-fold and combinatorial purged cross-validation (López de Prado 2018, ch. 7 and 12)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from math import comb

import numpy as np
import numpy.typing as npt

from quantattn.data.protocol.splits.intervals import Intervals, Split
from quantattn.data.protocol.splits.plan import between, require_embargo, surrounded_fold
from quantattn.data.protocol.whole import require_whole

Int64Array = npt.NDArray[np.int64]
MOST_FOLDS = 10_000
"""Folds of one plan at most: each asks for a model of its own."""


@dataclass(frozen=True)
class PurgedKFold:
    """Time is cut into `n_folds` groups of about as many decisions; each is the test block of one fold.

    A fold trains on both sides of its test block, so it says how well a model does on a stretch that it does not know,
    and not how well it would have done at the time: use `WalkForward` for that.

    Attributes:
        n_folds: groups, and folds.
        valid: 1: the group before the test block (the last group, for the first) is for validation; 0: none.
        embargo: ns after the end of a test block's labels in which nothing is trained on or chosen by.
    """

    n_folds: int = 5
    valid: int = 1
    embargo: int = 0

    def __post_init__(self) -> None:
        _require(self.n_folds, 1, self.valid, self.embargo)

    @property
    def in_order(self) -> bool:
        """Training is on both sides of the test."""
        return False

    def split(self, rows: Intervals) -> tuple[Split, ...]:
        """One split a group, in order of time."""
        return _split(rows, self.n_folds, 1, self.valid, self.embargo)


@dataclass(frozen=True)
class CombinatorialPurged:
    """Every choice of `n_test` of `n_groups` groups of time is the test of one fold: C(n_groups, n_test) folds.

    Each group is tested by C(n_groups − 1, n_test − 1) of them, so that many paths through the whole of time can be put
    together, each from predictions that were made out of sample: `paths` says how. `n_test` = 1 is `PurgedKFold`.

    Attributes:
        n_groups: groups of about as many decisions.
        n_test: groups that are tested in one fold, each a test block of its own for purge and embargo.
        valid: 1: the nearest group before the first test block that is not tested (cyclically) is for validation.
        embargo: ns after the end of a test block's labels in which nothing is trained on or chosen by.
    """

    n_groups: int = 6
    n_test: int = 2
    valid: int = 1
    embargo: int = 0

    def __post_init__(self) -> None:
        _require(self.n_groups, self.n_test, self.valid, self.embargo)

    @property
    def in_order(self) -> bool:
        """Training is on both sides of the tests."""
        return False

    @property
    def n_folds(self) -> int:
        """C(n_groups, n_test)."""
        return comb(self.n_groups, self.n_test)

    @property
    def paths(self) -> Int64Array:
        """(P, n_groups) number of the fold whose predictions of that group belong to that path.

        Of the folds that test a group, in order, the p-th goes to path p. With `folds = plan.split(rows)`, the rows of
        group g in a fold f are `f.blocks[f.groups.index(g)]`.
        """
        testing: list[list[int]] = [[] for _ in range(self.n_groups)]
        for fold, groups in enumerate(combinations(range(self.n_groups), self.n_test)):
            for group in groups:
                testing[group].append(fold)
        return np.asarray(testing, np.int64).T

    def split(self, rows: Intervals) -> tuple[Split, ...]:
        """One split a choice of groups, in lexicographic order."""
        return _split(rows, self.n_groups, self.n_test, self.valid, self.embargo)


def _require(n_groups: int, n_test: int, valid: int, embargo: int) -> None:
    require_whole(n_test=n_test, groups=n_groups)
    if valid not in (0, 1):
        raise ValueError(f"valid must be 0 or 1 group, got {valid!r}")
    if n_test < 1 or n_groups < n_test + valid + 1:
        raise ValueError(
            f"there must be a group to test, {valid} to validate and one to train on: got {n_groups} groups of which "
            f"{n_test} are tested"
        )
    if comb(n_groups, n_test) > MOST_FOLDS:
        raise ValueError(f"folds must not exceed {MOST_FOLDS:,}, and {n_groups} choose {n_test} is more")
    require_embargo(embargo)


def _split(rows: Intervals, n_groups: int, n_test: int, valid: int, embargo: int) -> tuple[Split, ...]:
    order = np.sort(rows.as_of)
    cut = [between(rows.as_of, order, g / n_groups, (g + 1) / n_groups) for g in range(n_groups)]
    everything, nothing = np.ones(len(rows), np.bool_), np.zeros(len(rows), np.bool_)
    folds = []
    for number, groups in enumerate(combinations(range(n_groups), n_test)):
        chosen = next(g for back in range(1, n_groups) if (g := (groups[0] - back) % n_groups) not in groups)
        held = cut[chosen] if valid else nothing
        folds.append(surrounded_fold(rows, number, everything, held, [cut[g] for g in groups], embargo, groups=groups))
    return tuple(folds)
