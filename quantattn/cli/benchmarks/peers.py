"""The implementations that attention is timed beside; each in the layout that it likes best.

A peer is made from q, k, v, do (B, N, H, D) and answers with two calls: its forward, and its backward alone. A peer
that cannot run here answers with the reason, and the benchmark prints it.
"""

from __future__ import annotations

import functools
import importlib.util
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from quantattn.attention import Mask, attention


@dataclass(frozen=True)
class Inputs:
    """One problem: q, do (B, N, H, D), k, v (B, N, Hkv, D), and who sees whom."""

    q: Tensor
    k: Tensor
    v: Tensor
    do: Tensor
    mask: Mask

    @property
    def causal(self) -> bool:
        """Whether the mask is the plain causal one."""
        return self.mask == Mask(causal=True)


@dataclass(frozen=True)
class Calls:
    """forward() → out (B, N, H, D); backward() → (dq, dk, dv), each as (B, N, H or Hkv, D)."""

    forward: Callable[[], Tensor]
    backward: Callable[[], Sequence[Tensor]]


Peer = Callable[[Inputs], Calls]


def _calls(run: Callable[..., Tensor], inputs: Inputs, *, heads_first: bool) -> Calls:
    """Calls of a function of (q, k, v) that autograd differentiates."""

    def lay(x: Tensor) -> Tensor:
        return x.transpose(1, 2).contiguous() if heads_first else x.contiguous()

    def unlay(x: Tensor) -> Tensor:
        return x.transpose(1, 2) if heads_first else x

    q, k, v, do = (lay(x) for x in (inputs.q, inputs.k, inputs.v, inputs.do))
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    out = run(*leaves)

    def forward() -> Tensor:
        with torch.no_grad():
            return unlay(run(q, k, v))

    def backward() -> Sequence[Tensor]:
        return [unlay(x) for x in torch.autograd.grad(out, leaves, do, retain_graph=True)]

    return Calls(forward, backward)


def ours(inputs: Inputs, backend: str = "auto") -> Calls:
    """`quantattn.attention`."""
    return _calls(lambda q, k, v: attention(q, k, v, mask=inputs.mask, backend=backend).out, inputs, heads_first=False)


def _sdpa(kernel: SDPBackend, inputs: Inputs) -> Calls:
    if inputs.mask not in (Mask(), Mask(causal=True)):
        raise ValueError("it takes full and causal masks")

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel(kernel):
            return scaled_dot_product_attention(q, k, v, is_causal=inputs.causal, enable_gqa=q.shape[1] != k.shape[1])

    return _calls(run, inputs, heads_first=True)


def flex(inputs: Inputs) -> Calls:
    """FlexAttention, compiled for the shape."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    left, right = inputs.mask.left, inputs.mask.right
    block_mask = None
    if left is not None or right is not None:

        def seen(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            inside = j - i <= (right if right is not None else inputs.q.shape[1])
            inside = inside if left is None else inside & (i - j <= left)
            return inside | (j < inputs.mask.prefix) if inputs.mask.prefix else inside

        n = inputs.q.shape[1]
        block_mask = create_block_mask(seen, None, None, n, n, device=inputs.q.device)
    torch.compiler.reset()
    # A donated buffer cannot be used twice, and the backward is timed many times after one forward.
    torch._functorch.config.donated_buffer = False
    compiled = torch.compile(flex_attention, dynamic=False)
    gqa = inputs.q.shape[2] != inputs.k.shape[2]
    return _calls(lambda q, k, v: compiled(q, k, v, block_mask=block_mask, enable_gqa=gqa), inputs, heads_first=True)


def standard(inputs: Inputs) -> Calls:
    """softmax(q kᵀ / √D) v with the matrix in memory, as it is usually written."""
    if inputs.mask not in (Mask(), Mask(causal=True)):
        raise ValueError("it is written here for full and causal masks")
    n = inputs.q.shape[1]
    hidden = ~inputs.mask.visible(n, n, inputs.q.device) if inputs.causal else None

    group = inputs.q.shape[2] // inputs.k.shape[2]

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if group > 1:
            k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        scores = (q @ k.mT) * (1.0 / math.sqrt(q.shape[-1]))
        if hidden is not None:
            scores = scores.masked_fill(hidden, -torch.inf)
        return torch.softmax(scores, -1) @ v

    return _calls(run, inputs, heads_first=True)


def flash_cute(inputs: Inputs) -> Calls:
    """FlashAttention's CuTe implementation (the FlashAttention-3 class on this hardware), where it is installed."""
    if importlib.util.find_spec("flash_attn") is None:
        raise ValueError("flash-attn-4 is not installed")
    if inputs.mask.prefix:
        raise ValueError(f"it is called here for windows without a prefix, got {inputs.mask}")
    import flash_attn.cute

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        window = (inputs.mask.left, None if inputs.causal else inputs.mask.right)
        result = flash_attn.cute.flash_attn_func(q, k, v, causal=inputs.causal, window_size=window)
        out: Tensor = result[0] if isinstance(result, tuple) else result
        return out

    return _calls(run, inputs, heads_first=False)


PEERS: dict[str, Peer] = {
    "quantattn": ours,
    "sdpa_flash": functools.partial(_sdpa, SDPBackend.FLASH_ATTENTION),
    "cudnn": functools.partial(_sdpa, SDPBackend.CUDNN_ATTENTION),
    "flex": flex,
    "flash_cute": flash_cute,
    "standard": standard,
}
"""Name in the results → how its calls are made; making them raises ValueError or RuntimeError with the reason."""
