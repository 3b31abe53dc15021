"""From when on the work of a model may be used: what it had seen ends where its test rows begin, or nobody can say."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from quantattn.learn.keeping import seen_until


def parts(train: list[int], valid: list[int], test: list[int]) -> SimpleNamespace:
    """Prepared data of these decision times, in any order."""
    return SimpleNamespace(as_of={"train": np.array(train), "valid": np.array(valid), "test": np.array(test)})


def test_it_is_the_first_test_row_where_all_others_come_before() -> None:
    assert seen_until(parts([3, 1, 2], [5, 4], [9, 7])) == {"seen_until": 7}
    assert seen_until(parts([3, 1], [], [4])) == {"seen_until": 4}


@pytest.mark.parametrize(
    "split",
    [
        parts([1, 8], [5], [7, 9]),  # a training row after a test row, as in k-fold
        parts([1], [8], [7, 9]),  # a row that chose among the weights
        parts([1, 7], [5], [7, 9]),  # of one time
        parts([1, 2], [3], []),
        parts([], [], [7]),
    ],
)
def test_nobody_can_say_where_the_parts_are_not_in_order_of_time(split: SimpleNamespace) -> None:
    assert seen_until(split) == {}
