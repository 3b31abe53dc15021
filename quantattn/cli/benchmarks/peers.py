"""The implementations that attention is timed beside; each in the layout that it likes best.

A peer is made from q, k, v, do (B, N, H, D) and answers with two calls: its forward, and its backward alone. A peer
that cannot run here answers with the reason, and the benchmark prints it.
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from quantattn.attention import Mask, attention, choose_backend


@dataclass(frozen=True)
class Inputs:
    """One problem: q, do (B, Nq, H, D), k, v (B, N, Hkv, D), and who sees whom.

    A pack is B = 1 with the lengths of its sequences, one after the other.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    do: Tensor
    mask: Mask
    lengths: tuple[int, ...] = ()

    @property
    def causal(self) -> bool:
        """Whether the mask is the plain causal one."""
        return self.mask == Mask(causal=True)

    @property
    def few(self) -> bool:
        """Whether there are fewer queries than keys."""
        return self.q.shape[1] < self.k.shape[1]

    def offsets(self) -> Tensor:
        """(N + 1,) int32 of the sequences laid one after the other."""
        lengths = self.lengths or (self.q.shape[1],) * self.q.shape[0]
        return torch.tensor(list(accumulate(lengths, initial=0)), dtype=torch.int32, device=self.q.device)


@dataclass(frozen=True)
class Calls:
    """forward() → out (B, Nq, H, D); backward() → (dq, dk, dv), each as (B, Nq or N, H or Hkv, D)."""

    forward: Callable[[], Tensor]
    backward: Callable[[], Sequence[Tensor]]


Peer = Callable[[Inputs], Calls]


def _calls(run: Callable[..., Tensor], inputs: Inputs, *, heads_first: bool) -> Calls:
    """Calls of a function of (q, k, v) that autograd differentiates."""

    def lay(x: Tensor) -> Tensor:
        return x.transpose(1, 2).contiguous() if heads_first else x.contiguous()

    def unlay(x: Tensor) -> Tensor:
        return x.transpose(1, 2) if heads_first else x

    q, k, v = (lay(x) for x in (inputs.q, inputs.k, inputs.v))

    @functools.cache
    def graph() -> tuple[Tensor, list[Tensor], Tensor]:  # once, and only where a backward is asked for
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        return run(*leaves), leaves, lay(inputs.do)

    def forward() -> Tensor:
        with torch.no_grad():
            return unlay(run(q, k, v))

    def backward() -> Sequence[Tensor]:
        out, leaves, do = graph()
        return [unlay(x) for x in torch.autograd.grad(out, leaves, do, retain_graph=True)]

    return Calls(forward, backward)


