"""Token tables → sequences → packed batches. Pure numpy up to the last step, so loader workers may be spawned freely.

Which sequences go into which batch: `quantattn.data.plan`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from itertools import chain, pairwise
from typing import TYPE_CHECKING, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from quantattn.batch import PackedBatch, Vectors
from quantattn.data.carried import TokenVectors
from quantattn.data.cuts import Layout as Layout
from quantattn.data.cuts import cut, entity_of, ranges
from quantattn.data.filed import Room, blocks
from quantattn.data.plan import plan as plan
from quantattn.data.plan import shard as shard

if TYPE_CHECKING:
    import polars as pl

Ints = npt.NDArray[np.int64]
Array = npt.NDArray[np.generic]

_MEMORY = Room()
LONG = 64  # tokens of a sequence on average from which on `pack` copies runs


@dataclass(frozen=True)
class TokenTable:
    """R tokens of E entities (or documents), one entity after the other, each in order of time.

    Attributes:
        fields: name → (R,) integers (codes) or float32 (values).
        time: (R,) int64, when the token became available, ns UTC; anything rising when there is no clock.
        offsets: (E + 1,) int64, rows offsets[e]:offsets[e + 1] belong to entity e.
        entities: E names.
        vectors: name → what a few rows carry beside their fields.
    """

    fields: Mapping[str, Array]
    time: Ints
    offsets: Ints
    entities: tuple[str, ...]
    vectors: Mapping[str, TokenVectors] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rows = len(self.time)
        rises = len(self.offsets) > 0 and self.offsets[0] == 0 and self.offsets[-1] == rows
        if not rises or bool((np.diff(self.offsets) < 0).any()) or len(self.offsets) != len(self.entities) + 1:
            raise ValueError(
                f"offsets must rise from 0 to {rows} in {len(self.entities)} steps, got {self.offsets.tolist()[:8]} …"
            )
        for name, column in self.fields.items():
            if column.shape != (rows,):
                raise ValueError(f"field {name!r} has shape {column.shape}, expected ({rows},)")
        for name, each in self.vectors.items():
            if len(each.rows) and not 0 <= int(each.rows[0]) <= int(each.rows[-1]) < rows:
                raise ValueError(f"rows of vectors {name!r} must lie in [0, {rows})")

    @staticmethod
    def of_frame(frame: pl.DataFrame, names: Sequence[str]) -> TokenTable:
        """The columns of these names as fields; the frame has `entity` and `available_time` and is in their order."""
        runs = frame["entity"].rle().struct.unnest()
        return TokenTable(
            fields={name: frame[name].to_numpy() for name in names},
            time=frame["available_time"].to_numpy(),
            offsets=np.concatenate([[0], np.cumsum(runs["len"].to_numpy().astype(np.int64))]),
            entities=tuple(runs["value"]),
        )

    def __len__(self) -> int:
        return len(self.time)

    def between(self, first: int, last: int, rows: Ints) -> tuple[TokenTable, Ints]:
        """The tokens with first ≤ time ≤ last, and the new numbers of `rows`, which must be among them."""
        kept = (self.time >= first) & (self.time <= last)
        if not bool(kept[rows].all()):
            raise ValueError(f"{int((~kept[rows]).sum())} of {len(rows)} rows lie outside the times {first} … {last}")
        before = np.concatenate([[0], np.cumsum(kept)])
        fields = {name: column[kept] for name, column in self.fields.items()}
        vectors = {name: each.of_rows(kept) for name, each in self.vectors.items()}
        return TokenTable(fields, self.time[kept], before[self.offsets], self.entities, vectors), before[rows]

    def entity_of(self, row: Ints) -> Ints:
        """Number of the entity that each row belongs to."""
        return entity_of(self.offsets, row)


@dataclass(frozen=True)
class Decisions:
    """Q rows of a token table at which something is to be predicted; decision q has key q.

    Attributes:
        row: (Q,) int64, strictly rising.
        targets: name → (Q, …); integer targets are classes (`quantattn.batch.IGNORE` for none), others float.
    """

    row: Ints
    targets: Mapping[str, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rises = all(
            bool((np.diff(self.row[max(rows.start - 1, 0) : rows.stop]) > 0).all()) for rows in blocks(len(self))
        )
        if not rises or (len(self.row) and self.row[0] < 0):
            raise ValueError("rows of decisions must be strictly rising and not negative")
        for name, target in self.targets.items():
            if len(target) != len(self.row):
                raise ValueError(f"target {name!r} has {len(target)} rows for {len(self.row)} decisions")

    def __len__(self) -> int:
        return len(self.row)


def least_context(max_seq_len: int, layout: str, min_context: int | None) -> int:
    """`min_context`, half of `max_seq_len` when None.

    Raises:
        ValueError: a layout that is not known, or lengths that do not go together.
    """
    if layout not in get_args(Layout):
        raise ValueError(f"layout must be one of {', '.join(get_args(Layout))}, got {layout!r}")
    if max_seq_len < 1:
        raise ValueError(f"max_seq_len must be at least 1, got {max_seq_len}")
    least = -(-max_seq_len // 2) if min_context is None else min_context
    if not 1 <= least <= max_seq_len:
        raise ValueError(f"min_context must lie in 1 … max_seq_len = {max_seq_len}, got {least}")
    return least


@dataclass(frozen=True)
class SequenceSet:
    """S sequences cut from a table so that every decision lies in exactly one of them.

    Layouts:
        each: a sequence for every decision, its last `max_seq_len` tokens up to and including the decision.
        chunks: as many decisions in a sequence as fit, each with at least `min_context` tokens up to itself (or all
            that exist). Only for causal encoders: the others would see past a decision.
        windows: an entity is cut every `max_seq_len` tokens, so every token lies in exactly one sequence, decisions
            where they fall. For pretraining, where context need not be promised.
        document: a whole entity is one sequence.

    Attributes:
        table: the tokens.
        decisions: where predictions are made.
        max_seq_len: the most tokens that a sequence may have.
        layout: see above.
        min_context: tokens that a decision sees in layout "chunks", itself included; default half of max_seq_len,
            rounded up.
        start, stop: (S,) int64, sequence s is rows start[s]:stop[s] of the table.
        first: (S + 1,) int64, decisions first[s]:first[s + 1] are made in sequence s.
        room: where these three are kept; in memory, if nobody says.
    """

    table: TokenTable
    decisions: Decisions
    max_seq_len: int
    layout: Layout = "each"
    min_context: int | None = None
    start: Ints = field(init=False, repr=False)
    stop: Ints = field(init=False, repr=False)
    first: Ints = field(init=False, repr=False)
    room: InitVar[Room] = _MEMORY

    def __post_init__(self, room: Room) -> None:
        object.__setattr__(self, "min_context", least_context(self.max_seq_len, self.layout, self.min_context))
        row = self.decisions.row
        if len(row) and row[-1] >= len(self.table):
            raise ValueError(f"decision at row {row[-1]}, but the table has {len(self.table)} rows")
        made = {name: room.growing(np.int64) for name in ("start", "stop", "first")}
        made["first"].add([0])
        for start, stop in cut(
            self.table.offsets, self.table.entities, row, self.layout, self.max_seq_len, self.context
        ):
            made["start"].add(start)
            made["stop"].add(stop)
            # Sequences are in order and each decision's own row lies in exactly one [previous stop, stop).
            made["first"].add(np.searchsorted(row, stop, side="left"))
        for name, column in made.items():
            object.__setattr__(self, name, column.whole())

    @property
    def context(self) -> int:
        """`min_context` as an int."""
        return self.min_context or 0

    def __len__(self) -> int:
        return len(self.start)

    @property
    def lengths(self) -> Ints:
        """(S,) tokens of each sequence."""
        return np.asarray(self.stop - self.start, np.int64)

    @property
    def contexts(self) -> Ints:
        """(Q,) tokens that each decision sees in its sequence up to itself, itself included."""
        return self.decisions.row + 1 - np.repeat(self.start, np.diff(self.first))

    @property
    def blocks(self) -> Mapping[tuple[str, ...], Array]:
        """Names of fields → those fields as one (F, R) array of one type; here every field alone, where it lies."""
        return {(name,): np.asarray(column)[None] for name, column in self.table.fields.items()}

    def pack(self, indices: Sequence[int] | Ints) -> PackedBatch:
        """The sequences of these numbers, in this order, as one batch.

        Integer fields and targets become int64, others float32; `keys` are numbers of decisions.
        """
        chosen = np.asarray(indices, np.int64)
        start, stop = self.start[chosen], self.stop[chosen]
        lengths = stop - start
        cu_seqlens = np.concatenate([[0], np.cumsum(lengths)])
        total = int(cu_seqlens[-1])
        # Long runs are copied whole; of short ones every row is looked up, which costs less than a copy each.
        runs = list(map(slice, start.tolist(), stop.tolist()))
        rows = None if total >= LONG * len(chosen) else ranges(start, lengths, cu_seqlens)
        blocks = self.blocks
        *laid, time = _lay_out([*blocks.values(), np.asarray(self.table.time)[None]], total, runs, rows)
        columns = dict(zip(chain.from_iterable(blocks), laid, strict=True))
        made = self.first[chosen + 1] - self.first[chosen]
        keys = ranges(self.first[chosen], made, np.concatenate([[0], np.cumsum(made)]))
        shift = np.repeat(cu_seqlens[:-1] - start, made)
        return PackedBatch(
            fields={name: columns[name] for name in self.table.fields},
            time=time,
            cu_seqlens=torch.from_numpy(cu_seqlens.astype(np.int32)),
            max_seqlen=int(lengths.max(initial=0)),
            positions=torch.from_numpy(np.asarray(self.decisions.row[keys]) + shift),
            keys=torch.from_numpy(keys),
            targets={
                name: torch.from_numpy(target[keys].astype(_kept(target)))
                for name, target in self.decisions.targets.items()
            },
            vectors={
                name: Vectors(*map(torch.from_numpy, each.laid(start, stop, cu_seqlens[:-1])))
                for name, each in self.table.vectors.items()
            },
        )


def unpack(batch: PackedBatch) -> list[PackedBatch]:
    """The sequences of a batch as batches of one sequence; undoes `pack` (targets must be one row a decision)."""
    alone = []
    bounds = batch.cu_seqlens.tolist()
    for start, stop in pairwise(bounds):
        here = (batch.positions >= start) & (batch.positions < stop)
        alone.append(
            PackedBatch(
                fields={name: column[start:stop] for name, column in batch.fields.items()},
                time=batch.time[start:stop],
                cu_seqlens=torch.tensor([0, stop - start], dtype=torch.int32),
                max_seqlen=stop - start,
                positions=batch.positions[here] - start,
                keys=batch.keys[here],
                targets={name: target[here] for name, target in batch.targets.items()},
                vectors={name: each.between(start, stop) for name, each in batch.vectors.items()},
            )
        )
    return alone


def _lay_out(blocks: Sequence[Array], total: int, runs: Sequence[slice], rows: Ints | None) -> list[Tensor]:
    """Of each column of each (F, R) block the rows, or where they are not given those of the runs, end to end.

    One piece of memory holds all `total` rows, each column from a multiple of 64 bytes on: the system maps one large
    piece in a few steps, and many small ones page by page, which took most of the time.
    """
    kept = [_kept(block) for block in blocks]
    sizes = [-(-total * kind.itemsize // 64) * 64 for kind in kept]
    memory = np.empty(sum(len(block) * size for block, size in zip(blocks, sizes, strict=True)), np.uint8)
    made: list[Tensor] = []
    begin = 0
    for block, kind, size in zip(blocks, kept, sizes, strict=True):
        end = begin + len(block) * size
        here = memory[begin:end].reshape(len(block), size)[:, : total * kind.itemsize].view(kind)
        begin = end
        if rows is not None:
            for column, place in zip(block, here, strict=True):
                place[:] = column.take(rows)
        elif runs:
            # Rows first, and a column that is alone in one dimension: such slices are the cheapest.
            whole, place = (block[0], here[0]) if len(block) == 1 else (block.T, here.T)
            pieces = [whole[run] for run in runs]
            if kind == block.dtype:
                np.concatenate(pieces, out=place)
            else:
                place[:] = np.concatenate(pieces)  # a change of type is slow piece by piece
        made += map(torch.from_numpy, here)
    return made


def _kept(column: Array) -> np.dtype[np.generic]:
    return np.dtype(np.int64 if np.issubdtype(column.dtype, np.integer) else np.float32)
