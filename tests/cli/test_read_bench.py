"""The benchmark of reading: what its files hold, that readers are held to the same contents, and that it goes on."""

from __future__ import annotations

import csv
import os
import sys
from collections.abc import Callable
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantattn.cli import main
from quantattn.cli.benchmarks import read, read_inputs, read_peers
from quantattn.cli.benchmarks.processes import apart
from quantattn.data.sample import write_lobster
from quantattn.data.sources import scan_itch, scan_lobster
from quantattn.data.synthetic import SyntheticMarket

pytest.importorskip("numba", reason="numba is not here (pip install 'quantattn[book]')")

ROWS = st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 4), *[st.integers(0, 2)] * 4), max_size=30)


@given(rows=ROWS)
@settings(max_examples=100, deadline=None)
def test_changes_are_those_of_a_loop(rows: list[tuple[str, int, int, int, int, int]]) -> None:
    rows = sorted(rows, key=lambda row: row[:2])
    found, last = [], {"a": (0,) * 4, "b": (0,) * 4}
    for i, (stock, time, *book) in enumerate(rows):
        if i + 1 < len(rows) and rows[i + 1][:2] == (stock, time):
            continue
        if tuple(book) != last[stock]:
            found.append((time, *book))
        last[stock] = tuple(book)
    frame = pl.DataFrame(rows, ["stock", "time", *read_peers.BOOK], orient="row", schema_overrides={"stock": pl.String})
    made = read_peers.changes(frame["stock"], frame["time"], frame.select(read_peers.BOOK))
    assert list(zip(*(column.tolist() for column in made.values()), strict=True)) == found


def test_the_session_that_is_made_is_sound(tmp_path: Path) -> None:
    source = scan_itch(read_inputs.itch_file(4_000, 3, tmp_path / "x.itch"), date=read_inputs.DAY)
    assert not any(vars(source.tally).values())
    assert "4,006 messages: R 3, H 3" in " ".join(source.report.notes)
    kinds = source.frame.collect()["kind"].value_counts().filter(pl.col("count") > 50)["kind"]
    assert sorted(kinds) == [1, 2, 3, 4]


def test_days_are_repeated_over_changes_of_clocks_and_can_all_be_read(tmp_path: Path) -> None:
    source = SyntheticMarket(entities=("MADE",), events_per_entity=40).source()
    write_lobster(source.frame.collect(), tmp_path / "made")
    folder, rows = read_inputs.lobster_days(str(tmp_path / "made"), 40 * 30, tmp_path / "days")
    days = sorted({date.fromisoformat(file.name.split("_")[1]) for file in folder.iterdir()})
    assert rows == 40 * 30
    assert {(b - a).days for a, b in pairwise(days)} == {7}
    assert days[0] < date(2024, 3, 10) < days[-1]
    assert scan_lobster(folder).frame.select(pl.len()).collect().item() == rows


@pytest.mark.parametrize(
    ("name", "value"),
    [("read.rows", 0), ("read.turns", "x"), ("read.threads", 0), ("events.threads", 1.5), ("loader.tokens", 0)],
)
def test_what_counts_must_be_a_number_of_at_least_one(
    name: str, value: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["quantattn", "bench=read", f"{name}={value}"])
    assert main("bench") == 2
    assert f"{name} must be a whole number of at least 1, got {value!r}" in capsys.readouterr().err


def tell(answer: Any) -> None:
    answer.send((pl.thread_pool_size(), os.environ["OMP_NUM_THREADS"]))


def test_a_process_gets_the_threads_that_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.delenv("POLARS_MAX_THREADS", raising=False)
    assert apart("it", tell, threads=3) == (3, "3")
    assert os.environ["OMP_NUM_THREADS"] == "7"
    assert "POLARS_MAX_THREADS" not in os.environ


def test_the_day_that_is_made_has_as_many_rows_as_asked(tmp_path: Path) -> None:
    folder, rows = read_inputs.lobster_days(None, 1_000, tmp_path / "days", 600)
    assert rows == 1_200
    assert [scan_lobster(file).report.rows_read for file in sorted(folder.glob("*message*"))] == [600, 600]


def test_readers_are_compared_and_absent_ones_passed_over(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    here: Callable[..., object],
) -> None:
    """Each reader runs in this process, which is all that differs."""
    monkeypatch.setattr(read, "apart", here)
    monkeypatch.setattr(read, "_is_here", lambda name, site: name == "pandas")
    own = ["read.rows=3000", "read.few=500", "read.stocks=2", "read.turns=1", "read.threads=3"]
    monkeypatch.setattr(sys, "argv", ["quantattn", "bench=read", f"results={tmp_path}", *own])
    assert main("bench") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "itch: MeatPy is not here" in said
    assert "dbn: read.dbn names no file" in said
    with (tmp_path / "read-cpu.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["work"], row["impl"]) for row in rows] == [
        ("lobster", "quantattn"),
        ("lobster", "polars, as it is"),
        ("lobster", "pandas, cleaned"),
        ("itch", "quantattn"),
    ]
    assert rows[0]["sha256"] == rows[2]["sha256"] != rows[1]["sha256"]
    assert float(rows[0]["times"]) == float(rows[0]["wall_times"]) == 1
    assert {row["threads"] for row in rows} == {"3"}
    # The control: a reader that finds something else ends it.
    lobster = dict(read_peers.READERS["lobster"])
    real = lobster["pandas, cleaned"]

    def other(path: Path) -> object:
        columns = dict(real.read(path)())
        return lambda: columns | {"size": columns["size"] + np.int64(1)}

    lobster["pandas, cleaned"] = read_peers.Reader(other, real.needs, digest=real.digest)  # type: ignore[arg-type]
    monkeypatch.setattr(read, "READERS", {"lobster": lobster})
    monkeypatch.setattr(sys, "argv", ["quantattn", "bench=read", f"results={tmp_path}", *own, "read.works=[lobster]"])
    assert main("bench") == 1
    assert "pandas, cleaned and quantattn differ in size" in " ".join(capsys.readouterr().err.split())
