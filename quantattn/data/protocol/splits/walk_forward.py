"""Training, validation and test rows in order of time: walk-forward, purged by label interval, with an embargo.

Beside skfolio: its `WalkForward` drops a fixed number of rows before the test block (`purged_size`); that is what this
purge does when every label looks that number of rows ahead. Its `CombinatorialPurgedCV` embargoes a number of rows
after a test block; here the embargo is a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from quantattn.data.protocol.splits.intervals import Intervals, Split
from quantattn.data.protocol.splits.plan import between, forward_fold, require_embargo
from quantattn.data.protocol.whole import require_whole

Int64Array = npt.NDArray[np.int64]


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
        require_whole(n_folds=self.n_folds)
        used = self.n_folds * self.test + self.valid + (self.train or 0)
        if self.n_folds < 1 or not 0 < self.test < 1 or not 0 <= self.valid < 1 or used > 1 + 1e-12:
            raise ValueError(
                f"n_folds · test + valid + train must not exceed 1 with n_folds ≥ 1 and test > 0, "
                f"got {self.n_folds} · {self.test} + {self.valid} + {self.train or 0}"
            )
        if (self.window == "rolling") != (self.train is not None) or self.window not in ("expanding", "rolling"):
            raise ValueError(f"a rolling window needs train=SHARE and only it does, got {self.window!r}, {self.train}")
        require_embargo(self.embargo)

    @property
    def in_order(self) -> bool:
        """Training is earlier than validation, and that than the test."""
        return True

    def split(self, rows: Intervals) -> tuple[Split, ...]:
        """One split a fold, in order of time; row numbers count from 0 in `rows`.

        Raises:
            ValueError: a part has no row, because there are too few decisions or their labels reach too far.
        """
        order = np.sort(rows.as_of)
        return tuple(self._fold(rows, order, fold) for fold in range(self.n_folds))

    def _fold(self, rows: Intervals, order: Int64Array, fold: int) -> Split:
        begin, end = self._block(fold)
        first = 0.0 if self.train is None else begin - self.valid - self.train
        train, valid, test = (
            between(rows.as_of, order, *shares)
            for shares in ((first, begin - self.valid), (begin - self.valid, begin), (begin, end))
        )
        earlier = [between(rows.as_of, order, *self._block(each)) for each in range(fold)]
        return forward_fold(rows, fold, train, valid, test, earlier, self.embargo)

    def _block(self, fold: int) -> tuple[float, float]:
        """Shares of the decisions at which the test block of a fold begins and ends."""
        return 1 - (self.n_folds - fold) * self.test, 1 - (self.n_folds - fold - 1) * self.test
