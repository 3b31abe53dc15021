"""Tokens that carry a vector: what is added to them, and that nobody sees it before they come."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from quantattn.batch import PackedBatch, Vectors
from quantattn.nn import Encoder, EncoderConfig, MaskedEvents, Model, batch_invariant
from quantattn.nn.embed import Embedding

CENTER, SCALE = (1.0, -2.0, 0.5), (2.0, 0.5, 1.0)


def config(**changes: object) -> EncoderConfig:
    vectors = {"filing": tuple(zip(CENTER, SCALE, strict=True))}
    given = {"n_layers": 2, "width": 16, "n_heads": 2, "hidden": 16, "causal": True, "vectors": vectors}
    return EncoderConfig.of_size("tiny", codes={"kind": 5}, **{**given, **changes})  # type: ignore[arg-type]


def batch(values: torch.Tensor | None = None) -> PackedBatch:
    """Two sequences of 4 and 3 tokens, of which tokens 1 and 5 carry a vector."""
    values = torch.randn(2, 3, generator=torch.Generator().manual_seed(0)) if values is None else values
    return PackedBatch(
        {"kind": torch.tensor([2, 3, 4, 2, 3, 3, 2])},
        torch.arange(7),
        torch.tensor([0, 4, 7], dtype=torch.int32),
        4,
        torch.tensor([3, 6]),
        torch.tensor([0, 1]),
        vectors={"filing": Vectors(torch.tensor([1, 5]), values)},
    )


@pytest.fixture
def encoder() -> Encoder:
    torch.manual_seed(0)
    return Encoder(config()).eval()


def test_a_linear_map_of_the_scaled_vector_is_added_to_its_token() -> None:
    torch.manual_seed(0)
    embedding, given = Embedding(config()), batch(torch.tensor([[3.0, -2.0, 0.5], [1.0, 98.0, 0.5]]))
    (carried,) = embedding.carried
    weight = carried.project.weight  # type: ignore[union-attr]
    plain = torch.nn.functional.embedding(given.fields["kind"], embedding.tables[0].weight)  # type: ignore[arg-type]
    expected = plain.clone()
    expected[1] += weight[:, 0]  # (3 − 1) / 2 = 1, the others are at their center
    expected[5] += 8 * weight[:, 1]  # 200 deviations count as 8
    torch.testing.assert_close(embedding(given.fields, given.vectors), expected)


def test_what_a_token_carries_changes_no_earlier_bit_and_no_other_sequence(encoder: Encoder) -> None:
    one, other = encoder(batch()), encoder(batch(torch.full((2, 3), 7.0)))
    same = [torch.equal(a, b) for a, b in zip(one, other, strict=True)]
    assert same == [True, False, False, False, True, False, False]


def test_by_batch_the_bits_are_those_of_the_sequence_alone(encoder: Encoder) -> None:
    given = batch()
    alone = PackedBatch(
        {"kind": given.fields["kind"][4:]},
        given.time[4:],
        torch.tensor([0, 3], dtype=torch.int32),
        3,
        torch.tensor([2]),
        torch.tensor([1]),
        vectors={"filing": given.vectors["filing"].between(4, 7)},
    )
    with batch_invariant(encoder):
        assert torch.equal(encoder(given)[4:], encoder(alone))


def test_no_vector_in_a_batch_is_no_trouble(encoder: Encoder) -> None:
    none = {"filing": Vectors(torch.zeros(0, dtype=torch.int64), torch.zeros(0, 3))}
    assert encoder(replace(batch(), vectors=none)).isfinite().all()


def test_vectors_that_lack_or_have_another_size_are_refused(encoder: Encoder) -> None:
    with pytest.raises(ValueError, match="the batch lacks vectors 'filing'; it has none"):
        encoder(replace(batch(), vectors={}))
    with pytest.raises(ValueError, match="vectors 'filing' have 2 numbers, this encoder reads 3"):
        encoder(batch(torch.zeros(2, 2)))


def test_an_encoder_without_them_leaves_them_alone() -> None:
    torch.manual_seed(0)
    plain = Encoder(config(vectors={})).eval()
    assert torch.equal(plain(batch()), plain(replace(batch(), vectors={})))


def test_the_description_survives_json_and_counts_its_parameters() -> None:
    described = config()
    assert EncoderConfig.from_dict(described.to_dict()) == described
    old = {name: value for name, value in described.to_dict().items() if name != "vectors"}
    assert EncoderConfig.from_dict(old) == config(vectors={})
    assert described.n_parameters == sum(p.numel() for p in Model(Encoder(described)).parameters())


@pytest.mark.parametrize(
    ("vectors", "sentence"),
    [
        ({"kind": ((0.0, 1.0),)}, r"\['kind'\] are given twice"),
        ({"filing": ()}, r"vectors\['filing'\] must be one \(center, scale\) or more"),
        ({"filing": ((0.0, 0.0),)}, r"vectors\['filing'\] must be finite and in"),
        ({"filing": ((float("nan"), 1.0),)}, r"vectors\['filing'\] must be finite and in"),
        ([1], "vectors must map names"),
    ],
)
def test_descriptions_that_cannot_be_are_refused(vectors: object, sentence: str) -> None:
    with pytest.raises((ValueError, TypeError), match=sentence):
        config(vectors=vectors)


def test_a_number_that_is_missing_adds_nothing(encoder: Encoder) -> None:
    nan = float("nan")
    center = torch.tensor([[nan, -1.0, nan], [nan, nan, nan]])
    assert torch.equal(encoder(batch(center)), encoder(batch(torch.tensor([[1.0, -1.0, 0.5], list(CENTER)]))))
    none = {"filing": Vectors(torch.zeros(0, dtype=torch.int64), torch.zeros(0, 3))}
    assert torch.equal(encoder(batch(torch.full((2, 3), nan))), encoder(replace(batch(), vectors=none)))


@pytest.mark.parametrize("per_field", [False, True])
def test_what_a_hidden_event_carries_tells_nothing_about_it(per_field: bool) -> None:
    objective = MaskedEvents(rate=0.3, per_field=per_field)
    torch.manual_seed(0)
    encoder = Encoder(config(causal=False))
    model = Model(encoder, objective.heads(encoder.config, ()))
    nn.init.normal_(model.get_parameter("heads.events.project.weight"))
    rows = [set(objective.rows(7, step, "kind" if per_field else None).tolist()) for step in range(60)]
    assert {(True, True), (False, True), (True, False)} <= {(1 in hidden, 5 in hidden) for hidden in rows}
    for step, hidden in enumerate(rows):
        losses = [objective(model, batch(values), step=step).loss for values in (None, torch.full((2, 3), 7.0))]
        # The control: a vector that stays visible is seen by what is hidden in its sequence.
        seen = any(row not in hidden and hidden & set(own) for row, own in ((1, range(4)), (5, range(4, 7))))
        assert torch.equal(*losses) != seen, hidden
