"""Every plan of splits against its definition: purged by label interval, embargoed in time, every row accounted for."""

from __future__ import annotations

from itertools import combinations, pairwise
from math import comb
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from quantattn.data.protocol import (
    ByDay,
    ByEntity,
    CombinatorialPurged,
    Intervals,
    PurgedKFold,
    Split,
    SplitPlan,
    WalkForward,
    choose,
    purge,
)
from quantattn.data.protocol.splits import events_to_fit_on

DAY = 86_400 * 10**9
PARTS = ("train", "valid", "test", "purged", "embargoed", "outside")


@st.composite
def decisions(draw: st.DrawFn, unit: int = 1) -> Intervals:
    size = draw(st.integers(24, 60))
    names = np.array([f"e{i}" for i in range(7)])

    def column(of: Any) -> np.ndarray:
        return np.array(draw(st.lists(of, min_size=size, max_size=size)))

    as_of = column(st.integers(0, 90)).astype(np.int64) * unit
    start = as_of + column(st.integers(0, 2)) * unit
    end = start + column(st.sampled_from([0, 1, 2, 3, 9])) * unit
    return Intervals(as_of, start, end, names[column(st.integers(0, 6))])


surrounded = st.one_of(
    st.builds(PurgedKFold, st.integers(3, 6), st.integers(0, 1), st.sampled_from([0, 3, 15])),
    st.builds(
        CombinatorialPurged, st.integers(4, 6), st.integers(1, 2), st.integers(0, 1), st.sampled_from([0, 3, 15])
    ),
    st.builds(
        ByEntity,
        st.just(3),
        st.just("around"),
        valid=st.integers(0, 1),
        embargo=st.sampled_from([0, 3, 15]),
        seed=st.integers(0, 3),
    ),
)
plans = st.one_of(
    surrounded,
    st.builds(ByEntity, st.integers(3, 5), st.just("shared"), valid=st.integers(0, 1), seed=st.integers(0, 3)),
    st.builds(ByEntity, st.just(3), st.just("later"), st.sampled_from([0.2, 0.4]), seed=st.integers(0, 3)),
)


def splits_of(plan: SplitPlan, rows: Intervals) -> tuple[Split, ...]:
    try:
        return plan.split(rows)
    except ValueError as error:
        assume("rows: of" not in str(error) and "groups of entities" not in str(error))  # too few rows, which it says
        raise


def touches(rows: Intervals, i: int, block: np.ndarray) -> bool:
    """Whether the label of row i touches [min start, max end] of a block."""
    return bool(rows.end[i] >= rows.start[block].min() and rows.start[i] <= rows.end[block].max())


def follows(rows: Intervals, i: int, block: np.ndarray, embargo: int) -> bool:
    last = rows.end[block].max()
    return bool(last < rows.as_of[i] <= last + embargo)


@given(rows=decisions(), plan=plans)
@settings(max_examples=60, deadline=None)
def test_every_row_is_in_one_part_and_no_label_reaches_over(rows: Intervals, plan: SplitPlan) -> None:
    for number, split in enumerate(splits_of(plan, rows)):
        assert split.fold == number
        assert sorted(np.concatenate([getattr(split, part) for part in PARTS])) == list(range(len(rows)))
        assert sorted(np.concatenate(split.test_blocks)) == split.test.tolist()
        for early, late in (("train", "valid"), ("train", "test"), ("valid", "test")):
            blocks = split.test_blocks if late == "test" else (split.valid,)
            for i in getattr(split, early):
                for block in blocks:
                    if split.per_entity:
                        assert rows.entity is not None
                        assert rows.entity[i] not in rows.entity[block]
                    elif len(block):
                        # Pairwise, and so in particular as a span.
                        overlap = (rows.start[block] <= rows.end[i]) & (rows.start[i] <= rows.end[block])
                        assert not overlap.any()
                        assert not touches(rows, i, block)
                        assert late != "test" or not follows(rows, i, block, plan.embargo)
        if plan.in_order:
            for early, late in pairwise([split.train, split.valid, split.test]):
                assert not len(early) or not len(late) or rows.as_of[early].max() < rows.as_of[late].min()


