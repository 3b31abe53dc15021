"""Random packs, small encoders and a saved model for the tests of the encoder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from quantattn.batch import PackedBatch
from quantattn.nn import ClassificationConfig, Encoder, EventsConfig, Model, RegressionConfig, save_pretrained

CODES = {"kind": 9, "side": 5, "gap": 12}
VALUES = ("size_value", "gap_value")
CLASSES = ("down", "flat", "up")


class Packs:
    """Makes packs of random events and cuts sequences out of them."""

    codes = CODES
    values = VALUES
    classes = CLASSES

    @staticmethod
    def random(lengths: Sequence[int], seed: int = 0, positions: Sequence[int] | None = None) -> PackedBatch:
        """A pack of sequences of these lengths; decisions at the last rows (of those that have one) or as given."""
        draw = torch.Generator().manual_seed(seed)
        ends = torch.tensor(lengths, dtype=torch.int64).cumsum(0)
        n = int(ends[-1]) if len(lengths) else 0
        fields = {name: torch.randint(2, count, (n,), generator=draw) for name, count in CODES.items()}
        fields |= {name: torch.randn(n, generator=draw) for name in VALUES}
        last = [int(end) - 1 for end, length in zip(ends, lengths, strict=True) if length]
        rows = torch.tensor(last if positions is None else list(positions), dtype=torch.int64)
        return PackedBatch(
            fields=fields,
            time=1_760_000_000_000_000_000 + torch.randint(1, 5_000_000_000, (n,), generator=draw).cumsum(0),
            cu_seqlens=torch.cat([torch.zeros(1, dtype=torch.int64), ends]).int(),
            max_seqlen=max(lengths, default=0),
            positions=rows,
            keys=torch.arange(len(rows)) + 100,
            targets={"label": torch.randint(0, len(CLASSES), (len(rows),), generator=draw)},
        ).check()

    @staticmethod
    def take(batch: PackedBatch, sequences: Sequence[int]) -> PackedBatch:
        """The pack of some of the sequences, in the order given."""
        starts = batch.cu_seqlens.tolist()
        rows = torch.cat([torch.arange(starts[n], starts[n + 1]) for n in sequences])
        lengths = torch.tensor([starts[n + 1] - starts[n] for n in sequences])
        asked = [torch.nonzero(rows == p).flatten() for p in batch.positions]
        kept = torch.tensor([i for i, where in enumerate(asked) if len(where)], dtype=torch.int64)
        places = torch.cat([asked[i] for i in kept]) if len(kept) else torch.zeros(0, dtype=torch.int64)
        order = places.argsort()
        return PackedBatch(
            fields={name: value[rows] for name, value in batch.fields.items()},
            time=batch.time[rows],
            cu_seqlens=torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)]).int(),
            max_seqlen=int(lengths.max()),
            positions=places[order],
            keys=batch.keys[kept][order],
            targets={name: value[kept][order] for name, value in batch.targets.items()},
        ).check()


@pytest.fixture
def packs() -> type[Packs]:
    return Packs


@pytest.fixture
def tiny() -> Any:
    """Makes a tiny encoder: `tiny(causal=True, …)`, the same weights for the same arguments."""

    def make(size: str = "tiny", **overrides: Any) -> Encoder:
        torch.manual_seed(7)
        overrides.setdefault("attention_backend", "exact")
        return Encoder(size, codes=CODES, values=VALUES, **overrides)

    return make


@pytest.fixture
def model(packs: Any, tiny: Any) -> Model:
    """One head of each kind, every parameter drawn."""
    heads = {
        "move": ClassificationConfig(packs.classes, "attention"),
        "vol": RegressionConfig(1.5, 2.5, "mean"),
        "events": EventsConfig(("kind", "gap")),
    }
    bins = {"size_value": (-1.0, 0.1, 2.0)}
    model = Model(tiny(qk_norm=True, value_frequencies=2, value_edges=bins, n_heads=4, n_kv_heads=2), heads)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return model


@pytest.fixture
def saved(model: Model, tmp_path: Path) -> Path:
    """The folder of `model`, the only thing in `tmp_path`."""
    return save_pretrained(model, tmp_path / "model", vocabulary_json='{"a": 1}', card="# Tiny", extra={"n": [1, None]})
