"""Losses as sums over counts: equal to their formulas, blind to what they must not see."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn import functional

from quantattn.batch import IGNORE
from quantattn.nn import (
    MASKED,
    MaskedEvents,
    MaskedLanguage,
    Model,
    NextEvent,
    Outcome,
    Regression,
)
from quantattn.nn.heads import tokens


def model_for(objective: Any, encoder: Any, packs: Any, random_head: bool = True) -> Model:
    model = Model(encoder, objective.heads(encoder.config, packs.classes))
    if random_head:
        torch.manual_seed(11)
        for head in model.heads.values():
            torch.nn.init.normal_(head.project.weight, std=0.3)
    return model


def test_an_untrained_model_is_exactly_undecided(packs: Any, tiny: Any) -> None:
    batch = packs.random([5, 8, 3, 9])
    outcome = Outcome()
    assert outcome(model_for(outcome, tiny(), packs, False), batch).loss.item() == pytest.approx(math.log(3), abs=1e-6)
    masked = MaskedEvents()
    loss = masked(model_for(masked, tiny(), packs, False), batch, step=0)
    expected = {f"nll_{name}": math.log(count) for name, count in packs.codes.items()}
    assert {k: v.item() for k, v in loss.logs.items() if k in expected} == pytest.approx(expected, abs=1e-5)
    assert loss.loss.item() == pytest.approx(sum(expected.values()) / 3, abs=1e-5)


def test_outcome_is_the_weighted_mean_of_log_losses(packs: Any, tiny: Any) -> None:
    outcome = Outcome(class_weights=(1.0, 0.25, 3.0))
    batch = packs.random([5, 8, 3, 9, 4])
    label = torch.tensor([0, 2, IGNORE, 1, 2], dtype=torch.int8)
    batch = replace(batch, targets={"label": label})
    model = model_for(outcome, tiny(), packs)
    prob = model.score(batch)["prob"]
    loss = outcome(model, batch)
    pairs = [(0, 0, 1.0), (1, 2, 3.0), (3, 1, 0.25), (4, 2, 3.0)]
    expected = -sum(w * math.log(prob[i, y]) for i, y, w in pairs) / sum(w for _, _, w in pairs)
    assert loss.loss.item() == pytest.approx(expected, rel=1e-5)
    assert loss.logs["count"].item() == 4
    right = sum(int(prob[i].argmax()) == y for i, y, _ in pairs)
    assert loss.logs["accuracy"].item() == pytest.approx(right / 4)
    plain = Outcome()(model, batch).loss.item()
    assert plain == pytest.approx(-sum(math.log(prob[i, y]) for i, y, _ in pairs) / 4, rel=1e-5)


def test_regression_is_written_out(packs: Any, tiny: Any) -> None:
    batch = packs.random([5, 8, 3])
    batch = replace(batch, targets={"label": torch.tensor([10.0, torch.nan, 40.0])})
    for kind in ("huber", "mse"):
        objective = Regression(mean=12.0, std=4.0, loss=kind)
        model = model_for(objective, tiny(), packs)
        value = model.score(batch)["value"]
        errors = [(value[i].item() - y) / 4.0 for i, y in ((0, 10.0), (2, 40.0))]
        terms = [e * e if kind == "mse" else (e * e / 2 if abs(e) < 1 else abs(e) - 0.5) for e in errors]
        loss = objective(model, batch)
        assert loss.loss.item() == pytest.approx(sum(terms) / 2, rel=1e-4)
        assert loss.logs["mae"].item() == pytest.approx(4.0 * sum(map(abs, errors)) / 2, rel=1e-4)
        loss.loss.backward()
        assert all(torch.isfinite(p.grad).all() for p in model.parameters())


@pytest.mark.parametrize("objective", [Outcome(), Outcome(class_weights=(1, 2, 3)), Regression()])
@pytest.mark.parametrize("pooling", ["last", "mean", "attention"])
def test_no_labelled_decision_gives_zero_and_no_gradient(packs: Any, tiny: Any, objective: Any, pooling: str) -> None:
    objective = replace(objective, pooling=pooling)
    none = torch.full((2,), IGNORE) if isinstance(objective, Outcome) else torch.full((2,), torch.nan)
    for batch in (
        replace(packs.random([5, 8]), targets={"label": none}),
        replace(packs.random([5], positions=[]), targets={"label": none[:0]}),
        replace(packs.random([]), targets={"label": none[:0]}),
    ):
        model = model_for(objective, tiny(), packs)
        loss = objective(model, batch)
        loss.loss.backward()
        assert loss.loss.item() == 0.0
        assert loss.logs["count"].item() == 0
        assert all(p.grad is None or not p.grad.any() for p in model.parameters())


@pytest.mark.parametrize("lengths", [[], [1, 1], [0]])
def test_next_event_without_a_next_event(packs: Any, tiny: Any, lengths: list[int]) -> None:
    objective = NextEvent()
    model = model_for(objective, tiny(causal=True), packs)
    loss = objective(model, packs.random(lengths))
    loss.loss.backward()
    assert loss.loss.item() == 0.0


def test_next_events_never_cross_sequences(packs: Any, tiny: Any) -> None:
    objective, batch = NextEvent(), packs.random([4, 1, 0, 6])
    has_next, targets = objective.targets(batch, ["kind"])
    assert has_next.nonzero().flatten().tolist() == [0, 1, 2, 5, 6, 7, 8, 9]
    assert targets["kind"][has_next].tolist() == batch.fields["kind"][1:][has_next[:-1]].tolist()
    assert targets["kind"][~has_next].eq(IGNORE).all()
    model = model_for(objective, tiny(causal=True), packs)
    together = objective(model, batch)
    parts = [objective(model, packs.take(batch, [n])) for n in (0, 3)]
    weighted = sum(part.loss.item() * part.logs["count"].item() for part in parts) / 8
    assert together.loss.item() == pytest.approx(weighted, rel=1e-5)
    # The control: targets taken across the ends of sequences are another loss.
    crossing = batch.fields["kind"].roll(-1)
    assert (crossing != targets["kind"]).sum() == 3


def test_next_event_is_the_likelihood_of_what_follows(packs: Any, tiny: Any) -> None:
    objective = NextEvent(fields=("side", "kind"))
    model, batch = model_for(objective, tiny(causal=True), packs), packs.random([7])
    logits = model.heads["events"](model.encoder(batch))
    expected = {
        f: -functional.log_softmax(logits[f], -1)[range(6), batch.fields[f][1:]].mean() for f in objective.fields
    }
    loss = objective(model, batch)
    for name, value in expected.items():
        torch.testing.assert_close(loss.logs[f"nll_{name}"], value.detach())
    assert loss.loss.item() == pytest.approx(sum(v.item() for v in expected.values()) / 2, rel=1e-5)


def test_next_event_needs_a_causal_encoder(packs: Any, tiny: Any) -> None:
    with pytest.raises(ValueError, match="causal encoder only"):
        NextEvent().heads(tiny().config, ())
    with pytest.raises(ValueError, match="causal encoder only"):
        NextEvent()(model_for(MaskedEvents(), tiny(), packs), packs.random([5]))


def test_a_masked_token_tells_nothing_about_itself(packs: Any, tiny: Any) -> None:
    objective = MaskedEvents(rate=0.4)
    model, batch = model_for(objective, tiny(), packs), packs.random([9, 11])
    rows = objective.rows(20, 5)
    assert len(rows) == 8
    hidden = objective.hide(batch, rows, tuple(packs.codes), packs.values)
    assert all(hidden.fields[name][rows].eq(MASKED).all() for name in packs.codes)
    assert all(hidden.fields[name][rows].isnan().all() for name in packs.values)
    kept = [i for i in range(20) if i not in rows]
    assert all(torch.equal(hidden.fields[name][kept], batch.fields[name][kept]) for name in batch.fields)
    other = packs.random([9, 11], seed=1)
    changed = {name: value.index_copy(0, rows, other.fields[name][rows]) for name, value in batch.fields.items()}
    again = objective.hide(replace(batch, fields=changed), rows, tuple(packs.codes), packs.values)
    assert torch.equal(model.encoder(again), model.encoder(hidden))
    assert not torch.equal(model.encoder(replace(batch, fields=changed)), model.encoder(batch))


def test_masked_events_is_the_likelihood_at_the_hidden_tokens(packs: Any, tiny: Any) -> None:
    objective = MaskedEvents(rate=0.25, seed=3)
    model, batch = model_for(objective, tiny(), packs), packs.random([9, 11])
    rows = objective.rows(20, 17)
    seen = objective.hide(batch, rows, tuple(packs.codes), packs.values)
    logits = model.heads["events"](model.encoder(seen)[rows])
    loss = objective(model, batch, step=17)
    for name in packs.codes:
        expected = functional.cross_entropy(logits[name], batch.fields[name][rows])
        torch.testing.assert_close(loss.logs[f"nll_{name}"], expected.detach())
    assert loss.logs["count"].item() == 5


def test_hidden_tokens_are_a_function_of_seed_and_step() -> None:
    def draw(seed: int, step: int) -> list[int]:
        return MaskedEvents(rate=0.3, seed=seed).rows(50, step).tolist()

    torch.manual_seed(0)
    first = draw(0, 0)
    torch.manual_seed(1)
    assert draw(0, 0) == first == sorted(set(first))
    assert len({tuple(draw(seed, step)) for seed in range(3) for step in range(3)}) == 9
    counts = torch.stack([torch.bincount(torch.tensor(draw(0, step)), minlength=50) for step in range(400)]).sum(0)
    assert (counts - 120).abs().max() < 5 * math.sqrt(400 * 0.3 * 0.7)  # every row equally often, first and last too


def test_without_a_step_the_tokens_follow_the_global_generator() -> None:
    def draw(seed: int) -> list[int]:
        torch.manual_seed(seed)
        return MaskedEvents().rows(50, None).tolist()

    assert draw(4) == draw(4) != draw(5)


def test_masked_language_hides_the_token(packs: Any, tiny: Any) -> None:
    objective = MaskedLanguage(rate=0.5, field="kind")
    model, batch = model_for(objective, tiny(), packs), packs.random([10])
    assert list(objective(model, batch, step=0).logs) == ["loss", "nll_kind", "count"]
    seen = objective.hide(batch, objective.rows(10, 0), ("kind",), packs.values)
    assert torch.equal(seen.fields["side"], batch.fields["side"])


def test_logits_in_pieces_are_the_same_loss_and_gradient(
    packs: Any, tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    objective, batch = NextEvent(), packs.random([30, 13])
    results = []
    for at_once in (1 << 24, 7 * sum(packs.codes.values())):
        monkeypatch.setattr(tokens, "_LOGITS_AT_ONCE", at_once)
        model = model_for(objective, tiny(causal=True), packs).double()
        loss = objective(model, batch).loss
        loss.backward()
        results.append((loss, [p.grad for p in model.parameters()]))
    torch.testing.assert_close(results[0], results[1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Outcome(class_weights=(1.0, -1.0)), "not negative"),
        (lambda: Regression(loss="mae"), "huber or mse"),
        (lambda: MaskedEvents(rate=0.0), "rate must be in"),
        (lambda: Outcome(class_weights=(1.0,)).heads(None, ("a", "b")), "1 class weights were given for 2 classes"),
    ],
)
def test_wrong_objectives_are_named(make: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()


def test_what_a_batch_or_model_lacks_is_named(packs: Any, tiny: Any) -> None:
    batch, outcome = packs.random([5]), Outcome()
    with pytest.raises(ValueError, match=r"no target 'label'; it has none"):
        outcome(model_for(outcome, tiny(), packs), replace(batch, targets={}))
    with pytest.raises(ValueError, match=r"no decision head 'label'; its heads are none"):
        outcome(Model(tiny()), batch)
    with pytest.raises(ValueError, match=r"no events head; its heads are label"):
        MaskedEvents()(model_for(outcome, tiny(), packs), batch, step=0)
