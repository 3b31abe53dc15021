"""The benchmark of tokens: pandas gives what the library gives, on drawn events and on books with every kind of gap."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from quantattn.cli import main
from quantattn.cli.benchmarks import tokens
from quantattn.data.synthetic import SyntheticMarket

MARKET = SyntheticMarket(entities=2, events_per_entity=3_000, removals=0.3)
TICKS = {"SYN000000": 100, "SYN000001": 50}


@pytest.fixture(scope="module", params=["drawn", "holes"])
def events(request: pytest.FixtureRequest) -> pl.DataFrame:
    """Drawn events; and the same with empty, locked and crossed books, halts and events that come together."""
    drawn = MARKET.source().frame.collect()
    if request.param == "drawn":
        return drawn
    row = pl.int_range(pl.len())
    return drawn.with_columns(
        ask_price_1=pl.when(row % 401 < 3).then(None).otherwise("ask_price_1"),
        bid_price_1=pl.when(row % 577 == 5).then(pl.col("ask_price_1") + row % 2 * 100).otherwise("bid_price_1"),
        bid_size_1=pl.when(row % 401 < 3).then(0).otherwise("bid_size_1"),
        price=pl.when(row % 53 == 0).then(None).otherwise("price"),
        available_time=pl.col("available_time") // 10**10 * 10**10,
        halted=row % 900 < 7,
    )


@pytest.mark.parametrize("impl", ["pandas", "pandas_tuned"])
def test_pandas_gives_what_the_library_gives(tmp_path: Path, events: pl.DataFrame, impl: str) -> None:
    until = int(np.quantile(events["available_time"].to_numpy(), 0.6))
    tokens.write(events, tmp_path)
    ours, theirs = (tokens.read(name, tmp_path, TICKS, 100, until) for name in ("quantattn", impl))
    for step in tokens.STEPS:
        one, other = getattr(ours, step)(), getattr(theirs, step)()
        assert one.keys() == other.keys()
        for name in one:
            near = 1e-6 if one[name].dtype == np.float32 else 1e-10  # a logarithm may differ in its last bit
            np.testing.assert_allclose(other[name], one[name], rtol=near, atol=1e-12, err_msg=name)
        assert tokens.digest(one) == tokens.digest(other)
        last = {name: np.concatenate([column[:-1], column[-1:] + 1]) for name, column in one.items()}
        assert tokens.digest(last) != tokens.digest(one)


def test_days_are_repeated_in_order(tmp_path: Path) -> None:
    for what, lines in (
        ("message", "34200.0,1,7,5,990000,1\n34201.5,1,8,5,1010000,-1\n"),
        ("orderbook", "1010000,3,990000,5\n1010000,8,990000,5\n"),
    ):
        (tmp_path / f"XYZ_2024-01-02_34200000_57600000_{what}_1.csv").write_text(lines)
    events, instruments = tokens.events_of({"path": str(tmp_path), "rows": 5, "entities": 4})
    assert [each.entity for each in instruments] == ["XYZ"]
    gaps = np.diff(events["available_time"].to_numpy()) / 10**9
    assert gaps.tolist() == [1.5, 86_398.5, 1.5, 86_398.5]
    assert events["order_id"].to_list() == [7, 8, 7, 8, 7]


def test_a_table_and_a_file_come_out(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    here: Callable[..., object],
) -> None:
    """Each implementation runs in this process, which is all that differs; another result ends it."""
    monkeypatch.setattr(tokens, "apart", here)
    own = ["events.rows=4000", "events.entities=2", "events.turns=1", "events.rounds=1"]
    monkeypatch.setattr(sys, "argv", ["quantattn", "bench=tokens", f"results={tmp_path}", *own])
    assert main("bench") == 0
    assert "equal results" in capsys.readouterr().out
    with (tmp_path / "tokens-cpu.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["impl"] for row in rows] == list(tokens.IMPLEMENTATIONS)
    assert len({row["sha256"] for row in rows}) == 1
    assert float(rows[0]["times"]) == float(rows[0]["wall_times"]) == 1
    for row in rows:
        steps = sum(float(row[f"{step}_wall_ns"]) for step in tokens.STEPS)
        assert float(row["wall_ns"]) == pytest.approx(steps, abs=0.2)
    monkeypatch.setattr(tokens.Ours, "features", lambda self: {"spread_ticks": np.zeros(1)})
    assert main("bench") == 1
    assert "do not return the same" in capsys.readouterr().err
