"""In the batch-invariant mode a sequence has the same bits alone, in any pack, at any place, in any order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from quantattn.attention.testing import _floor, errors
from quantattn.nn import ClassificationConfig, Encoder, Model, RegressionConfig, batch_invariant
from quantattn.nn.invariant import elementwise
from quantattn.nn.norm import RMSNorm

LENGTHS = [1, 40, 3, 2, 131, 17, 1, 5]
COMPOSITIONS = [[0], [1], [2], [3], [4], [5], [6], [7], [7, 6, 5, 4, 3, 2, 1, 0], [3, 0, 4], [2, 5, 1], [6, 0]]

KINDS: dict[str, dict[str, Any]] = {
    "bidirectional": {"time_rotary": 0.5},
    "causal": {"causal": True, "qk_norm": True},
    "local": {"local_window": 4, "global_every": 2, "local_rotary_base": 100.0},
    "causal and local": {"causal": True, "local_window": 4, "global_every": 2},
    "grouped heads": {"n_heads": 4, "n_kv_heads": 2, "qk_norm": True, "value_frequencies": 2},
    "odd sizes": {
        "value_edges": {"gap_value": (-1.0, 0.1, 0.5, 0.7)},
        "width": 36,
        "n_heads": 3,
        "hidden": 33,
        "value_frequencies": 1,
        "time_rotary": 1.0,
    },
}


@pytest.fixture(params=[1, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def precision(device: str, dtype: torch.dtype) -> Any:
    return nullcontext() if dtype == torch.float32 else torch.autocast(device, dtype=dtype)


def by_sequence(hidden: Tensor, lengths: Sequence[int]) -> list[Tensor]:
    return list(torch.split(hidden, list(lengths)))


@torch.no_grad()
def differing(encoder: Encoder, packs: Any, device: str, compositions: Sequence[Sequence[int]]) -> list[Any]:
    """(composition, sequence) for each sequence whose bits are not those that it has in the pack of all."""
    batch = packs.random(LENGTHS)
    whole = by_sequence(encoder(batch.to(device)), LENGTHS)
    found = []
    for composition in compositions:
        states = encoder(packs.take(batch, composition).to(device))
        for n, part in zip(composition, by_sequence(states, [LENGTHS[n] for n in composition]), strict=True):
            if not torch.equal(part, whole[n]):
                found.append((tuple(composition), n))
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
def test_states_are_those_of_the_sequence_alone(
    packs: Any, tiny: Any, device: str, threads: int, kind: str, dtype: torch.dtype
) -> None:
    encoder = tiny(attention_backend="auto", **KINDS[kind]).to(device)
    with batch_invariant(encoder), precision(device, dtype):
        assert differing(encoder, packs, device, COMPOSITIONS) == []


def test_the_ordinary_mode_fails_this(packs: Any, tiny: Any, device: str) -> None:
    assert differing(tiny("small", n_layers=1, attention_backend="auto").to(device), packs, device, COMPOSITIONS)


def test_a_wider_encoder_keeps_it(packs: Any, tiny: Any, device: str) -> None:
    encoder = tiny("small", n_layers=2, attention_backend="auto").to(device)
    with batch_invariant(encoder):
        assert differing(encoder, packs, device, COMPOSITIONS) == []


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(composition=st.lists(st.integers(0, len(LENGTHS) - 1), min_size=1, unique=True), causal=st.booleans())
def test_no_composition_changes_a_bit(packs: Any, tiny: Any, composition: list[int], causal: bool) -> None:
    encoder = tiny(n_layers=1, attention_backend="auto", causal=causal)
    with batch_invariant(encoder):
        assert differing(encoder, packs, "cpu", [composition]) == []


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("pooling", ["last", "mean", "attention"])
def test_scores_of_every_pooling_are_those_of_the_sequence_alone(
    packs: Any, tiny: Any, device: str, pooling: str, causal: bool
) -> None:
    heads = {"move": ClassificationConfig(packs.classes, pooling), "vol": RegressionConfig(1.5, 2.5, pooling)}
    model = Model(tiny(attention_backend="auto", causal=causal), heads).to(device)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    batch = packs.random(LENGTHS)

    def scores(part: Any) -> dict[str, Tensor]:
        found = model.score(part.to(device), deterministic="batch")
        return found | {"state": model.embed(part.to(device), deterministic="batch")}

    whole = scores(batch)
    for composition in COMPOSITIONS:
        part = packs.take(batch, composition)
        rows = (part.keys - 100).to(device)
        for name, value in scores(part).items():
            assert torch.equal(value, whole[name][rows]), (name, composition)


def test_an_infinity_stays_in_its_sequence(packs: Any, tiny: Any, device: str) -> None:
    encoder, batch = tiny(attention_backend="auto").to(device), packs.random(LENGTHS)
    with batch_invariant(encoder), torch.no_grad():
        clean = by_sequence(encoder(batch.to(device)), LENGTHS)
        batch.fields["size_value"][3] = torch.inf  # in the sequence of 40
        hit = by_sequence(encoder(batch.to(device)), LENGTHS)
    assert not hit[1].isfinite().all()
    assert all(torch.equal(hit[n], clean[n]) for n in range(len(LENGTHS)) if n != 1)


def test_it_rounds_no_worse_than_the_ordinary_mode(packs: Any, tiny: Any) -> None:
    encoder, batch = tiny(attention_backend="auto"), packs.random(LENGTHS)
    with torch.no_grad():
        truth = tiny().double()(batch)
        ordinary = encoder(batch)
        with batch_invariant(encoder):
            found = encoder(batch)
    worst, mean = errors(found, truth)
    loss, floor = errors(ordinary, truth), _floor(truth, torch.float32)
    assert worst <= 2 * loss[0] + floor[0]
    assert mean <= 2 * loss[1] + floor[1]


def test_gradients_are_those_of_the_ordinary_mode(packs: Any, tiny: Any) -> None:
    batch = packs.random([5, 9, 1])
    results = []
    for on in (False, True):
        encoder = tiny(attention_backend="auto", value_frequencies=1).double()
        with batch_invariant(encoder, on):
            encoder(batch).sin().sum().backward()
        results.append([parameter.grad for parameter in encoder.parameters()])
    torch.testing.assert_close(results[1], results[0], rtol=1e-9, atol=1e-11)


def test_the_mode_ends_with_its_block(packs: Any, tiny: Any) -> None:
    model, batch = Model(tiny(attention_backend="auto")), packs.random([3, 4])
    ordinary = model.score(batch)
    with pytest.raises(ZeroDivisionError), batch_invariant(model):
        _ = 1 / 0
    with batch_invariant(model), batch_invariant(model, False):
        inside = model.score(batch)
    for found in (inside, model.score(batch)):
        assert all(torch.equal(found[name], value) for name, value in ordinary.items())
    with pytest.raises(ValueError, match="True, False or \"batch\", got 'maybe'"):
        model.score(batch, deterministic="maybe")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="backend 'exact' cannot run this"):
        Model(tiny(attention_backend="exact")).score(batch, deterministic="batch")


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
def test_what_would_be_compiled_runs_as_it_is_written(packs: Any, tiny: Any) -> None:
    batch, plain = packs.random([3, 4]), tiny(n_layers=1, attention_backend="auto")
    compiled = tiny(n_layers=1, attention_backend="auto", compile=True)
    torch._dynamo.utils.counters.clear()
    with batch_invariant(compiled), batch_invariant(plain), torch.no_grad():
        assert torch.equal(compiled(batch), plain(batch))
    assert not torch._dynamo.utils.counters["stats"]
    torch._dynamo.reset()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_rows_and_entries_do_not_know_their_place(device: str, threads: int, dtype: torch.dtype) -> None:
    torch.manual_seed(threads)
    x = (3 * torch.randn(301, 1055)).to(device, dtype)[:, :1024]
    norms = [RMSNorm(size, 1e-6).to(device, dtype) for size in (33, 1024)]
    for first, count in ((0, 1), (1, 1), (3, 100), (100, 173), (7, 294)):
        rows = slice(first, first + count)
        for norm in norms:
            size = norm.weight.shape[0]
            assert torch.equal(norm(x[rows, :size].contiguous()), norm(x[:, :size].contiguous())[rows])
        assert torch.equal(x[rows, :33].softmax(-1), x[:, :33].softmax(-1)[rows])
        for function in (torch.nn.functional.silu, torch.sin, torch.cos):
            for size in (33, 1024):
                whole = elementwise(function, x[:, :size], True)
                assert torch.equal(elementwise(function, x[rows, :size], True), whole[rows])


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU runs the same instructions for every entry")
def test_the_ordinary_elementwise_fails_this() -> None:
    x = 3 * torch.randn(301, 33)
    whole = torch.nn.functional.silu(x)
    parts = [torch.nn.functional.silu(x[:count]) for count in range(1, 301)]
    assert any(not torch.equal(part, whole[: len(part)]) for part in parts)
