"""How often a compiled encoder is compiled while a run trains on packs of which no two are of one shape."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from quantattn.data.pack import Decisions, SequenceSet, TokenTable, plan
from quantattn.learn.datamodule import PreparedData
from quantattn.learn.fit import fit
from quantattn.learn.module import Schedule, Training
from quantattn.learn.predict import predict
from quantattn.learn.trainer import TrainerSettings
from quantattn.nn import Encoder, Model, Outcome

# torch's own code warns while it imports its compiler and while it looks at tensors of a graph that was broken.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:torch"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
]

BUDGET = 40
STEPS = 24


def ragged(n: int, seed: int) -> SequenceSet:
    """n documents of 2 … 20 tokens, with a decision at their last."""
    rng = np.random.default_rng(seed)
    offsets = np.concatenate([[0], np.cumsum(rng.integers(2, 21, n))])
    code = rng.integers(2, 6, offsets[-1])
    table = TokenTable({"code": code}, np.arange(offsets[-1]), offsets, tuple(f"E{i:03d}" for i in range(n)))
    return SequenceSet(table, Decisions(offsets[1:] - 1, {"label": code[offsets[:-1]] % 2}), 20, "document")


def compiled_model() -> Model:
    torch.manual_seed(0)
    shape = {"n_layers": 1, "width": 8, "n_heads": 2, "hidden": 8}
    encoder = Encoder("tiny", codes={"code": 6}, compile=True, **shape)  # type: ignore[arg-type]
    return Model(encoder, Outcome().heads(encoder.config, ("even", "odd")))


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Number of nodes of each graph that was made, by a compiler that compiles nothing."""
    made: list[int] = []

    def compiler(module: torch.fx.GraphModule, _: object) -> torch.fx.GraphModule:
        made.append(len(module.graph.nodes))
        return module

    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=compiler))
    yield made
    torch._dynamo.reset()


def test_a_run_on_ragged_packs_makes_four_graphs_at_most(tmp_path: Path, graphs: list[int]) -> None:
    train, valid = ragged(60, seed=0), ragged(20, seed=1)
    packs = plan(train.lengths, BUDGET, seed=1)
    shapes = {(len(pack), int(train.lengths[pack].sum()), int(train.lengths[pack].max())) for pack in packs}
    assert len(shapes) > len(packs) / 2 >= 8
    optimizer = partial(torch.optim.AdamW, lr=0.01)
    module = Training(compiled_model(), Outcome(), optimizer=optimizer, schedule=Schedule(STEPS))
    data = PreparedData(train, valid, max_tokens=BUDGET, seed=1, batches=STEPS)
    fit(module, data, tmp_path, TrainerSettings(max_steps=STEPS, validate_every=6), total_steps=STEPS)
    # With and without gradients, each for one sequence and for more: a size of 1 is a constant to the compiler.
    assert 2 <= len(graphs) <= 4
    for budget in (BUDGET, BUDGET // 2):
        predict(module.model, ragged(9, seed=2), budget)
    assert len(graphs) <= 4, "what trained scores as it is"
