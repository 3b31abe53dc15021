"""What one step does, when a run refuses to go on, and what it leaves behind."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from toy import model, sequences, train

from quantattn.batch import PackedBatch
from quantattn.learn.checkpoint import BEST, LAST, read_checkpoint
from quantattn.learn.datamodule import PlannedLoader, epoch_batches
from quantattn.learn.history import read_rows
from quantattn.learn.module import LossError, step_seed
from quantattn.learn.optimisers import Schedule, parameter_groups
from quantattn.learn.predict import predict
from quantattn.learn.trainer import PRECISIONS, TrainerSettings
from quantattn.nn import Loss, Model, Outcome


def test_only_matrices_outside_embeddings_decay() -> None:
    net = model()
    hidden, other, kept = parameter_groups(net)
    decaying = {"params": hidden["params"] + other["params"]}
    names = {id(p): name for name, p in net.named_parameters()}
    assert kept["weight_decay"] == 0.0
    assert not {"weight_decay"} & {*hidden, *other}
    assert [group["hidden"] for group in (hidden, other, kept)] == [True, False, False]
    assert all("embedding" not in names[id(p)] and p.ndim == 2 for p in decaying["params"])
    assert any("norm" in names[id(p)] for p in kept["params"])
    assert any("embedding" in names[id(p)] for p in kept["params"])
    assert len(decaying["params"]) + len(kept["params"]) == len(names)


@given(st.integers(1, 500), st.floats(0, 1), st.floats(0, 1))
@settings(max_examples=50, deadline=None)
def test_the_schedule_rises_then_falls_to_its_floor(total: int, warmup: float, floor: float) -> None:
    schedule = Schedule(total, warmup, floor)
    shares = [schedule(step) for step in range(total + 1)]
    rising = round(warmup * total)
    assert all(0 <= share <= 1 for share in shares)
    assert shares[:rising] == sorted(shares[:rising])
    assert shares[rising:] == sorted(shares[rising:], reverse=True)
    if rising:
        assert shares[rising - 1] == 1
    if rising < total:
        assert math.isclose(shares[total], floor, abs_tol=1e-12)


def test_every_batch_has_its_own_stream() -> None:
    seeds = {step_seed(seed, stream, index) for seed in range(3) for stream in range(2) for index in range(200)}
    assert len(seeds) == 3 * 2 * 200
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_a_loss_that_is_no_number_stops_the_run_before_the_step(tmp_path: Path) -> None:
    class Poisoned(Outcome):
        def __call__(self, model: Model, batch: PackedBatch, *, step: int | None = None) -> Loss:
            scored = super().__call__(model, batch, step=step)
            if step != 3:
                return scored
            before.update({name: value.clone() for name, value in model.state_dict().items()})
            seen.append(model)
            return scored._replace(loss=scored.loss * math.nan)

    before: dict[str, torch.Tensor] = {}
    seen: list[Model] = []
    with pytest.raises(LossError, match="the loss became nan at step 3"):
        train(tmp_path, objective=Poisoned(), validate_every=2)
    assert before
    assert all(torch.equal(value, before[name]) for name, value in seen[0].state_dict().items())
    assert read_checkpoint(tmp_path / "checkpoints" / LAST)["global_step"] == 2


def test_checkpoints_hold_plain_values_and_the_best_weights_come_back(tmp_path: Path) -> None:
    found, module, _ = train(tmp_path, steps=30, validate_every=5)
    best = read_checkpoint(tmp_path / "checkpoints" / BEST)
    assert best["step"] == found.best_step
    assert best["value"] == found.best_value
    assert all(torch.equal(value, module.state_dict()[name]) for name, value in best["state_dict"].items())
    validations = [value for _, name, value in read_rows(tmp_path / "metrics.csv") if name == "valid/loss"]
    assert len(validations) == 6
    assert min(validations) == found.best_value


def test_the_loader_goes_on_where_it_stood_and_covers_every_epoch() -> None:
    data = sequences(11)
    budget = 15
    length = epoch_batches(data, budget, seed=4, epochs=3)
    whole = PlannedLoader(data, budget, seed=4, shuffle=True, total=length)
    keys = [tuple(batch.keys.tolist()) for batch in whole]
    assert sorted(key for batch in keys for key in batch) == sorted(list(range(11)) * 3)
    for start in range(length):
        later = PlannedLoader(data, budget, seed=4, shuffle=True, total=length)
        later.load_state_dict({"position": start})
        assert [tuple(batch.keys.tolist()) for batch in later] == keys[start:]
    assert [tuple(batch.keys.tolist()) for batch in whole] == keys


def test_predictions_come_in_the_order_of_keys_whatever_the_batches() -> None:
    data, net = sequences(9), model()
    for name, parameter in net.named_parameters():
        torch.nn.init.normal_(parameter, std=0.5) if "project" in name else None
    small, large = (predict(net, data, budget)["prob"] for budget in (5, 45))
    assert small.shape == (9, 2)
    torch.testing.assert_close(small, large, rtol=0, atol=1e-6)
    assert len({tuple(row) for row in small.tolist()}) > 1


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"accelerator": "tpu"}, "trainer.accelerator must be cpu or gpu"),
        ({"max_steps": None}, "one of trainer.max_steps and trainer.max_epochs"),
        ({"max_steps": 0}, "trainer.max_steps must be at least 1"),
        ({"gradient_clip": -1.0}, "trainer.gradient_clip must be 0 or more"),
    ],
)
def test_settings_are_refused_in_one_sentence(change: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        replace(TrainerSettings(), **change)  # type: ignore[arg-type]


@pytest.mark.parametrize("precision", [name for name in PRECISIONS if name != "16-mixed"])
def test_every_precision_that_a_cpu_is_offered_trains_there(precision: str, tmp_path: Path) -> None:
    found, module, _ = train(tmp_path, steps=1, validate_every=1, precision=precision)
    assert math.isfinite(found.best_value)
    assert {p.dtype for p in module.parameters()} == {torch.float32}


def test_validation_draws_what_no_step_of_training_draws_and_the_same_every_time(tmp_path: Path) -> None:
    """Objectives draw what they mask from the number of their step."""
    asked: list[int] = []

    class Recorded(Outcome):
        def __call__(self, model: Model, batch: PackedBatch, *, step: int = 0) -> Loss:
            asked.append(step)
            return super().__call__(model, batch, step=step)

    train(tmp_path, steps=4, validate_every=2, objective=Recorded())
    validation = [step for step in asked if step < 0]
    assert [step for step in asked if step >= 0] == [0, 1, 2, 3]
    assert len(validation) > 2
    assert validation[: len(validation) // 2] == validation[len(validation) // 2 :]
    assert len(set(validation)) == len(validation) // 2


def test_of_equal_validations_the_first_is_the_best(tmp_path: Path) -> None:
    found, _, _ = train(tmp_path, steps=6, validate_every=1, monitor="valid/accuracy", mode="max")
    figures = {step: value for step, name, value in read_rows(tmp_path / "metrics.csv") if name == "valid/accuracy"}
    equal = [step for step, value in figures.items() if value == max(figures.values())]
    assert len(equal) > 1, "the control: there is a tie"
    assert found.best_step == equal[0]
