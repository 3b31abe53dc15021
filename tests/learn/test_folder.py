"""The run folder's files: whole or as they were."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from quantattn.learn.files import write_text


def test_a_full_disk_leaves_the_old_file_and_nothing_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_text(tmp_path / "metrics.json", "old")

    def full(number: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left on device") as raised:
        write_text(tmp_path / "metrics.json", "new")
    assert raised.value.filename == str(tmp_path / "metrics.json")
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.json"]
    assert (tmp_path / "metrics.json").read_text() == "old"


def test_a_disk_that_takes_no_file_is_told_of_by_the_file_that_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_only(self: Path, *given: object, **named: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(self))

    for name in ("open", "unlink"):
        monkeypatch.setattr(Path, name, read_only)
    with pytest.raises(OSError, match="Read-only file system") as raised:
        write_text(tmp_path / "metrics.json", "new")
    assert raised.value.filename == str(tmp_path / "metrics.json")
