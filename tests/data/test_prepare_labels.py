"""Labels and plans of splits through the whole preparation: all rows accounted for, no leak, or a sentence."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest

from quantattn.data.market.cut import Cut
from quantattn.data.market.prepare import prepare_market
from quantattn.data.prepared import PARTS
from quantattn.data.protocol import (
    ByDay,
    ByEntity,
    CombinatorialPurged,
    Label,
    LeakError,
    MidLabel,
    NextEventLabel,
    PurgedKFold,
    RealisedVolatility,
    SplitPlan,
    SpreadCrossing,
    TripleBarrier,
    WalkForward,
)
from quantattn.data.synthetic import SyntheticMarket

MARKET = SyntheticMarket(entities=6, events_per_entity=2_000, events_per_session=500, seed=5)
SETTINGS: dict[str, Any] = {"decision_every": 3, "layout": "each", "max_seq_len": 4, "fields": ["kind", "gap"]}
PLANS: tuple[SplitPlan, ...] = (
    WalkForward(),
    ByDay(),
    PurgedKFold(embargo=10**9),
    CombinatorialPurged(valid=0),
    ByEntity(3),
    ByEntity(3, time="later"),
    ByEntity(3, time="around", embargo=10**10),
)
LABELS: tuple[Label, ...] = (
    MidLabel(20, method="tlob", smoothing=4, rule="spread"),
    TripleBarrier(50, profit=1, stop="3/2", window=50, step=5),
    SpreadCrossing(50),
    NextEventLabel(kinds=(1, 2, 4)),
    NextEventLabel("time"),
    RealisedVolatility(60),
    RealisedVolatility(60, log=False),
)


@pytest.mark.parametrize(("label", "plan"), list(zip(LABELS, PLANS, strict=True)), ids=lambda each: type(each).__name__)
def test_labels_and_plans_go_through_together(label: Label, plan: SplitPlan) -> None:
    made = prepare_market(MARKET, label=label, split=plan, fold=0, **SETTINGS)
    assert made.audit.passed
    used = [len(made.as_of[part]) for part in PARTS]
    assert sum(used) + sum(made.dropped.values()) == made.counts["decisions"] == 6 * 667
    assert made.classes == label.class_names
    for part in PARTS:
        target = getattr(made, part).decisions.targets["label"]
        last = made.baselines[part]["persistence" if label.class_names else "last_value"]
        assert len(target) == len(last) == len(made.as_of[part])
        if label.class_names:
            assert set(target) <= set(range(len(label.class_names)))
        else:
            assert target.dtype == np.float32
            assert np.isfinite(target).all()
            assert np.isfinite(last.astype(np.float64)).all()
    if not plan.in_order:
        assert len(made.as_of["train"]) > 0


def test_a_tokenizer_that_saw_a_held_out_stretch_fails_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cut, "events_to_fit_on", lambda self, events: np.ones(events.height, np.bool_))
    for plan in (PurgedKFold(), ByEntity(3)):
        with pytest.raises(
            LeakError, match=r"fitted on rows outside training: tokenizer was fitted on event \d+ \(SYN"
        ):
            prepare_market(MARKET, label=MidLabel(10), split=plan, fold=1, **SETTINGS)


def test_windows_need_parts_that_follow_in_time() -> None:
    with pytest.raises(
        ValueError, match="layout windows shares no token between parts, which needs a split whose parts"
    ):
        prepare_market(MARKET, split=PurgedKFold(), layout="windows")


def test_a_value_that_never_changes_is_refused() -> None:
    made = MARKET.source()
    still = made.frame.with_columns(bid_price_1=pl.lit(100, pl.Int64), ask_price_1=pl.lit(200, pl.Int64))
    with pytest.raises(ValueError, match=r"every one of the \d+ training decisions is 0: nothing can be learned"):
        prepare_market(replace(made, frame=still), label=RealisedVolatility(9, log=False), **SETTINGS)
    with pytest.raises(ValueError, match=r"none of 4002 decisions has a label: .*'no move': \d+"):
        prepare_market(replace(made, frame=still), label=RealisedVolatility(9), **SETTINGS)


@pytest.mark.parametrize(("day", "calendar"), [("2010-12-24", "XNAS"), ("2012-06-23", "XNYS")])
def test_events_of_a_day_without_a_session_are_refused_with_what_may_be_wrong(day: str, calendar: str) -> None:
    """The eve of Christmas 2010, on which Nasdaq was closed, and a Saturday."""
    made = SyntheticMarket(entities=2, events_per_entity=400, events_per_session=400, seed=5).source()
    frame = made.frame.with_columns(pl.col("event_time", "available_time") - pl.col("event_time").min())
    start = int(np.datetime64(f"{day}T15:00", "ns").astype(np.int64))
    moved = replace(made, frame=frame.with_columns(pl.col("event_time", "available_time") + start))
    with pytest.raises(ValueError, match=r"are day, clock and data\.prepare\.calendar right\? null takes"):
        prepare_market(moved, label=MidLabel(10), calendar=calendar, **SETTINGS)
    assert prepare_market(moved, label=MidLabel(10), **SETTINGS).audit.passed
