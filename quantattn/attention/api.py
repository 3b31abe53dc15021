"""The public function: checks once, chooses once, keeps the layout of its inputs."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from quantattn.attention import ops
from quantattn.attention.choose import choose_backend, require_backend
from quantattn.attention.exact import exact_attention
from quantattn.attention.extras import Extras
from quantattn.attention.inputs import check_bias, check_offsets, check_tensors, check_types
from quantattn.attention.mask import Mask
from quantattn.attention.options import (
    check_options,
    check_per_head,
    check_scale,
    check_segments,
    check_transforms,
    seed_of,
)
from quantattn.attention.sdpa import sdpa_attention
from quantattn.attention.state import Attended
from quantattn.attention.tiled import tiled_attention
from quantattn.attention.tiling import ORDERED_K, ORDERED_Q

_IN_ORDER = partial(tiled_attention, ordered=True, block_q=ORDERED_Q, block_k=ORDERED_K)
_PLAIN = {"exact": exact_attention, "tiled": tiled_attention, "sdpa": sdpa_attention}


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    *,
    mask: Mask = Mask(),  # noqa: B008  a frozen value
    bias: Tensor | None = None,
    scale: float | Tensor | None = None,
    dropout: float = 0.0,
    dropout_seed: int | Tensor | None = None,
    softcap: float | None = None,
    alibi: Tensor | None = None,
    sinks: Tensor | None = None,
    segments: Tensor | None = None,
    segments_k: Tensor | None = None,
    deterministic: bool | str = True,
    backend: str = "auto",
) -> Attended:
    """Exactly softmax(q @ k.T * scale + bias) @ v per sequence and head, without forming the matrix.

    The softmax runs over every key that `mask` and `bias` let a query see; nothing is dropped or approximated, and
    what differs from the dense computation is rounding (`python -m quantattn validate` measures it). Memory grows with
    the number of tokens. Gradients flow through `out` and through `lse` and have the same bits on every run.

    A query that sees no key gets out 0, lse −inf and gradients 0. What stands at an invisible place, NaN and inf
    included, reaches no output and no gradient.

    Args:
        q: (T, H, D) packed sequences, or one sequence when `cu_seqlens` is None; or (B, N, H, D) dense. float16,
            bfloat16, float32 (products in IEEE float32, or in TF32 after
            `torch.set_float32_matmul_precision("high")`) or float64 (not triton). Any strides. Under `torch.autocast`
            float32 is lowered to its dtype first; sums stay in float32.
        k: (Tk, Hkv, D) or (B, Nk, Hkv, D); H is a multiple of Hkv, and H/Hkv query heads share a key head.
        v: as k.
        cu_seqlens: (N + 1,) int32, rows `cu_seqlens[n]:cu_seqlens[n + 1]` of q are sequence n; may be empty ones.
        cu_seqlens_k: the same for k and v; None means `cu_seqlens`.
        mask: `Mask(causal=…, window=…)`; aligned so that the last query stands beside the last key.
        bias: additive, floating, or bool (True is seen), broadcastable to (N, H, longest Nq, longest Nk) with places
            counted inside each sequence; −inf hides a key. A large finite number does not: where every score of a row
            is below −1e4 its gradients lose digits, and below −1e8 they are wrong. It is read where it is used and
            never expanded, and its gradient has its shape. On a GPU, with offsets, one that differs from place to
            place makes the host wait for the longest lengths.
        scale: factor of q·k; None is 1/√D. A tensor (H,) gives each head its own and gets a gradient. Values of
            tensors are not read: NaN as a head's scale, slope or sink makes its results NaN, without an error.
        dropout: probability in [0, 1) that a weight is dropped, the others divided by 1 − dropout. Which ones is a
            function of (seed, sequence, head, query, key) alone; lse does not know of it.
        dropout_seed: int, or (1,) int64 on the device of q; None draws one from torch's generator of that device.
        softcap: c > 0 bends scores, scale included, to c·tanh(score / c) before anything is added.
        alibi: (H,) float32 slopes; slope · |j − (i + Nk − Nq)| is subtracted. Constants (gradient: backend "exact").
        sinks: (H,) float32; exp(sink) joins each row's sum and lse, with a value of zero. Gets a gradient. Results to
            be merged (`merge_attention`) should have it in one part only.
        segments: int32, one number a token of q, (T,) or (B, N): a query sees the keys of its own number and no others,
            inside its sequence. Documents, or padding.
        segments_k: the same for k; None means `segments`.
        deterministic: True: every path repeats to the bit. False lets the backward of Hopper add to dq in any order,
            which is faster under causal masks; everything else runs the same code. "batch" promises more than True: a
            sequence's out, lse and gradients have the same bits alone and in any batch, and a query's out and lse the
            same bits however many of the queries before it are in the call (docs/streaming.md). Not promised: sums over
            the batch, as the gradients of sinks, scales and a broadcast bias are. Backends triton and tiled.
        backend: "auto" (see `choose_backend`), or "hopper", "triton", "sdpa", "tiled", "exact" by name; a backend that
            cannot take the inputs raises and says why.

    Returns:
        `Attended(out, lse)`: out in the layout and dtype of q; lse, natural logarithm of Σ exp(scores), float32
        (float64 for float64), (T, H) or (B, N, H).

    Raises:
        ValueError: inputs that do not fit together, or a backend that cannot take them; the sentence has both sides.
        TypeError: mixed or unsupported dtypes, or arguments of another type.

    Source: Dao et al. 2022 (FlashAttention, §3), Dao 2023 (FlashAttention-2, §3).
    """
    check_options(mask, dropout, softcap, deterministic)
    check_types(q=q, k=k, v=v, cu_seqlens=cu_seqlens, cu_seqlens_k=cu_seqlens_k, bias=bias)
    check_transforms(q=q, k=k, v=v, bias=bias, scale=scale, sinks=sinks, alibi=alibi)
    if q.device.type != "meta" and torch.is_autocast_enabled(q.device.type):
        lower = torch.get_autocast_dtype(q.device.type)
        q, k, v = (x.to(lower) if x.dtype == torch.float32 else x for x in (q, k, v))
    check_tensors(q, k, v)
    cu_seqlens, cu_seqlens_k = check_offsets(q, k, cu_seqlens, cu_seqlens_k)
    if bias is not None:
        bias = check_bias(bias, q, k, cu_seqlens, cu_seqlens_k)
    scale, scales = check_scale(scale, q)
    extras = Extras(
        softcap=softcap,
        scales=scales,
        alibi=check_per_head("alibi", alibi, q),
        sinks=check_per_head("sinks", sinks, q),
        **check_segments(segments, segments_k, q, k),
        dropout=float(dropout),
        seed=seed_of(dropout_seed, q.device) if dropout else None,
    )
    if alibi is not None and alibi.requires_grad and backend != "exact" and torch.is_grad_enabled():
        raise ValueError(f"alibi needs a gradient, which only backend 'exact' gives; got backend {backend!r}")
    if backend == "auto":
        backend = choose_backend(q, k, v, mask=mask, bias=bias, extras=extras, deterministic=deterministic).backend
    else:
        require_backend(backend, q, mask=mask, bias=bias, extras=extras, deterministic=deterministic)
    ordered = deterministic == "batch"
    if backend in ("triton", "hopper"):
        how = (ordered, backend == "hopper", deterministic is not False)
        return _through_kernels(q, k, v, cu_seqlens, cu_seqlens_k, mask, bias, scale, extras, how)
    return _through_packs(backend, q, k, v, cu_seqlens, cu_seqlens_k, mask, bias, scale, extras, ordered)


def _through_kernels(
    q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor | None, cu_k: Tensor | None,
    mask: Mask, bias: Tensor | None, scale: float, extras: Extras, how: tuple[bool, bool, bool],
) -> Attended:  # fmt: skip
    q, scale = ops.positive_scale(q, scale)
    dense = q.dim() == 4
    if not dense:
        q, k, v = q[None], k[None], v[None]
    more = ops.arguments(mask, extras)
    out, lse = ops.attention_op(q, k, v, cu_q, cu_k, bias, scale, mask.left, mask.right, *more, *how)
    lse = lse.transpose(1, 2)  # (B, H, N) as the kernels write it → (B, N, H)
    return Attended(out, lse) if dense else Attended(out[0], lse[0])


def _through_packs(
    backend: str, q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor | None, cu_k: Tensor | None,
    mask: Mask, bias: Tensor | None, scale: float, extras: Extras, ordered: bool,
) -> Attended:  # fmt: skip
    shape = q.shape
    if cu_q is None or cu_k is None:
        batch, n_q, n_k = (shape[0], shape[1], k.shape[1]) if q.dim() == 4 else (1, shape[0], k.shape[0])
        cu_q, cu_k = (torch.arange(batch + 1, dtype=torch.int32, device=q.device) * n for n in (n_q, n_k))
        q, k, v = (x.reshape(batch * n, *x.shape[-2:]) for x, n in ((q, n_q), (k, n_k), (v, n_k)))
    if backend == "exact":  # which is no operator and reads its inputs here
        ops.check_values(q.shape[0], k.shape[0], cu_q, cu_k, bias)
    call = _IN_ORDER if ordered else _PLAIN[backend]
    out, lse = call(q, k, v, cu_q, cu_k, mask=mask, bias=bias, scale=scale, extras=extras)
    return Attended(out.reshape(shape), lse.reshape(shape[:-1]))
