"""The rounds of ring attention: keys and values go round, and each rank merges what its queries see of every shard.

    state_r = ⊕_t attention(q_r, k_(r − t), v_(r − t))        t = 0, then the other distances at which anything is seen

is attention over all keys because the state is an algebra (`AttentionState`). The backward needs no state: with the
logsumexp and the delta of whole rows,

    p_ij = exp(s_ij − lse_i)      ds_ij = p_ij · (do_i · v_j − delta_i)      delta_i = do_i · out_i − dlse_i

are what they are in one process, so each block yields its own part of dq, dk and dv, whatever the other blocks are. The
sums dk and dv travel with their keys, in float32, and return to the rank that owns them.

A rank holds its own rows and, at a time, two shards of keys and values and three of their gradients: memory O(T / W).
Every transfer is posted before the block that is computed meanwhile, and on a device nothing makes the host wait. The
order of every sum is fixed: results repeat to the bit. Distances at which no rank sees anything are skipped by all, and
a shard travels straight to the next one: under zigzag placement a window shorter than a chunk costs three rounds
however many ranks there are, and sequences that end at the borders of shards cost no transfer at all.

Dimensions: T rows of the pack, W ranks, n rows of a shard, H query heads, Hkv key/value heads, D head size.

Sources: Liu, Zaharia and Abbeel 2023, "Ring Attention with Blockwise Transformers for Near-Infinite Context", §3;
Dao et al. 2022, "FlashAttention", appendix B.2, for the backward.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from quantattn.attention import ops
from quantattn.attention.api import attention
from quantattn.attention.mask import Mask
from quantattn.attention.placement import Block, Plan
from quantattn.attention.state import Attended, AttentionState, lse_dtype


class _Transfer(NamedTuple):
    """A shard on its way: what is sent must live until it has arrived."""

    works: list[Any]
    sent: Tensor
    arriving: Tensor

    def wait(self) -> Tensor:
        """What arrives, for use by the current stream; on a device the host does not wait."""
        for work in self.works:
            work.wait()
        return self.arriving


@dataclass(frozen=True)
class Ring:
    """One rank's part in one computation.

    Attributes:
        plan: of all ranks.
        rank: within the group.
        group: None for all processes.
        backend: of every block.
        scale: > 0.
    """

    plan: Plan
    rank: int
    group: dist.ProcessGroup | None
    backend: str
    scale: float

    def source(self, distance: int) -> int:
        """The rank whose keys are here in the round of that distance."""
        return (self.rank - distance) % self.plan.placement.world

    def blocks(self, distance: int) -> tuple[Block, ...]:
        """What this rank computes in the round of that distance."""
        return self.plan.blocks(self.rank, self.source(distance))

    def pass_on(self, x: Tensor, hop: int, owner: int) -> _Transfer:
        """Send x (2, rows, …) `hop` ranks on, and receive the shard that `owner` owns from as many ranks before."""
        world = self.plan.placement.world
        arriving = x.new_empty(x.shape[0], self.plan.placement.size(owner), *x.shape[2:])
        to, by = (self.rank + hop) % world, (self.rank - hop) % world
        works = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, x, group=self.group, group_peer=to),
                dist.P2POp(dist.irecv, arriving, group=self.group, group_peer=by),
            ]
        )
        return _Transfer(works, x, arriving)


def forward(q: Tensor, k: Tensor, v: Tensor, ring: Ring) -> Attended:
    """Attention of this rank's q (n, H, D) over the k and v (n, Hkv, D) of all ranks; no autograd of its own."""
    state = AttentionState.empty(q.shape[:2], q.shape[2], dtype=lse_dtype(q.dtype), device=q.device)
    rounds = ring.plan.rounds()
    kv = torch.stack((k, v))  # one message
    for now, following in zip_longest(rounds, rounds[1:]):
        coming = None if following is None else ring.pass_on(kv, following - now, ring.source(following))
        for block in ring.blocks(now):
            rows, columns = slice(*block.rows), slice(*block.columns)
            cu_q, cu_k = _as_offsets(block, q.device)
            mask = Mask(window=(block.left, block.right))
            part = attention(
                q[rows], kv[0, columns], kv[1, columns], cu_q, cu_k, mask=mask, scale=ring.scale, backend=ring.backend
            )
            seen = AttentionState(state.m[rows], state.l[rows], state.u[rows]).merge(AttentionState.of_attended(part))
            state.m[rows], state.l[rows], state.u[rows] = seen.m, seen.l, seen.u
        if coming is not None:
            kv = coming.wait()
    out, lse = state.finish()
    return Attended(out.to(q.dtype), lse)


