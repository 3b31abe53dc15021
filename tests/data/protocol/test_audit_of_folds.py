"""Leaks planted in folds that train on both sides of their tests, in splits by entity, and in every kind of label."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest
from test_audit import SESSIONS, clean

from quantattn.data.market.sessions import SECOND
from quantattn.data.protocol import (
    ByEntity,
    CombinatorialPurged,
    Fitted,
    Intervals,
    LeakError,
    PurgedKFold,
    RealisedVolatility,
    Split,
    SplitPlan,
    SpreadCrossing,
    TripleBarrier,
    WalkForward,
    audit,
)


def surrounded(plan: SplitPlan, fold: int = 1) -> dict[str, Any]:
    """Arguments of an honest audit of a plan that trains on both sides of its tests."""
    run = clean()
    decisions = run["decisions"]
    times = (decisions[name].to_numpy() for name in ("as_of", "label_start", "label_end", "entity"))
    split = plan.split(Intervals(*times))[fold]
    held = [decisions["as_of"].gather(block).to_numpy() for block in (split.valid, *split.test_blocks) if len(block)]
    time = run["events"]["available_time"].to_numpy()
    away = np.ones(len(time), np.bool_)
    for block in held:
        away &= (time < block.min()) | (time > block.max() + 10 * SECOND)
    if split.per_entity:
        away = run["events"]["entity"].is_in(decisions["entity"].gather(split.train).unique().implode()).to_numpy()
    seen = np.flatnonzero(away)
    run["split"], run["earlier_tests"], run["walk_forward"] = split, [], plan.in_order
    run["fitted"] = [Fitted("tokens", 0, len(seen), split.train, seen)]
    run["embargo"] = plan.embargo
    return run


KFOLD, COMBINED = PurgedKFold(5, embargo=5 * SECOND), CombinatorialPurged(6, 2, embargo=5 * SECOND)


def with_train(split: Split, *rows: int) -> Split:
    """The split with rows put into training that do not belong there."""
    return replace(split, train=np.unique([*split.train, *rows]))


@pytest.mark.parametrize("plan", [KFOLD, COMBINED, PurgedKFold(4, valid=0)], ids=repr)
def test_an_honest_fold_with_training_on_both_sides_passes(plan: SplitPlan) -> None:
    for fold in (0, 1, -1):
        found = audit(**surrounded(plan, fold))
        assert found.require() is found
        assert "train after test" in {check.name for check in found.checks if check.verdict == "not run"}


def purged_row_trained_on(run: dict[str, Any]) -> int:
    row = int(run["split"].purged[0])
    run["split"] = with_train(run["split"], row)
    return row


def embargoed_row_trained_on(run: dict[str, Any]) -> int:
    row = int(run["split"].embargoed[-1])
    run["split"] = with_train(run["split"], row)
    return row


def between_two_tests(run: dict[str, Any]) -> int:
    """A row after the first test block that only the second block's own span could have let through."""
    first = run["split"].test_blocks[0]
    end = run["decisions"]["label_end"].to_numpy()[first].max()
    time = run["decisions"]["as_of"].to_numpy()
    row = int(np.flatnonzero((time > end - 4 * SECOND) & (time <= end) & ~np.isin(np.arange(len(time)), first))[0])
    run["split"] = with_train(run["split"], row)
    return row


def tokens_of_a_held_out_stretch(run: dict[str, Any]) -> int:
    time = run["decisions"]["as_of"].gather(run["split"].test_blocks[-1]).to_numpy()
    event = int(np.flatnonzero(run["events"]["available_time"].to_numpy() == time[len(time) // 2])[0])
    run["fitted"] = [replace(run["fitted"][0], events=np.append(run["fitted"][0].events, event))]
    return event


def threshold_that_hides_its_rows(run: dict[str, Any]) -> int:
    run["fitted"].append(Fitted("threshold", 0, 77))
    return 77


LEAKS_OF_FOLDS = {
    purged_row_trained_on: "label reaches over the split: the label of row",
    embargoed_row_trained_on: "trained on during the embargo: row",
    between_two_tests: "label reaches over the split: the label of row",
    tokens_of_a_held_out_stretch: "fitted on rows outside training: tokens was fitted on event",
    threshold_that_hides_its_rows: "fitted on rows outside training: threshold was fitted on",
}


@pytest.mark.parametrize("plan", [KFOLD, COMBINED], ids=repr)
@pytest.mark.parametrize("leak", LEAKS_OF_FOLDS, ids=lambda leak: leak.__name__)
def test_a_leak_planted_in_a_fold_is_found_and_named(leak: Any, plan: SplitPlan) -> None:
    run = surrounded(plan)
    row = leak(run)
    with pytest.raises(LeakError) as caught:
        audit(**run).require()
    assert str(caught.value).startswith(LEAKS_OF_FOLDS[leak]), str(caught.value)
    assert f" {row} " in str(caught.value)


def test_an_entity_in_two_parts_is_a_leak_where_entities_are_held_out() -> None:
    run = clean()
    part = pl.int_range(pl.len()).over("entity") // 100
    run["decisions"] = run["decisions"].with_columns(entity=pl.col("entity") + part.cast(pl.String))
    times = (run["decisions"][name].to_numpy() for name in ("as_of", "label_start", "label_end", "entity"))
    split = ByEntity(3).split(Intervals(*times))[0]
    run |= {"split": split, "walk_forward": False, "earlier_tests": [], "embargo": 0, "fitted": [], "events": None}
    assert audit(**run).passed  # the parts share all of time, and no entity
    row = int(split.test[0])
    run["split"] = replace(with_train(split, row), test=split.test[1:])
    with pytest.raises(
        LeakError, match=r"entity and time in two parts: the entity of row \d+ .* is in train and in test"
    ):
        audit(**run).require()


@pytest.mark.parametrize(
    "label",
    [TripleBarrier(6, window=3, step=1), SpreadCrossing(6), RealisedVolatility(6, log=False)],
    ids=lambda label: label.name,
)
def test_labels_that_cross_a_close_or_a_split_are_found_whatever_their_kind(label: Any) -> None:
    events = clean()["events"]
    honest = label.measure(events, SESSIONS).filter(pl.col("label_reason").is_null())
    decisions = honest.select("entity", "label_start", "label_end", as_of="available_time", input_time="available_time")
    rows = Intervals(*(decisions[name].to_numpy() for name in ("as_of", "label_start", "label_end")))
    split = WalkForward(test=0.3, valid=0.1).split(rows)[0]
    audit(decisions, split, events=events, sessions=SESSIONS).require()
    # Measured without sessions, labels reach over the night; left unpurged, they reach over the split.
    careless = label.measure(events).filter(pl.col("label_reason").is_null())
    crossing = careless.select(
        "entity", "label_start", "label_end", as_of="available_time", input_time="available_time"
    )
    everything = {"train": np.arange(crossing.height), "valid": np.zeros(0, np.int64), "test": np.zeros(0, np.int64)}
    with pytest.raises(LeakError, match="label crosses a session end"):
        audit(crossing, everything, sessions=SESSIONS).require()
    first = rows.as_of[split.test].min()
    unpurged = {"train": np.flatnonzero(rows.as_of < first), "valid": np.zeros(0, np.int64), "test": split.test}
    with pytest.raises(LeakError, match="label reaches over the split"):
        audit(decisions, unpurged, sessions=SESSIONS).require()
