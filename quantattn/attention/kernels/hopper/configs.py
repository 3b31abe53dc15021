"""Launch configurations for sm_90, by padded head size; fixed, as those of the portable kernels are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import triton


@dataclass(frozen=True)
class ForwardConfig:
    """A program's shape.

    Attributes:
        groups: warpgroups of 64 queries each, 1 to 3.
        block_n: keys a block.
        stages: buffers of keys, and as many of values.
        registers: of a thread that multiplies.
        spare: of a thread that loads.
        overlap: a warpgroup's products run beside its own softmax.
        turns: warpgroups take turns at the tensor cores.
        two_loops: under a causal mask, cut blocks and full ones have a loop each; else one loop asks each time.
        shares: results leave through the buffer of the queries, which the next ones then wait for.
        programs: a multiprocessor runs at a time.
    """

    groups: int
    block_n: int
    stages: int
    registers: int
    spare: int
    overlap: bool
    turns: bool
    two_loops: bool = True
    shares: bool = False
    programs: int = 1

    def warps(self, bounded: bool) -> dict[str, Any]:
        """What the warps beside the first warpgroup do, their number, their registers a thread, and the average."""
        more, spare = self.groups - 1, 2 if bounded else 1  # a bounded mask needs warps that inspect
        threads = 128 * (self.groups + 1)  # the spare warps are made up to four
        return {
            "WORKERS": (*range(1, self.groups), *(LOADS, INSPECTS)[:spare]),
            "WARPS": (4,) * more + (1, 2)[:spare],
            "REGISTERS": (self.registers,) * more + (self.spare,) * spare,
            "maxnreg": _REGISTERS // (self.programs * threads) // 8 * 8,
        }


_REGISTERS = 65536
LOADS, INSPECTS = 3, 4
"""Numbers of the warps that do not multiply; the warpgroups that do have 0, 1 and 2."""

_TRITON = tuple(int(part) for part in triton.__version__.split(".")[:2])
FORWARD = {
    # From 3.7 on two loops need more registers than three warpgroups leave.
    64: ForwardConfig(3, 128, stages=3, registers=160, spare=32, overlap=False, turns=True, two_loops=_TRITON < (3, 7)),
    128: ForwardConfig(2, 128, stages=2, registers=240, spare=32, overlap=True, turns=False),
    256: ForwardConfig(2, 64, stages=2, registers=240, spare=24, overlap=True, turns=False, shares=True),
}
"""Columns of a buffer → configuration."""
SHORT = {
    64: ForwardConfig(1, 64, stages=3, registers=104, spare=24, overlap=False, turns=False, programs=3),
    128: ForwardConfig(1, 64, stages=2, registers=168, spare=24, overlap=True, turns=False, programs=2),
}
"""The same where a query sees few keys: a tile is over soon, and what its program waits for others do beside it."""
FLOAT8 = (
    {
        64: ForwardConfig(3, 128, stages=4, registers=160, spare=32, overlap=True, turns=False),
        128: ForwardConfig(3, 128, stages=3, registers=160, spare=32, overlap=False, turns=False),
    }
    if _TRITON < (3, 8)  # from there on they need more registers than three warpgroups leave
    else dict.fromkeys((64, 128), ForwardConfig(2, 128, stages=4, registers=240, spare=24, overlap=False, turns=False))
)
"""The same in eight bits."""
_FEW = {64: (512, 2048), 128: (256, 1024)}
"""How many keys are few, by columns: without a bound and with one."""


def forward_config(columns: int, n_q: int, n_k: int, left: int | None, right: int | None) -> ForwardConfig:
    """The configuration of a forward, from shapes and the mask alone.

    Args:
        columns: of a buffer.
        n_q: queries of a sequence, of a pack's sequences on average.
        n_k: keys likewise.
        left: bound of the window, or None.
        right: likewise.
    """
    if columns not in SHORT:
        return FORWARD[columns]
    keys, (few, few_bounded) = n_k, _FEW[columns]
    if left is not None or right is not None:
        ahead, behind = n_k if right is None else right, n_q if left is None else left
        keys, few = min(n_k, ahead + behind + 1), few_bounded
    return SHORT[columns] if keys <= few else FORWARD[columns]


@dataclass(frozen=True)
class BackwardConfig:
    """How the kernel runs.

    Attributes:
        stages: of q and do in shared memory, 64 rows each.
        defer: whether the product for dk stays in flight over the end of a step.
        hold: whether k and v are held in registers.
        early: whether the product for dp is started beside that for the scores; else when dq has left its registers.
        deterministic: whether the sum of dq has an order.
        registers: of a thread that multiplies.
        spare: of a thread that loads or writes.
    """

    stages: int
    defer: bool
    hold: bool
    early: bool
    deterministic: bool = True
    registers: int = 240
    spare: int = 24


BACKWARD = {
    64: BackwardConfig(stages=4, defer=False, hold=True, early=True),
    128: BackwardConfig(stages=2, defer=True, hold=False, early=False),
}
"""Head size rounded up to 64 or 128 → configuration."""


@dataclass(frozen=True)
class WideBackwardConfig:
    """How the two kernels for heads of more than 128 run.

    Attributes:
        stages: of q and do, and of k, in shared memory, 64 rows each.
        weights: tiles of weights that wait for the second warpgroup.
        registers: of a thread that multiplies.
        spare: of a thread that loads.
    """

    stages: int
    weights: int
    registers: int = 240
    spare: int = 24


WIDE_BACKWARD = WideBackwardConfig(stages=2, weights=2)


def padded_head(d: int) -> int:
    """Columns of a buffer for head size d: 64, 128 or 256."""
    return 64 if d <= 64 else 128 if d <= 128 else 256