def backward(
    do: Tensor, dlse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, ring: Ring
) -> tuple[Tensor, Tensor, Tensor]:
    """(dq, dk, dv) of this rank's rows, from the results of `forward` and their gradients, dlse None for none."""
    dtype = lse_dtype(q.dtype)
    rounds = ring.plan.rounds()
    kv = torch.stack((k, v))
    dq = torch.zeros_like(q, dtype=dtype, memory_format=torch.contiguous_format)
    sums: _Transfer | None = None
    for now, following in zip_longest(rounds, rounds[1:]):
        coming = None if following is None else ring.pass_on(kv, following - now, ring.source(following))
        dkv = torch.zeros_like(kv, dtype=dtype)
        for block in ring.blocks(now):
            rows, columns = slice(*block.rows), slice(*block.columns)
            parts = _backward_of_block(
                do[rows], None if dlse is None else dlse[rows], q[rows], kv[0, columns], kv[1, columns],
                out[rows], lse[rows], block, ring,
            )  # fmt: skip
            for total, part in zip((dq[rows], dkv[0, columns], dkv[1, columns]), parts, strict=True):
                total += part
        if sums is not None:  # what the ranks before have added up for these keys
            dkv += sums.wait()
        if following is not None:
            sums = ring.pass_on(dkv, following - now, ring.source(following))
        if coming is not None:
            kv = coming.wait()
    if rounds[-1]:
        dkv = ring.pass_on(dkv, -rounds[-1], ring.rank).wait()
    return dq.to(q.dtype), dkv[0].to(k.dtype, copy=True), dkv[1].to(v.dtype, copy=True)  # operators return no views


def _backward_of_block(
    do: Tensor, dlse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, block: Block, ring: Ring
) -> tuple[Tensor, Tensor, Tensor]:
    """What one block adds to dq, dk and dv, given the out and the lse of whole rows."""
    cu_q, cu_k = _as_offsets(block, q.device)
    problem = (None, ring.scale, block.left, block.right)
    if ring.backend in ("triton", "hopper"):
        dense = (x[None] for x in (q, k, v, out))
        of_heads = None if dlse is None else dlse.T[None]
        parts = ops.attention_backward_op(
            do[None], of_heads, *dense, lse.T[None], cu_q, cu_k, *problem, hopper=ring.backend == "hopper"
        )
        return parts[0][0], parts[1][0], parts[2][0]
    if cu_q is None or cu_k is None:
        cu_q, cu_k = (torch.tensor(cu, dtype=torch.int32, device=q.device) for cu in (block.cu_q, block.cu_k))
    packed = (do, dlse, q, k, v, out, lse, False, cu_q, cu_k)
    dq, dk, dv, *_ = ops.packed_attention_backward_op(*packed, *problem, ring.backend, 128, 128)
    return dq, dk, dv


def _as_offsets(block: Block, device: torch.device) -> tuple[Tensor | None, Tensor | None]:
    """Offsets on the device, copied without making the host wait; None for one sequence."""
    if len(block.cu_q) == 2:
        return None, None
    cu = torch.tensor([block.cu_q, block.cu_k], dtype=torch.int32, pin_memory=device.type == "cuda")
    cu = cu.to(device, non_blocking=True)
    return cu[0], cu[1]
