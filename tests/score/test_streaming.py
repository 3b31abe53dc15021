"""Sequences that go on from their keys and values have the bits of sequences that were computed at once."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from small_market import encoded, events, model

from quantattn.batch import PackedBatch
from quantattn.data.pack import Decisions, SequenceSet
from quantattn.data.units import every_event
from quantattn.nn import batch_invariant
from quantattn.nn.streaming import Past, go_on, rest

CASES: list[dict[str, Any]] = [
    {},
    {"time_rotary": 0.0, "n_kv_heads": 1},
    {"local_window": 5, "global_every": 2, "local_rotary_base": 100.0, "n_layers": 3},
]


def batch_of_three() -> PackedBatch:
    """The first 40, 21 and 33 events of three entities, each of them a decision."""
    made = every_event(encoded(events()), True).sequences
    table, stop = made.table, (40, 21, 33)
    rows = [start + i for start, n in zip(table.offsets, stop, strict=False) for i in range(n)]
    cut = SequenceSet(table, Decisions(torch.tensor(rows).numpy()), 40, "chunks", 40)
    batch = cut.pack(range(len(cut)))
    assert batch.cu_seqlens.diff().tolist() == list(stop)
    return batch


@pytest.mark.parametrize("changes", CASES)
@pytest.mark.parametrize("cuts", [[(0, 0, 0)], [(13, 0, 33)], [(1, 20, 5), (1, 20, 5), (39, 21, 32)]])
def test_however_sequences_are_cut_the_states_have_the_same_bits(
    changes: dict[str, Any], cuts: list[tuple[int, ...]]
) -> None:
    encoder, batch = model(True, **changes).encoder, batch_of_three()
    with torch.no_grad(), batch_invariant(encoder):
        whole = encoder(batch)
    bounds = [torch.tensor(cut) for cut in cuts] + [batch.cu_seqlens.diff().long()]
    past, before = Past.empty(encoder, 3), torch.zeros(3, dtype=torch.int64)
    found: list[list[torch.Tensor]] = [[], [], []]
    for end in bounds:
        new = rest(until(batch, end), before)
        new.check()
        states, past = go_on(encoder, new, past)
        for n, own in enumerate(torch.split(states, new.cu_seqlens.diff().tolist())):
            found[n].append(own)
        assert past.lengths.tolist() == end.tolist()
        before = end
    assert torch.equal(torch.cat([piece for own in found for piece in own]), whole)


def until(batch: PackedBatch, end: torch.Tensor) -> PackedBatch:
    """The first tokens of each sequence."""
    kept = torch.cat([torch.arange(n) + int(start) for start, n in zip(batch.cu_seqlens, end, strict=False)])
    cu = torch.cat([torch.zeros(1, dtype=torch.int64), end.cumsum(0)])
    return PackedBatch(
        {name: column[kept] for name, column in batch.fields.items()},
        batch.time[kept],
        cu.to(torch.int32),
        int(end.max()),
        torch.arange(len(kept)),
        batch.keys[kept],
    )


def test_a_past_is_taken_apart_and_joined_again() -> None:
    encoder, batch = model(True).encoder, batch_of_three()
    _, past = go_on(encoder, batch, Past.empty(encoder, 3))
    none = torch.tensor([], dtype=torch.int64)
    parts = Past.joined([past.of(torch.tensor([2])), past.of(none), past])  # sequences 2, 0, 1, 2
    again = parts.of(torch.tensor([1, 2, 0]))
    assert again.lengths.tolist() == past.lengths.tolist() == [40, 21, 33]
    assert again.began.tolist() == past.began.tolist()
    for one, other in zip(again.layers, past.layers, strict=True):
        assert torch.equal(one[0], other[0])
        assert torch.equal(one[1], other[1])


def test_a_bidirectional_encoder_does_not_go_on_and_pasts_must_fit() -> None:
    batch = batch_of_three()
    with pytest.raises(ValueError, match="goes on under a causal encoder only"):
        go_on(model(False).encoder, batch, Past.empty(model(False).encoder, 3))
    encoder = model(True).encoder
    with pytest.raises(ValueError, match="3 sequences and 2 layers go on, but the past is of 2 sequences"):
        go_on(encoder, batch, Past.empty(encoder, 2))
    with pytest.raises(ValueError, match="cannot be left out of sequences of"):
        rest(batch, torch.tensor([41, 0, 0]))
