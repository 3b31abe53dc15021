"""How many workers a job has that was not told."""

from __future__ import annotations

import os
import signal

import pytest
import torch

from quantattn.cli import score_engine
from quantattn.cli.config import compose, plain
from quantattn.cli.instantiate import settings
from quantattn.cli.score import ScoreSettings
from quantattn.cli.score_engine import EngineSettings


@pytest.mark.parametrize(
    ("cores", "threads", "shards", "workers"),
    [(4, 1, 1, 1), (4, 1, 7, 1), (4, 1, 8, 2), (4, 1, 1000, 4), (64, 1, 1000, 8), (4, 2, 1000, 2), (2, 4, 1000, 1)],
)
def test_on_a_cpu_workers_are_as_many_as_cores_and_as_what_there_is_to_do(
    monkeypatch: pytest.MonkeyPatch, cores: int, threads: int, shards: int, workers: int
) -> None:
    monkeypatch.setattr(score_engine, "available_cores", lambda: cores)
    asked = EngineSettings(deterministic="batch", device="cpu", threads=threads)
    assert asked.devices(shards) == ("cpu",) * workers
    told = EngineSettings(deterministic="batch", device="cpu", threads=threads, workers=3)
    assert told.devices(shards) == ("cpu",) * 3


def test_a_batch_is_larger_on_a_gpu_unless_it_was_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def tokens(*given: str) -> int:
        return settings(ScoreSettings, plain(compose("score", ["model_folder=M", "out=OUT", *given])), "").tokens

    assert (tokens(), tokens("max_tokens_per_batch=7")) == (32_768, 7)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert (tokens(), tokens("max_tokens_per_batch=7"), tokens("device=cpu")) == (131_072, 7, 32_768)


def test_the_first_sigterm_is_noted_and_the_second_ends_the_command() -> None:
    before, noted = signal.getsignal(signal.SIGTERM), []

    def told_twice() -> None:
        with score_engine._told_to_stop() as stop:
            for _ in range(3):
                noted.append(stop())
                os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(SystemExit, match="143"):
        told_twice()
    assert noted == [False, True]
    assert signal.getsignal(signal.SIGTERM) is before
