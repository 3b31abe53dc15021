"""Which rank holds which rows of a pack, and which blocks of queries and keys the rounds of a ring consist of.

Everything here is arithmetic on the host that every rank does alike: no tensor moves, nothing is communicated.

A rank holds a few intervals of rows, laid end to end in the order of the pack: its shard. Two different intervals are
disjoint, and since a sequence is an interval too, at most one sequence reaches into both. A block between them is
therefore one rectangle of one sequence. With its queries ending e rows after its keys, the mask −left ≤ j − i ≤ right
reads −(left − e) ≤ j′ − i′ ≤ right + e in the block's own places, aligned at its end as `Mask` is. Queries and keys
that the mask leaves with nothing are cut off first, which makes both bounds ≥ 0: every block is an ordinary call of
attention, and every query in it sees a key.

Source: Grattafiori et al. 2024, "The Llama 3 Herd of Models", §3.3.2, for chunks r and 2W − 1 − r on rank r, which is
called zigzag or head-tail.

Dimensions: N sequences, T rows of the whole pack, W ranks.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from quantattn.attention.mask import Mask

Interval = tuple[int, int]
"""Rows start … stop − 1."""


@dataclass(frozen=True)
class Placement:
    """The intervals of rows that each rank holds; together they are the pack, each row once.

    Args:
        intervals: one tuple of (start, stop) a rank; order and adjacency within a rank do not matter.

    Attributes:
        table: (intervals, 3) int64 on the CPU, (start, stop, rank): the same as a tensor, which operators take.

    Raises:
        ValueError: the intervals leave a row out, hold it twice, or a rank has none.
    """

    intervals: tuple[tuple[Interval, ...], ...]
    table: Tensor = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        ordered = sorted(interval for own in self.intervals for interval in own)
        borders = [0, *(stop for _, stop in ordered)]
        if any(start != border or stop <= start for (start, stop), border in zip(ordered, borders, strict=False)):
            raise ValueError(f"a placement holds every row from 0 on once, got the intervals {ordered[:8]}")
        if not all(self.intervals) or not self.intervals:
            raise ValueError(f"every rank needs rows, got {[len(own) for own in self.intervals]} intervals a rank")
        object.__setattr__(self, "intervals", tuple(tuple(_joined(sorted(own))) for own in self.intervals))
        rows = [(*interval, rank) for rank, own in enumerate(self.intervals) for interval in own]
        object.__setattr__(self, "table", torch.tensor(rows))

    @classmethod
    def of_table(cls, table: Tensor) -> Placement:
        """The placement that `table` was taken from."""
        return _of_table(tuple(map(tuple, table.tolist())))

    @classmethod
    def contiguous(cls, tokens: int, world: int) -> Placement:
        """Rank r holds the r-th of W equal chunks: balanced for full masks and narrow windows."""
        return cls(tuple((chunk,) for chunk in _chunks(tokens, world)))

    @classmethod
    def zigzag(cls, tokens: int, world: int) -> Placement:
        """Rank r holds chunks r and 2W − 1 − r of 2W equal ones: balanced for one causal sequence.

        Chunks differ by a row where 2W does not divide `tokens`, and so the shards may.
        """
        chunks = _chunks(tokens, 2 * world)
        return cls(tuple((chunks[r], chunks[-1 - r]) for r in range(world)))

    @classmethod
    def balanced(cls, cu_seqlens: Tensor, world: int, mask: Mask, chunks: int = 8) -> Placement:
        """Any pack and mask: equal chunks, dealt out by the number of pairs that their rows see.

        The heaviest W chunks go to ranks 0 … W − 1, the next W to W − 1 … 0, and so on. Two ranks then differ by less
        than the pairs of the heaviest chunk. One causal sequence in two chunks a rank gives `zigzag`.

        Args:
            cu_seqlens: (N + 1,) offsets of the sequences.
            world: W.
            mask: who sees whom.
            chunks: chunks a rank; more are better balanced, and make more and smaller blocks.
        """
        keys = visible_keys(cu_seqlens, mask)
        pieces = _chunks(keys.shape[0], chunks * world)
        pieces.sort(key=lambda piece: -int(keys[slice(*piece)].sum()))
        hands: list[list[Interval]] = [[] for _ in range(world)]
        for turn in range(chunks):
            dealt = pieces[turn * world : (turn + 1) * world]
            for hand, piece in zip(hands, dealt if turn % 2 == 0 else dealt[::-1], strict=True):
                hand.append(piece)
        return cls(tuple(tuple(hand) for hand in hands))

    @property
    def world(self) -> int:
        """W, the number of ranks."""
        return len(self.intervals)

    @property
    def tokens(self) -> int:
        """T, the rows of the whole pack."""
        return sum(self.size(rank) for rank in range(self.world))

    def size(self, rank: int) -> int:
        """Rows of a rank's shard."""
        return sum(stop - start for start, stop in self.intervals[rank])

    def rows(self, rank: int, device: torch.device | str = "cpu") -> Tensor:
        """(size,) int64, where in the pack each row of the shard stands."""
        return torch.cat([torch.arange(*interval, device=device) for interval in self.intervals[rank]])

    def shard(self, x: Tensor, rank: int) -> Tensor:
        """The rows of x (T, …) that a rank holds, (size, …); differentiable. Anything a row has is sharded like this.

        Raises:
            ValueError: x has another number of rows.
        """
        if x.shape[0] != self.tokens:
            raise ValueError(f"this placement is of {self.tokens} rows, got x {tuple(x.shape)}")
        return torch.cat([x[start:stop] for start, stop in self.intervals[rank]])

    def join(self, shards: Sequence[Tensor]) -> Tensor:
        """The whole (T, …) of the shards of all ranks: the inverse of `shard`; differentiable.

        Raises:
            ValueError: not one shard a rank, or shards of other sizes.
        """
        sizes = [self.size(rank) for rank in range(self.world)]
        if [shard.shape[0] for shard in shards] != sizes:
            raise ValueError(f"the shards must have {sizes} rows, got {[shard.shape[0] for shard in shards]}")
        placed = [
            (start, part)
            for own, shard in zip(self.intervals, shards, strict=True)
            for (start, _), part in zip(own, torch.split(shard, [b - a for a, b in own]), strict=True)
        ]
        return torch.cat([part for _, part in sorted(placed, key=lambda item: item[0])])


