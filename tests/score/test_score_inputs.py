"""What a plan tells of its inputs."""

from __future__ import annotations

from pathlib import Path

from small_job import work

from quantattn.cli.score_engine import sizes
from quantattn.score import make_plan


def test_sizes_are_told_of_the_files_that_were_read(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "a.csv").write_text("12345")
    (tmp_path / "deep" / "b.csv").write_text("1")
    (tmp_path / "other.txt").write_text("not read")
    assert sizes(str(tmp_path), ["a.csv", "deep/b.csv", "gone.csv"]) == {"a.csv": 5, "deep/b.csv": 1}
    assert sizes(str(tmp_path / "a.csv"), ["a.csv"]) == {"a.csv": 5}
    assert sizes(None, ["synthetic"]) == {}


def test_a_size_is_no_part_of_what_names_a_plan() -> None:
    told = make_plan(work(), "m", 10, None, {"file": 7})
    assert told.described["bytes"] == {"file": 7}
    assert told.sha == make_plan(work(), "m", 10).sha
