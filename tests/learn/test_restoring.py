"""What a checkpoint brings back is held against what the run would write; what is left out follows its settings."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping
from toy import train

from quantattn.learn.checkpoint import read_checkpoint, write_checkpoint
from quantattn.learn.history import read_rows
from quantattn.learn.module import Schedule


def going_on(folder: Path, steps: int, resume: Path | None = None) -> Any:
    return train(
        folder, steps=steps, validate_every=3, resume=resume, callbacks=[EarlyStopping("valid/loss", patience=9)]
    )


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three steps."""
    folder = tmp_path_factory.mktemp("begun") / "run"
    going_on(folder, 3)
    return folder


STOPPING = "EarlyStopping{'monitor': 'valid/loss', 'mode': 'min'}"
FORGED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "words": (
        lambda s: s["callbacks"][STOPPING].update(wait_count="x"),
        r"holds a str as callbacks\.EarlyStopping\.wait_count, expected a number",
    ),
    "nothing": (
        lambda s: s["callbacks"][STOPPING].update(best_score=None),
        r"holds a NoneType as callbacks\.EarlyStopping\.best_score, expected a tensor of torch\.float32 \(\)",
    ),
    "a list": (
        lambda s: s["callbacks"].update({STOPPING: []}),
        r"holds a list as callbacks\.EarlyStopping, expected a dict",
    ),
    "a shape": (
        lambda s: s["callbacks"]["Checkpoints"]["generators"].update(torch=torch.zeros(3)),
        r"holds a tensor of torch\.float32 \(3,\) as callbacks\.Checkpoints\.generators\.torch, expected a tensor of",
    ),
    "no generators": (lambda s: s["callbacks"]["Checkpoints"].pop("generators"), "KeyError, 'generators'"),
    "a word for the best": (lambda s: s["callbacks"]["Checkpoints"].update(best="x"), "best figure must be a number"),
    "no total": (
        lambda s: s["loops"]["fit_loop"]["epoch_progress"].pop("total"),
        "is no state that this run can go on from: KeyError, 'total'",
    ),
    "an optimizer without eps": (
        lambda s: s["optimizer_states"][0]["param_groups"][0].pop("eps"),
        "is no state that this run can go on from: KeyError, 'eps'",
    ),
    "an optimizer's tensor of another shape": (
        lambda s: s["optimizer_states"][0]["state"][1].update(exp_avg=torch.zeros(3)),
        r"holds a tensor of torch\.float32 \(3,\) as optimizer_states\.0\.1\.exp_avg, expected a tensor of torch",
    ),
    "a number for a matrix": (
        lambda s: s["optimizer_states"][0]["state"][0].update(exp_avg_sq=torch.zeros(())),
        r"holds a tensor of torch\.float32 \(\) as optimizer_states\.0\.0\.exp_avg_sq, expected a tensor of",
    ),
    "an optimizer of words": (
        lambda s: s["optimizer_states"][0]["state"].update({0: "x"}),
        r"holds a str as optimizer_states\.0\.0, expected a dict",
    ),
    "no optimizer": (lambda s: s.update(optimizer_states=[]), "holds states of 0 optimizers, expected 1"),
    "rates": (lambda s: s["lr_schedulers"][0].update(base_lrs="x"), "can go on from: (Type|Value)Error"),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_state_of_another_kind_is_refused_in_a_sentence_and_nothing_is_lost(
    begun: Path, tmp_path: Path, name: str
) -> None:
    change, words = FORGED[name]
    folder = Path(shutil.copytree(begun, tmp_path / "run"))
    last = folder / "checkpoints" / "last.ckpt"
    state = read_checkpoint(last)
    change(state)
    write_checkpoint(state, last)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match=words) as raised:
        going_on(folder, 6, last)
    assert str(raised.value).startswith(str(last))
    assert "\n" not in str(raised.value)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_a_run_that_is_now_to_be_longer_follows_the_schedule_of_its_new_length(begun: Path, tmp_path: Path) -> None:
    """The rate of a step depends on the step and the settings alone, also of the first one after the checkpoint."""
    folder = Path(shutil.copytree(begun, tmp_path / "run"))
    found, _, _ = going_on(folder, 8, folder / "checkpoints" / "last.ckpt")
    assert found.step == 8
    rates = {step: value for step, name, value in read_rows(folder / "metrics.csv") if name == "train/lr"}
    short, long = Schedule(3), Schedule(8)
    assert rates == pytest.approx({s: 0.01 * (short if s <= 3 else long)(s - 1) for s in range(1, 9)}, rel=1e-6)
    assert rates[4] > 4 * 0.01 * short(3), "the old schedule had come to its end"
    whole, _, _ = going_on(tmp_path / "whole", 8)
    assert whole.step == 8
    unbroken = {
        step: value for step, name, value in read_rows(tmp_path / "whole" / "metrics.csv") if name == "train/lr"
    }
    assert {step: rates[step] for step in range(4, 9)} == {step: unbroken[step] for step in range(4, 9)}