def visible_keys(cu_seqlens: Tensor, mask: Mask) -> Tensor:
    """(T,) int64, how many keys each row of a pack sees: what a row costs, up to a factor."""
    if mask.rule is not None:
        raise ValueError(f"what a row costs is known for masks without a rule, got {mask}")
    cu = cu_seqlens.cpu().long()
    lengths = cu.diff()
    before = torch.arange(int(cu[-1])) - cu[:-1].repeat_interleave(lengths)
    after = lengths.repeat_interleave(lengths) - 1 - before
    start = torch.zeros_like(before) if mask.left is None else (before - mask.left).clamp(min=0)
    stop = before + 1 + (after if mask.right is None else after.clamp(max=mask.right))
    prefix = (before + 1 + after).clamp(max=mask.prefix)
    return stop - start + start.minimum(prefix) + (prefix - stop).clamp(min=0)


@dataclass(frozen=True)
class Block:
    """Queries of one shard and keys of another (or the same) that one call of attention takes.

    Attributes:
        rows: the queries, within the shard of the rank that computes.
        columns: the keys, within the shard that visits it.
        left: bounds of the mask in the block's own places, None for none.
        right: see left.
        cu_q: offsets of the sequences within rows.
        cu_k: offsets of the sequences within columns.
    """

    rows: Interval
    columns: Interval
    left: int | None
    right: int | None
    cu_q: tuple[int, ...]
    cu_k: tuple[int, ...]


@dataclass(frozen=True)
class Plan:
    """The work of every rank: who holds what, where the sequences end, who sees whom.

    Attributes:
        placement: of T rows.
        cu: N + 1 offsets of the sequences, from 0 to T.
        left: bounds of the mask, None for none.
        right: see left.
    """

    placement: Placement
    cu: tuple[int, ...]
    left: int | None
    right: int | None

    def rounds(self) -> tuple[int, ...]:
        """The distances t, rising from 0, at which some rank r sees keys of rank r − t."""
        return _rounds(self)

    def blocks(self, rank: int, source: int) -> tuple[Block, ...]:
        """What the queries of `rank` compute with the keys of `source`: every pair that sees each other, once."""
        return _blocks(self, rank, source)


@lru_cache(maxsize=64)
def _rounds(plan: Plan) -> tuple[int, ...]:
    world = plan.placement.world
    return tuple(t for t in range(world) if t == 0 or any(plan.blocks(r, (r - t) % world) for r in range(world)))


