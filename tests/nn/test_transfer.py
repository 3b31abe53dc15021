"""Weights of another model, and low-rank adapters: equal to the bit where they must be, never by accident."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from quantattn.nn import EventsConfig, Model, Outcome, load_model, save_pretrained
from quantattn.nn.adapters import adapters_of, add_adapters, merge_adapters
from quantattn.nn.transfer import transfer

SAME = {"kind": [1, 2], "side": [0, 1], "gap": [5.0]}


def drawn(encoder: Any, heads: Any, seed: int) -> Model:
    model = Model(encoder, heads)
    torch.manual_seed(seed)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


def fine(packs: Any, tiny: Any, **overrides: Any) -> Model:
    encoder = tiny(causal=True, **overrides)
    return drawn(encoder, Outcome().heads(encoder.config, packs.classes), 1)


def before(tiny: Any, **overrides: Any) -> Model:
    return drawn(tiny(causal=True, **overrides), {"events": EventsConfig(("kind", "gap"))}, 2)


def test_an_encoder_that_was_taken_whole_is_that_encoder_to_the_bit(packs: Any, tiny: Any) -> None:
    model, source, batch = fine(packs, tiny), before(tiny), packs.random([5, 8])
    assert not torch.equal(model.encoder(batch), source.encoder(batch))
    found = transfer(model, source, SAME, SAME)
    assert torch.equal(model.encoder(batch), source.encoder(batch))
    assert set(found.refused) == {"heads.label.project.weight", "heads.label.project.bias"}
    assert set(found.unused) == {"heads.events.project.weight", "heads.events.project.bias"}
    assert found.n_taken == sum(p.numel() for p in model.encoder.parameters())


def test_a_table_follows_its_field_and_is_left_where_its_codes_mean_something_else(packs: Any, tiny: Any) -> None:
    """`gap`, `kind`, `side` are tables 0, 1, 2; a field more moves them; other codes of the same number do not fit."""
    model, source = fine(packs, tiny), before(tiny)
    kept = model.encoder.embedding.tables[2].weight.clone()  # type: ignore[operator,union-attr]
    found = transfer(model, source, SAME, SAME | {"side": [1, 0]})
    assert found.refused["encoder.embedding.tables.2.weight"] == "the codes of side mean something else there"
    assert torch.equal(model.encoder.embedding.tables[2].weight, kept)  # type: ignore[union-attr]
    wider = tiny(causal=True).config.with_changes(codes={**source.encoder.config.codes, "day": 4})
    other = drawn(type(source.encoder)(wider), {}, 5)
    found = transfer(other, source, SAME | {"day": [0]}, SAME)
    assert found.refused["encoder.embedding.tables.0.weight"] == "it has no field day"
    for place, was in ((1, 0), (2, 1), (3, 2)):
        taken, origin = other.encoder.embedding.tables[place], source.encoder.embedding.tables[was]
        assert torch.equal(taken.weight, origin.weight)  # type: ignore[union-attr]


def test_a_deeper_encoder_takes_the_blocks_that_there_are(packs: Any, tiny: Any) -> None:
    found = transfer(fine(packs, tiny, n_layers=3), before(tiny), SAME, SAME)
    anew = {name.rsplit(".", 2)[0] for name, why in found.refused.items() if why == "it has none"}
    assert all(name.startswith("encoder.blocks.2") for name in anew)
    assert any("begins anew: encoder.blocks.2.* (6) (it has none)" in line for line in found.sentences())


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"n_heads": 4}, "its encoder has n_heads=4, this one 2"),
        ({"rotary_base": 5e5}, "its encoder has rotary_base=500000.0, this one 10000.0"),
        ({"width": 32}, "its encoder is 2 × 32, this one 2 × 64"),
    ],
)
def test_weights_that_would_compute_something_else_are_refused(
    packs: Any, tiny: Any, overrides: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        transfer(fine(packs, tiny), before(tiny, **overrides), SAME, SAME)


def test_another_sight_is_taken_and_said(packs: Any, tiny: Any) -> None:
    encoder = tiny()
    model = Model(encoder, Outcome().heads(encoder.config, packs.classes))
    assert "causal was True, is False" in transfer(model, before(tiny), SAME, SAME).sentences()


def test_an_adapted_model_begins_as_it_was_to_the_bit(packs: Any, tiny: Any) -> None:
    model, batch = fine(packs, tiny), packs.random([5, 8])
    prob = model.score(batch)["prob"]
    n = add_adapters(model, 4, 8.0)
    assert torch.equal(model.score(batch)["prob"], prob)
    sides = [(192, 64), (64, 64), (256, 64), (64, 128)]
    assert n == 2 * sum(4 * (rows + columns) for rows, columns in sides)
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    assert trained == {*adapters_of(model), "heads.label.project.weight", "heads.label.project.bias"}


def test_merged_adapters_are_the_adapted_model_to_the_bit_and_go_into_a_folder(
    packs: Any, tiny: Any, tmp_path: Path
) -> None:
    model, batch = fine(packs, tiny), packs.random([5, 8])
    plain = model.score(batch)["prob"]
    names = set(model.state_dict())
    add_adapters(model, 3, 16.0)
    for parameter in adapters_of(model).values():
        torch.nn.init.normal_(parameter, std=0.1)
    prob = model.score(batch)["prob"]
    assert not torch.equal(prob, plain), "the control: they do something"
    weight = model.encoder.blocks[0].attention.project_in  # type: ignore[union-attr]
    original, low = weight.parametrizations.weight.original, weight.parametrizations.weight[0]  # type: ignore[union-attr]
    torch.testing.assert_close(weight.weight, original + 16 / 3 * low.up @ low.down)  # type: ignore[union-attr]
    merge_adapters(model)
    assert torch.equal(model.score(batch)["prob"], prob)
    assert set(model.state_dict()) == names
    save_pretrained(model, tmp_path / "model")
    assert torch.equal(load_model(tmp_path / "model", attention_backend="exact").score(batch)["prob"], prob)


def test_only_adapters_and_heads_get_a_gradient(packs: Any, tiny: Any) -> None:
    model = fine(packs, tiny)
    add_adapters(model, 2, 2.0)
    Outcome()(model, packs.random([5, 8])).loss.backward()
    with_gradient = {name for name, p in model.named_parameters() if p.grad is not None and p.grad.any()}
    ups = {name for name in adapters_of(model) if name.endswith(".up")}  # of A the gradient is zero while B is
    assert with_gradient == {*ups, "heads.label.project.weight", "heads.label.project.bias"}


@pytest.mark.parametrize(("rank", "alpha", "words"), [(0, 1.0, "1 … 64"), (65, 1.0, "got 65"), (2, 0.0, "alpha")])
def test_adapters_that_cannot_be_are_refused(packs: Any, tiny: Any, rank: int, alpha: float, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        add_adapters(fine(packs, tiny), rank, alpha)