def literal(rows: Intervals, n: int, k: int, valid: int, embargo: int) -> list[dict[str, list[int]]]:
    """Purged k-fold and its combinations, row by row."""
    size, order = len(rows), sorted(rows.as_of.tolist())
    cuts = [order[round(g / n * size)] for g in range(1, n)]
    group = [sum(cut <= time for cut in cuts) for time in rows.as_of]
    found = []
    for tests in combinations(range(n), k):
        before = next(g % n for g in range(tests[0] - 1 + n, tests[0], -1) if g % n not in tests) if valid else None
        blocks = [np.array([i for i in range(size) if group[i] == g], np.int64) for g in tests]
        choosing = np.array([i for i in range(size) if group[i] == before], np.int64)
        parts: dict[str, list[int]] = {part: [] for part in PARTS}
        for i in range(size):
            in_valid = group[i] == before
            spans = blocks if in_valid else [*blocks, choosing]
            if group[i] in tests:
                parts["test"].append(i)
            elif any(len(block) and touches(rows, i, block) for block in spans):
                parts["purged"].append(i)
            elif any(len(block) and follows(rows, i, block, embargo) for block in blocks):
                parts["embargoed"].append(i)
            else:
                parts["valid" if in_valid else "train"].append(i)
        found.append(parts)
    return found


@given(
    rows=decisions(),
    shape=st.sampled_from([(3, 1), (5, 1), (4, 2), (5, 2), (5, 3)]),
    valid=st.integers(0, 1),
    embargo=st.sampled_from([0, 3, 15]),
)
@settings(max_examples=50, deadline=None)
def test_folds_are_the_definition(rows: Intervals, shape: tuple[int, int], valid: int, embargo: int) -> None:
    plan = PurgedKFold(shape[0], valid, embargo) if shape[1] == 1 else CombinatorialPurged(*shape, valid, embargo)
    made = [{part: getattr(split, part).tolist() for part in PARTS} for split in splits_of(plan, rows)]
    assert made == literal(rows, *shape, valid, embargo)


@given(rows=decisions(), plan=plans, seed=st.integers(0, 9))
@settings(max_examples=30, deadline=None)
def test_the_order_of_the_table_does_not_matter(rows: Intervals, plan: SplitPlan, seed: int) -> None:
    order = np.random.default_rng(seed).permutation(len(rows))
    assert rows.entity is not None
    mixed = Intervals(rows.as_of[order], rows.start[order], rows.end[order], rows.entity[order])
    for here, there in zip(splits_of(plan, rows), plan.split(mixed), strict=True):
        for part in PARTS:
            assert np.sort(order[getattr(there, part)]).tolist() == getattr(here, part).tolist()


@given(rows=decisions(), embargo=st.sampled_from([0, 4, 30]), seed=st.integers(0, 9))
@settings(max_examples=30, deadline=None)
def test_purging_by_entity_is_purging_each_alone(rows: Intervals, embargo: int, seed: int) -> None:
    test = np.random.default_rng(seed).random(len(rows)) < 0.3
    kept, embargoed = purge(rows, ~test, test, embargo, per_entity=True)
    assert rows.entity is not None
    for name in np.unique(rows.entity):
        own = np.flatnonzero(rows.entity == name)
        alone = Intervals(rows.as_of[own], rows.start[own], rows.end[own])
        expected = purge(alone, ~test[own], test[own], embargo)
        assert [kept[own].tolist(), embargoed[own].tolist()] == [each.tolist() for each in expected]


def even(size: int, horizon: int) -> Intervals:
    """A decision every ten nanoseconds whose label looks `horizon` decisions ahead."""
    as_of = np.arange(size, dtype=np.int64) * 10
    return Intervals(as_of, as_of, as_of + 10 * horizon)


