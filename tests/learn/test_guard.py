"""Which rows made the loss no number, and which figure is not there to be watched."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping
from toy import model, sequences, train

from quantattn.batch import PackedBatch, Vectors
from quantattn.learn.guard import bad_sequence, moment, sequences_of, whereabouts
from quantattn.learn.module import LossError
from quantattn.nn import Loss, Model, Outcome


def planted(sequence: int, n: int = 7) -> PackedBatch:
    """n sequences of five tokens, the third token of one of them infinite."""
    batch = sequences(n).pack(range(n))
    column = batch.fields["size_value"].clone()
    column[5 * sequence + 2] = math.inf
    return replace(batch, fields={**batch.fields, "size_value": column})


@pytest.mark.parametrize("sequence", range(7))
def test_the_sequence_that_is_no_number_is_found_and_named(sequence: int) -> None:
    batch, net = planted(sequence), model()
    torch.nn.init.ones_(net.heads["label"].project.weight)  # type: ignore[union-attr,arg-type]
    assert not math.isfinite(float(Outcome()(net, batch).loss.detach()))
    assert bad_sequence(net, Outcome(), batch, 0) == sequence
    said = whereabouts(batch, sequence)
    assert said.startswith(
        f"sequence {sequence} of 7: 5 tokens, 1970-01-01T00:00:00Z … 1970-01-01T00:00:00Z, decisions"
    )
    assert said.endswith(f"decisions {sequence}, size_value is infinite at its row 2")
    assert bad_sequence(net, Outcome(), sequences(7).pack(range(7)), 0) is None, "the control: nothing is wrong"


def test_sequences_of_a_batch_are_those_that_were_packed_alone() -> None:
    data = sequences(6)
    batch = replace(data.pack(range(6)), vectors={"v": Vectors(torch.tensor([3, 12, 29]), torch.ones(3, 2))})
    part, alone = sequences_of(batch, 2, 4).check(), data.pack([2, 3])
    for name in ("time", "cu_seqlens", "positions", "keys"):
        assert torch.equal(getattr(part, name), getattr(alone, name))
    assert all(torch.equal(part.fields[name], alone.fields[name]) for name in alone.fields)
    assert torch.equal(part.targets["label"], alone.targets["label"])
    assert part.vectors["v"].rows.tolist() == [2]


def test_a_run_says_which_batch_and_which_rows(tmp_path: Path) -> None:
    class Poisoned(Outcome):
        def __call__(self, model: Model, batch: PackedBatch, *, step: int | None = None) -> Loss:
            scored = super().__call__(model, batch, step=step)
            return scored._replace(loss=scored.loss * math.nan) if 4 in batch.keys.tolist() and step >= 0 else scored

    with pytest.raises(
        LossError, match=r"batch \d of the run, \d sequences, \d+ tokens; sequence \d of .*, decisions 4\)"
    ):
        train(tmp_path, steps=6, objective=Poisoned())


def test_a_figure_that_is_not_logged_is_refused_before_the_first_step(tmp_path: Path) -> None:
    for name, hint in (("valid/los", "did you mean 'valid/loss'"), ("valid/acuracy", "did you mean 'valid/accuracy'")):
        with pytest.raises(ValueError, match=rf"EarlyStopping watches monitor='{name}'.*{hint}"):
            train(tmp_path / name, callbacks=[EarlyStopping(name)])
        assert not (tmp_path / name / "checkpoints").exists()
    found, _, _ = train(tmp_path / "fine", steps=2, callbacks=[EarlyStopping("valid/accuracy", mode="max")])
    assert found.step == 2


def test_a_moment_is_told_to_the_second() -> None:
    assert moment(int(np.datetime64("2024-01-03T10:11:12", "ns").astype(np.int64)) + 999) == "2024-01-03T10:11:12Z"
