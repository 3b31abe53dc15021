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
