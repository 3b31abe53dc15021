"""Losses of outcomes, each against its formula worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import norm
from torch import Tensor

from quantattn.batch import IGNORE
from quantattn.nn import Gaussian, GaussianConfig, Model, OrdinalConfig, Outcome, Quantile, QuantileConfig, TrainingRows
from quantattn.nn.heads import head_from_dict, head_to_dict, make_head


class Said(Model):
    """A model whose head says what it is told, whatever the batch."""

    def __init__(self, encoder: Any, heads: Any, output: Tensor) -> None:
        super().__init__(encoder, heads)
        self.output = torch.nn.Parameter(output)

    def forward(self, batch: Any) -> dict[str, Tensor]:
        return dict.fromkeys(self.heads, self.output)


def scored(objective: Any, tiny: Any, packs: Any, output: Tensor, target: Tensor) -> tuple[Any, Said]:
    batch = replace(packs.random([2] * len(target)), targets={"label": target})
    encoder = tiny()
    model = Said(encoder, objective.heads(encoder.config, packs.classes), output)
    return objective(model, batch), model


def rows(label: Any, classes: tuple[str, ...] = ("down", "flat", "up")) -> TrainingRows:
    return TrainingRows({"label": torch.as_tensor(label)}, classes, torch.zeros(0, dtype=torch.float64))


LOGITS = torch.tensor([[0.0, math.log(2), 0.0], [math.log(6), 0.0, 0.0], [0.0, 0.0, 0.0]])  # p = ½, ¾, ⅓ of the labels
LABEL = torch.tensor([1, 0, 2])


def test_focal_loss_by_hand(packs: Any, tiny: Any) -> None:
    """(1 − ½)² ln 2, (1 − ¾)² ln 4/3 and (1 − ⅓)² ln 3."""
    found, _ = scored(Outcome(focal=2.0), tiny, packs, LOGITS, LABEL)
    expected = (math.log(2) / 4 + math.log(4 / 3) / 16 + math.log(3) * 4 / 9) / 3
    assert found.loss.item() == pytest.approx(expected, rel=1e-6)
    assert found.logs["log_loss"].item() == pytest.approx(math.log(2 * 4 / 3 * 3) / 3, rel=1e-6)


def test_focal_loss_of_zero_is_cross_entropy_to_the_bit_with_its_gradient(packs: Any, tiny: Any) -> None:
    losses = []
    for objective in (Outcome(), Outcome(focal=0.0)):
        found, model = scored(objective, tiny, packs, LOGITS, LABEL)
        found.loss.backward()
        losses.append((found.loss, model.output.grad))
    assert torch.equal(losses[0][0], losses[1][0])
    assert torch.equal(losses[0][1], losses[1][1])
    other, _ = scored(Outcome(focal=1e-6), tiny, packs, LOGITS, LABEL)
    torch.testing.assert_close(other.loss, losses[0][0])


@pytest.mark.parametrize("focal", [0.5, 1.0, 2.0])
def test_a_model_that_is_sure_gets_a_finite_gradient_from_focal_loss(packs: Any, tiny: Any, focal: float) -> None:
    """d/dx of (1 − p)^γ is infinite at p = 1 for γ < 1; and a decision without a label must not become 0 · ∞."""
    sure = torch.tensor([[0.0, 200.0, 0.0], [200.0, 0.0, 0.0], [1.0, 2.0, 3.0]])
    found, model = scored(Outcome(focal=focal), tiny, packs, sure, torch.tensor([1, 1, IGNORE]))
    found.loss.backward()
    assert model.output.grad is not None
    assert bool(model.output.grad.isfinite().all())
    assert not model.output.grad[2].any()
    assert model.output.grad[1].any()


def test_balanced_weights_give_every_class_the_same_say() -> None:
    """Of 8 labelled rows 4, 3 and 1: 8 / (3 · n_k); what has no label does not count."""
    fitted = Outcome(class_weights="balanced").fitted(rows([0, 0, 1, 2, 0, 1, 1, 0, IGNORE]))
    assert fitted.class_weights == pytest.approx((8 / 12, 8 / 9, 8 / 3), rel=1e-12)
    assert Outcome((1, 2, 3)).fitted(rows([0])) == Outcome((1, 2, 3))
    with pytest.raises(ValueError, match="'up' has none"):
        Outcome(class_weights="balanced").fitted(rows([0, 1]))
    with pytest.raises(ValueError, match="fit the objective to them first"):
        Outcome(class_weights="balanced").heads(None, ("a", "b"))  # type: ignore[arg-type]


def test_ordinal_probabilities_are_differences_of_logistic_functions(tiny: Any) -> None:
    head = make_head(tiny().config, OrdinalConfig(("a", "b", "c", "d"))).double()
    torch.nn.init.normal_(head.project.weight)
    with torch.no_grad():
        head.first_cut.fill_(-1.5)
        head.log_width.copy_(torch.tensor([0.0, math.log(0.25)]))
    pooled = torch.randn(6, 64, dtype=torch.float64)
    score = head.project(pooled)[:, 0].detach().numpy()
    above = [1 / (1 + np.exp(-(score - cut))) for cut in (-1.5, -0.5, -0.25)]
    above = [np.ones(6), *above, np.zeros(6)]
    expected = np.stack([high - low for high, low in pairwise(above)], axis=1)
    np.testing.assert_allclose(head(pooled).detach().exp().numpy(), expected, rtol=1e-5)
    np.testing.assert_allclose(head.scores(head(pooled))["prob"].detach().numpy(), expected, rtol=1e-5)


def test_an_untrained_ordinal_model_is_undecided_and_far_scores_stay_finite(packs: Any, tiny: Any) -> None:
    objective, encoder = Outcome(ordinal=True), tiny()
    model = Model(encoder, objective.heads(encoder.config, packs.classes))
    found = objective(model, packs.random([5, 8, 3]))
    assert found.loss.item() == pytest.approx(math.log(3), abs=1e-6)
    head = model.heads["label"]
    torch.nn.init.constant_(head.project.bias, 300.0)  # type: ignore[arg-type]
    far = objective(model, replace(packs.random([5]), targets={"label": torch.tensor([0])}))
    far.loss.backward()
    assert far.loss.item() == pytest.approx(300 + math.log(2), rel=1e-4)  # −ln σ(b_0 − 300) = 300 − b_0, b_0 = −ln 2
    assert head.project.bias.grad.item() == pytest.approx(1.0, rel=1e-4)  # type: ignore[union-attr]


def test_an_ordinal_model_puts_the_middle_between(tiny: Any) -> None:
    """As the score rises the likeliest class goes through all of them in order; a softmax need not."""
    head = make_head(tiny().config, OrdinalConfig(("a", "b", "c", "d", "e")))
    torch.nn.init.ones_(head.project.weight)
    torch.nn.init.ones_(head.log_width)  # cuts e apart, so that there is room for each class
    line = torch.linspace(-0.3, 0.3, 101)[:, None].expand(-1, 64)
    likeliest = head(line).argmax(dim=-1).tolist()
    assert likeliest == sorted(likeliest)
    assert set(likeliest) == {0, 1, 2, 3, 4}


def test_pinball_loss_by_hand(packs: Any, tiny: Any) -> None:
    """y = 3 against 1, 2, 5 at ¼, ½, ¾: ¼ · 2, ½ · 1 and (¾ − 1) · (−2); y unknown counts nothing."""
    objective = Quantile(levels=(0.25, 0.5, 0.75))
    output = torch.tensor([[1.0, 2.0, 5.0], [9.0, 9.0, 9.0]])
    found, model = scored(objective, tiny, packs, output, torch.tensor([3.0, torch.nan]))
    assert found.loss.item() == pytest.approx((0.5 + 0.5 + 0.5) / 3)
    assert found.logs["mae"].item() == 1.0
    found.loss.backward()
    torch.testing.assert_close(model.output.grad, torch.tensor([[-0.25, -0.5, 0.25], [0, 0, 0]]) / 3)


@pytest.mark.parametrize("level", [0.1, 0.5, 0.9])
def test_pinball_loss_is_least_at_the_quantile(packs: Any, tiny: Any, level: float) -> None:
    values = torch.randn(101, generator=torch.Generator().manual_seed(0))
    levels = tuple(sorted({level, 0.5}))
    objective, place = Quantile(levels), levels.index(level)

    def loss(guess: float) -> float:
        output = torch.zeros(101, len(levels))
        output[:, place] = guess
        return float(scored(objective, tiny, packs, output, values)[0].loss.detach())

    candidates = sorted(values.tolist())
    best = min(candidates, key=loss)
    assert best == candidates[round(level * 100)]


def test_gaussian_likelihood_is_that_of_scipy(packs: Any, tiny: Any) -> None:
    objective = Gaussian(mean=2.0, std=4.0)
    output, target = torch.tensor([[0.5, -1.0], [0.0, 0.3], [1.0, 1.0]]), torch.tensor([3.0, -5.0, torch.nan])
    found, model = scored(objective, tiny, packs, output, target)
    said = model.heads["label"].scores(output)
    own = -norm.logpdf(target[:2].numpy(), said["value"][:2].numpy(), said["deviation"][:2].numpy())
    assert found.loss.item() + math.log(4.0) == pytest.approx(own.mean(), rel=1e-6)
    assert said["value"].tolist() == pytest.approx([4.0, 2.0, 6.0])
    found.loss.backward()
    assert model.output.grad is not None
    assert not model.output.grad[2].any()


def test_crossing_quantiles_are_put_in_order(tiny: Any) -> None:
    head = make_head(tiny().config, QuantileConfig((0.1, 0.5, 0.9), mean=10.0, std=2.0))
    said = head.scores(torch.tensor([[1.0, -1.0, 0.0]]))
    assert {name: rows.item() for name, rows in said.items()} == {
        "value": 10.0,
        "quantile_0.1": 8.0,
        "quantile_0.5": 10.0,
        "quantile_0.9": 12.0,
    }


def test_levels_that_are_nearly_equal_have_names_of_their_own(tiny: Any) -> None:
    levels = (0.0123456, 0.01234561, 0.1 + 0.2, 0.5)
    said = make_head(tiny().config, QuantileConfig(levels)).scores(torch.tensor([[1.0, 2.0, 3.0, 4.0]]))
    assert {name: rows.item() for name, rows in said.items() if name != "value"} == {
        f"quantile_{level}": place for place, level in enumerate(levels, start=1)
    }


@pytest.mark.parametrize("objective", [Quantile(), Gaussian()])
def test_objectives_of_values_are_fitted_to_training_rows(objective: Any) -> None:
    fitted = objective.fitted(rows([1.0, torch.nan, 3.0, 5.0]))
    assert (fitted.mean, fitted.std) == (3.0, 2.0)
    assert objective.fitted(rows(torch.full((7,), 0.7, dtype=torch.float64))).std == 1.0
    with pytest.raises(ValueError, match="two training rows with a target or more, got 1"):
        objective.fitted(rows([1.0, torch.nan]))


@pytest.mark.parametrize("objective", [Outcome(focal=0.5), Outcome(ordinal=True), Quantile(), Gaussian()])
def test_no_labelled_decision_gives_zero_and_no_gradient(packs: Any, tiny: Any, objective: Any) -> None:
    none = torch.full((2,), IGNORE) if isinstance(objective, Outcome) else torch.full((2,), torch.nan)
    for batch in (
        replace(packs.random([5, 8]), targets={"label": none}),
        replace(packs.random([]), targets={"label": none[:0]}),
    ):
        encoder = tiny()
        model = Model(encoder, objective.heads(encoder.config, packs.classes))
        loss = objective(model, batch)
        loss.loss.backward()
        assert loss.loss.item() == 0.0
        assert all(p.grad is None or not p.grad.any() for p in model.parameters())


@pytest.mark.parametrize(
    "config", [OrdinalConfig(("a", "b")), QuantileConfig((0.1, 0.5)), GaussianConfig(1.0, 2.0, "mean")]
)
def test_configurations_survive_json(config: Any) -> None:
    plain = head_to_dict(config)
    again = head_from_dict(plain)
    assert (again, type(again)) == (config, type(config))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Outcome(focal=-1.0), "focal must be 0 or more, got -1.0"),
        (lambda: Outcome(class_weights="inverse"), "must be numbers, balanced or null, got 'inverse'"),
        (lambda: Quantile((0.5, 0.1)), "levels must rise"),
        (lambda: Quantile((0.1, 0.9)), "have 0.5 among them"),
        (lambda: Quantile((0.0, 0.5)), "levels must rise within"),
        (lambda: Quantile((0.5,), std=0.0), "std must be positive"),
    ],
)
def test_wrong_objectives_are_named(make: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()
