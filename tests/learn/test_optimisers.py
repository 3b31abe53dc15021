"""Groups, schedules, Muon beside AdamW, averaged weights, and the gradient that is no number."""

from __future__ import annotations

import copy
import functools
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from toy import model, train

from quantattn.batch import PackedBatch
from quantattn.learn.averaging import WeightAverage
from quantattn.learn.checkpoint import BEST, LAST, read_checkpoint
from quantattn.learn.history import read_rows
from quantattn.learn.module import LossError
from quantattn.learn.optimisers import MuonAdamW, Schedule, gradient_norm, parameter_groups
from quantattn.learn.tuning import Tuning, depth_of, restrain
from quantattn.nn import Loss, Model, Outcome


def test_schedules_by_hand() -> None:
    """Ten steps, two of which rise, to a tenth of the peak; the cooldown is over the last fifth of the eight."""
    at = {shape: [Schedule(10, 0.2, 0.1, shape)(step) for step in range(11)] for shape in ("linear", "constant")}
    assert at["linear"] == pytest.approx([0.5, 1, *(1 - 0.9 * k / 8 for k in range(9))])
    assert at["constant"] == [0.5, *[1] * 10]
    cooldown = Schedule(102, 2 / 102, 0.0, "cooldown")
    assert [cooldown(step) for step in (1, 50, 82, 92, 102)] == pytest.approx([1, 1, 1, 0.5, 0])
    with pytest.raises(ValueError, match="schedule must be one of cosine, linear, constant, cooldown, got 'sine'"):
        Schedule(10, shape="sine")


def test_every_layer_has_its_learning_rate() -> None:
    net = model()
    depth = functools.partial(depth_of, n_layers=1)
    groups = parameter_groups(net, depth, 0.5)
    scale = {id(p): group["lr_scale"] for group in groups for p in group["params"]}
    found = {name: scale[id(p)] for name, p in net.named_parameters()}
    assert {found[name] for name in found if name.startswith("heads")} == {1.0}
    assert found["encoder.norm.weight"] == 1.0
    assert {found[name] for name in found if name.startswith("encoder.blocks.0")} == {0.5}
    assert {found[name] for name in found if name.startswith("encoder.embedding")} == {0.25}


def linears(seed: int) -> list[dict[str, Any]]:
    torch.manual_seed(seed)
    hidden = [torch.nn.Parameter(torch.randn(6, 4)), torch.nn.Parameter(torch.randn(3, 5))]
    other = [torch.nn.Parameter(torch.randn(7))]
    return [{"params": hidden, "hidden": True}, {"params": other, "hidden": False, "weight_decay": 0.0}]


def steps(optimizer: torch.optim.Optimizer, groups: list[dict[str, Any]], count: int) -> None:
    draw = torch.Generator().manual_seed(5)
    for _ in range(count):
        for group in groups:
            for parameter in group["params"]:
                parameter.grad = torch.randn(parameter.shape, generator=draw)
        optimizer.step()


def test_muon_and_adamw_together_are_each_of_them_alone() -> None:
    together, alone = linears(0), linears(0)
    steps(MuonAdamW(together, lr=0.02, weight_decay=0.1), together, 4)
    muon = torch.optim.Muon(alone[0]["params"], lr=0.02, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    adamw = torch.optim.AdamW(alone[1]["params"], lr=0.02, weight_decay=0.0, betas=(0.9, 0.98), eps=1e-8)
    draw = torch.Generator().manual_seed(5)
    for _ in range(4):
        for group in alone:
            for parameter in group["params"]:
                parameter.grad = torch.randn(parameter.shape, generator=draw)
        muon.step()
        adamw.step()
    pairs = zip(together, alone, strict=True)
    assert all(torch.equal(a, b) for one, two in pairs for a, b in zip(one["params"], two["params"], strict=True))


def test_muon_goes_on_from_its_state_to_the_bit() -> None:
    unbroken, parts, forgetful = linears(1), linears(1), linears(1)
    optimizer = MuonAdamW(unbroken)
    steps(optimizer, unbroken, 2)
    steps(optimizer, unbroken, 3)
    for groups in (parts, forgetful):
        first, second = MuonAdamW(groups), MuonAdamW(groups)
        steps(first, groups, 2)
        if groups is parts:
            second.load_state_dict(copy.deepcopy(first.state_dict()))
        steps(second, groups, 3)
        assert len(second.state) == 3
    for place, parameter in enumerate(p for group in unbroken for p in group["params"]):
        resumed, anew = ([p for group in groups for p in group["params"]][place] for groups in (parts, forgetful))
        assert torch.equal(parameter, resumed)
        assert not torch.equal(parameter, anew), "the control: the state matters"


def test_without_matrices_muon_is_adamw() -> None:
    groups = linears(2)[1:]
    optimizer = MuonAdamW(groups)
    steps(optimizer, groups, 1)
    assert len(optimizer.param_groups) == 1


def test_the_norm_of_the_gradient_is_that_of_all_entries_and_is_logged(tmp_path: Path) -> None:
    net = model()
    for parameter in net.parameters():
        parameter.grad = torch.full_like(parameter, 2.0)
    n = sum(p.numel() for p in net.parameters())
    assert float(gradient_norm(net.parameters())) == pytest.approx(2 * math.sqrt(n), rel=1e-6)
    assert float(gradient_norm([torch.zeros(3)])) == 0
    train(tmp_path, steps=2, validate_every=2, gradient_clip=1e-6)
    norms = [value for _, name, value in read_rows(tmp_path / "metrics.csv") if name == "train/grad_norm"]
    assert len(norms) == 2
    assert min(norms) > 1e-3, "before it is clipped"


def test_a_gradient_that_is_no_number_stops_the_run_before_the_step(tmp_path: Path) -> None:
    """√x has the value 0 and the slope ∞ at x = 0: the loss is a number, its gradient none."""

    class Steep(Outcome):
        def __call__(self, model: Model, batch: PackedBatch, *, step: int | None = None) -> Loss:
            scored = super().__call__(model, batch, step=step)
            if step != 3:
                return scored
            before.update({name: value.clone() for name, value in model.state_dict().items()})
            seen.append(model)
            return scored._replace(loss=scored.loss + (0 * scored.loss).sqrt())

    before: dict[str, torch.Tensor] = {}
    seen: list[Model] = []
    with pytest.raises(LossError, match=r"the gradient became (nan|inf) at step 3"):
        train(tmp_path, objective=Steep(), validate_every=2)
    assert before
    assert all(torch.equal(value, before[name]) for name, value in seen[0].state_dict().items())
    assert read_checkpoint(tmp_path / "checkpoints" / LAST)["global_step"] == 2


class Weights(Callback):
    """Remembers the weights after every step and at every validation."""

    def __init__(self) -> None:
        self.trained: list[dict[str, torch.Tensor]] = []
        self.validated: list[dict[str, torch.Tensor]] = []

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *given: Any) -> None:
        self.trained.append({name: value.clone() for name, value in pl_module.state_dict().items()})

    def on_validation_batch_start(self, trainer: Any, pl_module: Any, *given: Any) -> None:
        self.validated.append({name: value.clone() for name, value in pl_module.state_dict().items()})


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return set(one) == set(other) and all(torch.equal(value, other[name]) for name, value in one.items())


