"""The search for block sizes: what is wrong or does not fit gets no time. The clock is a stand-in."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from quantattn.attention import Mask
from quantattn.cli.benchmarks.peers import Inputs
from quantattn.cli.benchmarks.shapes import Shape
from quantattn.cli.benchmarks.timing import Timing

pytest.importorskip("triton")
from quantattn.attention.kernels import launch
from quantattn.attention.kernels.configs import Config
from quantattn.cli.benchmarks import tune

GOOD, BAD = Config(16, 16, 1, 1), Config(32, 16, 1, 1)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Shape:
    def draw(shape: Shape, dtype: torch.dtype, seed: int) -> Inputs:
        rng = torch.Generator().manual_seed(seed)
        q, k, v, do = (
            torch.randn(shape.batch, shape.n, heads, shape.d, generator=rng, dtype=dtype)
            for heads in (shape.heads, shape.heads_k, shape.heads_k, shape.heads)
        )
        return Inputs(q, k, v, do, shape.mask)

    def clock(calls: dict[str, Any], *, rounds: int, warmup: int) -> dict[str, Timing]:
        return {name: Timing(1.0, 1.0, 1.0, rounds) for name, call in calls.items() if call() is None}

    monkeypatch.setattr(tune, "draw", draw)
    monkeypatch.setattr(tune, "time_interleaved", clock)
    return Shape(16, 24, 1, 2, 1, Mask(causal=True))


def measure(shape: Shape) -> tuple[list[tuple[str, Config]], list[str]]:
    said: list[str] = []
    found = tune.tune([shape], [GOOD, BAD], torch.float32, rounds=1, say=said.append)
    return [(one.kernel, one.config) for one in found], said


def test_every_candidate_that_is_right_is_timed(bench: Shape) -> None:
    found, said = measure(bench)
    assert found == [(kernel, config) for kernel in ("fwd", "dq", "dkdv") for config in (GOOD, BAD)]
    assert said == []


@pytest.mark.parametrize("name", ["launch_forward", "launch_dq", "launch_dkdv"])
def test_a_candidate_that_writes_too_little_is_not_timed(bench: Shape, name: str, monkeypatch: Any) -> None:
    real = getattr(launch, name)
    monkeypatch.setattr(launch, name, lambda *a: None if BAD in a else real(*a))
    found, said = measure(bench)
    kernel = {"launch_forward": "fwd", "launch_dq": "dq", "launch_dkdv": "dkdv"}[name]
    assert (kernel, GOOD) in found
    assert (kernel, BAD) not in found
    assert len(said) == 1
    assert "outside the error budget" in said[0]


def test_a_candidate_that_does_not_fit_says_why(bench: Shape, monkeypatch: Any) -> None:
    real = launch.launch_dq

    def launch_dq(*a: Any) -> None:
        if BAD in a:
            raise launch.TooLarge(263184, 232448, "shared memory")
        real(*a)

    monkeypatch.setattr(launch, "launch_dq", launch_dq)
    found, said = measure(bench)
    assert ("dq", BAD) not in found
    assert "shared memory, Required: 263184" in said[0]


def test_candidates_are_every_combination() -> None:
    grid = {"block_m": [32, 64], "block_n": [64], "num_warps": [4, 8], "num_stages": [2]}
    assert set(tune.candidates(grid)) == {Config(m, 64, w, 2) for m in (32, 64) for w in (4, 8)}
