"""Rows that are set down on disk and read again are the rows, in canonical order, whatever memory would hold."""

from __future__ import annotations

import gc
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantattn.data.sources import runs
from quantattn.data.sources.runs import Runs, Scratch, Tables, lazy_table

NAMES = ["b", "c", "a", "d"]
ROWS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), max_size=80)


def table(rows: list[tuple[int, int]], first: int = 0) -> pl.DataFrame:
    made = pl.DataFrame(rows, {"name": pl.UInt32, "available_time": pl.Int64}, orient="row")
    return made.with_row_index("seq", offset=first).cast({"seq": pl.Int64})


def expected(whole: pl.DataFrame) -> pl.DataFrame:
    entity = pl.Series(NAMES).gather(whole["name"]).alias("entity")
    return whole.with_columns(entity).sort("entity", "available_time", "seq").drop("entity")


@given(rows=ROWS, cut=st.integers(1, 30), kept=st.sampled_from([0, 100, 700, 10**6]), size=st.integers(1, 40))
@settings(max_examples=150, deadline=None)
def test_rows_leave_in_canonical_order(rows: list[tuple[int, int]], cut: int, kept: int, size: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "KEPT", kept)
        patch.setattr(runs, "ROWS", size)
        made = Runs(NAMES, Scratch())
        for first in range(0, max(len(rows), 1), cut):
            made.add(table(rows[first : first + cut], first))
        order = sorted({name for name, _ in rows}, key=NAMES.__getitem__)
        assert made.names() == order
        batches = [*made.batches()]
        assert pl.concat(batches).equals(expected(table(rows)))
        assert batches[0].is_empty()
        assert all(batch["name"].n_unique() == 1 for batch in batches if batch.height > size)
        again = pl.concat(made.batches(order[::-1]))
        assert again["name"].unique(maintain_order=True).to_list() == order[::-1]
        assert again.sort(pl.col("name").replace_strict([2, 0, 1, 3], [0, 1, 2, 3]), maintain_order=True).equals(
            pl.concat(batches)
        )


@pytest.mark.parametrize("kept", [0, 10**6])
def test_a_column_that_some_rows_lack_is_null_there(kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "KEPT", kept)
    made = Runs(NAMES, Scratch())
    made.add(table([(0, 5), (1, 3)]).with_columns(price=pl.lit(7)))
    made.add(table([(0, 4)], 2).with_columns(side=pl.lit("ask")))
    first, *rest = made.batches()
    assert first.columns == ["seq", "name", "available_time", "price", "side"]
    whole = pl.concat([first, *rest], how="diagonal").sort("seq")
    assert whole.select("seq", "price", "side").rows() == [(0, 7, None), (1, 7, None), (2, None, "ask")]


def test_a_long_name_leaves_in_batches_of_bounded_size(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(runs, "KEPT", 500)
    monkeypatch.setattr(runs, "ROWS", 50)
    for times, most in ((lambda i: i, 100), (lambda i: i % 300, 400)):  # one run after the other, and all at once
        made = Runs(NAMES, Scratch(tmp_path))
        for first in range(0, 1000, 20):
            made.add(table([(0, times(i)) for i in range(first, first + 20)], first))
        sizes = [batch.height for batch in made.batches()]
        assert sum(sizes) == 1000
        assert max(sizes) <= most < 1000
        assert len([*tmp_path.glob("quantattn-rows-*/*.arrow")]) > 10
        del made
        gc.collect()
        assert not [*tmp_path.iterdir()]


def test_a_folder_that_takes_nothing_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(runs, "KEPT", 0)
    made = Runs(NAMES, Scratch(tmp_path / "nowhere"))
    with pytest.raises(OSError, match=r"3 rows could not be set down in .*nowhere.*scratch= or TMPDIR names another"):
        made.add(table([(0, 1), (1, 1), (2, 1)]))


def test_tables_are_what_was_added(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    parts = {name: [pl.DataFrame({"x": [f"{name}{i}{j}" for j in range(3)]}) for i in range(9)] for name in ("H", "h")}
    for kept in (0, 60, 10**6):
        monkeypatch.setattr(runs, "KEPT", kept)
        tables = Tables(Scratch(tmp_path))
        for i in range(9):
            for name, own in parts.items():
                tables.add(name, own[i])
        assert [*tables] == ["H", "h"]
        assert all(tables[name].equals(pl.concat(own)) for name, own in parts.items())
        assert bool([*tmp_path.glob("*/*.arrow")]) == (kept < 10**6)
        del tables
        gc.collect()


def test_a_large_table_is_made_again_whenever_it_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    batches, seen = [pl.DataFrame({"x": [i, -i], "y": ["a", "b"]}) for i in range(20)], list[int]()
    whole = pl.concat(batches)
    for most, times in ((10**6, 1), (80, 4)):
        made = list[int]()
        monkeypatch.setattr(runs, "TABLE", most)

        def make() -> list[pl.DataFrame]:
            made.append(1)  # noqa: B023
            return batches

        seen.clear()
        frame = lazy_table(lambda: iter(make()), lambda batch: seen.append(batch.height))
        assert frame.collect().equals(whole)
        assert frame.filter(pl.col("x") > 3).select("y").collect().equals(whole.filter(pl.col("x") > 3).select("y"))
        assert frame.head(5).collect().equals(whole.head(5))
        assert seen == [2] * 20
        assert len(made) == times