def _packed_calls(run: Callable[..., Tensor], inputs: Inputs) -> Calls:
    """The same of a function of the rows (T, H, D) of all sequences one after the other."""

    def batched(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return run(*(x.flatten(0, 1) for x in (q, k, v))).view(q.shape)

    return _calls(batched, inputs, heads_first=False)


def ours(inputs: Inputs, backend: str = "auto", deterministic: bool = True) -> Calls:
    """`quantattn.attention`."""
    asked: dict[str, Any] = {"mask": inputs.mask, "backend": backend, "deterministic": deterministic}
    if inputs.lengths:
        cu = inputs.offsets()
        return _packed_calls(lambda q, k, v: attention(q, k, v, cu, **asked).out, inputs)
    return _calls(lambda q, k, v: attention(q, k, v, **asked).out, inputs, heads_first=False)


def unordered(inputs: Inputs) -> Calls:
    """The same with dq summed in whatever order, where there is such a kernel: what an order costs."""
    q, k, v = (x.contiguous() for x in (inputs.q, inputs.k, inputs.v))
    choice = choose_backend(q, k, v, mask=inputs.mask)
    if choice.backend != "hopper":
        raise ValueError(f"it belongs to the kernels for sm_90, and here runs {choice.backend}: {choice.reason}")
    from quantattn.attention.kernels import launch
    from quantattn.attention.kernels.hopper import launch as hopper

    cu = inputs.offsets() if inputs.lengths else None
    problem = launch.Problem(1.0 / math.sqrt(q.shape[-1]), inputs.mask.left, inputs.mask.right, cu, cu)
    if not hopper.has_backward(q, problem):
        raise ValueError(f"its backward takes no head size of {q.shape[-1]}, or no lengths as these")
    return ours(inputs, deterministic=False)


def _sdpa(kernel: SDPBackend, inputs: Inputs) -> Calls:
    causal = inputs.causal
    if inputs.mask not in (Mask(), Mask(causal=True)) or (causal and inputs.few):
        raise ValueError("it takes full and causal masks, causal ones with as many queries as keys")
    if inputs.lengths and kernel == SDPBackend.FLASH_ATTENTION:
        raise ValueError("packs go to the same kernels as torch_varlen")

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel(kernel):
            return scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1])

    if not inputs.lengths:
        return _calls(run, inputs, heads_first=True)
    cu, shortest, longest = inputs.offsets().long(), min(inputs.lengths), max(inputs.lengths)

    def nested(*rows: Tensor) -> Tensor:
        jagged = (torch.nested.nested_tensor_from_jagged(x, cu, min_seqlen=shortest, max_seqlen=longest) for x in rows)
        return run(*(x.transpose(1, 2) for x in jagged)).transpose(1, 2).values()

    return _packed_calls(nested, inputs)


def torch_varlen(inputs: Inputs) -> Calls:
    """`torch.nn.attention.varlen`: FlashAttention-2 on packed rows, with windows."""
    from torch.nn.attention.varlen import varlen_attn  # torch ≥ 2.10

    if inputs.mask.prefix or inputs.few:
        raise ValueError("it is called here for masks without a prefix and as many queries as keys")
    takes = inspect.signature(varlen_attn).parameters
    options: dict[str, Any] = {}
    if "window_size" in takes:
        options["window_size"] = tuple(-1 if x is None else x for x in (inputs.mask.left, inputs.mask.right))
    elif inputs.mask in (Mask(), Mask(causal=True)):
        options["is_causal"] = inputs.causal
    else:
        raise ValueError("windows need torch ≥ 2.11")
    if "enable_gqa" in takes:
        options["enable_gqa"] = inputs.q.shape[2] != inputs.k.shape[2]
    cu, longest = inputs.offsets(), max(inputs.lengths or (inputs.q.shape[1],))

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return cast(Tensor, varlen_attn(q, k, v, cu, cu, longest, longest, **options))

    return _packed_calls(run, inputs)


