"""Context parallelism: attention over a pack of sequences whose rows are spread over the ranks of a process group.

    placement = Placement.zigzag(tokens, world)                   # the same value on every rank
    q, k, v = (placement.shard(x, rank) for x in (q, k, v))       # (T, H, D) → (n, H, D)
    out, lse = ring_attention(q, k, v, mask=Mask(causal=True))    # this rank's rows

Exact, forward and backward, in memory O(T / W) a rank. How it goes round: `ring`; who holds what and which blocks that
makes: `placement`.

Dimensions: T rows of the pack, W ranks, n rows of a shard, H query heads, Hkv key/value heads, D head size.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from quantattn.attention import ops
from quantattn.attention.choose import BACKENDS, choose_backend, require_backend
from quantattn.attention.mask import Mask
from quantattn.attention.options import check_scale_fits
from quantattn.attention.placement import Placement, Plan
from quantattn.attention.ring import Ring, backward, forward
from quantattn.attention.state import Attended, lse_dtype

_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def ring_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens: Tensor | None = None,
    *,
    mask: Mask = Mask(),  # noqa: B008  a frozen value
    scale: float | None = None,
    placement: Placement | None = None,
    group: dist.ProcessGroup | None = None,
    backend: str = "auto",
    check: bool = False,
) -> Attended:
    """Exactly `attention(q, k, v, cu_seqlens, mask=mask)` of a pack whose rows are spread over the ranks of `group`.

    Every rank of the group calls it with its shard, at the same place of its program, and so it must the backward: a
    rank whose results enter no loss would leave the others waiting. Differentiable once, in q, k and v, through out
    and through lse. The loss of the whole is the sum of the ranks' losses.

    Args:
        q: (n, H, D), this rank's rows: `placement.shard(x, rank)` of the whole (T, H, D). dtypes as in `attention`.
        k: (n, Hkv, D), the same rows.
        v: (n, Hkv, D).
        cu_seqlens: (N + 1,) int32 offsets of the sequences in the whole pack, alike on every rank. The host reads them:
            on a device they make it wait, so keep them on the CPU. None is one sequence, of W · n rows unless
            `placement` says how many.
        mask: `Mask(causal=…, window=…)`, without a prefix.
        scale: factor of q·k; None is 1/√D.
        placement: which rank holds which rows, alike on every rank; None is `Placement.zigzag(T, W)`. Shards may
            differ in length.
        group: the ranks that share the pack; None is all of them. gloo moves CPU tensors, NCCL device tensors.
        backend: as in `attention`, chosen once for all blocks; "exact" is not offered, it forms the N × N matrix.
        check: compare shapes, dtypes, offsets, mask and placement over the ranks first, which makes the host wait.
            Without it, ranks that disagree hang or compute nonsense.

    Returns:
        `Attended(out, lse)` of this rank's rows: out (n, H, D) in the dtype of q, lse (n, H).

    Raises:
        ValueError: no process group, a process outside the group, shards that do not fit the placement or each other,
            or a backend that cannot take them.
        TypeError: mixed or unsupported dtypes.
    """
    if group is not None and not isinstance(group, dist.ProcessGroup):  # what new_group gives to those outside
        raise ValueError(f"group must be a ProcessGroup that this process belongs to, got {group!r}")
    if torch.is_autocast_enabled(q.device.type):
        lower = torch.get_autocast_dtype(q.device.type)
        q, k, v = (x.to(lower) if x.dtype == torch.float32 else x for x in (q, k, v))
    _check_tensors(q, k, v, cu_seqlens, mask, scale)
    if backend == "auto":
        backend = choose_backend(q, k, v, mask=mask).backend
    else:
        require_backend(backend, q, mask=mask, bias=None)
    if backend == "exact":
        raise ValueError("backend 'exact' forms the N × N matrix and stays in one process; a ring takes the others")
    q, scale = ops.positive_scale(q, 1.0 / math.sqrt(q.shape[-1]) if scale is None else float(scale))
    table, name = None if placement is None else placement.table, "" if group is None else group.group_name
    return Attended(*ring_attention_op(q, k, v, cu_seqlens, table, name, scale, mask.left, mask.right, backend, check))


def unshard(x: Tensor, placement: Placement, group: dist.ProcessGroup | None = None) -> Tensor:
    """The whole (T, …) of every rank's shard x (n, …), on every rank; the collective twin of `Placement.join`.

    For looking at results. It has no gradient: a loss is computed on the shards and summed over the ranks.

    Raises:
        ValueError: no process group, a process outside the group, a shard that does not fit, or one that needs a
            gradient.
    """
    rank, world = _membership(group, x)
    if x.requires_grad and torch.is_grad_enabled():
        raise ValueError("unshard has no gradient: detach the shard, or compute the loss on each rank's own rows")
    if placement.world != world or placement.size(rank) != x.shape[0]:
        raise ValueError(_misplaced(placement, placement.tokens, x.shape[0], rank, world))
    shards = [x.new_empty(placement.size(r), *x.shape[1:]) for r in range(world)]
    shards[rank].copy_(x.detach())
    works = [dist.broadcast(shard, group=group, group_src=r, async_op=True) for r, shard in enumerate(shards)]
    for work in works:
        if work is not None:
            work.wait()
    return placement.join(shards)


_PROBLEM = "Tensor? cu, Tensor? placement, str group, float scale, int? left, int? right, str backend, bool check"


@torch.library.custom_op(
    "quantattn::ring_attention",
    mutates_args=(),
    schema=f"(Tensor q, Tensor k, Tensor v, {_PROBLEM}) -> (Tensor, Tensor)",
)
def ring_attention_op(q: Tensor, k: Tensor, v: Tensor, *problem: Any) -> tuple[Tensor, Tensor]:
    """Out (n, H, D) and lse (n, H) of this rank's rows; what depends on values and on the group is checked here."""
    return forward(q, k, v, _ring(q, k, *problem))


