"""The table itself: two writers at one shard, two plans at one folder, files left behind, a disk that is full."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from arro3.core import Array
from deltalake import DeltaTable
from small_job import work

from quantattn.score import make_plan, sink
from quantattn.score.plan import Plan, changed
from quantattn.score.sink import DeltaSink, read_plan

PLAN = make_plan(work(), "m", 40)
SHARDS = [shard.name for shard in PLAN.shards]


def rows(first: int = 0, number: int = 3) -> dict[str, Any]:
    return {"key": Array.from_numpy(np.arange(first, first + number))}


def keys(out: Path) -> list[int]:
    return sorted(pl.read_delta(str(out))["key"])


def meanwhile(monkeypatch: pytest.MonkeyPatch, name: str, what: Any) -> None:
    """Let `what` happen once, just before the sink does what it calls `name`."""
    original = getattr(sink, name)

    def late(*given: Any, **named: Any) -> Any:
        monkeypatch.setattr(sink, name, original)
        what()
        return original(*given, **named)

    monkeypatch.setattr(sink, name, late)


def test_of_two_writers_that_both_found_a_shard_missing_one_adds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = (DeltaSink(tmp_path / "out", PLAN) for _ in range(2))
    assert one.write("shard-000000", rows())
    meanwhile(monkeypatch, "write_deltalake", lambda: other.write("shard-000001", rows(3)))
    assert not one.write("shard-000001", rows(3))
    meanwhile(monkeypatch, "write_deltalake", lambda: other.write("shard-000002", rows(6)))
    assert one.write("shard-000003", rows(9)), "another shard is in nobody's way"
    assert keys(tmp_path / "out") == list(range(12))


def test_two_plans_that_begin_together_in_one_folder_do_not_mix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = DeltaSink(tmp_path / "out", PLAN), DeltaSink(tmp_path / "out", make_plan(work(), "another", 40))
    real = DeltaTable.create

    def create(*given: Any, **named: Any) -> Any:
        monkeypatch.setattr(DeltaTable, "create", real)
        other.write("shard-000000", rows())
        return real(*given, **named)

    monkeypatch.setattr(DeltaTable, "create", create)
    with pytest.raises(ValueError, match=r"\(model another → m\); name another folder"):
        one.write("shard-000000", rows(3))
    assert keys(tmp_path / "out") == [0, 1, 2]


def test_what_is_written_stays_known_when_the_log_is_shortened(tmp_path: Path) -> None:
    out = DeltaSink(tmp_path / "out", PLAN)
    for number, name in enumerate(SHARDS):
        out.write(name, rows(3 * number))
    table = DeltaTable(tmp_path / "out")
    table.create_checkpoint()
    for old in sorted((tmp_path / "out" / "_delta_log").glob("*.json"))[:-1]:
        old.unlink()
    again = DeltaSink(tmp_path / "out", PLAN)
    assert again.written(SHARDS) == set(SHARDS)
    assert not again.write(SHARDS[0], rows())
    assert again.rows == 3 * len(SHARDS)


def test_files_of_killed_writers_are_not_seen_and_go_once_nothing_can_come_of_them(tmp_path: Path) -> None:
    out = DeltaSink(tmp_path / "out", PLAN)
    out.write(SHARDS[0], rows())
    left = [tmp_path / "out" / name for name in ("part-0.parquet", "part-1.parquet", "_quarantine/part-0.parquet")]
    DeltaSink(left[-1].parent, PLAN).write(SHARDS[0], rows(99))
    for each in left:
        each.write_bytes(next((tmp_path / "out").glob("*.parquet")).read_bytes())
    assert keys(tmp_path / "out") == [0, 1, 2]
    with pytest.raises(ValueError, match="is not finished"):
        out.clean()
    assert all(each.exists() for each in left)
    for number, name in enumerate(SHARDS):
        out.write(name, rows(3 * number))
    assert (out.clean(), out.clean()) == (3, 0)
    assert keys(tmp_path / "out") == list(range(3 * len(SHARDS)))
    assert keys(tmp_path / "out" / "_quarantine") == [99, 100, 101]


def test_the_plan_stands_in_the_table_and_says_what_has_changed(tmp_path: Path) -> None:
    DeltaSink(tmp_path / "out", PLAN).write(SHARDS[0], rows())
    found = read_plan(tmp_path / "out")
    assert found == json.loads(json.dumps(PLAN.described))
    assert found["inputs"] == {"file": "a"}
    assert (found["work"]["decisions"], found["work"]["rows"], found["work"]["tokens"]) == (120, 120, 280)
    assert {"source of attention", "source of nn", "torch"} <= set(found["code"])
    with pytest.raises(ValueError, match="holds no table of scores"):
        read_plan(tmp_path / "no")


@pytest.mark.parametrize(
    ("one", "other", "said"),
    [
        ({"a": {"b": 1}}, {"a": {"b": 2}}, "a.b 1 → 2"),
        ({"a": 1}, {}, "a 1 → none"),
        ({"x": "0" * 64}, {"x": "f" * 64}, f"x {'0' * 12} → {'f' * 12}"),
        ({}, {str(i): i for i in range(6)}, "0 none → 0, 1 none → 1, 2 none → 2, 3 none → 3 and 2 more"),
        ({"a": {}}, {"a": {}}, ""),
    ],
)
def test_a_difference_in_words(one: dict[str, Any], other: dict[str, Any], said: str) -> None:
    assert changed(one, other) == said


@pytest.mark.parametrize("change", ["code", "field", "time", "entity"])
def test_whatever_decides_a_row_makes_another_plan(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given = work()
    assert make_plan(given, "m", 40).sha == PLAN.sha, "the control"
    if change == "code":
        monkeypatch.setattr("quantattn.score.plan.installed", lambda: {"source of attention": "changed"})
    elif change == "field":
        given.sequences.table.fields["code"][-1] ^= 1
    elif change == "time":
        given.as_of[0] += 1
    else:
        given = work(entity=("E99", *given.entity[1:]))
    assert make_plan(given, "m", 40).sha != PLAN.sha


def test_ranges_of_shards(tmp_path: Path) -> None:
    plan: Plan = PLAN
    assert [len(plan.between(each)) for each in (None, "0:2", "1:", ":1", "2:99")] == [3, 2, 2, 1, 1]
    assert plan.between("0:1") + plan.between("1:3") == plan.shards
    for wrong in ("1", "a:b", "-1:2", "1:2:3", ""):
        with pytest.raises(ValueError, match="shards must be FIRST:LAST"):
            plan.between(wrong)
    with pytest.raises(ValueError, match="there is none among them; the plan has 0:3"):
        plan.between("3:9")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=192k", "tmpfs", str(disk)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {mounted.stderr.strip()}")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk_loses_nothing_that_was_committed_and_goes_on_after_room_is_made(small_disk: Path) -> None:
    plan = make_plan(work(), "m", 3)
    noise = np.random.default_rng(0)
    data = {shard.name: {"key": Array.from_numpy(noise.integers(0, 2**60, 1500))} for shard in plan.shards[:20]}
    out, written = small_disk / "out", []

    def fill() -> None:
        for name, columns in data.items():
            DeltaSink(out, plan).write(name, columns)
            written.append(name)

    with pytest.raises(RuntimeError, match=r"^shard-\d+ could not be added to .*out: .*No space left on device"):
        fill()
    assert 2 < len(written) < 20
    assert DeltaSink(out, plan).written(data) == set(written)
    assert DeltaSink(out, plan).rows == 1500 * len(written)
    subprocess.run(["mount", "-o", "remount,size=4m", str(small_disk)], check=True)
    for name, columns in data.items():
        assert DeltaSink(out, plan).write(name, columns) == (name not in written)
    expected = sorted(int(key) for columns in data.values() for key in columns["key"].to_pylist())
    assert keys(out) == expected
    assert os.statvfs(small_disk).f_bavail > 0
