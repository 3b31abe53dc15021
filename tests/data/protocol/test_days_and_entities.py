"""Splits of whole days and of whole entities, with days and names worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_split_plans import DAY, decisions, splits_of

from quantattn.data.protocol import ByDay, ByEntity, Intervals


def test_days_are_civil_days_of_a_zone_and_never_parted() -> None:
    as_of = (
        np.array([hour + 24 * day for day in (0, 1, 2, 5, 6, 7) for hour in (9, 12, 23, 26)], np.int64) * 3600 * 10**9
    )
    rows = Intervals(as_of, as_of, as_of)
    # 26 hours after midnight is two in the morning in Greenwich, and still nine in the evening in New York.
    greenwich = ByDay(n_folds=2, test=1, valid=1).split(rows)
    assert [split.test.tolist() for split in greenwich] == [[19, 20, 21, 22], [23]]
    assert greenwich[1].valid.tolist() == greenwich[0].test.tolist()
    assert greenwich[1].train.tolist() == list(range(19))
    new_york = ByDay(n_folds=2, test=1, valid=1, zone="America/New_York").split(rows)
    assert [split.test.tolist() for split in new_york] == [[16, 17, 18, 19], [20, 21, 22, 23]]


def test_anchored_days_and_the_split_of_seven_and_three() -> None:
    as_of = np.arange(100, dtype=np.int64) * DAY // 10 + 5
    rows = Intervals(as_of, as_of, as_of + DAY // 10)
    anchored = ByDay(n_folds=9, test=1, valid=0).split(rows)
    assert [len(split.test) for split in anchored] == [10] * 9
    assert [len(split.train) for split in anchored] == [10 * day - 1 for day in range(1, 10)]  # one purged at each end
    seven = ByDay(n_folds=1, test=3, valid=0).split(rows)[0]
    assert (len(seven.train), len(seven.test), len(seven.purged)) == (69, 30, 1)
    rolling = ByDay(n_folds=2, test=2, valid=1, train=3, embargo=DAY).split(rows)
    assert rolling[1].embargoed.tolist() == []
    assert set(as_of[rolling[1].train] // DAY) == {4, 5, 6}
    late = ByDay(n_folds=3, test=1, valid=0, embargo=DAY // 2).split(rows)[-1]
    # The first block is day 7; its labels end a tenth into day 8, after which half a day is left out.
    assert as_of[late.embargoed].tolist() == [t for t in as_of if 8 * DAY + 5 < t <= 8 * DAY + 5 + DAY // 2]
    with pytest.raises(ValueError, match="need 12 days, but decisions were made on 10"):
        ByDay(n_folds=10, test=1, valid=1).split(rows)


@given(rows=decisions(), n=st.integers(3, 5), seed=st.integers(0, 5))
@settings(max_examples=15, deadline=None)
def test_entities_are_held_out_whole_and_each_once(rows: Intervals, n: int, seed: int) -> None:
    assert rows.entity is not None
    folds = splits_of(ByEntity(n, seed=seed), rows)
    assert sorted(np.concatenate([split.test for split in folds])) == list(range(len(rows)))
    for split in folds:
        held = [set(rows.entity[getattr(split, part)]) for part in ("train", "valid", "test")]
        assert not held[0] & held[1]
        assert not held[0] & held[2]
        assert not held[1] & held[2]
    sizes = [len(set(rows.entity[split.test])) for split in folds]
    assert max(sizes) - min(sizes) <= 1


def test_the_deal_depends_on_names_alone() -> None:
    names = np.repeat([f"c{i}" for i in range(20)], 3)
    as_of = np.arange(60, dtype=np.int64)
    first = ByEntity(4).split(Intervals(as_of, as_of, as_of, names))
    order = np.random.default_rng(0).permutation(60)
    later = as_of * 1000 + 7
    second = ByEntity(4).split(Intervals(later, later, later + 5, names[order]))
    for here, there in zip(first, second, strict=True):
        assert set(names[here.test]) == set(names[order][there.test])
    others = ByEntity(4, seed=1).split(Intervals(as_of, as_of, as_of, names))
    assert any(set(names[a.test]) != set(names[b.test]) for a, b in zip(first, others, strict=True))
    with pytest.raises(ValueError, match="needs the entity of every decision"):
        ByEntity().split(Intervals(as_of, as_of, as_of))
    with pytest.raises(ValueError, match="5 groups of entities need as many entities, got 1"):
        ByEntity().split(Intervals(as_of, as_of, as_of, np.repeat("a", 60)))
