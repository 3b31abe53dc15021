"""What decisions attend to: the weights of the dense definition, and the events that have them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from small_market import encoded, events, model, work
from torch.testing import assert_close

from quantattn.attention import Mask
from quantattn.batch import PackedBatch
from quantattn.data.units import every_event
from quantattn.nn.attended import attended
from quantattn.nn.encoder import Encoder, layer_mask
from quantattn.nn.ensemble import Ensemble
from quantattn.score import Worker, make_plan, score
from quantattn.score.attended_keys import AttendedKeys


def dense(encoder: Encoder, batch: PackedBatch, layer: int) -> torch.Tensor:
    """(H, T, T) softmax of the layer's scores in float64, of a batch of one sequence, by the definition."""
    config, block = encoder.config, encoder.blocks[layer]
    seen: list[torch.Tensor] = []
    hook = block.attention.project_in.register_forward_hook(lambda module, given, out: seen.append(out))
    encoder(batch)
    hook.remove()
    size, heads = config.head_size, config.n_heads
    q, k, _ = torch.split(seen[0].view(len(seen[0]), -1, size), [heads, config.kv_heads, config.kv_heads], dim=1)
    wide, local = encoder.rotations(batch.time, batch.cu_seqlens)
    turn = local if block.local else wide

    def turned(x: torch.Tensor) -> torch.Tensor:
        halves = torch.cat([x[..., size // 2 :], x[..., : size // 2]], dim=-1)
        return x * turn.cos + halves * turn.sin

    q, k = turned(q).double(), turned(k).double().repeat_interleave(heads // config.kv_heads, dim=1)
    scores = torch.einsum("ihd,jhd->hij", q, k) / size**0.5
    n = len(q)
    i, j = torch.arange(n)[:, None], torch.arange(n)[None]
    allowed = j <= i if config.causal else torch.ones(n, n, dtype=torch.bool)
    mask: Mask = layer_mask(config, block.local)
    if mask.left is not None:
        allowed &= i - j <= mask.left
    return scores.masked_fill(~allowed, -torch.inf).softmax(-1)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("head", [None, 0, 1])
@pytest.mark.parametrize(
    ("layer", "changes"), [(-1, {}), (0, {"n_kv_heads": 1}), (1, {"local_window": 5, "global_every": 2})]
)
@torch.no_grad()
def test_the_weights_are_those_of_the_dense_definition(
    causal: bool, head: int | None, layer: int, changes: dict[str, Any]
) -> None:
    encoder = model(causal, **changes).encoder
    made = every_event(encoded(events()), causal).sequences
    numbers = [1, 5] if causal else [40, 3]
    batch = made.pack(numbers)
    weights, back = attended(encoder, batch, layer=layer, head=head, top=6)
    at = 0
    for number in numbers:
        alone = made.pack([number])
        whole = dense(encoder, alone, layer)
        p = whole.mean(0) if head is None else whole[head]
        for position in alone.positions.tolist():
            row = p[position]
            expected = row.sort(descending=True).values[:6]
            kept = min(6, int((row > 0).sum()))
            assert_close(weights[at, :kept].double(), expected[:kept], atol=1e-6, rtol=1e-5)
            assert (weights[at, kept:] == 0).all()
            assert (back[at, kept:] == -1).all()
            assert_close(row[position - back[at, :kept]], weights[at, :kept].double(), atol=1e-6, rtol=1e-5)
            at += 1
    assert at == len(weights)


def table_of(out: Path, said: AttendedKeys, **options: Any) -> pl.DataFrame:
    given = work(every_event(encoded(events()), True))
    plan = make_plan(given, "m", options.pop("shard", 1000))
    assert score(Worker(model(), given, plan, options.pop("max_tokens", 200), output=said, **options), out)
    return pl.read_delta(str(out)).sort("key")


def test_each_row_names_the_events_and_what_remains(tmp_path: Path) -> None:
    frame = events()
    table = table_of(tmp_path / "out", AttendedKeys(top=4), deterministic="batch")
    assert table["attended_weight"].list.len().max() == 4
    assert table["attended_weight"].list.len()[0] == 1, "a first event sees itself alone"
    total = table["attended_weight"].list.sum() + table["attended_rest"]
    np.testing.assert_allclose(total.to_numpy(), 1, atol=1e-5)
    assert table["attended_rest"][0] == 0
    seen = table.with_row_index("row").explode(
        "attended_weight", "attended_back", "attended_available_time", "attended_event_time", "attended_kind"
    )
    at = seen["row"].cast(pl.Int64) - seen["attended_back"]
    for name in ("available_time", "event_time", "kind"):
        assert seen[f"attended_{name}"].to_list() == frame[name].cast(pl.Int64).gather(at).to_list()
    assert (seen["attended_available_time"] <= seen["as_of"]).all()
    assert (frame["entity"].gather(at) == seen["entity"]).all()


def test_no_batch_and_no_shard_changes_a_bit(tmp_path: Path) -> None:
    tables = [
        table_of(tmp_path / str(i), AttendedKeys(), deterministic="batch", max_tokens=tokens, shard=shard)
        for i, (tokens, shard) in enumerate([(32, 1000), (3000, 17)])
    ]
    assert tables[0].drop("plan_sha").equals(tables[1].drop("plan_sha"))


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"layer": 2}, "layer must lie in -2 … 1, got 2"),
        ({"head": 2}, "head must lie in 0 … 1, or be none for the mean over heads, got 2"),
        ({"top": 0}, "top must be at least 1 key, got 0"),
    ],
)
def test_a_layer_that_is_not_there_is_refused(given: dict[str, int], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        AttendedKeys(**given).check(model(), streamed=False)
    with pytest.raises(ValueError, match="looks at all keys"):
        AttendedKeys().check(model(), streamed=True)
    with pytest.raises(ValueError, match="is that of one encoder; take one member of the ensemble"):
        AttendedKeys().check(Ensemble([model()]), streamed=False)