@ring_attention_op.register_fake
def _shapes(q: Tensor, k: Tensor, v: Tensor, *problem: Any) -> tuple[Tensor, Tensor]:
    return q.new_empty(q.shape), q.new_empty(q.shape[:2], dtype=lse_dtype(q.dtype))


@torch.library.custom_op(
    "quantattn::ring_attention_backward",
    mutates_args=(),
    schema="(Tensor do, Tensor? dlse, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, "
    f"{_PROBLEM}) -> (Tensor, Tensor, Tensor)",
)
def ring_attention_backward_op(
    do: Tensor, dlse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *problem: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """dq, dk, dv of this rank's rows; a collective as the forward is."""
    return backward(do, dlse, q, k, v, out, lse, _ring(q, k, *problem))


@ring_attention_backward_op.register_fake
def _backward_shapes(
    do: Tensor, dlse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, *rest: Any
) -> tuple[Tensor, Tensor, Tensor]:
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, cu, placement, *numbers, _ = inputs
    ctx.save_for_backward(q, k, v, cu, placement, *output)
    ctx.numbers = numbers
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, do: Tensor | None, dlse: Tensor | None) -> tuple[Tensor | None, ...]:
    q, k, v, cu, placement, out, lse = ctx.saved_tensors
    unused = (None,) * 8
    if do is None and dlse is None:
        return (None, None, None, *unused)
    do = torch.zeros_like(out) if do is None else do
    checked = False  # in the forward, if at all
    gradients = ring_attention_backward_op(do, dlse, q, k, v, out, lse, cu, placement, *ctx.numbers, checked)
    return (*gradients, *unused)


ring_attention_op.register_autograd(_differentiate, setup_context=_save)


def _ring(
    q: Tensor, k: Tensor, cu: Tensor | None, table: Tensor | None, group_name: str, scale: float, left: int | None,
    right: int | None, backend: str, check: bool,
) -> Ring:  # fmt: skip
    """This rank's part, or a ValueError."""
    # By name, as torch's own functional collectives do: operators take no process group.
    resolve: Any = dist.distributed_c10d._resolve_process_group  # type: ignore[attr-defined]
    group = resolve(group_name) if group_name else None
    rank, world = _membership(group, q)
    placement = None if table is None else Placement.of_table(table)
    tokens = world * q.shape[0] if placement is None else placement.tokens
    offsets = (0, tokens) if cu is None else _offsets(cu)
    plan = Plan(Placement.zigzag(offsets[-1], world) if placement is None else placement, offsets, left, right)
    if check:
        _check_alike(q, k, scale, backend, plan, rank, group)
    if (plan.placement.world, plan.placement.tokens) != (world, offsets[-1]) or plan.placement.size(rank) != q.shape[0]:
        raise ValueError(_misplaced(plan.placement, offsets[-1], q.shape[0], rank, world))
    return Ring(plan, rank, group, backend, scale)


def _membership(group: dist.ProcessGroup | None, x: Tensor) -> tuple[int, int]:
    """(rank, W) of this process within the group, which must be able to move x."""
    if not (dist.is_available() and dist.is_initialized()):
        raise ValueError("a ring needs a process group: call torch.distributed.init_process_group first")
    rank, name = dist.get_rank(group), dist.get_backend(group)
    if rank < 0:
        raise ValueError(f"rank {dist.get_rank()} is not in the group of {dist.get_process_group_ranks(group)}")
    if (name, x.device.type) in (("nccl", "cpu"), ("gloo", "cuda")):
        raise ValueError(f"gloo moves CPU tensors and nccl device tensors, got a tensor on {x.device} with {name}")
    return rank, dist.get_world_size(group)


