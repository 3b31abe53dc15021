"""A trace of a few steps, in the run folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from toy import train

from quantattn.learn.profiling import Profile


def test_the_steps_that_were_asked_for_are_recorded_and_change_nothing(tmp_path: Path) -> None:
    found, module, _ = train(tmp_path / "a", steps=5, validate_every=5, callbacks=[Profile(str(tmp_path / "a"), 1, 2)])
    plain, other, _ = train(tmp_path / "b", steps=5, validate_every=5)
    assert found.best_value == plain.best_value
    assert all((value == other.state_dict()[name]).all() for name, value in module.state_dict().items())
    trace = json.loads((tmp_path / "a" / "profile" / "trace.json").read_text())
    names = [event.get("name", "") for event in trace["traceEvents"]]
    assert len({name for name in names if name.startswith("ProfilerStep#")}) == 2
    assert "aten::mm" in names
    assert "aten::" in (tmp_path / "a" / "profile" / "operations.txt").read_text()
    with pytest.raises(ValueError, match="record 1 or more, got 0 and 0"):
        Profile(str(tmp_path), 0, 0)
