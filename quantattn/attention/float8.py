"""Attention with eight-bit inputs: the one function here that approximates, run by nobody who did not ask for it.

q, k, v and the weights are rounded to float8 e4m3 (4 significant bits, up to 448), because matrix units multiply those
twice as fast as 16 bits. Nothing else is lost: every visible key is attended to, sums are float32. Three devices:

    scales      x ≈ s_b · x̂ with a float32 s_b = max|x_b| / 448 for each block b of rows of q and of k, one a head for
                v. Those of q and k are factors of a tile of scores, that of v is a factor of the output.
    rotation    q R and k R in place of q and k, R = diag(±1) · Hadamard / √D. R is orthogonal, so q·k is what it was,
                and an outlier is spread over all columns before it is rounded ("incoherent processing").
    weights     exp(s − m) · 2⁸ as e4m3, m the running maximum: a fixed scale, which the division at the end takes out.
                A weight is off by 1/16 at most down to 2⁻¹⁴ of the largest so far; below 2⁻¹⁸ of it it is 0.

Rounding is relative, so scales alone gain where rows differ by more than e4m3's range of 2¹⁵; the rotation gains where
outliers of a query and of a key meet in a column. `float8_errors.py` measures both; docs/float8.md has the tables.

Source: Shah et al. 2024, "FlashAttention-3", §3.3; Zhang et al. 2024, "SageAttention", §4, for scales by blocks.

Dimensions: B sequences, N queries, Nk keys, H heads, D head size.
"""

from __future__ import annotations

import math
import os
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from quantattn.attention import ops
from quantattn.attention.device import on_its_device
from quantattn.attention.inputs import check_offsets, check_tensors, check_types
from quantattn.attention.mask import Mask
from quantattn.attention.options import check_scale
from quantattn.attention.state import Attended, lse_dtype

LARGEST = 448.0
"""Largest float8 e4m3."""
PART = 1 / LARGEST
"""Scales are products with this: a quotient by 448 has other bits on a GPU than on a CPU."""
ROWS_Q, ROWS_K = 128, 64
"""Rows of q and of k that share a scale: the tiles of the kernel."""
BELOW = 8
"""Weights go up to 2⁸: the reference of a row stands so many powers of two below its running maximum."""
_NARROWEST, _WIDEST = 32, 128
"""Head sizes of the kernel: a product of float8 sums over 32 at least, and registers hold no more."""


