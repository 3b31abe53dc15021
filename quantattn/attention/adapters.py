"""The function under the names that other libraries call it by."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention.bias import CausalBias, CausalVariant

from quantattn.attention.api import attention
from quantattn.attention.mask import Mask


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    backend: str = "auto",
) -> Tensor:
    """`torch.nn.functional.scaled_dot_product_attention`, computed by `quantattn.attention`.

    It means what torch's function means, which is not always what `attention` means: the heads stand before the
    tokens, and `is_causal` with L ≠ S is aligned top-left (query i sees keys 0 … i), where `Mask(causal=True)` is
    aligned bottom-right. Where a query sees no key torch's backends differ among each other; here its output is 0.

    Args:
        query: (…, H, L, E), or (…, L, E) for one head.
        key: (…, Hkv, S, E), the same leading dimensions as query.
        value: (…, Hkv, S, Ev).
        attn_mask: broadcastable to (…, H, L, S); bool (True is seen) or additive float; or one of the triangles of
            `torch.nn.attention.bias`. Not with `is_causal`.
        dropout_p: only 0.0 is offered.
        is_causal: the square part at the top left.
        scale: factor of q·k; None is 1/√E.
        enable_gqa: whether H may be a multiple of Hkv.
        backend: as in `attention`.

    Returns:
        (…, H, L, Ev).

    Raises:
        ValueError: as `attention`, and where torch raises for a combination of arguments.
    """
    if attn_mask is not None and is_causal:
        raise ValueError("Explicit attn_mask should not be set when is_causal=True; got both")
    if query.dim() < 3 or key.dim() != query.dim() or value.dim() != query.dim():
        shapes = f"query {tuple(query.shape)}, key {tuple(key.shape)}, value {tuple(value.shape)}"
        raise ValueError(f"query, key and value must be (…, H, L, E) with as many dimensions, got {shapes}")
    if query.dim() == 3:
        if attn_mask is not None and attn_mask.dim() > 2 and not isinstance(attn_mask, CausalBias):
            attn_mask = attn_mask.unsqueeze(-3)
        q, k, v = (x.unsqueeze(-3) for x in (query, key, value))
        out = scaled_dot_product_attention(q, k, v, attn_mask, dropout_p, is_causal, scale, backend=backend)
        return out.squeeze(-3)
    if query.shape[-3] != key.shape[-3] and not enable_gqa:
        heads = f"{query.shape[-3]} query heads and {key.shape[-3]} key heads"
        raise ValueError(f"got {heads}; expected as many, or enable_gqa=True")
    lead, n_q, n_k = query.shape[:-3], query.shape[-2], key.shape[-2]
    scale = default_scale(query) if scale is None else scale
    width, value_width = max(query.shape[-1], value.shape[-1]), value.shape[-1]
    q, k, v = (tokens_first(x, width) for x in (query, key, value))
    mask, keys, bias = Mask(), n_k, None
    if isinstance(attn_mask, CausalBias):  # a tensor by class alone: it has no values
        made_for = attn_mask.seq_len_q, attn_mask.seq_len_kv
        if made_for != (n_q, n_k):
            raise ValueError(f"{attn_mask.variant.name} was made for (L, S) = {made_for}, got {(n_q, n_k)}")
        is_causal, mask = attn_mask.variant == CausalVariant.UPPER_LEFT, Mask(causal=True)
        attn_mask = None
    if is_causal:
        mask, keys = top_left(n_q, n_k)
    if attn_mask is not None:
        bias = additive_mask(attn_mask, (*lead, query.shape[-3], n_q, n_k))
    out = attention(
        q, k[:, :keys], v[:, :keys], mask=mask, bias=bias, scale=scale, dropout=dropout_p, backend=backend
    ).out
    return out[..., :value_width].transpose(1, 2).reshape(*query.shape[:-1], value_width)


def top_left(n_q: int, n_k: int) -> tuple[Mask, int]:
    """(mask, leading keys) of a causal mask aligned top-left: query i sees keys 0 … i, keys from Nq on nobody sees."""
    return (Mask(causal=True), n_q) if n_k > n_q else (Mask(window=(None, n_q - n_k)), n_k)


def default_scale(query: Tensor) -> float:
    """1/√E; with E = 0 every score is 0 whatever it is multiplied by."""
    return 1.0 / math.sqrt(max(query.shape[-1], 1))


def tokens_first(x: Tensor, width: int) -> Tensor:
    """(…, H, N, D) → (B, N, H, width), the leading dimensions flattened and the last one filled up with zeros."""
    x = x.reshape(math.prod(x.shape[:-3]), *x.shape[-3:]).transpose(1, 2)  # −1 is no size where another one is 0
    return x if x.shape[-1] == width else functional.pad(x, (0, width - x.shape[-1]))


def additive_mask(attn_mask: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The mask as an additive one (B or 1, H or 1, L or 1, S or 1)."""
    if attn_mask.dtype == torch.bool:
        attn_mask = torch.zeros_like(attn_mask, dtype=torch.float32).masked_fill(~attn_mask, -torch.inf)
    attn_mask = attn_mask.reshape((1,) * (len(shape) - attn_mask.dim()) + tuple(attn_mask.shape))
    lead = attn_mask.shape[:-3]
    if all(size == 1 for size in lead):
        return attn_mask.reshape(1, *attn_mask.shape[-3:])
    return attn_mask.expand(*shape[:-3], *attn_mask.shape[-3:]).reshape(-1, *attn_mask.shape[-3:])
