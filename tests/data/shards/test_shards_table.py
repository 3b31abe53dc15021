"""Shards of a generic table: runs of whole entities, read back in one order with the types of the columns."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shard_market import files, written

from quantattn.data.shards import Written, pieces_of, prepare_shards, scan_prepared
from quantattn.data.sources.source import Source
from quantattn.data.sources.table import TableSource, scan_table

ASKED: dict[str, Any] = {"id": "who", "time": "day", "time_format": "day", "zone": "Europe/Prague"}
ASKED["columns"] = {"size": "decimal2", "group": "category", "n": "integer"}  # in no order of the alphabet
SLOW = """
import sys, time
from quantattn.data.shards import pieces_of, prepare_shards
from quantattn.data.sources.table import scan_table

asked = {"id": "who", "time": "day", "time_format": "day", "zone": "Europe/Prague", "path": sys.argv[1]}
asked["columns"] = {"size": "decimal2", "group": "category", "n": "integer"}
watch = lambda _: time.sleep(0.03)
prepare_shards(pieces_of(scan_table, asked, lambda own: scan_table(**asked | own)), sys.argv[2], rows=20, watch=watch)
"""


def write(path: Path, counts: list[int]) -> Path:
    """So many events of each entity, their days and groups by arithmetic; entities sort as text, 10 before 9."""
    lines = [
        f"{who},{day},{who * 7 + day}.{day % 10}5,{'ab'[day % 2]},{day % 3}"
        for who, count in enumerate(counts)
        for day in range(count)
    ]
    path.write_text("who,day,size,group,n\n" + "\n".join(lines) + "\n")
    return path


def prepared(path: Path, out: Path, **more: Any) -> Written:
    asked = ASKED | {"path": str(path)}

    def read(own: Mapping[str, Any]) -> Source:
        return scan_table(**asked | own)

    return prepare_shards(pieces_of(scan_table, asked, read), out, **more)


def like_raw(path: Path, out: Path) -> bool:
    raw, again = scan_table(path, **ASKED), scan_prepared(out)
    assert isinstance(again, TableSource)
    assert list(again.columns.items()) == list(raw.columns.items())
    assert (again.zone, again.instruments) == (raw.zone, ())
    assert again.report.files.items() >= raw.report.files.items()
    assert again.report.notes == raw.report.notes
    return again.frame.collect().equals(raw.frame.collect(), null_equal=True)


@settings(max_examples=12, deadline=None)
@given(counts=st.lists(st.integers(1, 9), min_size=1, max_size=14), rows=st.integers(1, 20))
def test_what_comes_out_is_what_went_in(tmp_path_factory: pytest.TempPathFactory, counts: list[int], rows: int) -> None:
    home = tmp_path_factory.mktemp("table")
    done = prepared(write(home / "events.csv", counts), home / "out", rows=rows)
    assert like_raw(home / "events.csv", home / "out")
    seen: list[str] = []
    for shard in done.manifest.shards:
        held = pl.read_parquet(shard.path(home / "out"))
        assert held.height == shard.rows <= rows
        own = held["entity"].unique(maintain_order=True).to_list()
        assert len(own) == 1 or not set(own) & set(seen)  # an entity is in two shards only where it fills them
        seen += own
    assert sorted(set(seen)) == sorted(str(who) for who in range(len(counts)))
    assert done.manifest.as_dict()["last_time"] == scan_table(home / "events.csv", **ASKED).frame.collect()[
        "available_time"
    ].max()  # fmt: skip


def test_as_many_entities_share_a_shard_as_it_has_room_for(tmp_path: Path) -> None:
    """Worked by hand: entities 0 to 5 have 3, 3, 5, 12, 1, 4 events, and a shard has room for 8."""
    done = prepared(write(tmp_path / "events.csv", [3, 3, 5, 12, 1, 4]), tmp_path / "out", rows=8)
    found = [(shard.place.entity, shard.place.part, shard.rows) for shard in done.manifest.shards]
    assert found == [
        ("00000000", 0, 6),
        ("00000001", 0, 5),
        ("00000002", 0, 8),
        ("00000002", 1, 4),
        ("00000003", 0, 5),
    ]
    assert prepared(tmp_path / "events.csv", tmp_path / "out", rows=8).tally.written == 0


def test_a_change_leaves_the_shards_before_it(tmp_path: Path) -> None:
    path, out = tmp_path / "events.csv", tmp_path / "out"
    prepared(write(path, [4] * 9), out, rows=8)
    before = written(out)
    done = prepared(write(path, [4] * 8 + [6]), out, rows=8)
    assert (done.tally.written, done.tally.kept) == (1, 4)
    assert len(before.items() & written(out).items()) == 4
    assert like_raw(path, out)
    done = prepared(write(path, [4] * 3), out, rows=8)
    assert done.tally.removed == 3
    assert like_raw(path, out)


def test_what_a_table_has_no_use_for_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "events.csv", [2, 2])
    with pytest.raises(ValueError, match="shards of a table are runs of entities and end with no day"):
        prepared(path, tmp_path / "by_day", period="day")
    prepared(path, tmp_path / "out")
    with pytest.raises(ValueError, match="holds a table, in runs of entities: read all, and filter the frame"):
        scan_prepared(tmp_path / "out", entities=["1"])


def test_killed_at_any_time_it_goes_on_where_it_was(tmp_path: Path) -> None:
    path, out = write(tmp_path / "events.csv", [7] * 60 + [90]), tmp_path / "killed"
    total = len(prepared(path, tmp_path / "whole", rows=20).manifest.shards)
    child = subprocess.Popen([sys.executable, "-c", SLOW, str(path), str(out)])
    while len(list(out.rglob("*.parquet"))) < total - 3:
        assert child.poll() is None
        time.sleep(0.005)
    child.send_signal(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    stood = {name: when for name, when in written(out).items() if (out / name).with_suffix(".json").exists()}
    assert prepared(path, out, rows=20).tally.written <= total - len(stood)
    assert stood.items() <= written(out).items()
    assert files(out) == files(tmp_path / "whole")
    assert like_raw(path, out)
