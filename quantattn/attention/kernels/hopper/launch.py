"""From tensors to launches on sm_90. Shapes: q (B, N, H, D), k and v (B, Nk, Hkv, D), 16 bits, D ≤ 128."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from quantattn.attention.kernels.hopper.configs import FORWARD, ForwardConfig, padded_head
from quantattn.attention.kernels.hopper.forward import _attention_fwd
from quantattn.attention.kernels.hopper.tasks import Sizes
from quantattn.attention.kernels.hopper.tiles import describe
from quantattn.attention.kernels.launch import Problem, can_describe


@cache
def multiprocessors(device: torch.device) -> int:
    """How many programs run at a time."""
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def describable(x: Tensor) -> Tensor:
    """X, or a copy of it where the tensor memory accelerator cannot read its layout."""
    return x if can_describe(x) else x.contiguous()


def launch_forward(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, problem: Problem, config: ForwardConfig | None = None
) -> None:
    """Write out (B, N, H, D) and lse (B, H, N) float32, both contiguous and owned by the caller."""
    columns = padded_head(q.shape[-1])
    c = config or FORWARD[columns]
    packed = problem.cu_q is not None
    per_head = problem.tiles(q, 64 * c.groups) if packed else -(-q.shape[1] // (64 * c.groups))
    heads, batch = q.shape[2], q.shape[0]
    tiles = per_head * heads * batch
    if not tiles:
        return
    if not k.numel():
        out.zero_()
        lse.fill_(-torch.inf)
        return
    bounds = problem.bounds()
    programs = min(multiprocessors(q.device), tiles)
    left, right = bounds.left is not None, bounds.right is not None
    # Equal tiles come out even by themselves.
    dynamic = packed or left or right
    counter = torch.zeros(1, dtype=torch.int32, device=q.device) if dynamic else None
    sizes = Sizes(columns, c.block_n, c.stages, c.groups, packed, c.overlap, c.turns, dynamic, left, right)
    _attention_fwd[(programs,)](
        describe(describable(q), 64, columns, packed=packed),
        describe(describable(k), c.block_n, columns, packed=packed),
        describe(describable(v), c.block_n, columns, packed=packed),
        describe(out, 64, columns, packed=packed),
        lse, problem.cu_q, problem.cu_k, counter, problem.scale,
        problem.sequences(q), q.shape[1], k.shape[1], heads, heads // k.shape[2], per_head, tiles,
        bounds.left or 0, bounds.right or 0,
        SIZES=sizes, REGISTERS=c.registers, SPARE=c.spare, num_warps=4,
    )  # fmt: skip
