"""Launch configurations for sm_90, by padded head size; fixed, as those of the portable kernels are."""

from __future__ import annotations

from dataclasses import dataclass

import triton


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
        two_loops: under a causal mask, cut blocks and full ones have a loop each; else one loop asks each time.
    """

    groups: int
    block_n: int
    stages: int
    registers: int
    spare: int
    overlap: bool
    turns: bool
    two_loops: bool = True


_TRITON = tuple(int(part) for part in triton.__version__.split(".")[:2])
FORWARD = {
    # From 3.7 on two loops need more registers than three warpgroups leave.
    64: ForwardConfig(3, 128, stages=3, registers=160, spare=32, overlap=False, turns=True, two_loops=_TRITON < (3, 7)),
    128: ForwardConfig(2, 128, stages=2, registers=240, spare=32, overlap=True, turns=False),
}
"""Head size rounded up to 64 or 128 → configuration."""


@dataclass(frozen=True)
class BackwardConfig:
    """How the kernel runs.

    Attributes:
        stages: of q and do in shared memory, 64 rows each.
        defer: whether the product for dk stays in flight over the end of a step.
        hold: whether k and v are held in registers.
        deterministic: whether the sum of dq has an order.
        registers: of a thread that multiplies.
        spare: of a thread that loads or writes.
        lag: steps that should lie between the programs of a head under a causal mask, so that none waits for its turn.
    """

    stages: int
    defer: bool
    hold: bool
    deterministic: bool = True
    registers: int = 240
    spare: int = 24
    lag: int = 8


BACKWARD = {
    64: BackwardConfig(stages=4, defer=False, hold=True),
    128: BackwardConfig(stages=2, defer=True, hold=False),
}
"""Head size rounded up to 64 or 128 → configuration."""


def padded_head(d: int) -> int:
    """Columns of a buffer for head size d, 64 or 128."""
    return 64 if d <= 64 else 128
