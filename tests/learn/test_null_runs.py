"""What `benchmarks/null_runs.py` holds to be true where labels say nothing, worked out by hand."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "benchmarks"))
    from null_runs import Share, labels_of, redrawn, true_loss, world_of


def test_what_a_fixed_forecast_loses_on_labels_of_a_known_law() -> None:
    classes = np.array([0, 1, 1, 1])
    assert true_loss([[0.5, 0.5]] * 3, classes) == pytest.approx(math.log(2))
    law = -(0.25 * math.log(0.25) + 0.75 * math.log(0.75))
    assert true_loss([[0.25, 0.75]], classes) == pytest.approx(law)
    assert true_loss([[0.25, 0.75], [0.5, 0.5]], classes) == pytest.approx((law + math.log(2)) / 2)
    assert true_loss([1.0, 3.0], np.array([0.0, 2.0])) == pytest.approx((1 + 5) / 2)


def test_labels_are_drawn_from_those_of_all_parts_and_nothing_else_changes() -> None:
    market = world_of("classes-day")
    one, again, other = (redrawn(market, seed) for seed in (1, 1, 2))
    assert (labels_of(one) == labels_of(again)).all()
    assert (labels_of(one) != labels_of(other)).any()
    assert set(labels_of(one)) == set(labels_of(market))
    assert one.train.decisions.row.tolist() == market.train.decisions.row.tolist()
    assert one.bayes is None


def test_a_share_is_honest_inside_its_interval_or_where_less_is_better() -> None:
    def share(says: str, value: float) -> Share:
        return Share("world", "encoder", "skill", says, 200, value, 0.015, 0.095)

    assert [share("misses", x).honest for x in (0.01, 0.05, 0.1)] == [False, True, False]
    assert [share("better", x).honest for x in (0.0, 0.05, 0.1)] == [True, True, False]