def test_a_worked_example_of_a_purged_fold() -> None:
    folds = PurgedKFold(n_folds=5, valid=0, embargo=30).split(even(50, 2))
    middle = folds[2]
    assert middle.test.tolist() == list(range(20, 30))
    # Labels of 18 and 19 end at 200 and 210, in the span [200, 310] of the test; 30 and 31 begin in it; the embargo
    # takes those made in (310, 340].
    assert middle.purged.tolist() == [18, 19, 30, 31]
    assert middle.embargoed.tolist() == [32, 33, 34]
    assert middle.train.tolist() == [*range(18), *range(35, 50)]
    assert folds[0].embargoed.tolist() == [12, 13, 14]
    assert folds[4].purged.tolist() == [38, 39]
    assert folds[4].embargoed.tolist() == []
    with_valid = PurgedKFold(n_folds=5, embargo=30).split(even(50, 2))
    assert [each.valid.tolist()[:1] for each in with_valid] == [[40], [0], [10], [20], [30]]
    assert with_valid[2].valid.tolist() == list(range(10, 18))
    assert with_valid[2].purged.tolist() == [8, 9, 18, 19, 30, 31]


@pytest.mark.parametrize(("n", "k"), [(4, 2), (6, 2), (6, 3), (5, 1)])
def test_paths_go_through_every_group_once_and_use_every_test_once(n: int, k: int) -> None:
    plan, rows = CombinatorialPurged(n, k, valid=int(k < n - 1)), even(120, 1)
    folds = plan.split(rows)
    assert len(folds) == plan.n_folds == comb(n, k)
    assert [fold.groups for fold in folds] == list(combinations(range(n), k))
    assert plan.paths.shape == (comb(n - 1, k - 1), n)
    used = set()
    for path in plan.paths:
        seen = [folds[fold].blocks[folds[fold].groups.index(group)] for group, fold in enumerate(path)]
        assert np.concatenate(seen).tolist() == list(range(120))  # one prediction of every decision, in order of time
        used |= {(int(fold), group) for group, fold in enumerate(path)}
    assert used == {(fold.fold, group) for fold in folds for group in fold.groups}
    assert len(used) == plan.paths.size


def test_one_test_group_is_a_purged_fold() -> None:
    rows = even(60, 3)
    one, other = CombinatorialPurged(5, 1, embargo=20).split(rows), PurgedKFold(5, embargo=20).split(rows)
    for here, there in zip(one, other, strict=True):
        assert [getattr(here, part).tolist() for part in PARTS] == [getattr(there, part).tolist() for part in PARTS]


@pytest.mark.parametrize(("purged", "embargo"), [(0, 0), (1, 0), (3, 0), (0, 2), (2, 3)])
@pytest.mark.parametrize(("n", "k"), [(5, 2), (6, 4)])
def test_folds_are_those_of_skfolio(n: int, k: int, purged: int, embargo: int) -> None:
    """Where both apply: labels that all look equally far, as many decisions in every group."""
    theirs = pytest.importorskip("skfolio.model_selection", reason="skfolio is not installed").CombinatorialPurgedCV
    size = 60
    rows = even(size, purged)
    plan = CombinatorialPurged(n, k, valid=0, embargo=10 * embargo)
    found = list(theirs(n, k, purged_size=purged, embargo_size=embargo).split(np.zeros((size, 1))))
    for split, (train, tests) in zip(plan.split(rows), found, strict=True):
        assert split.train.tolist() == train.tolist()
        assert [block.tolist() for block in split.blocks] == [block.tolist() for block in tests]
    ids = theirs(n, k).get_path_ids()
    for fold, groups in enumerate(combinations(range(n), k)):
        for place, group in enumerate(groups):
            assert plan.paths[ids[fold, place], group] == fold


