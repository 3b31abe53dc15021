"""Which blocks a computation by blocks visits, in which order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from quantattn.attention.mask import Mask


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
    """

    rows: tuple[int, ...]
    columns: tuple[int, ...]
    mask: Mask
    scale: float
    block_q: int = 128
    block_k: int = 128

    def __post_init__(self) -> None:
        if self.block_q < 1 or self.block_k < 1:
            raise ValueError(f"blocks need at least one row and one column, got {self.block_q} × {self.block_k}")

    def sequences(self) -> Iterator[tuple[int, slice, slice]]:
        """(n, its rows in q, its rows in k and v) for each sequence."""
        for n in range(len(self.rows) - 1):
            yield n, slice(self.rows[n], self.rows[n + 1]), slice(self.columns[n], self.columns[n + 1])

    def query_blocks(self, n_q: int) -> Iterator[tuple[int, int]]:
        """Half-open ranges of queries within a sequence of n_q."""
        for first in range(0, n_q, self.block_q):
            yield first, min(first + self.block_q, n_q)

    def key_blocks(self, queries: tuple[int, int], n_q: int, n_k: int) -> Iterator[tuple[int, int]]:
        """Half-open ranges of keys that some of these queries see."""
        for start, stop in self.mask.key_ranges(*queries, n_q, n_k):
            for first in range(start, stop, self.block_k):
                yield first, min(first + self.block_k, stop)
