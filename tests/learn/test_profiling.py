"""A trace of a few steps, in the run folder."""

from __future__ import annotations

import json
import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch import Callback, Trainer
from toy import train

from quantattn.learn.profiling import Profile


def recorded(folder: Path) -> list[str]:
    trace = json.loads((folder / "profile" / "trace.json").read_text())
    return [event.get("name", "") for event in trace["traceEvents"]]


class End(Callback):
    """Ends a run after its second step."""

    def __init__(self, by_signal: bool) -> None:
        self.by_signal = by_signal

    def on_train_batch_end(self, trainer: Trainer, *given: Any) -> None:
        if trainer.global_step == 2:
            if not self.by_signal:
                raise KeyError("of a user's callback")
            os.kill(os.getpid(), signal.SIGTERM)


def test_the_steps_that_were_asked_for_are_recorded_and_change_nothing(tmp_path: Path) -> None:
    found, module, _ = train(tmp_path / "a", steps=5, validate_every=5, callbacks=[Profile(str(tmp_path / "a"), 1, 2)])
    plain, other, _ = train(tmp_path / "b", steps=5, validate_every=5)
    assert found.best_value == plain.best_value
    assert all((value == other.state_dict()[name]).all() for name, value in module.state_dict().items())
    names = recorded(tmp_path / "a")
    assert len({name for name in names if name.startswith("ProfilerStep#")}) == 2
    assert "aten::mm" in names
    assert "aten::" in (tmp_path / "a" / "profile" / "operations.txt").read_text()
    with pytest.raises(ValueError, match="record 1 or more, got 0 and 0"):
        Profile(str(tmp_path), 0, 0)


@pytest.mark.parametrize("by_signal", [False, True])
def test_a_run_that_ends_early_leaves_what_it_has_done(tmp_path: Path, by_signal: bool) -> None:
    callbacks = [Profile(str(tmp_path), 1, 3), End(by_signal)]
    if by_signal:
        assert train(tmp_path, steps=6, validate_every=6, callbacks=callbacks)[0].stopped
    else:
        with pytest.raises(KeyError, match="of a user's callback"):
            train(tmp_path, steps=6, validate_every=6, callbacks=callbacks)
    assert {name for name in recorded(tmp_path) if name.startswith("ProfilerStep#1")} == {"ProfilerStep#1"}
    assert "ProfilerStep#3" not in recorded(tmp_path), "which this run has not had"
    assert "aten::mm" in (tmp_path / "profile" / "operations.txt").read_text()


@contextmanager
def no_file_beyond(size: int) -> Iterator[None]:
    """What a full disk is to whoever writes: files end at so many bytes."""
    limits, ignored = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)


@pytest.mark.parametrize("steps", [2, 6])
def test_a_trace_that_the_disk_does_not_take_is_an_error_and_leaves_nothing_behind(tmp_path: Path, steps: int) -> None:
    """Written at the end of a run that is too short, and in its middle."""
    trace = tmp_path / "profile" / "trace.json"
    trace.parent.mkdir()
    trace.write_text("of another run")
    with no_file_beyond(100_000), pytest.raises(OSError, match="the trace could not be written; is the disk full"):
        train(tmp_path, steps=steps, validate_every=6, callbacks=[Profile(str(tmp_path), 1, 3)])
    assert [path.read_text() for path in trace.parent.iterdir()] == ["of another run"]
