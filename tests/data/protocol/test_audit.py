"""Planted leaks, each found and named; a clean run passes; a future can be changed without changing the past."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest

from quantattn.data.market.sessions import SECOND, Sessions
from quantattn.data.protocol import (
    Audit,
    Fitted,
    Intervals,
    LeakError,
    MidMove,
    Threshold,
    WalkForward,
    audit,
    mid_moves,
    past_only,
    perturb_future,
)
from quantattn.data.schema import BookEvents, check

EACH = 300
SESSIONS = Sessions("test", np.array([0, 200]) * SECOND, np.array([150, 400]) * SECOND)


def clean() -> dict[str, Any]:
    """Arguments of an honest audit: two entities, one event a second, labels over five events, three folds."""
    random = np.random.default_rng(0)
    mid = 5000 + random.integers(-2, 3, 2 * EACH).cumsum()
    time = np.tile(np.concatenate([np.arange(150), np.arange(200, 350)]), 2) * SECOND
    events = pl.DataFrame(
        {
            "entity": ["A"] * EACH + ["B"] * EACH,
            "event_time": time - 10,
            "available_time": time,
            "ask_price_1": mid + 1,
            "bid_price_1": mid - 1,
        }
    )
    moves = mid_moves(events, MidMove(5), SESSIONS).filter(pl.col("label_reason").is_null())
    rows = Intervals(*(moves[name].to_numpy() for name in ("available_time", "label_start", "label_end")))
    earlier, split = WalkForward(n_folds=2, test=0.2, valid=0.1, embargo=10 * SECOND).split(rows)
    threshold = Threshold.fit(moves, split.train)
    decisions = moves.select("entity", "label_start", "label_end", as_of="available_time", input_time="available_time")
    return {
        "decisions": decisions,
        "split": {"train": split.train, "valid": split.valid, "test": split.test},
        "fitted": [Fitted("threshold", threshold.fitted_until, threshold.fitted_rows, split.train)],
        "events": events,
        "sessions": SESSIONS,
        "embargo": 10 * SECOND,
        "earlier_tests": [earlier.test],
    }


def put(table: pl.DataFrame, row: int, **values: int) -> pl.DataFrame:
    """The table with values of one row replaced."""
    for name, value in values.items():
        column = table[name].to_numpy().copy()
        column[row] = value
        table = table.with_columns(pl.Series(name, column))
    return table


def test_an_honest_run_passes_every_check() -> None:
    found = audit(**clean())
    assert [check.verdict for check in found.checks] == ["passed"] * 10
    assert all(check.looked_at > 0 and check.leaks == 0 for check in found.checks)
    assert found.require() is found
    assert json.loads(json.dumps(found.as_dict()))["passed"] is True


def feature_later(run: dict[str, Any]) -> int:
    row = int(run["split"]["test"][3])
    run["decisions"] = put(run["decisions"], row, input_time=run["decisions"]["as_of"][row] + 1)
    return row


def label_too_early(run: dict[str, Any]) -> int:
    row = int(run["split"]["train"][3])
    run["decisions"] = put(run["decisions"], row, label_start=run["decisions"]["as_of"][row] - 1)
    return row


def label_over_the_split(run: dict[str, Any]) -> int:
    row = int(run["split"]["train"][0])
    first = run["decisions"]["label_start"].gather(run["split"]["test"]).min()
    run["decisions"] = put(run["decisions"], row, label_end=first)
    run["sessions"] = None
    run["split"]["valid"] = np.zeros(0, np.int64)
    return row


def label_over_the_close(run: dict[str, Any]) -> int:
    time = run["decisions"]["as_of"].to_numpy()
    row = int(np.flatnonzero(time == time[time <= 150 * SECOND].max())[0])
    run["decisions"] = put(run["decisions"], row, label_end=150 * SECOND + 1)
    return row


def fitted_on_test_rows(run: dict[str, Any]) -> int:
    row = int(run["split"]["test"][0])
    run["fitted"].append(Fitted("scaler", 0, 2, np.array([run["split"]["train"][0], row])))
    return row


def fitted_too_long(run: dict[str, Any]) -> int:
    first = run["decisions"]["as_of"].gather(run["split"]["valid"])
    run["fitted"] = [replace(run["fitted"][0], fitted_until=first.min() + 1)]
    return int(run["split"]["valid"][first.arg_min()])


def same_entity_and_time_in_two_parts(run: dict[str, Any]) -> int:
    row, twin = run["split"]["test"][-2:].tolist()
    time = run["decisions"]["as_of"][twin]
    run["decisions"] = put(run["decisions"], row, as_of=time, label_start=time)
    run["split"]["test"] = np.setdiff1d(run["split"]["test"], row)
    run["split"]["train"] = np.append(run["split"]["train"], row)
    return row


def train_after_test(run: dict[str, Any]) -> int:
    row = int(run["split"]["test"][-1])
    run["split"] = {
        "train": run["split"]["test"][-1:],
        "valid": run["split"]["valid"],
        "test": run["split"]["test"][:-1],
    }
    return row


def within_the_embargo(run: dict[str, Any]) -> int:
    time, earlier = run["decisions"]["as_of"].to_numpy(), run["earlier_tests"][0]
    end = run["decisions"]["label_end"].to_numpy()[earlier].max()
    row = int(np.flatnonzero((time > end) & (time <= end + 10 * SECOND))[0])
    run["split"] = {"train": np.array([row]), "valid": np.zeros(0, np.int64), "test": run["split"]["test"][-1:]}
    run["fitted"] = []
    return row


def decisions_out_of_order(run: dict[str, Any]) -> int:
    run["decisions"] = run["decisions"].with_columns(pl.all().gather([1, 0, *range(2, run["decisions"].height)]))
    return 1


def events_out_of_order(run: dict[str, Any]) -> int:
    run["events"] = put(run["events"], 7, available_time=run["events"]["available_time"][5], event_time=0)
    return 7


def known_before_it_happened(run: dict[str, Any]) -> int:
    run["events"] = put(run["events"], 7, event_time=run["events"]["available_time"][7] + 1)
    return 7


LEAKS = {
    feature_later: "feature later than the decision: row",
    label_too_early: "label starts before the decision: the label of row",
    label_over_the_split: "label reaches over the split: the label of row",
    label_over_the_close: "label crosses a session end: the label of row",
    fitted_on_test_rows: "fitted on rows outside training: scaler was fitted on row",
    fitted_too_long: "fitted on rows outside training: threshold was fitted until",
    same_entity_and_time_in_two_parts: "entity and time in two parts: row",
    train_after_test: "train after test: row",
    within_the_embargo: "trained on during the embargo: row",
    decisions_out_of_order: "times out of order: decision",
    events_out_of_order: "times out of order: event",
    known_before_it_happened: "available before it happened: event",
}


@pytest.mark.parametrize("leak", LEAKS, ids=lambda leak: leak.__name__)
def test_a_planted_leak_is_found_and_its_row_named(leak: Any) -> None:
    run = clean()
    row = leak(run)
    with pytest.raises(LeakError) as caught:
        audit(**run).require()
    said = str(caught.value)
    assert said.startswith(LEAKS[leak]), said
    assert f" {row} (" in said, said
    assert "\n" not in said


def failed(found: Audit) -> list[str]:
    return [check.name for check in found.checks if check.verdict == "failed"]


def test_leaks_are_counted() -> None:
    run = clean()
    late = run["decisions"]["as_of"].to_numpy().copy()
    late[run["split"]["test"][:4]] += 1
    run["decisions"] = run["decisions"].with_columns(input_time=pl.Series(late))
    found = audit(**run)
    assert failed(found) == ["feature later than the decision"]
    assert [check.leaks for check in found.checks if check.verdict == "failed"] == [4]


def test_a_row_that_is_in_no_part_may_be_anything() -> None:
    run = clean()
    used = np.concatenate(list(run["split"].values()))
    row = int(np.setdiff1d(np.arange(run["decisions"].height), used)[0])
    run["decisions"] = put(run["decisions"], row, input_time=10**17, label_end=10**17)
    assert audit(**run).passed


def test_what_was_not_given_is_not_called_passed() -> None:
    run = clean()
    found = audit(run["decisions"], run["split"], walk_forward=False)
    verdicts = {check.name: check.verdict for check in found.checks}
    assert {name for name, verdict in verdicts.items() if verdict == "not run"} == {
        "available before it happened",
        "label crosses a session end",
        "train after test",
        "trained on during the embargo",
    }
    assert found.passed


def test_a_fit_that_hides_until_when_is_a_leak() -> None:
    run = clean()
    run["fitted"] = [Fitted("tokens", None, 10)]
    assert failed(audit(**run)) == ["fitted on rows outside training"]
    run["fitted"] = [Fitted("fixed threshold", None, 0)]
    assert audit(**run).passed


def test_input_that_cannot_be_audited_is_refused() -> None:
    run = clean()
    with pytest.raises(ValueError, match="decisions lack input_time"):
        audit(run["decisions"].drop("input_time"), run["split"])
    with pytest.raises(ValueError, match="part 'test' names rows"):
        audit(run["decisions"], {"test": np.array([10**6])})
    empty = run["decisions"].with_columns(label_end=pl.lit(None, pl.Int64))
    with pytest.raises(ValueError, match=r"decision \d+ is in a part of the split but has no label_end"):
        audit(empty, run["split"])
    # Nanoseconds of today do not fit a float: neighbouring times become one.
    for dtype in (pl.Float64, pl.Datetime("ns")):
        with pytest.raises(ValueError, match=r"label_start of the decisions is .*, expected Int64 nanoseconds"):
            audit(run["decisions"].with_columns(pl.col("label_start").cast(dtype)), run["split"])


def events_of_two() -> pl.DataFrame:
    run = clean()["events"]
    return run.with_columns(
        seq=pl.Series([*range(EACH), *range(EACH)]),
        kind=pl.Series([1, 4, 3] * (2 * EACH // 3), dtype=pl.UInt8),
        side=pl.Series([1, -1, -1] * (2 * EACH // 3), dtype=pl.Int8),
        price=pl.col("bid_price_1"),
        size=pl.int_range(2 * EACH),
        order_id=pl.int_range(2 * EACH),
        ask_size_1=pl.int_range(2 * EACH),
        bid_size_1=pl.int_range(2 * EACH),
        halted=pl.Series([False, True, False] * (2 * EACH // 3)),
    )


def test_perturbing_the_future_keeps_every_bit_of_the_past() -> None:
    table = events_of_two()
    check(table, BookEvents)
    for seed, cut in enumerate((0, 75, 149, 210)):
        other = perturb_future(table, cut * SECOND, seed)
        check(other, BookEvents)
        for frame in (table, other):
            assert frame.schema == table.schema
        assert other.filter(pl.col("available_time") <= cut * SECOND).equals(
            table.filter(pl.col("available_time") <= cut * SECOND)
        )
        future = other.filter(pl.col("available_time") > cut * SECOND)
        assert 0 < future.height < table.filter(pl.col("available_time") > cut * SECOND).height
        for name in future.columns:
            if name not in ("entity", "seq"):
                assert not future[name].equals(
                    table.filter(pl.col("available_time") > cut * SECOND)[name].head(future.height)
                )
        assert other.equals(perturb_future(table, cut * SECOND, seed))


def test_perturbing_the_future_shows_a_computation_that_looks_ahead() -> None:
    table, cut = events_of_two(), 100 * SECOND
    past = pl.col("available_time") <= cut
    honest, leaking = pl.col("size").cum_sum().over("entity"), pl.col("size").shift(-1).over("entity")
    for computed, same in ((honest, True), (leaking, False), (pl.col("size").rank(), False)):
        here = table.with_columns(x=computed).filter(past)["x"]
        there = perturb_future(table, cut).with_columns(x=computed).filter(past)["x"]
        assert here.equals(there) is same


def test_cutting_the_future_off_shows_it_too_and_names_the_row() -> None:
    table, cut = events_of_two(), 100 * SECOND

    def inputs(column: pl.Expr) -> Any:
        return lambda frame: {"size": frame["size"], "x": frame.with_columns(x=column)["x"]}

    known = table.filter(pl.col("available_time") <= cut).height
    honest = inputs((pl.col("size").cum_sum() / 7).over("entity"))
    found = past_only(honest, table, honest(table), cut)
    assert (found.verdict, found.looked_at, found.leaks) == ("passed", 2 * known, 0)
    for column, leaks in (
        (pl.col("size").shift(-1).over("entity"), 2),
        (pl.col("size") - pl.col("size").mean(), known),
    ):
        compute = inputs(column)
        found = past_only(compute, table, compute(table), cut)
        assert (found.verdict, found.leaks) == ("failed", leaks)
        assert found.sentence.startswith("x of event ")
        assert "when nothing after 1970-01-01T00:01:40.000000000Z is known" in found.sentence
