"""The temperature is where the loss is least, and folding it changes probabilities alone."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.nn import functional

from quantattn.batch import IGNORE
from quantattn.nn import Model, Outcome
from quantattn.nn.temperature import COLDEST, fitted_temperature, fold_temperature


def test_two_classes_by_hand() -> None:
    """Four rows say 0.9 of a class that comes three times: the best say ¾, and (ln 9) / T = ln 3 at T = 2."""
    prob = torch.tensor([[0.1, 0.9]] * 4)
    assert fitted_temperature(prob, torch.tensor([1, 1, 1, 0])) == pytest.approx(2, rel=1e-6)
    assert fitted_temperature(prob, torch.tensor([1, 1, 1, 0]).repeat_interleave(2)[::2]) == pytest.approx(2, rel=1e-6)
    with_none = torch.cat([prob, torch.tensor([[1.0, 0.0]])])
    assert fitted_temperature(with_none, torch.tensor([1, 1, 1, 0, IGNORE])) == pytest.approx(2, rel=1e-6)


@pytest.mark.parametrize("true", [0.5, 1.0, 3.0])
def test_the_temperature_that_was_planted_is_found(true: float) -> None:
    torch.manual_seed(0)
    logits = 3 * torch.randn(20_000, 3, dtype=torch.float64)
    label = torch.multinomial(logits.softmax(-1), 1).squeeze(1)
    found = fitted_temperature((logits * true).softmax(-1), label)
    assert found == pytest.approx(true, rel=0.05)

    def loss(temperature: float) -> float:
        return float(functional.cross_entropy(logits * true / temperature, label))

    assert loss(found) < min(loss(found * 1.01), loss(found / 1.01))


def test_rows_without_a_mistake_ask_for_the_coldest() -> None:
    assert fitted_temperature(torch.tensor([[0.4, 0.6]]), torch.tensor([1])) == pytest.approx(COLDEST)
    with pytest.raises(ValueError, match="rows with a label, and there is none"):
        fitted_temperature(torch.tensor([[0.4, 0.6]]), torch.tensor([IGNORE]))


def test_folding_changes_probabilities_and_no_decision(packs: Any, tiny: Any) -> None:
    encoder = tiny()
    model = Model(encoder, Outcome().heads(encoder.config, packs.classes))
    head: Any = model.heads["label"]
    torch.nn.init.normal_(head.project.weight)
    before = model.score(packs.random([5, 8, 3]))["prob"]
    fold_temperature(head, 2.5)
    after = model.score(packs.random([5, 8, 3]))["prob"]
    torch.testing.assert_close(after, (before.log() / 2.5).softmax(-1))
    assert torch.equal(after.argmax(-1), before.argmax(-1))
    assert math.isclose(float(after.sum()), 3, rel_tol=1e-5)
