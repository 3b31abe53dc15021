"""The closing table: its figures, its pairing, its bound, and labels on which nothing can be found."""

from __future__ import annotations

import json

import numpy as np
import pytest

from quantattn.evaluate import (
    IGNORE,
    Blocks,
    classification_metrics,
    closing_table,
    regression_metrics,
    regression_table,
    verdict,
)

DAY = 86_400 * 10**9


def forecasts(seed: int = 0, n: int = 3000) -> tuple[np.ndarray, np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """Labels drawn from known probabilities (the oracle's), and two baselines that know less."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(n, 3)) * 1.5
    oracle = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    y = (rng.random((n, 1)) > oracle.cumsum(axis=1)).sum(axis=1).clip(0, 2)
    flat = np.full((n, 3), 1 / 3)
    time = 1_700_000_000 * 10**9 + np.arange(n) * DAY // 100
    return y, time, oracle, {"flat": flat, "blurred": 0.3 * oracle + 0.7 * flat}


def test_figures_are_the_metrics() -> None:
    y, time, oracle, baselines = forecasts()
    table = closing_table(y, time, None, oracle, baselines)
    for name, prob in {"encoder": oracle, **baselines}.items():
        expected = classification_metrics(y, prob)
        assert {k: v.value for k, v in table.row(name).figures.items()} == pytest.approx(expected, abs=1e-12)
    assert [(row.method, row.role) for row in table.rows] == [
        ("encoder", "model"),
        ("flat", "baseline"),
        ("blurred", "baseline"),
    ]
    assert (table.best_baseline, table.block_kind, table.blocks, table.decisions) == ("blurred", "day", 31, 3000)
    for row in table.rows:
        for name, figure in row.figures.items():
            if name == "ece":
                assert figure.low is None
            else:
                assert figure.low <= figure.value + 1e-12
                assert figure.value <= figure.high + 1e-12


def test_differences_are_paired() -> None:
    y, time, oracle, baselines = forecasts()
    same = closing_table(y, time, None, baselines["blurred"], baselines)
    for difference in same.difference.values():
        assert difference.value == 0
        assert difference.low in (0, None)
        assert difference.high in (0, None)
    assert same.skill.value == 0
    assert not same.skill.excludes(0)
    better = closing_table(y, time, None, oracle, baselines)
    paired = better.difference["log_loss"]
    width = paired.high - paired.low
    ours, theirs = (better.row(name).figures["log_loss"] for name in ("encoder", "blurred"))
    assert paired.value == pytest.approx(ours.value - theirs.value)
    assert width < (ours.high - ours.low) + (theirs.high - theirs.low)
    assert better.skill.value == pytest.approx(1 - ours.value / theirs.value)
    assert better.skill.excludes(0)


def test_a_rival_of_the_best_baseline_widens_the_side_that_luck_pushed_and_a_hopeless_one_nothing() -> None:
    y, time, oracle, baselines = forecasts()
    mixed = 0.6 * oracle + 0.4 * np.roll(oracle, 1, axis=0)
    noise = np.random.default_rng(1).dirichlet([1, 1, 1], len(y))
    better, worse = baselines["blurred"] + 0.03 * (oracle - 1 / 3), 0.9 * baselines["blurred"] + 0.1 * noise
    rival = np.where((time // DAY % 2 == 0)[:, None], better, worse)  # from day to day
    alone, beside, hopeless = (
        closing_table(y, time, None, mixed, {"blurred": baselines["blurred"], **others}, oracle)
        for others in ({}, {"rival": rival}, {"hopeless": np.eye(3)[y - 1]})
    )
    assert hopeless.skill == alone.skill
    assert (hopeless.difference, hopeless.gap_closed) == (alone.difference, alone.gap_closed)
    assert beside.best_baseline == "blurred"
    pairs = [(beside.skill, alone.skill), (beside.gap_closed, alone.gap_closed)]
    for wide, usual in [*pairs, (beside.difference["mcc"], alone.difference["mcc"])]:
        assert (wide.value, wide.low) == (usual.value, usual.low)
        assert wide.high > usual.high
    wide, usual = beside.difference["log_loss"], alone.difference["log_loss"]  # lower is better: the other side
    assert (wide.value, wide.high) == (usual.value, usual.high)
    assert wide.low < usual.low


def test_share_of_the_gap() -> None:
    y, time, oracle, baselines = forecasts()
    all_of_it = closing_table(y, time, None, oracle, baselines, oracle)
    assert (all_of_it.gap_closed.value, all_of_it.gap_closed.low, all_of_it.gap_closed.high) == pytest.approx((1, 1, 1))
    assert all_of_it.rows[-1].role == "bound"
    none_of_it = closing_table(y, time, None, baselines["blurred"], baselines, oracle)
    assert (none_of_it.gap_closed.value, none_of_it.gap_closed.low) == (0, 0)
    loss = {name: all_of_it.row(name).figures["log_loss"].value for name in ("encoder", "flat", "blurred")}
    mixed = 0.6 * oracle + 0.4 / 3
    by_number = closing_table(y, time, None, mixed, baselines, {"log_loss": loss["encoder"], "accuracy": 0.6})
    mine = by_number.row("encoder").figures["log_loss"].value
    assert by_number.gap_closed.value == pytest.approx((loss["blurred"] - mine) / (loss["blurred"] - loss["encoder"]))
    assert by_number.gap_closed.low < by_number.gap_closed.value < by_number.gap_closed.high
    assert set(by_number.rows[-1].figures) == {"log_loss", "accuracy"}
    assert closing_table(y, time, None, mixed, baselines, {"log_loss": 2.0}).gap_closed is None


def test_nothing_is_found_where_there_is_nothing() -> None:
    found = 0
    for seed in range(20):
        y, time, oracle, _ = forecasts(seed, n=1000)
        majority = np.tile(np.bincount(y, minlength=3) / y.size, (1000, 1))
        timid = 0.02 * oracle + 0.98 * majority
        shuffled = np.random.default_rng(seed).permutation(y)
        table = closing_table(shuffled, time, None, timid, {"majority class": majority}, replicates=300)
        found += table.skill.excludes(0) and table.skill.value > 0
    assert found <= 2
    # The same timid forecaster on the labels as they were is found out.
    assert closing_table(y, time, None, timid, {"majority class": majority}).skill.excludes(0)


def test_rows_without_a_label_are_counted_and_change_nothing() -> None:
    y, time, oracle, baselines = forecasts()
    table = closing_table(y, time, None, oracle, baselines, oracle)
    holes = np.insert(y, [0, 1000, 2999], IGNORE)
    rows = np.insert(np.arange(3000), [0, 1000, 2999], 0)
    other = closing_table(
        holes, time[rows], None, oracle[rows], {k: v[rows] for k, v in baselines.items()}, oracle[rows]
    )
    assert (other.unlabelled, other.decisions) == (3, 3000)
    assert other.skill == table.skill
    assert [r.figures for r in other.rows] == [r.figures for r in table.rows]


def test_table_is_plain_data_and_seeded() -> None:
    y, time, oracle, baselines = forecasts()
    one, two = (closing_table(y, time, None, oracle, baselines, oracle, seed=4) for _ in range(2))
    assert one == two
    assert json.loads(json.dumps(one.to_dict(), allow_nan=False))["rows"][0]["method"] == "encoder"


def test_a_perfect_baseline_leaves_no_room_for_skill() -> None:
    y, time, oracle, _ = forecasts(n=400)
    table = closing_table(y, time, None, oracle, {"told": np.eye(3)[y]}, oracle)
    assert np.isnan(table.skill.value)
    assert (table.skill.low, table.gap_closed) == (None, None)
    assert table.difference["log_loss"].value > 0
    assert json.loads(json.dumps(table.to_dict(), allow_nan=False))["skill"]["value"] is None


def test_one_block_gives_figures_without_intervals() -> None:
    y, time, oracle, baselines = forecasts(n=50)
    table = closing_table(y, time, Blocks(np.zeros(50, dtype=np.int64), "day", 1), oracle, baselines)
    assert table.skill.low is None
    assert table.row("encoder").figures["log_loss"].low is None


def test_bad_tables_are_one_sentence() -> None:
    y, time, oracle, baselines = forecasts(n=50)
    with pytest.raises(ValueError, match="one baseline or more"):
        closing_table(y, time, None, oracle, {})
    with pytest.raises(ValueError, match="none of them named 'flat'"):
        closing_table(y, time, None, oracle, baselines, method="flat")
    with pytest.raises(ValueError, match=r"time has shape \(49,\) but there are 50"):
        closing_table(y, time[1:], None, oracle, baselines)
    broken = np.where(np.arange(50)[:, None] == 3, np.nan, oracle)
    with pytest.raises(ValueError, match=r"probabilities of 'broken'\[3\]"):
        closing_table(y, time, None, oracle, {"broken": broken})
    with pytest.raises(ValueError, match="3 classes but another method 2"):
        closing_table(y.clip(0, 1), time, None, oracle, {"coin": np.full((50, 2), 0.5)})
    with pytest.raises(KeyError):
        closing_table(y, time, None, oracle, {"blurred": baselines["blurred"]}).row("nobody")


def test_regression_table() -> None:
    rng = np.random.default_rng(0)
    history = rng.normal(size=600)
    y = 0.6 * history + rng.normal(size=600) * 0.5
    model, time = 0.6 * history, np.arange(600) * DAY
    y[5] = np.nan
    table = regression_table(y, time, None, model, {"history": history, "mean": np.zeros(600)})
    kept = ~np.isnan(y)
    expected = regression_metrics(y[kept], model[kept], history[kept])
    assert {k: v.value for k, v in table.model.figures.items()} == pytest.approx(expected, abs=1e-12)
    assert table.row("history").figures["r2"].value == 0
    assert (table.unlabelled, table.decisions, table.loss) == (1, 599, "mse")
    assert table.skill.excludes(0)
    with pytest.raises(ValueError, match="expected a baseline 'history'"):
        regression_table(y, time, None, model, {"mean": model})
    with pytest.raises(ValueError, match=r"'mean' have shape \(2,\), y has \(600,\)"):
        regression_table(y, time, None, model, {"history": history, "mean": model[:2]})


def test_a_forecast_that_differs_by_rounding_alone_is_neither_better_nor_worse() -> None:
    said = []
    for mean in (3.1, 3.2, 3.3):  # none of which float32 knows
        y = mean + 0.5 + np.linspace(-1, 1, 400)  # so that rounding up is on the right side everywhere
        exact, rounded = np.full(400, mean), np.full(400, np.float32(mean), np.float64)
        assert (exact != rounded).all()
        table = regression_table(y, np.arange(400), None, rounded, {"history": y - 2, "mean": exact}, replicates=50)
        assert table.best_baseline == "mean"
        said.append(verdict(table).tone)
        nudged = regression_table(y, np.arange(400), None, exact + 1e-3, {"history": y - 2, "mean": exact})
        assert nudged.skill.excludes(0), "what is more than rounding is told"
    assert said == ["unclear"] * 3
