"""The launch of the forward in float8 e4m3."""

from __future__ import annotations

import torch
import triton

from quantattn.attention.kernels.hopper import tasks
from quantattn.attention.kernels.hopper.compat import descriptor_of
from quantattn.attention.kernels.hopper.configs import FLOAT8, ForwardConfig
from quantattn.attention.kernels.hopper.float8 import _float8_fwd
from quantattn.attention.kernels.hopper.float8_rounding import Rounded
from quantattn.attention.kernels.hopper.launch import multiprocessors
from quantattn.attention.kernels.hopper.tiles import describe, swizzled
from quantattn.attention.state import Attended


def launch_float8(
    x: Rounded, scale: float, causal: bool, dtype: torch.dtype, config: ForwardConfig | None = None
) -> Attended:
    """Attention of rounded tensors: out (B, N, H, D padded to 64 or 128) of a 16-bit dtype, lse (B, N, H) float32."""
    batch, n_q, heads, width = x.q.shape
    n_k, heads_k = x.k.shape[1:3]
    c = config or FLOAT8[width]
    out = torch.empty(x.q.shape, dtype=dtype, device=x.q.device)
    lse = torch.empty(batch, heads, n_q, dtype=torch.float32, device=x.q.device)
    per_head = triton.cdiv(n_q, 64 * c.groups)
    tiles = per_head * heads * batch
    sizes = tasks.Sizes(
        width, c.block_n, c.stages, c.groups, False, c.overlap, c.turns, c.two_loops, c.shares, causal, False, causal,
        causal, q_bytes=c.groups * 64 * width, kv_bytes=c.block_n * width,
    )  # fmt: skip
    box, layout = [1, 1, width, c.block_n], swizzled(min(128, c.block_n), 8, 4)
    values = descriptor_of(x.v, (list(x.v.shape), list(x.v.stride()), box, layout))
    counter = torch.zeros(1, dtype=torch.int32, device=x.q.device) if causal else None
    _float8_fwd[(min(multiprocessors(x.q.device), tiles),)](
        describe(x.q, 64, width, packed=False), describe(x.k, c.block_n, width, packed=False), values,
        describe(out, 64, width, packed=False), lse, x.q_scale, x.k_scale, x.v_scale, counter, scale,
        batch, n_q, n_k, heads, heads // heads_k, per_head, tiles, SIZES=sizes, **c.warps(False), num_warps=4,
    )  # fmt: skip
    return Attended(out, lse.transpose(1, 2))