@pytest.mark.parametrize("purged", [1, 4])
@pytest.mark.parametrize("train", [None, 40])
def test_walk_forward_is_that_of_skfolio(purged: int, train: int | None) -> None:
    theirs = pytest.importorskip("skfolio.model_selection", reason="skfolio is not installed").WalkForward
    size, test = 100, 15
    plan = WalkForward(3, test / size, 0, "expanding" if train is None else "rolling", train and train / size)
    window = (train or size - 3 * test) - purged
    found = list(theirs(test, window, expand_train=train is None, purged_size=purged).split(np.zeros((size, 1))))[-3:]
    ours = plan.split(even(size, purged))
    assert [split.test.tolist() for split in ours] == [each.tolist() for _, each in found]
    assert [split.train.tolist() for split in ours] == [each.tolist() for each, _ in found]


@given(rows=decisions(), plan=plans)
@settings(max_examples=30, deadline=None)
def test_what_is_fitted_sees_no_held_out_event(rows: Intervals, plan: SplitPlan) -> None:
    """Events are the decisions themselves, and one a nanosecond of an entity that is trained on, or that is not."""
    assert rows.entity is not None
    for split in splits_of(plan, rows):
        trained = np.isin(rows.entity, rows.entity[split.train])
        allowed = events_to_fit_on(rows.as_of, trained, rows, split)
        held = np.concatenate([split.valid, split.test])
        assert not allowed[held].any()
        spans = [] if split.per_entity else [block for block in (split.valid, *split.test_blocks) if len(block)]
        for i in split.train:
            # A label may begin after its decision, so a decision that is trained on may be made within a span.
            inside = [rows.as_of[block].min() <= rows.as_of[i] <= rows.end[block].max() for block in spans]
            assert allowed[i] == (not any(inside))
        time = np.arange(100)
        assert not events_to_fit_on(time, np.zeros(100, np.bool_), rows, split).any()
        seen = time[events_to_fit_on(time, np.ones(100, np.bool_), rows, split)]
        for block in spans:
            assert not ((seen >= rows.as_of[block].min()) & (seen <= rows.end[block].max())).any()


def test_rows_that_drop_out_later_are_renumbered() -> None:
    split = CombinatorialPurged(4, 2, valid=0, embargo=10).split(even(40, 1))[1]
    kept = np.arange(40) % 3 != 0
    fewer = split.renumbered(kept)
    old = np.flatnonzero(kept)
    for part in PARTS:
        assert old[getattr(fewer, part)].tolist() == [row for row in getattr(split, part) if kept[row]]
    assert [old[block].tolist() for block in fewer.blocks] == [[r for r in b if kept[r]] for b in split.blocks]
    assert (fewer.groups, fewer.fold) == (split.groups, split.fold)


def test_folds_are_chosen_by_number() -> None:
    folds = PurgedKFold().split(even(60, 1))
    assert choose(folds, -1) is folds[4]
    with pytest.raises(ValueError, match=r"fold 5 of 5: folds are numbered 0 … 4, or -1 … -5 from the end"):
        choose(folds, 5)


def test_plans_that_make_no_sense() -> None:
    for wrong in (
        lambda: PurgedKFold(2),
        lambda: PurgedKFold(valid=2),
        lambda: PurgedKFold(embargo=-1),
        lambda: PurgedKFold(embargo=1e9),  # type: ignore[arg-type]
        lambda: PurgedKFold(3.5),  # type: ignore[arg-type]
        lambda: ByDay(test=1.5),  # type: ignore[arg-type]
        lambda: CombinatorialPurged(3, 2),
        lambda: CombinatorialPurged(6, 0),
        lambda: CombinatorialPurged(40, 12),
        lambda: ByDay(test=0),
        lambda: ByDay(train=0),
        lambda: ByEntity(2),
        lambda: ByEntity(time="before"),  # type: ignore[arg-type]
        lambda: ByEntity(test=0.9),
        lambda: ByEntity(embargo=1),
    ):
        with pytest.raises(ValueError, match="must"):
            wrong()
    assert PurgedKFold(np.int64(4), embargo=np.int64(5)).n_folds == 4  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no time zone 'Nowhere'"):
        ByDay(zone="Nowhere")
    with pytest.raises(ValueError, match=r"fold 0 has no train rows: of 20 decisions \d+ were purged"):
        PurgedKFold(3).split(even(20, 100))
