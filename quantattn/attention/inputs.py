"""What the tensors of a call must be, told in one sentence before any work: shapes, dtypes, devices, never values."""

from __future__ import annotations

import torch
from torch import Tensor


def check_types(**tensors: Tensor | None) -> None:
    """Every argument is a strided tensor; None is one for all but q, k and v. Raises TypeError."""
    for name, value in tensors.items():
        if not isinstance(value, Tensor) and not (value is None and name not in ("q", "k", "v")):
            raise TypeError(f"{name} must be a tensor, got {type(value).__name__}")
        if value is not None and (value.layout != torch.strided or value.is_nested):
            raise TypeError(
                f"{name} must be a dense (strided) tensor, got {'nested' if value.is_nested else value.layout}"
            )


def check_tensors(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Shapes, dtypes and devices of q (T, H, D) or (B, N, H, D), k and v (…, Hkv, D). Raises ValueError, TypeError."""
    shapes = f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
    if q.dim() not in (3, 4) or k.dim() != q.dim() or v.dim() != q.dim():
        raise ValueError(f"q, k and v must all be (T, H, D) or all (B, N, H, D), got {shapes}")
    if k.shape != v.shape:
        raise ValueError(f"k and v must have one shape, got {shapes}")
    if q.dim() == 4 and q.shape[0] != k.shape[0]:
        raise ValueError(f"q and k must have the same batch size, got {shapes}")
    if q.shape[-1] != k.shape[-1] or q.shape[-1] == 0:
        raise ValueError(f"q and k must have one head size of at least 1, got {shapes}")
    if q.shape[-2] == 0:
        raise ValueError(f"q must have a head, got {shapes}")
    if k.shape[-2] == 0 or q.shape[-2] % k.shape[-2]:
        raise ValueError(f"the query heads must be a multiple of the key heads, got {shapes}")
    if not q.dtype == k.dtype == v.dtype:
        raise TypeError(f"q, k and v must have one dtype, got {q.dtype}, {k.dtype}, {v.dtype}")
    if q.dtype not in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        raise TypeError(f"attention takes float16, bfloat16, float32 and float64, got {q.dtype}")
    if not q.device == k.device == v.device:
        raise ValueError(f"q, k and v must be on one device, got {q.device}, {k.device}, {v.device}")


def check_offsets(
    q: Tensor, k: Tensor, cu_q: Tensor | None, cu_k: Tensor | None
) -> tuple[Tensor | None, Tensor | None]:
    """Both offsets, contiguous, cu_k that of the queries when None; (None, None) without them. Raises ValueError."""
    if cu_q is None:
        if cu_k is not None:
            raise ValueError("cu_seqlens_k was given without cu_seqlens")
        return None, None
    cu_k = cu_q if cu_k is None else cu_k
    if q.dim() != 3:
        raise ValueError(f"cu_seqlens describes packed q (T, H, D), got q {tuple(q.shape)}")
    for name, cu in (("cu_seqlens", cu_q), ("cu_seqlens_k", cu_k)):
        if cu.dim() != 1 or cu.shape[0] < 1 or cu.dtype != torch.int32 or cu.device != q.device:
            raise ValueError(
                f"{name} must be (N + 1,) int32 on {q.device}, got {tuple(cu.shape)} {cu.dtype} on {cu.device}"
            )
    if cu_q.shape != cu_k.shape:
        raise ValueError(f"cu_seqlens has {cu_q.shape[0] - 1} sequences and cu_seqlens_k {cu_k.shape[0] - 1}")
    return cu_q.contiguous(), cu_k.contiguous()


def check_bias(bias: Tensor, q: Tensor, k: Tensor, cu_q: Tensor | None, cu_k: Tensor | None) -> Tensor:
    """The additive mask as (N or 1, H or 1, Nq or 1, Nk or 1). Raises ValueError."""
    usable = bias.dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.bool)
    if bias.dim() > 4 or not usable or bias.device != q.device:
        got = f"{tuple(bias.shape)} {bias.dtype} on {bias.device}"
        raise ValueError(f"bias must be floating (16 bits or more) or bool, at most 4-D and on {q.device}, got {got}")
    expected: tuple[int, ...]
    if cu_q is None or cu_k is None:
        expected = (q.shape[0] if q.dim() == 4 else 1, q.shape[-2], q.shape[-3], k.shape[-3])
    else:  # how long the sequences are is a matter of values: `ops.check_values`
        expected = (cu_q.shape[0] - 1, q.shape[-2])
    bias = bias.reshape((1,) * (4 - bias.dim()) + bias.shape)
    if any(have != 1 and have != want for have, want in zip(bias.shape, expected, strict=False)):
        raise ValueError(f"bias {tuple(bias.shape)} does not broadcast to (N, H, Nq, Nk) = {(*expected, '…', '…')[:4]}")
    return bias
