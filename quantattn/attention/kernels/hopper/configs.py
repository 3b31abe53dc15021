"""Launch configurations for sm_90, by padded head size; fixed, as those of the portable kernels are."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ForwardConfig:
    """A program's shape.

    Attributes:
        groups: warpgroups of 64 queries each, 2 or 3.
        block_n: keys a block.
        stages: buffers of keys, and as many of values.
        registers: of a thread that multiplies.
        spare: of a thread that loads.
        overlap: a warpgroup's products run beside its own softmax.
        turns: warpgroups take turns at the tensor cores.
    """

    groups: int
    block_n: int
    stages: int
    registers: int
    spare: int
    overlap: bool
    turns: bool


FORWARD = {
    64: ForwardConfig(groups=3, block_n=128, stages=3, registers=160, spare=32, overlap=False, turns=True),
    128: ForwardConfig(groups=2, block_n=128, stages=2, registers=240, spare=32, overlap=True, turns=False),
}
"""Head size rounded up to 64 or 128 → configuration."""


def padded_head(d: int) -> int:
    """Columns of a buffer for head size d, 64 or 128."""
    return 64 if d <= 64 else 128
