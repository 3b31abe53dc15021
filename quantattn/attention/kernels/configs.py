"""Launch configurations: block sizes, warps, pipeline depth, by pass, operand width, head size and architecture.

The table is fixed, so that the same problem always runs the same program and rounds the same way; nothing is tuned
at run time. With triton 3.9 none of them spills. The Hopper rows were timed (docs/log.md) as `bench.py bench=tune`
does, but fwd at 256; plain 16-bit problems have kernels of their own there (hopper/).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import triton

Pass = Literal["fwd", "dq", "dkdv", "dbias"]


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


Table = dict[tuple[Pass, int, int], Config]
"""(pass, bits of an operand, padded head size) → configuration; a head size stands for itself and what is smaller."""

# Before 3.7 Triton reads whole rows into registers ahead of a loop, and the smallest blocks spill least.
_EAGER = tuple(int(part) for part in triton.__version__.split(".")[:2]) < (3, 7)

# The largest blocks that assemble for sm_80 without a spill; float32 has one table for every architecture.
_DEFAULT: Table = {
    ("fwd", 16, 64): Config(128, 64, 8, 2),
    ("fwd", 16, 128): Config(64, 64, 8, 2),
    ("fwd", 16, 256): Config(64, 32, 8, 2),
    ("dq", 16, 64): Config(128, 64, 8, 2),
    ("dq", 16, 128): Config(64, 64, 8, 2),
    ("dq", 16, 256): Config(64, 16, 8, 1),
    ("dkdv", 16, 64): Config(32, 64, 4, 2),
    ("dkdv", 16, 128): Config(64, 64, 8, 2),
    ("dkdv", 16, 256): Config(16, 64, 8, 1),
    ("fwd", 32, 64): Config(64, 32, 8, 1),
    ("fwd", 32, 128): Config(32, 16, 8, 1),
    ("fwd", 32, 256): Config(16, 16, 16, 1),
    ("dq", 32, 64): Config(32, 32, 8, 1),
    ("dq", 32, 128): Config(16, 16, 8, 1),
    ("dq", 32, 256): Config(16, 16, 8, 1) if _EAGER else Config(32, 16, 16, 1),
    ("dkdv", 32, 64): Config(32, 32, 4, 1),
    ("dkdv", 32, 128): Config(32, 32, 16, 1),
    ("dkdv", 32, 256): Config(16, 16, 8, 1),
    ("dbias", 16, 64): Config(64, 64, 4, 1),
    ("dbias", 16, 128): Config(64, 64, 8, 1),
    ("dbias", 16, 256): Config(32, 32, 4, 1),
    ("dbias", 32, 64): Config(32, 32, 4, 1),
    ("dbias", 32, 128): Config(32, 32, 4, 1),
    ("dbias", 32, 256): Config(16, 16, 4, 1),
}
# Measured on an H200 with triton 3.6.0, 2026-11-29, N 8192, full and causal (docs/log.md).
_HOPPER: Table = {
    ("fwd", 16, 64): Config(64, 128, 4, 3),
    ("fwd", 16, 128): Config(128, 64, 8, 3),
    ("fwd", 16, 256): Config(128, 32, 8, 3),
    ("dq", 16, 64): Config(128, 64, 4, 3),
    ("dq", 16, 128): Config(128, 64, 8, 3),
    ("dq", 16, 256): Config(128, 32, 8, 3),
    ("dkdv", 16, 64): Config(64, 64, 4, 3),
    ("dkdv", 16, 128): Config(32, 64, 4, 3),
    ("dkdv", 16, 256): Config(32, 64, 8, 3),
}
# Assembled for sm_100 without a spill; not measured.
_BLACKWELL: Table = {
    ("fwd", 16, 64): Config(64, 64, 4, 3),
    ("fwd", 16, 128): Config(128, 64, 8, 3),
    ("fwd", 16, 256): Config(128, 64, 8, 2),
    ("dq", 16, 64): Config(64, 64, 4, 2),
    ("dq", 16, 128): Config(128, 64, 8, 2),
    ("dq", 16, 256): Config(64, 64, 8, 1),
    ("dkdv", 16, 64): Config(64, 64, 4, 2),
    ("dkdv", 16, 128): Config(64, 128, 8, 2),
    ("dkdv", 16, 256): Config(32, 64, 8, 1),
}
_BY_GENERATION = {9: _HOPPER, 10: _BLACKWELL}


def configuration(which: Pass, bits: int, d: int, capability: int, *, terms: bool = False) -> Config:
    """The configuration of one kernel.

    Args:
        which: the kernel.
        bits: of an operand, 16 or 32.
        d: head size, at most 256.
        capability: compute capability as one number, 90 for sm_90.
        terms: with anything beside q·k in a score, which takes room, the default blocks serve every architecture.
    """
    key = (which, bits, max(64, padded_head(d)))
    table = {} if terms else _BY_GENERATION.get(capability // 10, {})
    return table.get(key, _DEFAULT[key])


INTERPRETED = Config(block_m=16, block_n=16, num_warps=1, num_stages=1)
"""Blocks under the interpreter, where a launch costs by its number of steps and small blocks cross more edges."""
