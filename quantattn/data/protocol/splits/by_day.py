"""Test blocks of whole days, training strictly before each of them."""

from __future__ import annotations

from dataclasses import dataclass
from zoneinfo import ZoneInfo

import numpy as np
import numpy.typing as npt
import polars as pl

from quantattn.data.protocol.splits.intervals import Intervals, Split
from quantattn.data.protocol.splits.plan import forward_fold, require_embargo
from quantattn.data.protocol.whole import require_whole

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True)
class ByDay:
    """Walk-forward in days on which decisions were made; a day is never parted.

    The last `n_folds` · `test` days are the test blocks; `valid` days lie before each block, and all earlier days, or
    the last `train` of those, are for training. FI-2010's anchored folds are `ByDay(n_folds=9, test=1, valid=0)`, its
    split of seven days and three `ByDay(n_folds=1, test=3, valid=0)`.

    Attributes:
        n_folds: number of test blocks.
        test: days of one test block.
        valid: days of a validation block; 0 for none.
        train: days to train on; None for all earlier ones.
        zone: time zone in which days are civil days, such as "America/New_York".
        embargo: ns after the end of a test block's labels in which nothing is trained on, by later folds.
    """

    n_folds: int = 1
    test: int = 1
    valid: int = 1
    train: int | None = None
    zone: str = "UTC"
    embargo: int = 0

    def __post_init__(self) -> None:
        require_whole(n_folds=self.n_folds, test=self.test, train=1 if self.train is None else self.train)
        require_whole(0, valid=self.valid)
        require_embargo(self.embargo)
        try:
            ZoneInfo(self.zone)
        except (KeyError, ValueError, OSError) as error:
            raise ValueError(f"no time zone {self.zone!r}; expected a name such as 'America/New_York'") from error

    @property
    def in_order(self) -> bool:
        """Training is earlier than validation, and that than the test."""
        return True

    def split(self, rows: Intervals) -> tuple[Split, ...]:
        """One split a fold, in order of time.

        Raises:
            ValueError: there are too few days, or a part has no row.
        """
        local = pl.from_epoch(pl.Series(rows.as_of), time_unit="ns").dt.replace_time_zone("UTC")
        days, day = np.unique(local.dt.convert_time_zone(self.zone).dt.date().to_numpy(), return_inverse=True)
        needed = self.n_folds * self.test + self.valid + (self.train or 1)
        if len(days) < needed:
            raise ValueError(
                f"{self.n_folds} folds of {self.test} test days after {self.valid} of validation and "
                f"{self.train or 'at least 1'} of training need {needed} days, but decisions were made on {len(days)}"
            )
        return tuple(self._fold(rows, day, len(days), fold) for fold in range(self.n_folds))

    def _fold(self, rows: Intervals, day: Int64Array, n_days: int, fold: int) -> Split:
        begin = [n_days - (self.n_folds - each) * self.test for each in range(fold + 1)]
        choosing = begin[fold] - self.valid
        training = 0 if self.train is None else choosing - self.train
        return forward_fold(
            rows,
            fold,
            (day >= training) & (day < choosing),
            (day >= choosing) & (day < begin[fold]),
            (day >= begin[fold]) & (day < begin[fold] + self.test),
            [(day >= first) & (day < first + self.test) for first in begin[:fold]],
            self.embargo,
        )
