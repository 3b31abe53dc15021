"""The encoder on its way through the operators between products, which a GPU takes, beside the way of a CPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import quantattn.nn.encoder as encoder_module
import quantattn.nn.norm as norm_module

OPTIONS = [
    {},
    {"qk_norm": True, "causal": True, "local_window": 3},
    {"n_kv_heads": 1, "time_rotary": 0.5, "local_window": 2, "global_every": 2},
]


@pytest.fixture
def by_operators(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Choose the way; without a GPU the operators compute by torch."""

    def choose(on: bool) -> None:
        for module in (norm_module, encoder_module):
            monkeypatch.setattr(module, "by_kernel", lambda _: on)

    return choose


def results(encoder: Any, batch: Any, at_decisions: bool) -> list[Tensor]:
    states = encoder(batch, at_decisions)
    states.sin().sum().backward()
    return [states, *(p.grad for p in encoder.parameters())]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("saving", [False, True, "feed_forward"])
def test_both_ways_are_one_function(
    packs: Any, tiny: Any, by_operators: Any, options: dict[str, Any], saving: bool | str
) -> None:
    batch = packs.random([5, 0, 9, 3], positions=[4, 13, 16])
    for at_decisions in (False, True):
        found = []
        for on in (False, True):
            by_operators(on)
            encoder = tiny(gradient_checkpointing=saving, n_layers=3, **options).double().train()
            found.append(results(encoder, batch, at_decisions))
        torch.testing.assert_close(found[1], found[0], rtol=0, atol=1e-11)


def test_autocast_keeps_the_stream_and_loses_as_little(packs: Any, tiny: Any, by_operators: Any) -> None:
    batch = packs.random([50, 90], seed=2)
    truth = results(tiny().double(), batch, False)
    errors = []
    for on in (False, True):
        by_operators(on)
        encoder = tiny()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            states = encoder(batch)
        states.sin().sum().backward()
        assert states.dtype == torch.float32
        found = [states, *(p.grad for p in encoder.parameters())]
        errors.append([(a.double() - b).norm() / b.norm() for a, b in zip(found, truth, strict=True)])
    assert all(0 < ours <= 1.25 * theirs for theirs, ours in zip(*errors, strict=True))


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
@pytest.mark.parametrize("saving", [False, "feed_forward"])
def test_one_graph_of_it_computes_the_same(
    packs: Any, tiny: Any, by_operators: Any, monkeypatch: pytest.MonkeyPatch, saving: bool | str
) -> None:
    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager", fullgraph=True))
    by_operators(True)
    compiled, plain = (
        tiny(n_layers=2, compile=on, attention_backend="auto", gradient_checkpointing=saving) for on in (True, False)
    )
    for lengths in ([5, 9], [11]):
        batch = packs.random(lengths)
        for encoder in (compiled, plain):
            encoder.zero_grad()
        found, expected = (results(encoder, batch, False) for encoder in (compiled, plain))
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    torch._dynamo.reset()