def flex(inputs: Inputs) -> Calls:
    """FlexAttention, compiled for the shape; the table of its blocks is made before anything is timed."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    n_q, n_k, device = inputs.q.shape[1], inputs.k.shape[1], inputs.q.device
    seen = _seen(inputs)
    block_mask = None if seen is None else create_block_mask(seen, None, None, n_q, n_k, device=device)
    torch.compiler.reset()
    # A donated buffer cannot be used twice, and the backward is timed many times after one forward.
    torch._functorch.config.donated_buffer = False
    compiled = torch.compile(flex_attention, dynamic=False)
    gqa = inputs.q.shape[2] != inputs.k.shape[2]
    return _calls(lambda q, k, v: compiled(q, k, v, block_mask=block_mask, enable_gqa=gqa), inputs, heads_first=True)


def _seen(inputs: Inputs) -> Callable[..., Tensor] | None:
    """(batch, head, query, key) → whether the query sees the key, as FlexAttention asks; None where it always does."""
    left, right, prefix = inputs.mask.left, inputs.mask.right, inputs.mask.prefix
    n_q, n_k, lengths = inputs.q.shape[1], inputs.k.shape[1], inputs.lengths
    if left is None and right is None and not lengths:
        return None
    if lengths and prefix:
        raise ValueError("it is written here for packs without a prefix")
    device = inputs.q.device
    sizes = torch.tensor(lengths, dtype=torch.long, device=device)
    numbers = torch.arange(len(lengths), device=device).repeat_interleave(sizes)  # of the sequence of each row

    def seen(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        beside = i + (n_k - n_q)
        # Compares alone are taken of pairs: their differences, 8 bytes each, would not fit for a long pack.
        parts = [numbers[i] == numbers[j]] if lengths else []
        parts += [] if right is None else [j <= beside + right]
        parts += [] if left is None else [j >= beside - left]
        inside = parts[0]
        for part in parts[1:]:
            inside = inside & part
        return inside | (j < prefix) if prefix else inside

    return seen


def standard(inputs: Inputs) -> Calls:
    """softmax(q kᵀ / √D) v with the matrix in memory, as it is usually written; a pack sequence by sequence."""
    group = inputs.q.shape[2] // inputs.k.shape[2]
    masked = inputs.mask != Mask()
    sizes = {(n, n) for n in inputs.lengths} or {(inputs.q.shape[1], inputs.k.shape[1])}
    hidden = {size: ~inputs.mask.visible(*size, inputs.q.device) for size in sizes if masked}

    def one(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if group > 1:
            k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        scores = (q @ k.mT) * (1.0 / math.sqrt(q.shape[-1]))
        if masked:
            scores = scores.masked_fill(hidden[q.shape[2], k.shape[2]], -torch.inf)
        return torch.softmax(scores, -1) @ v

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if not inputs.lengths:
            return one(q, k, v)
        pieces = zip(*(torch.split(x, list(inputs.lengths), 2) for x in (q, k, v)), strict=True)
        return torch.cat([one(*piece) for piece in pieces], 2)

    return _calls(run, inputs, heads_first=True)


def flash_cute(inputs: Inputs, *, deterministic: bool = False) -> Calls:
    """FlashAttention's CuTe implementation (the FlashAttention-3 class on this hardware), where it is installed."""
    if importlib.util.find_spec("flash_attn") is None:
        raise ValueError("flash-attn-4 is not installed")
    if inputs.mask.prefix:
        raise ValueError(f"it is called here for windows without a prefix, got {inputs.mask}")
    import flash_attn.cute

    causal, lengths = inputs.causal, inputs.lengths
    window = (inputs.mask.left, None if causal else inputs.mask.right)
    options: dict[str, Any] = {"causal": causal, "window_size": window, "deterministic": deterministic}
    call = flash_attn.cute.flash_attn_func
    if lengths:
        cu, longest = inputs.offsets(), max(lengths)
        options |= {"cu_seqlens_q": cu, "cu_seqlens_k": cu, "max_seqlen_q": longest, "max_seqlen_k": longest}
        call = flash_attn.cute.flash_attn_varlen_func

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        result = call(q, k, v, **options)
        out: Tensor = result[0] if isinstance(result, tuple) else result
        return out

    return _packed_calls(run, inputs) if lengths else _calls(run, inputs, heads_first=False)


PEERS: dict[str, Peer] = {
    "quantattn": ours,
    "quantattn_unordered": unordered,
    "flash_cute": flash_cute,
    "flash_cute_deterministic": functools.partial(flash_cute, deterministic=True),
    "cudnn": functools.partial(_sdpa, SDPBackend.CUDNN_ATTENTION),
    "sdpa_flash": functools.partial(_sdpa, SDPBackend.FLASH_ATTENTION),
    "torch_varlen": torch_varlen,
    "flex": flex,
    "standard": standard,
}
"""Name in the results → how its calls are made; making or calling them raises what the reason is if they cannot."""

BACKWARD_ALONE = ("quantattn_unordered", "flash_cute_deterministic")
"""Peers whose forward is another one's."""

COMPILED = ("quantattn", "quantattn_unordered", "flash_cute", "flash_cute_deterministic", "flex")
"""Peers whose first call of a sort compiles, and leaves what it made in a cache on disk."""
