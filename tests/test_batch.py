"""The seam between data and models: what a pack must be, and that moving it changes nothing."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import pytest
import torch

from quantattn import PackedBatch


def batch() -> PackedBatch:
    return PackedBatch(
        fields={"kind": torch.tensor([1, 2, 3, 4, 5]), "size": torch.ones(5)},
        time=torch.arange(5),
        cu_seqlens=torch.tensor([0, 2, 2, 5], dtype=torch.int32),
        max_seqlen=3,
        positions=torch.tensor([1, 4]),
        keys=torch.tensor([7, 3]),
        targets={"label": torch.tensor([0, 1]), "next": torch.zeros(5, 2)},
    )


def test_a_sound_pack_is_itself() -> None:
    sound = batch()
    assert sound.check() is sound
    assert (sound.n_tokens, sound.n_sequences) == (5, 3)
    moved = pickle.loads(pickle.dumps(sound.to("cpu", non_blocking=True)))
    for name in ("time", "cu_seqlens", "positions", "keys"):
        assert torch.equal(getattr(moved, name), getattr(sound, name))
    for name in ("fields", "targets"):
        assert all(torch.equal(getattr(moved, name)[key], value) for key, value in getattr(sound, name).items())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"cu_seqlens": torch.tensor([0, 3, 2, 5], dtype=torch.int32)}, "must rise from 0 to T = 5"),
        ({"cu_seqlens": torch.tensor([0, 2, 2, 4], dtype=torch.int32)}, "must rise from 0 to T = 5"),
        ({"cu_seqlens": torch.tensor([0, 2, 2, 5])}, r"cu_seqlens must be 1-D torch.int32, got \(4,\) torch.int64"),
        ({"time": torch.zeros(5)}, "time must be 1-D torch.int64"),
        ({"max_seqlen": 4}, "max_seqlen is 4 but the longest sequence has 3"),
        ({"fields": {"kind": torch.zeros(4)}}, r"field 'kind' has shape \(4,\), expected \(5,\)"),
        ({"fields": {"kind": torch.zeros(5, 2)}}, r"field 'kind' has shape \(5, 2\), expected \(5,\)"),
        ({"keys": torch.tensor([7])}, "2 positions but 1 keys"),
        ({"positions": torch.tensor([1, 5])}, r"must lie in \[0, 5\)"),
        ({"positions": torch.tensor([4, 1])}, r"must ascend, got \[4, 1\]"),
        ({"targets": {"label": torch.zeros(3)}}, "for each of 2 decisions or 5 tokens"),
    ],
)
def test_a_pack_that_is_none_is_named(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        replace(batch(), **change).check()
