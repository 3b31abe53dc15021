"""Fixtures of the commands."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from small_run import SMALL, call


@pytest.fixture
def bank(tmp_path: Path) -> Path:
    """Forty clients of two groups that pay for different things."""
    random = np.random.default_rng(0)
    events, outcomes = ["who,day,kind,amount"], ["who,group"]
    for who in range(40):
        outcomes.append(f"{who},{'young' if who % 2 else 'old'}")
        for day in np.sort(random.integers(0, 200, 8)):
            kind = random.choice(["games", "food"] if who % 2 else ["garden", "food"])
            events.append(f"{who},{day},{kind},{random.integers(100, 9999) / 100:.2f}")
    (tmp_path / "events.csv").write_text("\n".join(events) + "\n")
    (tmp_path / "outcomes.csv").write_text("\n".join(outcomes) + "\n")
    return tmp_path


@pytest.fixture
def here() -> Callable[..., object]:
    """As `benchmarks.processes.apart`, but in this process."""
    answers: list[object] = []

    class Pipe:
        send = staticmethod(answers.append)

    def call(name: str, target: Callable[..., None], *arguments: object, threads: int = 1) -> object:
        target(*arguments, Pipe)
        return answers.pop()

    return call


@pytest.fixture(scope="session")
def kept_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small run that has ended; tests that change it take a copy."""
    folder = tmp_path_factory.mktemp("kept") / "run"
    with pytest.MonkeyPatch.context() as patch:
        given = [f"paths.output_dir={folder}", 'licence="made data, free for any use"', "trials=7"]
        assert call(patch, "train", *SMALL, *given) == 0
    return folder
