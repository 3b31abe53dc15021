"""An encoder over a pack whose rows are spread over the ranks of a process group, for sequences beyond one device.

    share_rows(model)                 # once, on every rank, after the process group was made
    hidden = model.encoder(batch)     # the same batch on every rank; the same states as in one process, on every rank

Every rank embeds its own rows, computes its own rows in every block, with `ring_attention` in place of `attention`, and
keeps their activations alone: what grows with layers takes O(T / W) a rank. What is asked for at the end, all rows or
those of decisions, is put together on all ranks, so that heads and objectives see what they see in one process and
every rank finds the same loss. A rank's gradients are those of W times its own rows' part in it: averaged over the
ranks, as DDP does, they are the gradients of one process.

Dimensions: T rows of the pack, W ranks, n rows of a rank, Q decisions, C model width.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from quantattn.attention import Mask, Placement, ring_attention
from quantattn.batch import PackedBatch, Vectors


@dataclass(frozen=True)
class Ranks:
    """The processes of `group` share the rows of every batch; None is all of them."""

    group: dist.ProcessGroup | None = None


class Attending(Protocol):
    """What may stand in the place of a layer's attention over its own rows."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, backend: str) -> Tensor:
        """(n, H, D) out of the layer's q (n, H, D), k and v (n, Hkv, D)."""


@dataclass(frozen=True)
class Share:
    """This rank's part of one pack.

    Attributes:
        placement: which rank holds which rows.
        cu_seqlens: (N + 1,) int32 offsets of the whole pack, on the CPU.
        rows: (n,) int64, where this rank's rows stand in the pack, ascending, on the batch's device.
        group: the ranks; None is all processes.
    """

    placement: Placement
    cu_seqlens: Tensor
    rows: Tensor
    group: dist.ProcessGroup | None

    @staticmethod
    def of(batch: PackedBatch, causal: bool, ranks: Ranks) -> Share:
        """The part that the calling rank takes of a batch which is the same on all ranks; the host reads its offsets.

        Raises:
            ValueError: the batch has fewer rows than there are ranks.
        """
        cu = batch.cu_seqlens.cpu()
        placement = placed(cu, dist.get_world_size(ranks.group), causal)
        return Share(placement, cu, placement.rows(dist.get_rank(ranks.group), batch.time.device), ranks.group)

    def inputs(self, batch: PackedBatch) -> tuple[dict[str, Tensor], dict[str, Vectors]]:
        """Fields and vectors of this rank's rows."""
        fields = {name: column[self.rows] for name, column in batch.fields.items()}
        return fields, {name: self._own(each) for name, each in batch.vectors.items()}

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, backend: str) -> Tensor:
        """(n, H, D): attention of this rank's queries over the keys of all ranks."""
        ring: Mapping[str, Any] = {"placement": self.placement, "group": self.group}
        return ring_attention(q, k, v, self.cu_seqlens, mask=mask, backend=backend, **ring).out

    def whole(self, x: Tensor) -> Tensor:
        """(T, C) of every rank's rows x (n, C), on every rank."""
        zeros = x.new_zeros(self.placement.tokens, *x.shape[1:])
        return _Sum.apply(zeros.index_copy(0, self.rows, x), self.group)  # type: ignore[no-any-return,no-untyped-call]

    def at(self, x: Tensor, positions: Tensor) -> Tensor:
        """(Q, C) the rows of the pack at `positions`, from every rank's x (n, C), on every rank."""
        here = torch.searchsorted(self.rows, positions).clamp(max=len(self.rows) - 1)
        own = self.rows[here] == positions
        return _Sum.apply(x[here] * own[:, None], self.group)  # type: ignore[no-any-return,no-untyped-call]

    def _own(self, carried: Vectors) -> Vectors:
        here = torch.searchsorted(self.rows, carried.rows).clamp(max=len(self.rows) - 1)
        own = self.rows[here] == carried.rows
        return Vectors(here[own], carried.values[own])


def placed(cu_seqlens: Tensor, world: int, causal: bool) -> Placement:
    """Who holds what of a pack: equal work for every rank, in as few intervals as that takes."""
    tokens = int(cu_seqlens[-1])
    if len(cu_seqlens) > 2 and tokens >= 2 * world:
        return Placement.balanced(cu_seqlens, world, Mask(causal=causal), chunks=min(8, tokens // world))
    if causal and tokens >= 2 * world:
        return Placement.zigzag(tokens, world)
    return Placement.contiguous(tokens, world)


class _Sum(torch.autograd.Function):
    """The sum over the ranks; its gradient is the sum of theirs, since every rank's loss depends on every rank's x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        ctx.group = group
        return _added(x, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _added(gradients[0], ctx.group), None


def _added(x: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    total = x.contiguous().clone()
    dist.all_reduce(total, group=group)
    return total
