"""Checks of what `attention` takes beside its tensors; each raises one sentence with what came and what is expected."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from quantattn.attention.mask import Mask


def check_options(mask: Mask, dropout: float, softcap: float | None, deterministic: bool | str) -> None:
    """Raise unless these can mean something."""
    if not isinstance(mask, Mask):
        raise TypeError(
            f"mask must be a Mask (a matrix is given as bias, −inf where hidden), got {type(mask).__name__}"
        )
    if not isinstance(dropout, (int, float)) or not 0 <= dropout < 1:
        raise ValueError(f"dropout must be in [0, 1), got {dropout!r}")
    if softcap is not None and not (isinstance(softcap, (int, float)) and 0 < softcap <= 1e30):
        raise ValueError(f"softcap must be a finite number > 0, at most 1e30, or None, got {softcap!r}")
    if not isinstance(deterministic, bool) and not (isinstance(deterministic, str) and deterministic == "batch"):
        raise ValueError(f"deterministic must be True, False or 'batch', got {deterministic!r}")


def check_transforms(**tensors: Any) -> None:
    """Refuse the transforms of torch.func and forward-mode derivatives, which would be lost without a word."""
    if torch._C._are_functorch_transforms_active():
        raise ValueError(
            "attention was called inside a transform of torch.func (vmap, grad, vjp, jvp, jacrev, jacfwd); expected "
            "batches as (B, N, H, D) or as offsets, and derivatives by backward or torch.autograd.grad"
        )
    if torch.compiler.is_compiling():
        return
    for name, x in tensors.items():
        if isinstance(x, Tensor) and forward_ad.unpack_dual(x).tangent is not None:  # type: ignore[no-untyped-call]
            raise ValueError(f"{name} carries a forward-mode tangent; expected derivatives by backward, not jvp")


def check_scale(scale: float | Tensor | None, q: Tensor) -> tuple[float, Tensor | None]:
    """(scale, factors of the heads or None)."""
    if scale is None:
        return 1.0 / math.sqrt(q.shape[-1]), None
    if isinstance(scale, Tensor):
        return 1.0, check_per_head("scale", scale, q)
    if not isinstance(scale, (int, float)) or not -math.inf < scale < math.inf:
        raise ValueError(f"scale must be a finite number or a tensor (H,), got {scale!r}")
    check_scale_fits(scale, q.dtype)
    return scale, None


def check_scale_fits(scale: float, dtype: torch.dtype) -> None:
    """Refuse a scale that is no normal number of float32, in which scores of all dtypes but float64 are scaled.

    A smaller one would vanish there, or where a device flushes subnormal numbers, and hidden scores with it: 0 · −∞.
    """
    of_single = torch.finfo(torch.float32)
    if scale != 0 and dtype != torch.float64 and not of_single.tiny <= abs(scale) <= of_single.max:
        raise ValueError(
            f"scale must be 0 or a normal number of float32, from {of_single.tiny:.3g} to {of_single.max:.3g} in size, "
            f"got {scale!r}"
        )


def check_per_head(name: str, x: Tensor | None, q: Tensor) -> Tensor | None:
    """One number a query head, in float32 (float64 for float64 inputs) and contiguous."""
    if x is None:
        return None
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} must be a tensor ({q.shape[-2]},), got {type(x).__name__}")
    if x.shape != q.shape[-2:-1] or not x.is_floating_point() or x.device != q.device:
        got = f"{tuple(x.shape)} {x.dtype} on {x.device}"
        raise ValueError(f"{name} must be ({q.shape[-2]},), one number a head, floating and on {q.device}; got {got}")
    return x.to(torch.float64 if q.dtype == torch.float64 else torch.float32).contiguous()


def check_segments(segments: Tensor | None, segments_k: Tensor | None, q: Tensor, k: Tensor) -> dict[str, Any]:
    """Numbers of the segments as {"segments": (T,), "segments_k": (Tk,)}, both None without them."""
    if segments is None:
        if segments_k is not None:
            raise ValueError("segments_k was given without segments")
        return {"segments": None, "segments_k": None}
    both = {"segments": (segments, q), "segments_k": (segments if segments_k is None else segments_k, k)}
    for name, (x, of) in both.items():
        if not isinstance(x, Tensor) or x.dtype != torch.int32 or x.shape != of.shape[:-2] or x.device != q.device:
            got = f"{tuple(x.shape)} {x.dtype} on {x.device}" if isinstance(x, Tensor) else type(x).__name__
            raise ValueError(
                f"{name} must be {tuple(of.shape[:-2])} int32 on {q.device}, one number a token; got {got}"
            )
    return {name: x.reshape(-1).contiguous() for name, (x, _) in both.items()}


def seed_of(seed: int | Tensor | None, device: torch.device) -> Tensor:
    """(1,) int64 on the device."""
    if seed is None:
        return torch.randint(-(2**63), 2**63 - 1, (1,), dtype=torch.int64, device=device)
    if isinstance(seed, Tensor):
        if seed.dtype != torch.int64 or seed.numel() != 1 or seed.device != device:
            got = f"{tuple(seed.shape)} {seed.dtype} on {seed.device}"
            raise ValueError(f"dropout_seed must be an int or (1,) int64 on {device}, got {got}")
        return seed.reshape(1)
    if type(seed) is not int or not -(2**63) <= seed < 2**63:
        raise ValueError(f"dropout_seed must be an int of 64 bits or a tensor of one, got {seed!r}")
    return torch.tensor([seed], dtype=torch.int64, device=device)
