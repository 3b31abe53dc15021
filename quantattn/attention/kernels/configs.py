"""Launch configurations: block sizes, warps, pipeline depth, by pass, operand width, head size and architecture.

The table is fixed, so that the same problem always runs the same program and rounds the same way; nothing is tuned
at run time. Rows are measured by `bench.py bench=tune` and asserted free of spills by the compile tests.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Pass = Literal["fwd", "dq", "dkdv"]


@dataclass(frozen=True)
class Config:
    """BLOCK_M queries × BLOCK_N keys a step, warps a program, stages of the load pipeline."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int


def padded_head(d: int) -> int:
    """Head size rounded up to the power of two that a tile needs; at least 16, the smallest matrix product."""
    return max(16, 1 << (d - 1).bit_length())


# (pass, bits of an operand, padded head size) → configuration; a head size stands for itself and what is smaller.
_DEFAULT: dict[tuple[Pass, int, int], Config] = {
    ("fwd", 16, 64): Config(64, 128, 4, 2),
    ("fwd", 16, 128): Config(128, 64, 4, 2),
    ("fwd", 16, 256): Config(64, 32, 4, 2),
    ("dq", 16, 64): Config(64, 64, 4, 2),
    ("dq", 16, 128): Config(64, 32, 4, 2),
    ("dq", 16, 256): Config(64, 32, 8, 1),
    ("dkdv", 16, 64): Config(64, 64, 4, 2),
    ("dkdv", 16, 128): Config(32, 64, 4, 2),
    ("dkdv", 16, 256): Config(32, 64, 8, 1),
    ("fwd", 32, 64): Config(64, 32, 4, 2),
    ("fwd", 32, 128): Config(64, 32, 8, 1),
    ("fwd", 32, 256): Config(32, 16, 8, 1),
    ("dq", 32, 64): Config(32, 32, 4, 1),
    ("dq", 32, 128): Config(32, 32, 8, 1),
    ("dq", 32, 256): Config(16, 16, 8, 1),
    ("dkdv", 32, 64): Config(32, 32, 4, 1),
    ("dkdv", 32, 128): Config(32, 32, 8, 1),
    ("dkdv", 32, 256): Config(16, 16, 8, 1),
}
_HOPPER: dict[tuple[Pass, int, int], Config] = {
    ("fwd", 16, 64): Config(64, 128, 4, 2),
    ("fwd", 16, 128): Config(128, 128, 8, 3),
    ("fwd", 16, 256): Config(128, 64, 8, 2),
    ("dq", 16, 64): Config(128, 64, 8, 2),
    ("dq", 16, 128): Config(128, 64, 8, 2),
    ("dq", 16, 256): Config(64, 64, 8, 1),
    ("dkdv", 16, 64): Config(64, 128, 8, 2),
    ("dkdv", 16, 128): Config(64, 128, 8, 2),
    ("dkdv", 16, 256): Config(32, 64, 8, 1),
}


def configuration(which: Pass, bits: int, d: int, capability: int) -> Config:
    """The configuration of one kernel: `bits` of an operand (16 or 32), head size `d` ≤ 256, `capability` as 90."""
    width = max(64, padded_head(d))
    key = (which, bits, width)
    if capability // 10 == 9 and key in _HOPPER:
        return _HOPPER[key]
    return _DEFAULT[key]


INTERPRETED = Config(block_m=16, block_n=16, num_warps=1, num_stages=1)
"""Blocks under the interpreter, where a launch costs by its number of steps and small blocks cross more edges."""
