"""Float fields become features: the value, whether it is missing, waves of it and its way through bins."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from quantattn.nn import EncoderConfig
from quantattn.nn.embed import Embedding, PiecewiseLinear

EDGES = {"a": (0.0, 1.0, 3.0), "c": (-2.0, 2.0)}


def config(**changes: Any) -> EncoderConfig:
    given = {"codes": {}, "values": ("a", "b", "c"), "width": 8, "n_heads": 1, "value_edges": EDGES}
    return EncoderConfig(**{**given, **changes})


def features(values: list[float], **changes: Any) -> Tensor:
    """What the linear map of one float field `a` is given: the map is made the identity."""
    described = config(values=("a",), value_edges={"a": EDGES["a"]}, width=6, value_frequencies=1, **changes)
    embedding = Embedding(described)
    with torch.no_grad():
        embedding.project.weight.copy_(torch.eye(6))
        embedding.frequencies.fill_(0.25)
    return embedding({"a": torch.tensor(values)}).detach()


def test_bins_are_filled_one_after_the_other() -> None:
    """By hand: edges 0, 1, 3 of a and −2, 2 of c; b has no bins."""
    a = torch.tensor([-1.0, 0.0, 0.5, 1.0, 2.0, 3.0, 7.0])
    c = torch.tensor([-2.0, -1.0, 0.0, 1.0, 2.0, 9.0, -9.0])
    value = torch.stack([a, torch.full((7,), 100.0), c], dim=-1)
    found = PiecewiseLinear(config())(value, torch.zeros(7, 3, dtype=torch.bool))
    expected = [
        [0.0, 0.0, 0.0],
        [0.0, 0.0, 0.25],
        [0.5, 0.0, 0.5],
        [1.0, 0.0, 0.75],
        [1.0, 0.5, 1.0],
        [1.0, 1.0, 1.0],
        [1.0, 1.0, 0.0],
    ]
    assert found.tolist() == expected


def test_features_of_known_frequencies_and_edges() -> None:
    """sin and cos of 2π · 0.25 · v, a quarter turn for each 1; then the two bins of 0, 1, 3."""
    found = features([0.0, 1.0, 2.0, -1.0, 0.5])
    half = math.sqrt(0.5)
    expected = [
        [0.0, 0.0, 0.0, 1.0, 0.0, 0.0],
        [1.0, 0.0, 1.0, 0.0, 1.0, 0.0],
        [2.0, 0.0, 0.0, -1.0, 1.0, 0.5],
        [-1.0, 0.0, -1.0, 0.0, 0.0, 0.0],
        [0.5, 0.0, half, half, 0.5, 0.0],
    ]
    torch.testing.assert_close(found, torch.tensor(expected), rtol=0, atol=1e-6)


@given(st.floats(-1e6, 1e6, width=32))
def test_missing_is_no_value(value: float) -> None:
    """A feature of its own says so; without it, missing would be the value 0, which here is the first edge."""
    missing, there = features([math.nan, value])
    assert missing.tolist() == [0.0, 1.0, 0.0, 1.0, 0.0, 0.0]
    assert there[1] == 0.0
    assert torch.isfinite(there).all()
    assert torch.equal(missing[[0, 2, 3, 4, 5]], features([0.0])[0, [0, 2, 3, 4, 5]])


def test_frequencies_are_drawn_with_their_scale() -> None:
    torch.manual_seed(0)
    one = Embedding(config(value_frequencies=500)).frequencies
    torch.manual_seed(0)
    tenth = Embedding(config(value_frequencies=500, value_frequency_scale=0.1)).frequencies
    assert one is not None
    assert tenth is not None
    torch.testing.assert_close(tenth, one / 10)
    assert one.std().item() == pytest.approx(1, abs=0.1)


def test_edges_are_no_weights_and_older_descriptions_have_none() -> None:
    described = config(value_frequencies=2)
    embedding = Embedding(described)
    assert set(embedding.state_dict()) == {"project.weight", "frequencies"}
    assert described.value_features == embedding.project.weight.shape[1] == 3 * (2 + 2 * 2) + 3
    with torch.device("meta"):
        bins = PiecewiseLinear(described)
    assert bins.left.tolist() == [0.0, 1.0, -2.0]
    older = config(value_edges={}).to_dict()
    del older["value_edges"], older["value_frequency_scale"]
    assert EncoderConfig.from_dict(older) == config(value_edges={})


@pytest.mark.parametrize(
    ("edges", "error", "words"),
    [
        ({"d": (0.0, 1.0)}, ValueError, r"names \['d'\], which are none of the float fields"),
        ({"a": (0.0,)}, TypeError, "must be two numbers or more"),
        ({"a": (0.0, 1.0, 1.0)}, ValueError, "must rise"),
        ({"a": (0.0, math.nan)}, ValueError, "must be finite"),
        ({"a": (0.0, "1")}, TypeError, "must be a number"),
        ([], TypeError, "must map float fields to edges"),
    ],
)
def test_edges_that_make_no_bins_are_refused(edges: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        config(value_edges=edges)
