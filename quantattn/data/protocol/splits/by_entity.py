"""Held-out entities: clients, stocks or accounts that the model has never seen."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from quantattn.data.protocol.splits.intervals import Intervals, Split
from quantattn.data.protocol.splits.plan import between, require_embargo, surrounded_fold
from quantattn.data.protocol.whole import require_whole

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True)
class ByEntity:
    """Entities are dealt into `n_folds` groups; each is held out in one fold, and the next one validates.

    Which group an entity is in depends on its name, the seed and the other names, not on its rows (unless `stratify`
    asks for its class). What of time the parts share is `time`:

    - "shared": all of it. Right where entities are independent of each other, such as clients of a bank; a label of
      one entity is then purged by those of its own alone, of which there is none in another part.
    - "later": the test is the last `test` of all decisions, of held-out entities; training, of the others, is before
      it, and validation between them: new entities at a later time.
    - "around": the test of fold i is the i-th of `n_folds` stretches of time; training, of the others, is on both sides
      of it, purged by the label intervals of all entities together, with the embargo after it.

    Attributes:
        n_folds: groups of entities, and folds.
        time: see above.
        test: share of all decisions in the last stretch, for "later".
        valid: 1: the next group of entities is for validation; 0: none.
        embargo: ns after the end of a test block's labels in which nothing is trained on, for "around".
        seed: of the deal.
        stratify: deal the entities of each class in turn, by their first decision, so that the groups have equal shares
            of the classes; only decisions whose class is known before the split can be dealt so.
    """

    n_folds: int = 5
    time: Literal["shared", "later", "around"] = "shared"
    test: float = 0.2
    valid: int = 1
    embargo: int = 0
    seed: int = 0
    stratify: bool = False

    def __post_init__(self) -> None:
        if self.time not in ("shared", "later", "around"):
            raise ValueError(f"time must be 'shared', 'later' or 'around', got {self.time!r}")
        require_whole(n_folds=self.n_folds)
        if self.valid not in (0, 1) or self.n_folds < 2 + self.valid:
            raise ValueError(
                f"there must be a group of entities to test, {self.valid} to validate (0 or 1) and one to train on: "
                f"got {self.n_folds}"
            )
        if not 0 < self.test <= 0.5:
            raise ValueError(f"test is a share of the decisions and must lie in (0, 0.5], got {self.test}")
        require_embargo(self.embargo)
        if self.embargo and self.time != "around":
            raise ValueError(
                f"an embargo must go with time='around': with {self.time!r} no entity is trained on after its test"
            )

    @property
    def in_order(self) -> bool:
        """Only "later" puts training before validation, and that before the test."""
        return self.time == "later"

    def split(self, rows: Intervals) -> tuple[Split, ...]:
        """One split a group of entities.

        Raises:
            ValueError: decisions without entities, fewer entities than groups, or a part without rows.
        """
        group, order = self._groups(rows), np.sort(rows.as_of)
        return tuple(self._fold(rows, group, order, fold) for fold in range(self.n_folds))

    def _fold(self, rows: Intervals, group: Int64Array, order: Int64Array, fold: int) -> Split:
        test = group == fold
        valid = (group == (fold + 1) % self.n_folds) & bool(self.valid)
        train = ~test & ~valid
        if self.time == "later":
            begin = 1 - self.test
            middle = begin - self.test * self.valid
            test &= between(rows.as_of, order, begin, 1)
            valid &= between(rows.as_of, order, middle, begin)
            train &= between(rows.as_of, order, 0, middle)
        elif self.time == "around":
            n = self.n_folds
            before = (fold - 1) % n
            test &= between(rows.as_of, order, fold / n, (fold + 1) / n)
            valid &= between(rows.as_of, order, before / n, (before + 1) / n)
        return surrounded_fold(rows, fold, train, valid, [test], self.embargo, per_entity=self.time == "shared")

    def _groups(self, rows: Intervals) -> Int64Array:
        """(Q,) group of each row's entity: names in the order of class and hash, dealt out in turn."""
        names, first, place = np.unique(rows.names().astype(np.str_), return_index=True, return_inverse=True)
        if len(names) < self.n_folds:
            raise ValueError(f"{self.n_folds} groups of entities need as many entities, got {len(names)}")
        if self.stratify and rows.stratum is None:
            raise ValueError("stratify=true needs outcomes that are known before the split, and there are none here")
        classes = rows.stratum[first].tolist() if self.stratify and rows.stratum is not None else [0] * len(names)
        keys = [hashlib.sha256(f"{self.seed} {name}".encode()).digest() for name in names]
        group = np.empty(len(names), np.int64)
        group[sorted(range(len(names)), key=lambda n: (classes[n], keys[n]))] = np.arange(len(names)) % self.n_folds
        return group[place]