@lru_cache(maxsize=4096)
def _blocks(plan: Plan, rank: int, source: int) -> tuple[Block, ...]:
    own, others = plan.placement.intervals[rank], plan.placement.intervals[source]
    found = []
    if rank == source:
        # Without a window the rows of a sequence that a rank holds are, to the mask, a shorter sequence.
        whole = plan.left is None and plan.right in (None, 0)
        cu = _offsets(own, plan.cu) if whole else _offsets_apart(own, plan.cu)
        found = [Block((0, cu[-1]), (0, cu[-1]), plan.left, plan.right, cu, cu)]
        if whole:
            return tuple(found)
    rectangles = [
        block
        for queries, row in _placed(own)
        for keys, column in _placed(others)
        if queries != keys and (block := _rectangle(queries, keys, row, column, plan)) is not None
    ]
    return (*found, *_side_by_side(rectangles))


def _rectangle(queries: Interval, keys: Interval, row: int, column: int, plan: Plan) -> Block | None:
    """The one block of two disjoint intervals that start at `row` and `column` of their shards, None if none."""
    n = bisect_right(plan.cu, max(queries[0], keys[0])) - 1  # the sequence of the first row of the later interval
    first, last = plan.cu[n], plan.cu[n + 1]
    (a, b), (c, d) = ((max(start, first), min(stop, last)) for start, stop in (queries, keys))
    if (
        c < a and plan.left is not None
    ):  # keys before queries: those within reach of the first, and who reaches the last
        c, b = max(c, a - plan.left), min(b, d + plan.left)
    if a < c and plan.right is not None:
        a, d = max(a, c - plan.right), min(d, b + plan.right)
    if a >= b or c >= d:
        return None
    left = None if plan.left is None else plan.left + d - b
    right = None if plan.right is None else plan.right + b - d
    return Block(
        rows=(row + a - queries[0], row + b - queries[0]),
        columns=(column + c - keys[0], column + d - keys[0]),
        left=None if left is None or left >= d - c - 1 else left,  # a bound that hides nothing is none
        right=None if right is None or right >= b - a - 1 else right,
        cu_q=(0, b - a),
        cu_k=(0, d - c),
    )


def _side_by_side(blocks: list[Block]) -> list[Block]:
    """Fewer, larger blocks: those that are seen whole and lie side by side become one."""
    for turned in (False, True):  # first with the same rows, then with the same columns
        joined: list[Block] = []
        for block in blocks:
            last = joined[-1] if joined else block
            rows, columns = (last.rows[0], block.rows[1]), (last.columns[0], block.columns[1])
            if turned:
                beside = last.columns == block.columns and last.rows[1] == block.rows[0]
            else:
                beside = last.rows == block.rows and last.columns[1] == block.columns[0]
            if beside and last.left is last.right is block.left is block.right is None:
                joined[-1] = Block(rows, columns, None, None, (0, rows[1] - rows[0]), (0, columns[1] - columns[0]))
            else:
                joined.append(block)
        blocks = joined
    return blocks


def _offsets(intervals: Iterable[Interval], cu: tuple[int, ...]) -> tuple[int, ...]:
    """Offsets of the sequences among the rows of some intervals, laid end to end in the order of the pack."""
    lengths: dict[int, int] = {}
    for start, stop in intervals:
        n = bisect_right(cu, start) - 1
        while start < stop:
            end = min(stop, cu[n + 1])
            lengths[n] = lengths.get(n, 0) + end - start
            start, n = end, n + 1
    return tuple(accumulate((length for length in lengths.values() if length), initial=0))


def _offsets_apart(intervals: Iterable[Interval], cu: tuple[int, ...]) -> tuple[int, ...]:
    """The same with every interval cut off from the next: the parts of a sequence in two of them are two sequences."""
    offsets = [0]
    for interval in intervals:
        offsets += [offsets[-1] + place for place in _offsets([interval], cu)[1:]]
    return tuple(offsets)


def _placed(intervals: tuple[Interval, ...]) -> Iterator[tuple[Interval, int]]:
    """Each interval with the place of its first row in the shard."""
    at = 0
    for start, stop in intervals:
        yield (start, stop), at
        at += stop - start


def _joined(intervals: Iterable[Interval]) -> list[Interval]:
    """Sorted intervals with adjacent ones made one."""
    joined: list[Interval] = []
    for start, stop in intervals:
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], stop)
        else:
            joined.append((start, stop))
    return joined


@lru_cache(maxsize=64)
def _of_table(table: tuple[tuple[int, int, int], ...]) -> Placement:
    world = table[-1][-1] + 1
    return Placement(tuple(tuple((a, b) for a, b, owner in table if owner == rank) for rank in range(world)))


def _chunks(tokens: int, count: int) -> list[Interval]:
    """`count` chunks whose lengths differ by at most a row."""
    if not 1 <= count <= tokens:
        raise ValueError(f"each of {count} chunks needs a row, got {tokens} rows")
    return list(pairwise(i * tokens // count for i in range(count + 1)))
