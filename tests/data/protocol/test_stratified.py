"""Groups of entities with equal shares of the classes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantattn.data.protocol import ByEntity, Intervals


def decisions(classes: list[int], twice: int = 0) -> Intervals:
    """One decision an entity, and a second one of the first `twice` entities."""
    entity = np.asarray([f"e{n}" for n in range(len(classes))] + [f"e{n}" for n in range(twice)])
    time = np.arange(len(entity), dtype=np.int64)
    return Intervals(time, time, time, entity, np.asarray([*classes, *classes[:twice]], np.int64))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=12, max_size=60), st.integers(3, 6), st.integers(0, 5))
def test_every_class_is_dealt_as_evenly_as_it_can_be(classes: list[int], n_folds: int, seed: int) -> None:
    rows = decisions(classes)
    folds = ByEntity(n_folds, seed=seed, stratify=True).split(rows)
    for value in set(classes):
        shares = [int((rows.stratum[fold.test] == value).sum()) for fold in folds]
        assert max(shares) - min(shares) <= 1, (value, shares)
    held_out = np.concatenate([fold.test for fold in folds])
    assert sorted(held_out.tolist()) == list(range(len(classes))), "every decision is tested once"


def test_all_decisions_of_an_entity_stay_together() -> None:
    rows = decisions([0, 1] * 10, twice=7)
    for fold in ByEntity(4, stratify=True).split(rows):
        sides = [set(rows.names()[part].tolist()) for part in (fold.train, fold.valid, fold.test)]
        assert not sides[0] & sides[1]
        assert not sides[0] & sides[2]
        assert not sides[1] & sides[2]


def test_a_deal_by_name_alone_ignores_the_classes_and_a_stratified_one_needs_them() -> None:
    one, other = decisions([0, 1] * 10), decisions([0] * 5 + [1] * 15)
    for mine, theirs in zip(ByEntity().split(one), ByEntity().split(other), strict=True):
        assert mine.test.tolist() == theirs.test.tolist()
    without = Intervals(one.as_of, one.start, one.end, one.entity)
    with pytest.raises(ValueError, match="stratify=true needs outcomes that are known before the split"):
        ByEntity(stratify=True).split(without)
