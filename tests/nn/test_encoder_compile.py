"""The encoder under torch.compile: one graph, equal results everywhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch

# torch's own code warns while it imports its compiler and while it looks at tensors of a graph that was broken.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:torch"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
]


@pytest.fixture
def graphs() -> Iterator[Callable[[], int]]:
    """How many graphs were made since the test began."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield lambda: int(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    torch._dynamo.reset()


def test_nothing_breaks_the_graph(packs: Any, tiny: Any, graphs: Any) -> None:
    options = {
        "attention_backend": "auto",
        "time_rotary": 0.5,
        "qk_norm": True,
        "local_window": 3,
        "global_every": 2,
        "value_frequencies": 1,
        "value_edges": {"size_value": (-1.0, 0.0, 1.0)},
    }
    encoder = tiny(**options).double().requires_grad_(False)
    compiled = torch.compile(encoder, backend="eager", fullgraph=True, dynamic=True)
    for at_decisions in (False, True):
        for lengths in ([5, 9], [3, 1, 8]):
            batch = packs.random(lengths)
            found, expected = compiled(batch, at_decisions), encoder(batch, at_decisions)
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    assert graphs() == 2  # one for each way of asking, whatever the lengths


def test_the_option_gives_equal_states_and_gradients(
    packs: Any, tiny: Any, graphs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The default compiler takes most of a minute here; what the option changes is traced by a quick one as well.
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    batch = packs.random([6, 11])
    results = []
    for compiling in (False, True):
        encoder = tiny(n_layers=1, compile=compiling, attention_backend="auto")
        states = encoder(batch)
        states.sin().sum().backward()
        results.append([states, *(p.grad for p in encoder.parameters())])
    torch.testing.assert_close(results[0], results[1], rtol=1e-4, atol=1e-5)
    assert graphs() == 1


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"gradient_checkpointing": True, "time_rotary": 0.5, "qk_norm": True},
        {"gradient_checkpointing": "feed_forward", "local_window": 3, "global_every": 2},
    ],
)
def test_one_graph_serves_all_sizes_and_its_numbers_are_constants(
    packs: Any, tiny: Any, graphs: Any, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    inputs: list[torch.Tensor] = []

    def compiler(module: torch.fx.GraphModule, _: Any) -> torch.fx.GraphModule:
        inputs.extend(node.meta["example_value"] for node in module.graph.nodes if node.op == "placeholder")
        return module

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=compiler, fullgraph=True))
    compiled, plain = (tiny(compile=compiling, attention_backend="auto", **options) for compiling in (True, False))
    for lengths in ([5, 9], [3, 1, 8], [11]):
        batch = packs.random(lengths)
        found, expected = compiled(batch), plain(batch)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
        found.sin().sum().backward()
    assert graphs() == 1
    # ε, rotary bases and dropout stand in the program; as inputs they would be read back from tensors without shape.
    assert all(value.dim() > 0 for value in inputs if isinstance(value, torch.Tensor))


@pytest.mark.gpu
@pytest.mark.parametrize("options", [{"time_rotary": 0.5, "qk_norm": True, "local_window": 3}, {"causal": True}])
@pytest.mark.parametrize("compiling", [False, True])
def test_on_a_gpu_one_graph_in_bfloat16_and_nothing_waits(
    packs: Any, tiny: Any, graphs: Any, options: dict[str, Any], compiling: bool
) -> None:
    encoder = tiny(attention_backend="auto", **options).cuda()
    truth, batch = tiny(**options).double(), packs.random([60, 1, 90, 17])
    expected = truth(batch)
    called = torch.compile(encoder, fullgraph=True, dynamic=True) if compiling else encoder
    moved = batch.to("cuda")
    for attempt in range(2):  # the first one compiles
        torch.cuda.set_sync_debug_mode("error" if attempt else "default")
        try:
            with torch.autocast("cuda", dtype=torch.bfloat16):
                hidden = called(moved)
                decided = called(moved, at_decisions=True)
                (hidden.sum() + decided.sum()).backward()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert hidden.dtype == torch.float32
    torch.testing.assert_close(hidden.double().cpu(), expected, rtol=0, atol=0.15)
    torch.testing.assert_close(decided.double().cpu(), expected[batch.positions], rtol=0, atol=0.15)
