"""Which implementation runs: decided by facts of device, dtype and shape, never by trying."""

from __future__ import annotations

import importlib.util
import os
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from quantattn.attention import sdpa
from quantattn.attention.extras import Extras
from quantattn.attention.mask import Mask
from quantattn.attention.rules import rule_named

try:
    _HAS_TRITON = importlib.util.find_spec("triton") is not None
except ModuleNotFoundError:  # an import hook refuses the name, which is a way of not being installed
    _HAS_TRITON = False

BACKENDS = ("hopper", "triton", "sdpa", "tiled", "exact")
"""Implementations that can be asked for by name."""

_INTERPRETED = os.environ.get("TRITON_INTERPRET", "0") == "1"  # read when triton is imported, as here
_KERNEL_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
_BY_LENGTH = "its order of sums depends on how many queries there are, which deterministic='batch' excludes"


class Choice(NamedTuple):
    """A backend's name and the facts that decided for it, as one clause."""

    backend: str
    reason: str


def choose_backend(
    q: Tensor, k: Tensor, v: Tensor, *, mask: Mask | None = None, bias: Tensor | None = None,
    extras: Extras | None = None, deterministic: bool | str = True,
) -> Choice:  # fmt: skip
    """What `backend="auto"` runs for these inputs, and why.

    CUDA tensors go to Triton kernels, on sm_90 to those that are written for it where these take the problem; CPU
    tensors go to `sdpa` where it can express the problem, and everything else to `tiled`, which takes any device, dtype
    and head size in O(N) memory. `deterministic="batch"` excludes `hopper` and `sdpa`.
    """
    mask, extras = mask or Mask(), extras or Extras()
    why_not_triton = _why_not_triton(q, mask) if q.is_cuda else "q is not on a CUDA device"
    if why_not_triton is None:
        why_not_hopper = _why_not_hopper(q, k, mask, bias, extras, deterministic)
        if why_not_hopper is None:
            # Without the sizes, which may be symbols here.
            return Choice("hopper", f"sm_90, {_name(q)}, head size up to 256, plain scores")
        return Choice("triton", f"CUDA device, {_name(q)}, head size up to 256; not hopper: {why_not_hopper}")
    why_not_sdpa = _BY_LENGTH if deterministic == "batch" else sdpa.supports(q, mask, bias, extras)
    if why_not_sdpa is None:
        return Choice("sdpa", f"{why_not_triton}; torch's CPU kernel takes {_name(q)} with this mask")
    return Choice("tiled", f"not triton: {why_not_triton}; not sdpa: {why_not_sdpa}")


def require_backend(
    backend: str, q: Tensor, *, mask: Mask, bias: Tensor | None, extras: Extras | None = None,
    deterministic: bool | str = True,
) -> None:  # fmt: skip
    """Raise ValueError with the reason when a backend asked for by name cannot take these inputs."""
    if backend not in BACKENDS:
        raise ValueError(f"backend must be one of auto, {', '.join(BACKENDS)}; got {backend!r}")
    reason = None
    if backend == "triton":
        reason = _why_not_triton(q, mask)
    elif backend == "hopper":
        reason = _why_not_hopper(q, None, mask, bias, extras or Extras(), deterministic)
        reason = reason or _why_not_triton(q, mask)
    elif backend != "tiled" and deterministic == "batch":
        reason = _BY_LENGTH
    elif backend == "sdpa":
        reason = sdpa.supports(q, mask, bias, extras or Extras())
    if reason is not None:
        raise ValueError(f"backend {backend!r} cannot run this: {reason}")


def _why_not_triton(q: Tensor, mask: Mask) -> str | None:
    if not _HAS_TRITON:
        return "triton is not installed"
    if not q.is_cuda and not _INTERPRETED:
        where = "TRITON_INTERPRET=1 runs them on a CPU, slowly"
        return f"its kernels need a CUDA device and q is on {q.device.type} ({where})"
    if q.dtype not in _KERNEL_DTYPES:
        return f"its kernels take float16, bfloat16 and float32, got {_name(q)}"
    if _INTERPRETED and q.dtype == torch.bfloat16:
        return "the Triton interpreter computes bfloat16 wrongly; use float16 or float32 there"
    if q.shape[-1] > 256:
        return f"its kernels take head sizes up to 256, got {q.shape[-1]}"
    if mask.rule is not None and rule_named(mask.rule).kernel is None:
        return f"mask rule {mask.rule!r} was registered without a kernel"
    return None


def _why_not_hopper(
    q: Tensor, k: Tensor | None, mask: Mask, bias: Tensor | None, extras: Extras, deterministic: bool | str
) -> str | None:
    """Why the kernels for sm_90 do not take this; k None: asked for by name."""
    if _INTERPRETED:
        return "its language has no interpreter"
    if q.dtype not in (torch.float16, torch.bfloat16):
        return f"its kernels take float16 and bfloat16, got {_name(q)}"
    if not 32 < q.shape[-1] <= 256 or q.shape[-1] % 8:
        return f"its kernels take head sizes above 32 and up to 256 in steps of 8, got {q.shape[-1]}"
    bounded = mask.left is not None or mask.right is not None
    if mask.rule is not None or (mask.prefix and bounded):
        return "its masks are full, causal and windows"
    beside = extras.names() + (["bias"] if bias is not None else [])
    if beside:
        return f"its kernels take plain scores, got {', '.join(beside)}"
    if deterministic == "batch":
        return _BY_LENGTH
    if not q.is_cuda or _capability(q.device) != (9, 0):
        return "its kernels need a GPU of compute capability 9.0 (H100, H200)"
    if k is not None and not torch.compiler.is_compiling():  # lengths may be symbols there, which a question would bind
        from quantattn.attention.kernels.split import count_parts  # which imports triton

        if count_parts(q.shape[-3], k.shape[-3]) > 1:
            return "few queries over many keys are cut into parts by the portable kernels"
    return None


def _capability(device: torch.device) -> tuple[int, int]:
    """Kept between calls but for a compiler, which would trace what is kept and warn of it."""
    return _ask_capability(device) if torch.compiler.is_compiling() else _kept_capability(device)


def _ask_capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device) if torch.cuda.is_available() else (0, 0)  # tensors may be fakes


_kept_capability = cache(_ask_capability)


def _name(x: Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")
