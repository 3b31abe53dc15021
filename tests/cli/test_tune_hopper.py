"""Neighbours of the tables for Hopper; timing them needs a GPU."""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch

from quantattn.attention import Mask
from quantattn.cli.benchmarks.shapes import Shape

pytest.importorskip("triton")
from quantattn.attention.kernels.hopper.configs import BACKWARD, FORWARD, SHORT, BackwardConfig, ForwardConfig
from quantattn.cli.benchmarks import tune_hopper
from quantattn.cli.benchmarks.tune_hopper import TABLE, candidates, neighbours

ROWS = [*FORWARD.values(), *SHORT.values(), *BACKWARD.values()]
FOLLOW = {"groups": {"groups", "registers", "spare", "turns", "programs"}}
"""What changes with a setting: a program of other warpgroups has other registers."""


@pytest.mark.parametrize("own", ROWS)
def test_a_neighbour_differs_in_what_it_is_called_by(own: ForwardConfig | BackwardConfig) -> None:
    near = neighbours(own)
    assert len(set(near.values())) == len(near) >= 5
    for name, config in near.items():
        changed = {f.name for f in fields(own) if getattr(config, f.name) != getattr(own, f.name)}
        setting, value = name.split()
        assert setting in changed <= FOLLOW.get(setting, {setting})
        assert str(getattr(config, setting)) == value


@pytest.mark.parametrize("own", ROWS)
def test_the_way_to_a_neighbour_leads_back(own: ForwardConfig | BackwardConfig) -> None:
    for name, config in neighbours(own).items():
        setting = name.split()[0]
        back = [other for way, other in neighbours(config).items() if way == f"{setting} {getattr(own, setting)}"]
        assert len(back) == 1
        assert setting == "groups" or back == [own]


def test_candidates_are_the_row_that_a_shape_runs_with_and_its_neighbours() -> None:
    long, short = (Shape(64, n, 1, 2, 2, Mask()) for n in (8192, 256))
    assert candidates(long, "forward") == {TABLE: FORWARD[64], **neighbours(FORWARD[64])}
    assert candidates(short, "forward") == {TABLE: SHORT[64], **neighbours(SHORT[64])}
    assert candidates(long, "backward") == {TABLE: BACKWARD[64], **neighbours(BACKWARD[64])}
    assert candidates(Shape(256, 512, 1, 2, 2, Mask()), "backward") == {}


@pytest.mark.gpu
def test_rows_on_a_gpu() -> None:
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs a GPU of compute capability 9.0")
    said: list[str] = []
    shape = Shape(64, 256, 2, 4, 2, Mask(causal=True))
    rows = list(tune_hopper.tune([shape], torch.bfloat16, rounds=2, say=said.append))
    timed = {(row.kernel, row.setting) for row in rows}
    assert {("forward", TABLE), ("backward", TABLE)} <= timed
    assert not [sentence for sentence in said if "budget" in sentence]
    assert len(timed) + len(said) == sum(len(candidates(shape, kernel)) for kernel in tune_hopper.PASSES)
