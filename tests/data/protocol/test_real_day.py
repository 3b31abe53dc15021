"""The whole protocol on real days: read, label, split, fit, audit."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from quantattn.data.market import Sessions, exchange_sessions, persistence
from quantattn.data.protocol import (
    Fitted,
    Intervals,
    Label,
    LeakError,
    MidLabel,
    MidMove,
    NextEventLabel,
    PurgedKFold,
    RealisedVolatility,
    SpreadCrossing,
    Threshold,
    TripleBarrier,
    WalkForward,
    audit,
    mid_moves,
)
from quantattn.data.schema import BookEvents, check
from quantattn.data.sources import scan_lobster


def read(realdata: Path, name: str) -> tuple[pl.DataFrame, Sessions]:
    events = check(scan_lobster(realdata / "lob" / "lobster" / name).frame.collect(), BookEvents)
    time = events["available_time"]
    return events, exchange_sessions("XNAS", int(time[0]), int(time[-1]))


@pytest.mark.parametrize(
    "move",
    [MidMove(100), MidMove(100, method=2), MidMove(10, "seconds"), MidMove(1, "seconds", 0)],
    ids=lambda m: m.name,
)
def test_the_amazon_day_goes_through_without_a_leak(realdata: Path, move: MidMove) -> None:
    events, sessions = read(realdata, "AMZN_2012-06-21_34200000_57600000_message_1.csv.gz")
    moves = mid_moves(events, move, sessions)
    counted = dict(moves.group_by("label_reason").len().iter_rows())
    assert sum(counted.values()) == 57_515
    assert set(counted) <= {None, "session end", "no data"}
    if move.unit == "events":
        assert counted["session end"] == move.horizon
    moves = moves.filter(pl.col("label_reason").is_null())
    rows = Intervals(*(moves[name].to_numpy() for name in ("available_time", "label_start", "label_end")))
    plan = WalkForward(n_folds=3, test=0.15, valid=0.1, embargo=60 * 10**9)
    splits = plan.split(rows)
    for split in splits:
        threshold = Threshold.fit(moves, split.train)
        fitted = [Fitted("threshold", threshold.fitted_until, threshold.fitted_rows, split.train)]
        decisions = moves.select(
            "entity", "label_start", "label_end", as_of="available_time", input_time="available_time"
        )
        earlier = [each.test for each in splits[: split.fold]]
        given = {"events": events, "sessions": sessions, "embargo": plan.embargo, "earlier_tests": earlier}
        audit(decisions, split, fitted=fitted, **given).require()
        peeking = Threshold.fit(moves, split.test)
        late = audit(decisions, split, fitted=[Fitted("threshold", peeking.fitted_until, peeking.fitted_rows)], **given)
        with pytest.raises(LeakError, match="fitted on rows outside training"):
            late.require()
    labelled = threshold.classify(moves)
    agree = labelled.select((persistence(labelled) == pl.col("label")).mean()).item()
    assert 0.3 < agree < 0.7  # overlap makes method 2 persistent; nothing here is a forecast of prices


def test_the_apple_part_says_where_its_data_end(realdata: Path) -> None:
    events, sessions = read(realdata, "AAPL_2012-06-21_34200000_57600000_message_10.csv")
    moves = mid_moves(events, MidMove(5, "seconds"), sessions)
    end = int(events["available_time"][-1])
    without = moves.filter(pl.col("label_reason").is_not_null())
    assert without["label_reason"].unique().to_list() == ["no data"]  # the close is hours away
    assert without["available_time"].min() > end - 5 * 10**9
    assert moves.filter(pl.col("label_reason").is_null())["label_end"].max() <= end


@pytest.mark.parametrize(
    "label",
    [
        MidLabel(100, method="tlob", smoothing=9),
        TripleBarrier(100),
        TripleBarrier(60, "seconds"),
        SpreadCrossing(100),
        NextEventLabel(sides=True),
        RealisedVolatility(60, "seconds"),
    ],
    ids=lambda label: label.name,
)
def test_every_label_of_the_amazon_day_goes_through_purged_folds(realdata: Path, label: Label) -> None:
    events, sessions = read(realdata, "AMZN_2012-06-21_34200000_57600000_message_1.csv.gz")
    measured = label.measure(events, sessions)
    assert sum(measured["label_reason"].value_counts()["count"]) == 57_515
    able = measured.filter(pl.col("label_reason").is_null())
    assert able.height > 56_000
    rows = Intervals(*(able[name].to_numpy() for name in ("available_time", "label_start", "label_end")))
    plan = PurgedKFold(5, embargo=60 * 10**9)
    decisions = able.select("entity", "label_start", "label_end", as_of="available_time", input_time="available_time")
    for split in plan.split(rows):
        given = {"events": events, "sessions": sessions, "embargo": plan.embargo, "walk_forward": plan.in_order}
        audit(decisions, split, **given).require()
        assert sum(split.counts.values()) == able.height
        assert split.fold == 4 or len(split.embargoed) > 0
    finished, _ = label.finish(able, plan.split(rows)[0].train)
    known = finished["label"].drop_nulls()
    assert len(known) == able.height
    assert known.n_unique() > 1
