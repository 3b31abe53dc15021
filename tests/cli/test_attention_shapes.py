"""Which shapes `bench=attention` is asked for, and the work that is counted for each."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch

from quantattn.attention import Mask
from quantattn.cli.benchmarks import peers, shapes
from quantattn.cli.benchmarks.shapes import Case, Shape
from quantattn.cli.config import compose, plain
from quantattn.cli.errors import UsageError
from tests.cli.attention_cases import CAUSAL, SHAPES, visible


@cache
def settings() -> dict[str, Any]:
    """What the yaml file says."""
    return plain(compose("bench", []))


def asked(**changes: Any) -> list[Case]:
    return shapes.read(settings() | changes)


def test_all_is_every_group_in_its_order_and_main_the_default() -> None:
    names = ("main", "ragged", "windows", "short", "few", "grouped")
    assert asked(shapes="all") == [case for name in names for case in asked(shapes=name)]
    assert asked() == asked(shapes="main")
    assert len(asked()) == 8
    assert asked(shapes=["short", "few"]) == asked(shapes="short") + asked(shapes="few")


def test_a_shape_of_ones_own_is_read_and_timed_for_all_peers() -> None:
    (one,) = shapes.read(plain(compose("bench", ["shapes=[[128,262144,causal,{queries: 16, heads_k: 2}]]"])))
    assert one == Case(Shape(128, 262144, 1, 16, 2, CAUSAL, 16), tuple(peers.PEERS))
    (two,) = asked(shapes=[[64, 512, [128, 0]]], peers=["quantattn"])
    assert two == Case(Shape(64, 512, 32, 32, 32, Mask(window=(128, 0))), ("quantattn",))


def test_the_pack_is_log_normal_and_always_the_same() -> None:
    full, causal = (case.shape for case in asked(shapes="ragged"))
    assert full.lengths == causal.lengths
    assert sum(full.lengths) == full.tokens == 65536
    assert min(full.lengths) >= 64
    assert 8192 < max(full.lengths) == full.n <= 16384
    logs = torch.tensor(full.lengths).log()
    assert float(logs.exp().median()) == pytest.approx(1200, rel=0.5)
    assert float(logs.std()) == pytest.approx(1.4, rel=0.3)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"shapes": "shorts"}, "there is no group 'shorts'; did you mean 'short'?"),
        ({"shapes": []}, "shapes: expected main, ragged"),
        ({"shapes": [[64, 8192]]}, "got [64, 8192]"),
        ({"shapes": [[64, 8192, "upper"]]}, "got [64, 8192, 'upper']"),
        ({"shapes": [[64, 8192, "full", {"query": 16}]]}, "queries: …, heads_k: …"),
        ({"shapes": [[64, "ragged", "full", {"queries": 16}]]}, "expected [head size"),
        ({"shapes": [[64, 16, "full", {"queries": 16}]]}, "expected [head size"),
        ({"shapes": [[64, 16, "full", {"heads_k": 5}]]}, "expected [head size"),
        ({"shapes": [[64, 0, "full"]]}, "expected [head size"),
        ({"shapes": [7]}, "expected [head size"),
        ({"peers": ["cuddn"]}, "peers: there is no 'cuddn'; did you mean 'cudnn'?"),
        ({"groups": {"main": {"peers": ["cuddn"], "shapes": []}}}, "groups.main.peers: there is no 'cuddn'"),
    ],
)
def test_what_is_no_shape_and_no_peer_is_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError) as refused:
        asked(**changes)
    assert sentence in str(refused.value)


@pytest.mark.parametrize("name", SHAPES)
def test_the_work_counts_the_pairs_that_are_seen(name: str) -> None:
    shape = SHAPES[name]
    if shape.mask == CAUSAL:  # by the convention half of all, the diagonal's other half left out
        pairs = sum(n * n / 2 for n in shape.lengths or (shape.n,) * shape.batch)
    else:
        pairs = int(visible(shape).sum()) * (1 if shape.lengths else shape.batch)
    assert shape.flops(backward=False) == 4 * shape.heads * shape.d * pairs
    assert shape.flops(backward=True) == 2.5 * shape.flops(backward=False)
