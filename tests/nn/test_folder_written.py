"""A model folder is written whole or not at all, and told from the folder that it stands in."""

from __future__ import annotations

import resource
import shutil
import signal
from pathlib import Path

import pytest

from quantattn.nn import load_model, save_pretrained


def test_the_folder_of_a_run_is_told_from_that_of_its_model(saved: Path, tmp_path: Path) -> None:
    shutil.copytree(saved, tmp_path / "run" / "model")
    with pytest.raises(ValueError, match=r"run is the folder of a run; its model is .*run/model$"):
        load_model(tmp_path / "run")


def test_a_disk_without_room_names_the_file_and_leaves_the_model_that_stands(saved: Path, tmp_path: Path) -> None:
    """While the files of this process may have 1 KiB, a write fails for real."""
    model, before = load_model(saved), {path.name: path.read_bytes() for path in saved.iterdir()}
    limits, ignored = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large") as raised:
            save_pretrained(model, saved)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)
    assert Path(raised.value.filename).name in before
    assert {path.name: path.read_bytes() for path in saved.iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