def test_the_mean_of_the_weights_is_validated_and_kept_and_changes_no_step(tmp_path: Path) -> None:
    watched = Weights()
    found, module, _ = train(tmp_path / "mean", steps=4, validate_every=4, callbacks=[watched, WeightAverage(0.5)])
    plain = Weights()
    train(tmp_path / "plain", steps=4, validate_every=4, callbacks=[plain])
    assert all(same(a, b) for a, b in zip(watched.trained, plain.trained, strict=True))
    mean = dict(watched.trained[0])
    for weights in watched.trained[1:]:
        mean = {name: 0.5 * value + 0.5 * weights[name] for name, value in mean.items()}
    for name, value in watched.validated[-1].items():
        torch.testing.assert_close(value, mean[name])
    best = read_checkpoint(tmp_path / "mean" / "checkpoints" / BEST)
    assert best["step"] == found.best_step == 4
    assert same(best["state_dict"], watched.validated[-1])
    assert same(module.state_dict(), watched.validated[-1])


def test_the_mean_goes_on_from_a_checkpoint_to_the_bit(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"validate_every": 2, "checkpoint_every": 1}
    _, whole, _ = train(tmp_path / "whole", steps=6, callbacks=[WeightAverage(0.9)], **settings)

    class Killed(Exception):
        pass

    class Kill(Callback):
        def on_train_batch_start(self, trainer: Any, *given: Any) -> None:
            if trainer.global_step == 3:
                raise Killed

    with pytest.raises(Killed):
        train(tmp_path / "part", steps=6, callbacks=[WeightAverage(0.9), Kill()], **settings)
    last = tmp_path / "part" / "checkpoints" / LAST
    _, resumed, _ = train(tmp_path / "part", steps=6, callbacks=[WeightAverage(0.9)], resume=last, **settings)
    assert same(whole.state_dict(), resumed.state_dict())
    ends = [read_checkpoint(tmp_path / run / "checkpoints" / LAST) for run in ("whole", "part")]
    assert same(ends[0]["state_dict"], ends[1]["state_dict"])
    assert same(ends[0]["current_model_state"], ends[1]["current_model_state"])
    assert not same(ends[0]["current_model_state"], ends[0]["state_dict"])


def test_frozen_parts_stay_to_the_bit_and_drop_nothing(tmp_path: Path) -> None:
    net = model(dropout=0.5)
    frozen = restrain(net, Tuning(freeze=("encoder",)))
    assert frozen == (net.encoder,)
    with pytest.raises(ValueError, match=r"the model has no part 'encodr'; it has encoder, encoder\.embedding"):
        restrain(model(), Tuning(freeze=("encodr",)))
    with pytest.raises(ValueError, match="leaves nothing to train"):
        restrain(model(), Tuning(freeze=("encoder", "heads")))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"layer_decay": 0.0}, "layer_decay must lie in"),
        ({"adapter_rank": -1}, "0 or more"),
        ({"adapter_alpha": 0.0}, "p"),
    ],
)
def test_wrong_tunings_are_named(given: dict[str, float], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Tuning(**given)  # type: ignore[arg-type]
