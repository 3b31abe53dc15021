"""Shapes of every kind for the tests of `bench=attention`, and what is asked of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from quantattn.attention import Mask
from quantattn.cli.benchmarks import attention as bench
from quantattn.cli.benchmarks.shapes import Case, Shape

FULL, CAUSAL = Mask(), Mask(causal=True)
PACK = Shape(8, 11, 3, 4, 2, CAUSAL, lengths=(7, 1, 11))
SHAPES = {
    "full": Shape(8, 12, 2, 4, 2, FULL),
    "causal": Shape(8, 12, 2, 2, 2, CAUSAL),
    "window": Shape(8, 20, 2, 2, 2, Mask(window=(3, 2))),
    "causal window": Shape(8, 20, 2, 2, 1, Mask(window=(3, 0))),
    "pack": replace(PACK, mask=FULL),
    "causal pack": PACK,
    "few": Shape(8, 20, 2, 2, 2, FULL, queries=3),
}


def measure(shape: Shape, names: Sequence[str]) -> list[bench.AttentionRow]:
    case = Case(shape, tuple(names))
    return list(bench.benchmark([case], torch.float32, rounds=1, warmup=1, seed=0, say=print))


def visible(shape: Shape) -> Tensor:
    """(Nq, Nk) bool of one sequence, or of all queries and keys of a pack."""
    if not shape.lengths:
        return shape.mask.visible(shape.queries or shape.n, shape.n)
    return torch.block_diag(*(shape.mask.visible(n, n).int() for n in shape.lengths)).bool()
