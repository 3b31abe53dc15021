"""Walk-forward splits: disjoint, in order, purged by the maximum end, and nothing dropped without being counted."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from quantattn.data.protocol import Intervals, Split, WalkForward, purge


@st.composite
def decisions(draw: st.DrawFn) -> Intervals:
    size = draw(st.integers(20, 60))
    as_of = np.array(draw(st.lists(st.integers(0, 80), min_size=size, max_size=size)), np.int64)
    wait = np.array(draw(st.lists(st.integers(0, 2), min_size=size, max_size=size)), np.int64)
    length = np.array(draw(st.lists(st.sampled_from([0, 1, 2, 3, 9]), min_size=size, max_size=size)), np.int64)
    return Intervals(as_of, as_of + wait, as_of + wait + length)


plans = st.builds(
    lambda n, test, valid, train, embargo: WalkForward(
        n, test, valid, "expanding" if train is None else "rolling", train, embargo
    ),
    st.integers(1, 3),
    st.sampled_from([0.1, 0.2]),
    st.sampled_from([0.0, 0.1]),
    st.sampled_from([None, 0.2]),
    st.sampled_from([0, 5, 20]),
)


def splits_of(plan: WalkForward, rows: Intervals) -> tuple[Split, ...]:
    try:
        return plan.split(rows)
    except ValueError as error:
        assume("rows: of" not in str(error))  # too few rows for this plan, which it says
        raise


@given(rows=decisions(), plan=plans)
@settings(max_examples=120, deadline=None)
def test_parts_are_disjoint_in_order_and_do_not_touch(rows: Intervals, plan: WalkForward) -> None:
    for fold, split in enumerate(splits_of(plan, rows)):
        assert split.fold == fold
        parts = [split.train, split.valid, split.test, split.purged, split.embargoed, split.outside]
        assert sorted(np.concatenate(parts)) == list(range(len(rows)))
        assert sum(split.counts.values()) == len(rows)
        for part in parts:
            assert part.dtype == np.int64
            assert (np.diff(part) > 0).all()
        for early, late in ((split.train, split.valid), (split.train, split.test), (split.valid, split.test)):
            if not len(early) or not len(late):
                continue
            assert rows.as_of[early].max() < rows.as_of[late].min()
            for i in early:
                overlap = (rows.start[late] <= rows.end[i]) & (rows.start[i] <= rows.end[late])
                assert not overlap.any()
                assert not (rows.start[late].min() <= rows.end[i] and rows.start[i] <= rows.end[late].max())


@given(rows=decisions(), plan=plans)
@settings(max_examples=80, deadline=None)
def test_a_row_is_purged_only_for_a_reason(rows: Intervals, plan: WalkForward) -> None:
    for split in splits_of(plan, rows):
        later_valid = np.concatenate([split.valid, split.purged, split.test])
        for i in split.purged:
            later = later_valid[rows.as_of[later_valid] > rows.as_of[i]]
            assert (rows.end[i] >= rows.start[later]).any()


@given(rows=decisions(), plan=plans)
@settings(max_examples=60, deadline=None)
def test_test_blocks_follow_one_another_and_reach_the_end(rows: Intervals, plan: WalkForward) -> None:
    splits = splits_of(plan, rows)
    for before, after in pairwise(splits):
        assert rows.as_of[before.test].max() < rows.as_of[after.test].min()
    first = rows.as_of[splits[0].test].min()
    tested = np.sort(np.concatenate([split.test for split in splits]))
    assert tested.tolist() == np.flatnonzero(rows.as_of >= first).tolist()
    for split in splits:
        last = rows.as_of[split.test].max()
        earlier = [s for s in splits if s.fold < split.fold]
        for block in earlier:
            end = rows.end[block.test].max()
            inside = (rows.as_of[split.train] > end) & (rows.as_of[split.train] <= end + plan.embargo)
            assert not inside.any()
        if plan.window == "expanding":
            known = np.concatenate([split.train, split.valid, split.test, split.purged, split.embargoed])
            assert np.sort(known).tolist() == np.flatnonzero(rows.as_of <= last).tolist()


@given(rows=decisions(), plan=plans, seed=st.integers(0, 9))
@settings(max_examples=40, deadline=None)
def test_the_order_of_the_table_does_not_matter(rows: Intervals, plan: WalkForward, seed: int) -> None:
    order = np.random.default_rng(seed).permutation(len(rows))
    shuffled = Intervals(rows.as_of[order], rows.start[order], rows.end[order])
    for here, there in zip(splits_of(plan, rows), plan.split(shuffled), strict=True):
        for part in ("train", "valid", "test", "purged", "embargoed"):
            assert np.sort(order[getattr(there, part)]).tolist() == getattr(here, part).tolist()


def test_the_maximum_end_counts_not_the_last() -> None:
    as_of = np.arange(10)
    end = as_of + 1
    end[2] = 9  # an early row that looks far ahead
    train, test = as_of > 4, as_of <= 4
    kept, _ = purge(Intervals(as_of, as_of, end), train, test)
    assert not kept.any()  # rows 5 … 9 lie within [0, 9]; the last test row's own end, 5, would have kept 6 … 9


def test_the_embargo_follows_the_test_block_only() -> None:
    as_of = np.arange(30) * 10
    rows, test = Intervals(as_of, as_of, as_of + 5), (np.arange(30) >= 10) & (np.arange(30) < 15)
    kept, embargoed = purge(rows, ~test, test, embargo=25)
    assert np.flatnonzero(embargoed).tolist() == [15, 16, 17]  # the labels end at 145: (145, 170]
    assert np.flatnonzero(kept).tolist() == [*range(10), *range(18, 30)]


def test_an_embargo_without_end_leaves_what_came_before() -> None:
    as_of = 1_700_000_000 * 10**9 + np.arange(100)
    rows = Intervals(as_of, as_of, as_of)
    split = WalkForward(n_folds=3, test=0.1, valid=0, embargo=2**63 - 1).split(rows)[-1]
    assert split.train.tolist() == list(range(80))
    assert split.embargoed.tolist() == list(range(80, 90))


def test_a_fixed_horizon_purges_as_many_rows_as_a_fixed_gap_would() -> None:
    for horizon in (1, 3, 7):
        as_of = np.arange(100) * 10
        split = WalkForward(test=0.2, valid=0).split(Intervals(as_of, as_of, as_of + 10 * horizon))[0]
        assert split.test.tolist() == list(range(80, 100))
        assert split.train.tolist() == list(range(80 - horizon))
        assert split.purged.tolist() == list(range(80 - horizon, 80))


def test_decisions_of_one_instant_stay_together() -> None:
    as_of = np.repeat(np.arange(10), 7)
    split = WalkForward(test=0.25, valid=0.25).split(Intervals(as_of, as_of, as_of))[0]
    for part in (split.train, split.valid, split.test):
        assert not set(as_of[part]) & set(np.delete(as_of, part))


def test_what_cannot_be_split_is_said() -> None:
    as_of = np.arange(10)
    with pytest.raises(ValueError, match=r"fold 0 has no train rows: of 10 decisions 7 were purged"):
        WalkForward(test=0.3, valid=0).split(Intervals(as_of, as_of, as_of + 100))
    with pytest.raises(ValueError, match="row 1 starts before its as_of"):
        Intervals(as_of, np.where(as_of == 1, 0, as_of), as_of)
    with pytest.raises(ValueError, match="row 2 starts after its end"):
        Intervals(as_of, as_of + 1, np.where(as_of == 2, as_of, as_of + 1))
    with pytest.raises(ValueError, match="one length"):
        Intervals(as_of, as_of[1:], as_of)
    with pytest.raises(ValueError, match="end must be int64 nanoseconds, got float64"):
        Intervals(as_of, as_of, as_of.astype(np.float64))


@pytest.mark.parametrize(
    "settings_",
    [
        {"n_folds": 0},
        {"test": 0.0},
        {"n_folds": 5, "test": 0.2, "valid": 0.1},
        {"window": "rolling"},
        {"train": 0.5},
        {"embargo": -1},
        {"window": "sliding"},
    ],
)
def test_plans_that_make_no_sense(settings_: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"must|needs"):
        WalkForward(**settings_)  # type: ignore[arg-type]