def _check_tensors(q: Tensor, k: Tensor, v: Tensor, cu: Tensor | None, mask: Mask, scale: float | None) -> None:
    shapes = f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
    if not q.dim() == k.dim() == v.dim() == 3 or k.shape != v.shape or q.shape[::2] != k.shape[::2]:
        raise ValueError(f"a ring takes q (n, H, D), k and v (n, Hkv, D) of the same rows, got {shapes}")
    if 0 in k.shape[1:] or q.shape[1] % k.shape[1]:
        raise ValueError(f"the query heads must be a multiple of the key heads, got {shapes}")
    if not q.dtype == k.dtype == v.dtype or q.dtype not in _DTYPES:
        raise TypeError(f"q, k and v must have one floating dtype, got {q.dtype}, {k.dtype}, {v.dtype}")
    if not q.device == k.device == v.device:
        raise ValueError(f"q, k and v must be on one device, got {q.device}, {k.device}, {v.device}")
    if cu is not None and (cu.dim() != 1 or cu.dtype != torch.int32 or cu.shape[0] < 2):
        raise ValueError(f"cu_seqlens must be (N + 1,) int32 with N ≥ 1, got {tuple(cu.shape)} {cu.dtype}")
    if not isinstance(mask, Mask):
        raise TypeError(f"mask must be a Mask, got {type(mask).__name__}")
    if mask.rule is not None or (mask.prefix and (mask.left is not None or mask.right is not None)):
        raise ValueError(f"a ring takes masks without a prefix and without a rule, got {mask}")
    if scale is not None and not (isinstance(scale, (int, float)) and math.isfinite(scale)):
        raise ValueError(f"scale must be a finite number, got {scale!r}")
    if scale is not None:
        check_scale_fits(scale, q.dtype)


def _offsets(cu_seqlens: Tensor) -> tuple[int, ...]:
    """The offsets on the host."""
    cu = tuple(cu_seqlens.tolist())
    if cu[0] != 0 or sorted(cu) != list(cu):
        raise ValueError(f"cu_seqlens must rise from 0, got {list(cu[:8])}")
    return cu


def _misplaced(placement: Placement, tokens: int, rows: int, rank: int, world: int) -> str:
    want = placement.size(rank) if rank < placement.world else 0
    return (
        f"the placement is of {placement.tokens} rows on {placement.world} ranks with {want} on rank {rank}, "
        f"got {tokens} rows on {world} ranks with {rows} on rank {rank}"
    )


def _check_alike(
    q: Tensor, k: Tensor, scale: float, backend: str, plan: Plan, rank: int, group: dist.ProcessGroup | None
) -> None:
    """Raise the same sentence on every rank unless all agree on what they compute."""
    share = plan.placement.size(rank) if rank < plan.placement.world else 0
    facts = {
        "query heads": q.shape[1],
        "key heads": k.shape[1],
        "head size": q.shape[2],
        "dtype": _DTYPES.index(q.dtype),
        "backend": BACKENDS.index(backend),
        "scale": scale,
        "left bound of the mask (-1 is none)": -1 if plan.left is None else plan.left,
        "right bound of the mask (-1 is none)": -1 if plan.right is None else plan.right,
        "rows of the whole pack": plan.cu[-1],
        "rows beyond a rank's share (0)": q.shape[0] - share,
        "cu_seqlens (a hash)": _hash(plan.cu),
        "placement (a hash)": _hash(plan.placement.intervals),
    }
    names: dict[str, tuple[object, ...]] = {"dtype": _DTYPES, "backend": BACKENDS}
    mine = torch.tensor([*map(float, facts.values())], dtype=torch.float64, device=q.device)
    everybody = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(everybody, mine, group=group)
    first, *others = torch.stack(everybody).tolist()
    for number, other in enumerate(others, start=1):
        for fact, *pair in zip(facts, first, other, strict=True):
            if pair[0] != pair[1]:
                a, b = (names[fact][int(x)] if fact in names else f"{x:g}" for x in pair)
                raise ValueError(f"the ranks must agree on the {fact}: rank 0 has {a} and rank {number} has {b}")


def _hash(value: object) -> int:
    """48 bits, which float64 holds exactly."""
    return int.from_bytes(hashlib.sha256(repr(value).encode()).digest()[:6], "big")