class Quantised(NamedTuple):
    """A tensor in eight bits: x ≈ values · scale of the block.

    Attributes:
        values: (B, N, H, D) float8 e4m3.
        scales: (B, H, ⌈N / rows⌉) float32, above 0.
        rows: rows of a block.
    """

    values: Tensor
    scales: Tensor
    rows: int

    def restored(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """(B, N, H, D), what the eight bits stand for."""
        each = self.scales.transpose(1, 2).repeat_interleave(self.rows, 1)[:, : self.values.shape[1], :, None]
        return self.values.to(dtype) * each.to(dtype)


def quantise(x: Tensor, rows: int, *, shared: bool = False) -> Quantised:
    """Round to the nearest float8 e4m3, each block of rows of a head with the scale max|x| / 448, 1 if it is all zeros.

    Off by half a unit of e4m3 at most: |x|/16, or 2⁻¹⁰ scales for what is small.

    Args:
        x: (B, N, H, D), N at least 1, of a size that float32 holds.
        rows: rows of a block; N gives one block a head.
        shared: whether the whole tensor has one scale, the largest.
    """
    batch, n, heads, d = x.shape
    blocks = -(-n // rows)
    x = x.to(lse_dtype(x.dtype))
    padded = functional.pad(x, (0, 0, 0, 0, 0, blocks * rows - n)).view(batch, blocks, rows, heads, d)
    largest = padded.abs().amax((2, 4), keepdim=True)  # (B, blocks, 1, H, 1)
    if shared:
        largest = largest.amax().expand_as(largest)
    # Not below the normal numbers: 0 would have no reciprocal.
    scale = (largest.float() * PART).clamp_min(torch.finfo(torch.float32).tiny).where(largest != 0, 1.0)
    values = (
        (padded * scale.reciprocal()).to(torch.float8_e4m3fn).view(batch, blocks * rows, heads, d)[:, :n].contiguous()
    )
    return Quantised(values, scale[:, :, 0, :, 0].transpose(1, 2).contiguous(), rows)


def hadamard(x: Tensor) -> Tensor:
    """X H / √D over the last axis in D log₂ D additions, H the symmetric ±1 matrix with H Hᵀ = D (Sylvester's).

    Raises:
        ValueError: a last axis whose length is no power of two.
    """
    d = x.shape[-1]
    if d < 1 or d & (d - 1):
        raise ValueError(f"a Hadamard transform here needs a power of two, got a last axis of {d}")
    count, half = x.numel() // d, 1
    y = x.contiguous()
    while half < d:
        a, b = y.view(count, d // (2 * half), 2, half).unbind(2)
        y, half = torch.stack((a + b, a - b), 2), 2 * half
    return y.view(x.shape) / math.sqrt(d)


def signs(d: int, seed: int) -> Tensor:
    """(D,) of ±1, the same on every device."""
    return torch.randint(0, 2, (d,), generator=torch.Generator().manual_seed(seed)) * 2 - 1


def rotated(x: Tensor, seed: int = 0) -> Tensor:
    """X · diag(±1) · H / √D over the last axis, a power of two; one orthogonal matrix a seed, on every device."""
    x = x.to(lse_dtype(x.dtype))
    return hadamard(x * signs(x.shape[-1], seed).to(x.device, x.dtype))


def float8_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    *,
    mask: Mask = Mask(),  # noqa: B008  a frozen value
    scale: float | None = None,
    per_block: bool = True,
    incoherent: bool = True,
    seed: int = 0,
    backend: str = "auto",
) -> Attended:
    """softmax(q @ k.T * scale) @ v with q, k, v and weights rounded to float8 e4m3: an approximation, forward only.

    Its errors are those of 4 significant bits, a few hundredths of the output, some ten times those of bfloat16
    (`python -m quantattn.attention.float8_errors` prints them); `attention` never does this by itself. A sequence is
    quantised alone: its bits do not depend on its neighbours in a pack. A query that sees no key gets out 0, lse −∞.

    Args:
        q: (T, H, D) packed, or one sequence when `cu_seqlens` is None; or (B, N, H, D). float16, bfloat16, float32, or
            float64 for sums in float64 (not triton). Finite: unlike in `attention`, a NaN or an infinity spoils its
            block, also where it is hidden.
        k: (Tk, Hkv, D) or (B, Nk, Hkv, D); shared heads are written out but for hopper.
        v: as k.
        cu_seqlens: (N + 1,) int32 offsets, read by the host; sequences run one after the other.
        cu_seqlens_k: the same for k and v; None means `cu_seqlens`.
        mask: everything, or causal. Under a causal mask no later key is attended to, but it may be the largest of a
            block, or of a head for v, and then the rounding of earlier ones follows it: in their last bits outputs
            do depend on the future.
        scale: factor of q·k; None is 1/√D.
        per_block: a scale for each 128 rows of q and 64 of k, and one a head for v; else one each for q, k and v.
        incoherent: whether q and k are rotated before they are rounded; other D than powers of two are filled up.
        seed: of the rotation's signs.
        backend: "hopper" (sm_90, 16 bits, D up to 128, `per_block`), "triton" (sm_90 or later, D up to 128), "tiled"
            (torch, anywhere), or "auto": the first of them that can run.

    Returns:
        `Attended(out, lse)` as `attention` gives them.

    Raises:
        ValueError: inputs that do not fit together, that need a gradient, or that the backend cannot take.
        TypeError: mixed or unsupported dtypes, or arguments of another type.

    Source: Shah et al. 2024, "FlashAttention-3", §3.3.
    """
    _check(q, k, v, cu_seqlens, cu_seqlens_k, mask, seed)
    cu_q, cu_k = check_offsets(q, k, cu_seqlens, cu_seqlens_k)
    factor = _positive(scale, q)
    d = max(_NARROWEST, 1 << (q.shape[-1] - 1).bit_length())
    backend = _choose(backend, q, d, per_block)
    compute = _by_kernel if backend == "triton" else attend_quantised
    heads, wide = q.shape[-2], q.dtype

    def one(q: Tensor, k: Tensor, v: Tensor) -> Attended:
        """Sequences of one length, (B, N, H, D)."""
        if q.numel() == 0 or k.numel() == 0:
            empty = torch.full(q.shape[:-1], -torch.inf, dtype=lse_dtype(wide), device=q.device)
            return Attended(torch.zeros_like(q), empty)
        if backend == "hopper":
            return _on_hopper(q, k, v, factor, mask.causal, incoherent, seed)
        k, v = (x.repeat_interleave(heads // x.shape[2], 2) for x in (k, v))
        filled = [functional.pad(x, (0, d - x.shape[-1])) for x in (q, k, v)]
        if incoherent:
            filled[:2] = (rotated(x, seed) for x in filled[:2])
        blocks = zip(filled, (ROWS_Q, ROWS_K, k.shape[1]), strict=True)
        small = [quantise(x, rows, shared=not per_block) for x, rows in blocks]
        out, lse = compute(small[0], small[1], small[2], factor, mask.causal, wide)
        return Attended(out[..., : q.shape[-1]], lse)

    if cu_q is None or cu_k is None:
        out, lse = one(*(x if x.dim() == 4 else x[None] for x in (q, k, v)))
        return Attended(out, lse) if q.dim() == 4 else Attended(out[0], lse[0])
    ops.check_values(q.shape[0], k.shape[0], cu_q, cu_k, None)
    rows, columns = cu_q.diff().tolist(), cu_k.diff().tolist()
    parts = zip(*(torch.split(x, sizes) for x, sizes in ((q, rows), (k, columns), (v, columns))), strict=True)
    found = [one(*(x[None] for x in part)) for part in parts]
    if not found:
        return Attended(q.clone(), q.sum(-1, dtype=lse_dtype(wide)))
    return Attended(torch.cat([x.out[0] for x in found]), torch.cat([x.lse[0] for x in found]))


def attend_quantised(
    q: Quantised, k: Quantised, v: Quantised, scale: float, causal: bool, dtype: torch.dtype
) -> Attended:
    """What the kernel computes, in torch: the same blocks, the same rounded weights; sums as `lse_dtype` says.

    Memory grows with N: one block of keys' scores at a time.

    Args:
        q: blocks of any size.
        k: blocks of the keys that are taken up at a time.
        v: one block a head.
        scale: above 0.
        causal: whether query i sees the keys up to i + Nk − Nq only.
        dtype: of the output; float64 keeps everything after the quantisation in float64.
    """
    wide = lse_dtype(dtype)
    n_q, n_k = q.values.shape[1], k.values.shape[1]
    # An equal scale for all columns of a row: the scores get it with k's, in the order in which the kernel multiplies.
    units = q.scales.to(wide).repeat_interleave(q.rows, 2)[:, :, :n_q, None] * (scale / math.log(2))  # (B, H, N, 1)
    queries, keys, values = (x.values.transpose(1, 2).to(wide) for x in (q, k, v))
    beside = torch.arange(n_q, device=queries.device)[:, None] + (n_k - n_q)
    m = torch.full_like(units, -torch.inf)
    l, u = torch.zeros_like(m), torch.zeros_like(queries)
    for i, first in enumerate(range(0, n_k, k.rows)):
        block = slice(first, min(first + k.rows, n_k))
        scores = queries @ keys[:, :, block].mT * (units * k.scales[:, :, i, None, None].to(wide))
        if causal:
            scores = scores.masked_fill(
                torch.arange(block.start, block.stop, device=beside.device) > beside, -torch.inf
            )
        raised = torch.maximum(m, scores.amax(-1, keepdim=True) - BELOW)
        pivot = raised.masked_fill(raised == -torch.inf, 0)
        p, shrink = torch.exp2(scores - pivot), torch.exp2(m - pivot)
        l = l * shrink + p.sum(-1, keepdim=True)
        u = u * shrink + p.to(torch.float8_e4m3fn).to(wide) @ values[:, :, block]
        m = raised
    out = u * v.scales[..., None].to(wide) / l.where(l != 0, 1)
    lse = (m + torch.log2(l)) * math.log(2)
    return Attended(out.transpose(1, 2).to(dtype), lse.squeeze(-1).transpose(1, 2))


def _by_kernel(q: Quantised, k: Quantised, v: Quantised, scale: float, causal: bool, dtype: torch.dtype) -> Attended:
    from quantattn.attention.kernels.generations import float8

    return float8.launch(*q[:2], *k[:2], *v[:2], scale=scale, causal=causal, dtype=dtype)


@on_its_device
def _on_hopper(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool, incoherent: bool, seed: int) -> Attended:
    from quantattn.attention.kernels.hopper.float8_launch import launch_float8
    from quantattn.attention.kernels.hopper.float8_rounding import round_inputs

    found = launch_float8(round_inputs(q, k, v, incoherent=incoherent, seed=seed), scale, causal, q.dtype)
    return Attended(found.out[..., : q.shape[-1]], found.lse)


def _choose(backend: str, q: Tensor, d: int, per_block: bool) -> str:
    """Which backend runs; raises where the one that was asked for cannot."""
    if backend not in ("auto", "hopper", "triton", "tiled"):
        raise ValueError(f"backend must be one of auto, hopper, triton, tiled; got {backend!r}")
    interpreted = q.device.type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1"
    capability = torch.cuda.get_device_capability(q.device) if q.is_cuda else (0, 0)
    triton = hopper = None
    if capability < (9, 0) and not interpreted:
        triton = f"a GPU of compute capability 9.0 or later, got {q.device}"
    elif d > _WIDEST or q.dtype == torch.float64:
        triton = f"head sizes up to {_WIDEST} and float16, bfloat16 or float32, got {q.shape[-1]} and {q.dtype}"
    elif q.numel() // max(1, q.shape[-3] * q.shape[-1]) > 65_535:
        triton = f"at most 65,535 sequences × heads, got q {tuple(q.shape)}"
    if capability != (9, 0):
        hopper = f"a GPU of compute capability 9.0, got {q.device}"
    elif q.dtype not in (torch.float16, torch.bfloat16) or not per_block:
        hopper = f"float16 or bfloat16 and scales by block, got {q.dtype} and per_block={per_block}"
    for name, why in (("hopper", hopper or triton), ("triton", triton)):
        if backend == name and why is not None:
            raise ValueError(f"backend {name!r} of float8_attention needs {why}")
        if backend == name or (backend == "auto" and why is None and not interpreted):
            return name
    return "tiled"


def _positive(scale: float | None, q: Tensor) -> float:
    if isinstance(scale, Tensor):
        raise TypeError("float8_attention takes one scale, a number, got a tensor")
    factor, _ = check_scale(scale, q)
    if factor <= 0:
        raise ValueError(f"float8_attention takes a scale above 0, got {scale!r}")
    return factor


def _check(q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor | None, cu_k: Tensor | None, mask: Mask, seed: int) -> None:
    check_types(q=q, k=k, v=v, cu_seqlens=cu_q, cu_seqlens_k=cu_k)
    check_tensors(q, k, v)
    if not isinstance(mask, Mask):
        raise TypeError(f"mask must be a Mask, got {type(mask).__name__}")
    if mask not in (Mask(), Mask(causal=True)):
        raise ValueError(f"float8_attention takes Mask() and Mask(causal=True), got {mask}")
    if type(seed) is not int:
        raise TypeError(f"seed must be an int, got {seed!r}")
    if torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v)):
        raise ValueError("float8_attention has no gradient; call it under torch.no_grad() or detach q, k and v")
