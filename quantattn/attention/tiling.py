"""Which blocks a computation by blocks visits, in which order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from quantattn.attention.mask import Mask

ORDERED_Q, ORDERED_K = 32, 256
"""Queries and keys of a block that is computed in its full size: few queries, for a stream brings few at a time, and
many keys, for each block costs a round of operators. Every block of the kernels divides 256 keys."""


@dataclass(frozen=True)
class Tiling:
    """Everything about a computation by blocks that is not a tensor.

    Attributes:
        rows: N + 1 offsets of the sequences in q.
        columns: N + 1 offsets of the sequences in k and v.
        mask: who sees whom.
        scale: factor of q·k.
        block_q: queries of a block.
        block_k: keys of a block.
        ordered: whether blocks lie at fixed places of the sequence, and are computed in their full size, so that a
            query meets the same sums whichever queries are computed with it.
    """

    rows: tuple[int, ...]
    columns: tuple[int, ...]
    mask: Mask
    scale: float
    block_q: int = 128
    block_k: int = 128
    ordered: bool = False

    def __post_init__(self) -> None:
        if self.block_q < 1 or self.block_k < 1:
            raise ValueError(f"blocks need at least one row and one column, got {self.block_q} × {self.block_k}")

    def sequences(self) -> Iterator[tuple[int, slice, slice]]:
        """(n, its rows in q, its rows in k and v) for each sequence."""
        for n in range(len(self.rows) - 1):
            yield n, slice(self.rows[n], self.rows[n + 1]), slice(self.columns[n], self.columns[n + 1])

    def lead(self, n_q: int, n_k: int) -> int:
        """Rows that the first block of queries lacks: a query belongs where the key beside it stands, if ordered."""
        return (n_k - n_q) % self.block_q if self.ordered else 0

    def query_blocks(self, n_q: int, n_k: int) -> Iterator[tuple[int, int]]:
        """Half-open ranges of queries within a sequence of n_q, none of them empty."""
        for first in range(-self.lead(n_q, n_k), n_q if n_q else -self.block_q, self.block_q):
            yield max(first, 0), min(first + self.block_q, n_q)

    def key_blocks(self, queries: tuple[int, int], n_q: int, n_k: int) -> Iterator[tuple[int, int]]:
        """Half-open ranges of keys that some of these queries see; whole blocks, if ordered."""
        done = 0
        for start, stop in self.mask.key_ranges(*queries, n_q, n_k):
            if self.ordered:
                start, stop = max(start // self.block_k * self.block_k, done), -(-stop // self.block_k) * self.block_k
            for first in range(start, stop, self.block_k):
                yield first, min(first + self.block_k, stop, n_k)
            done = stop
