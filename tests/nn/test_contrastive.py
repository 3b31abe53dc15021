"""Objectives that compare slices: the loss by hand, and slices that are what they are alone."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from quantattn.batch import Vectors
from quantattn.nn import Coles, Model, NextWindow
from quantattn.nn.objectives.contrastive import contrastive_loss, nearest_is_own
from quantattn.nn.objectives.slices import slices_of

POINTS = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.6, 0.8]])
LABEL = torch.tensor([0, 0, 1, 1])


def test_the_loss_of_coles_by_hand() -> None:
    """Own pairs: 2 and 3.2 squared. Nearest of the other: √0.8, √0.4, √2, √0.4; the third lies beyond the margin."""
    hinge = (1 - math.sqrt(0.8)) ** 2 + 2 * (1 - math.sqrt(0.4)) ** 2
    assert contrastive_loss(POINTS, LABEL, 1.0, 1).item() == pytest.approx((2 + 3.2 + hinge) / (2 + 4), rel=1e-5)
    both = hinge + (1 - math.sqrt(0.8)) ** 2  # the second negative of the fourth; all others lie beyond
    assert contrastive_loss(POINTS, LABEL, 1.0, 2).item() == pytest.approx((2 + 3.2 + both) / (2 + 8), rel=1e-5)
    assert contrastive_loss(POINTS, LABEL, 1.0, 9).item() == pytest.approx((2 + 3.2 + both) / (2 + 8), rel=1e-5)
    assert nearest_is_own(POINTS, LABEL) == 0
    assert nearest_is_own(POINTS, torch.tensor([0, 1, 2, 1])) == 0.5


def test_the_loss_draws_own_slices_together_and_pushes_others_apart() -> None:
    points = POINTS.clone().requires_grad_()
    contrastive_loss(points, LABEL, 1.0, 1).backward()
    moved = (points - 0.05 * points.grad).detach()  # type: ignore[operator]
    before, after = torch.cdist(POINTS, POINTS), torch.cdist(moved, moved)
    assert after[0, 1] < before[0, 1]
    assert after[2, 3] < before[2, 3]
    pair = POINTS[[1, 3]].requires_grad_()
    contrastive_loss(pair, torch.tensor([0, 1]), 1.0, 1).backward()
    apart = (pair - 0.05 * pair.grad).detach()  # type: ignore[operator]
    assert torch.dist(*apart) > torch.dist(*pair.detach()) + 0.01


def test_slices_are_the_rows_that_they_were_cut_from_and_are_embedded_as_alone(packs: Any, tiny: Any) -> None:
    batch = packs.random([9, 4, 12])
    carried = Vectors(torch.tensor([2, 10, 20]), torch.arange(6.0).view(3, 2))
    batch = replace(batch, vectors={"v": carried})
    cut = slices_of(batch, [0, 1, 14], [3, 9, 25]).check()
    rows = [*range(3), *range(1, 9), *range(14, 25)]
    assert all(torch.equal(cut.fields[name], column[rows]) for name, column in batch.fields.items())
    assert cut.vectors["v"].rows.tolist() == [2, 4, 17]
    assert cut.vectors["v"].values[:, 0].tolist() == [0, 0, 4]
    encoder = tiny()
    together = encoder(cut, at_decisions=True)
    for place, (start, stop) in enumerate([(0, 3), (1, 9), (14, 25)]):
        alone = encoder(slices_of(batch, [start], [stop]), at_decisions=True)
        torch.testing.assert_close(together[place], alone[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("objective", [Coles(shortest=2, longest=6, negatives=2), NextWindow(window=4)])
def test_what_is_compared_is_a_function_of_seed_and_step(packs: Any, tiny: Any, objective: Any) -> None:
    model, batch = Model(tiny(causal=True)), packs.random([9, 1, 12, 30, 0])
    first = objective(model, batch, step=3)
    torch.manual_seed(99)
    assert torch.equal(first.loss, objective(model, batch, step=3).loss)
    assert not torch.equal(first.loss, objective(model, batch, step=4).loss)
    assert not torch.equal(first.loss, replace(objective, seed=1)(model, batch, step=3).loss)
    first.loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    sequences = 4 if isinstance(objective, Coles) else 3  # one token has no window after it
    assert first.logs["count"].item() == sequences * getattr(objective, "slices", 1)


@pytest.mark.parametrize("objective", [Coles(), NextWindow()])
@pytest.mark.parametrize("lengths", [[], [0], [1]])
def test_without_anything_to_compare_there_is_no_loss(
    packs: Any, tiny: Any, objective: Any, lengths: list[int]
) -> None:
    loss = objective(Model(tiny()), packs.random(lengths), step=0)
    loss.loss.backward()
    assert loss.loss.item() == pytest.approx(0, abs=1e-9)


def test_training_makes_slices_of_one_sequence_nearest(packs: Any, tiny: Any) -> None:
    """Sequences of one kind of event each; the control is what chance gives."""
    torch.manual_seed(0)
    batch = packs.random([12] * 6)
    kind = torch.arange(6).repeat_interleave(12) + 2
    batch = replace(batch, fields={**batch.fields, "kind": kind})
    objective = Coles(slices=3, shortest=4, longest=6, negatives=4)
    model = Model(tiny(n_layers=1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(12):
        optimizer.zero_grad()
        objective(model, batch, step=step).loss.backward()
        optimizer.step()
    assert objective(model, batch, step=-1).logs["nearest_is_own"] > 0.9
    shuffled = replace(batch, fields={**batch.fields, "kind": kind[torch.randperm(len(kind))]})
    assert objective(model, shuffled, step=-1).logs["nearest_is_own"] < 0.6


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Coles(slices=1), "two slices and one negative or more, got 1 and 5"),
        (lambda: Coles(shortest=9, longest=8), "1 ≤ shortest ≤ longest tokens, got 9 and 8"),
        (lambda: Coles(margin=3.0), r"margin must lie in \(0, 2\]"),
        (lambda: NextWindow(temperature=0.0), "a positive temperature, got 128 and 0.0"),
    ],
)
def test_wrong_objectives_are_named(make: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()
