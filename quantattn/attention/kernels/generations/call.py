"""One call of a generation: its tensors, its blocks, and what it moves through memory by the formula."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from quantattn.attention.kernels.configs import Config


class Moved(NamedTuple):
    """Bytes of one tensor that the kernels ask of memory."""

    read: int
    written: int


Traffic = dict[str, Moved]
"""Name of a tensor → bytes moved. Every request counts, also one that a cache answers; rows beyond an end do not."""


@dataclass(frozen=True)
class Shape:
    """B sequences of Nq queries and Nk keys, H heads of size D, bytes of an element, causal or not."""

    batch: int
    n_q: int
    n_k: int
    heads: int
    d: int
    itemsize: int
    causal: bool

    def rows_of_queries(self, itemsize: int | None = None) -> int:
        """Bytes of a (B, Nq, H, D)."""
        return self.batch * self.heads * self.n_q * self.d * (itemsize or self.itemsize)

    def rows_of_keys(self) -> int:
        """Bytes of a (B, Nk, H, D)."""
        return self.batch * self.heads * self.n_k * self.d * self.itemsize

    def vector(self) -> int:
        """Bytes of a (B, H, Nq) float32: lse, or FlashAttention-1's m and l."""
        return self.batch * self.heads * self.n_q * 4

    def matrix(self) -> int:
        """Bytes of a (B, H, Nq, Nk): what the tiled generations never form."""
        return self.batch * self.heads * self.n_q * self.n_k * self.itemsize

    def key_rows_read(self, block_m: int, block_n: int, at_least: int = 0) -> int:
        """Bytes of k that are read when each tile of queries reads the blocks that it sees, `at_least` so many.

        Without a mask this is ⌈Nq / block_m⌉ times k; a causal mask leaves about half. The host twin of `keys_of_tile`.
        """
        total = 0
        for first in range(0, self.n_q, block_m):
            seen = self.n_k
            if self.causal:
                last = min(first + block_m, self.n_q) - 1
                seen = min(max(last + self.n_k - self.n_q + 1, 0), self.n_k)
            total += min(max(-(-seen // block_n), at_least) * block_n, self.n_k)
        return self.batch * self.heads * total * self.d * self.itemsize


@dataclass(frozen=True)
class Call:
    """q (B, Nq, H, D), k and v (B, Nk, H, D), out like q, lse (B, H, Nq) float32, all contiguous.

    `unit` is scale · log₂ e: kernels take powers of two.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    out: Tensor
    lse: Tensor
    unit: float
    causal: bool
    blocks: Config

    @property
    def shape(self) -> Shape:
        """The sizes alone."""
        batch, n_q, heads, d = self.q.shape
        return Shape(batch, n_q, self.k.shape[1], heads, d, self.q.element_size(), self.causal)

    @property
    def pairs(self) -> int:
        """Sequences × heads."""
        return self.q.shape[0] * self.q.shape[2]

    @property
    def tiles(self) -> int:
        """Blocks of queries of one sequence and head."""
        return -(-self.q.shape[1] // self.blocks.block_m)

    def sizes(self) -> tuple[int, int, int]:
        """Runtime integers of every kernel: heads, Nq, Nk."""
        return self.q.shape[2], self.q.shape[1], self.k.shape[1]

    def constants(self) -> dict[str, Any]:
        """Compile-time arguments of every kernel, and the launch options."""
        return {
            "D": self.q.shape[3],
            "BLOCK_M": self.blocks.block_m,
            "BLOCK_N": self.blocks.block_n,
            # float32 is multiplied as torch's own matrix products do.
            "PRECISION": "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32",
            "num_warps": self.blocks.num_warps,
            "num_stages": self.blocks.num_stages,
            "enable_fp_fusion": True,
        }
