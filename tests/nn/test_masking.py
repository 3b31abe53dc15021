"""What is hidden: spans, fields by themselves; and several objectives at once."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch.nn import functional

from quantattn.nn import MASKED, MaskedEvents, Model, NextEvent, Outcome, Regression, Several


def model_for(objective: Any, encoder: Any, packs: Any) -> Model:
    model = Model(encoder, objective.heads(encoder.config, packs.classes))
    torch.manual_seed(11)
    for head in model.heads.values():
        torch.nn.init.normal_(head.project.weight, std=0.3)  # type: ignore[union-attr,arg-type]
    return model


def runs(rows: torch.Tensor) -> list[int]:
    """Lengths of the stretches of rows that follow on each other."""
    breaks = (rows.diff() != 1).nonzero().flatten().tolist()
    edges = [-1, *breaks, len(rows) - 1]
    return [b - a for a, b in pairwise(edges)]


@pytest.mark.parametrize("span", [2, 3, 7])
def test_spans_hide_the_same_share_in_few_stretches(span: int) -> None:
    for step in range(50):
        rows = MaskedEvents(rate=0.3, span=span).rows(90, step)
        assert rows.tolist() == sorted(set(rows.tolist()))
        assert len(rows) == 27
        assert len(runs(rows)) <= math.ceil(27 / span) + 2
    counts = torch.stack(
        [torch.bincount(MaskedEvents(rate=0.3, span=span).rows(90, step), minlength=90) for step in range(600)]
    ).sum(0)
    assert (counts - 180).abs().max() < 6 * math.sqrt(600 * 0.3 * 0.7)  # every row about equally often
    alone = MaskedEvents(rate=0.3).rows(90, 0)
    assert len(runs(alone)) > 27 / 2, "the control: single tokens lie apart"


def test_a_span_of_one_is_single_tokens_to_the_bit() -> None:
    assert MaskedEvents(0.3, span=1).rows(50, 3).tolist() == MaskedEvents(0.3).rows(50, 3).tolist()
    assert MaskedEvents(1.0, span=4).rows(9, 0).tolist() == list(range(9))
    assert MaskedEvents(0.3, span=100).rows(10, 0).tolist() in [list(range(s, s + 3)) for s in range(8)]
    assert len(MaskedEvents(0.3, span=5).rows(0, 0)) == 0


def test_each_field_hides_events_of_its_own_and_its_number_with_them(packs: Any, tiny: Any) -> None:
    objective, batch = MaskedEvents(rate=0.4, per_field=True, seed=2), packs.random([9, 11])
    model = model_for(objective, tiny(), packs)
    seen: list[Any] = []
    model.encoder.register_forward_pre_hook(lambda module, given: seen.append(given[0]))
    loss = objective(model, batch, step=5)
    (given,) = seen
    drawn = {name: objective.rows(20, 5, name) for name in packs.codes}
    assert len({tuple(rows.tolist()) for rows in drawn.values()}) == 3
    for name, rows in drawn.items():
        assert given.fields[name].eq(MASKED).nonzero().flatten().tolist() == rows.tolist()
    # gap_value goes with gap; size_value has no codes beside it here, and goes with any field.
    assert given.fields["gap_value"].isnan().nonzero().flatten().tolist() == drawn["gap"].tolist()
    anywhere = sorted({row for rows in drawn.values() for row in rows.tolist()})
    assert given.fields["size_value"].isnan().nonzero().flatten().tolist() == anywhere
    hidden = model.encoder(given)
    for name, rows in drawn.items():
        logits = model.heads["events"](hidden[rows])[name]  # type: ignore[operator]
        expected = functional.cross_entropy(logits, batch.fields[name][rows])
        torch.testing.assert_close(loss.logs[f"nll_{name}"], expected.detach())
    assert loss.logs["count"].item() == 8


def test_a_hidden_field_tells_nothing_about_itself(packs: Any, tiny: Any) -> None:
    objective, batch = MaskedEvents(rate=0.3, per_field=True), packs.random([9, 11])
    model = model_for(objective, tiny(), packs)
    losses = []
    for seed in (0, 1):
        other = packs.random([9, 11], seed=seed)
        fields = dict(batch.fields)
        rows = objective.rows(20, 4, "gap")
        fields["gap_value"] = batch.fields["gap_value"].index_copy(0, rows, other.fields["gap_value"][rows])
        losses.append(objective(model, replace(batch, fields=fields), step=4).loss)
    assert torch.equal(*losses)


@pytest.mark.parametrize("span", [0, 1.5, True])
def test_a_span_is_a_number_of_tokens(span: Any) -> None:
    with pytest.raises(ValueError, match="span must be a whole number of tokens from 1"):
        MaskedEvents(span=span)


def test_several_objectives_are_their_weighted_sum_with_its_gradient(packs: Any, tiny: Any) -> None:
    parts = {"move": Outcome(), "next": NextEvent(time="exponential"), "value": MaskedEvents()}
    with pytest.raises(ValueError, match="parts next and value both need the head 'events'"):
        Several(parts).heads(tiny(causal=True).config, packs.classes)
    del parts["value"]
    together = Several(parts, {"next": 0.25})
    model, batch = model_for(together, tiny(causal=True), packs), packs.random([5, 8])
    found = together(model, batch, step=3)
    alone = {name: part(model, batch, step=3) for name, part in parts.items()}
    assert found.loss.item() == pytest.approx(alone["move"].loss.item() + 0.25 * alone["next"].loss.item(), rel=1e-6)
    assert found.logs["count"] == alone["move"].logs["count"]
    assert found.logs["move_accuracy"] == alone["move"].logs["accuracy"]
    assert found.logs["next_nll_time"] == alone["next"].logs["nll_time"]
    assert together.goal == "classes"
    weight = model.encoder.blocks[0].attention.project_in.weight  # type: ignore[union-attr]
    (whole,) = torch.autograd.grad(found.loss, weight, retain_graph=True)
    each = [torch.autograd.grad(one.loss, weight)[0] for one in alone.values()]
    torch.testing.assert_close(whole, each[0] + 0.25 * each[1])


@pytest.mark.parametrize(
    ("parts", "weights", "words"),
    [
        ({}, {}, "one or more"),
        ({"a": Outcome(), "b": Regression(label="other")}, {}, r"at most one of them with labels, got \['a', 'b'\]"),
        ({"a": Outcome()}, {"b": 1.0}, r"weights names \['b'\], the parts are a"),
        ({"a": Outcome()}, {"a": 0.0}, "weights.a must be positive, got 0.0"),
    ],
)
def test_several_that_do_not_go_together_are_refused(parts: Any, weights: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Several(parts, weights)
