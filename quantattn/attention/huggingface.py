"""Attention under the interface of Hugging Face transformers; the one file that imports it.

A model of transformers makes its mask once a forward pass and hands it to every layer. Here that mask is a value,
`Visibility`, that names what is seen and packs what is padded, and no matrix of size Nq × Nk.

Dimensions: B batch, Nq queries, Nk keys, H query heads, Hkv key/value heads, E head size, Ev that of values.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from quantattn.attention.adapters import additive_mask, default_scale, tokens_first, top_left
from quantattn.attention.api import attention
from quantattn.attention.mask import Mask
from quantattn.attention.state import Attended

_UNKNOWN = ("indices", "block_indices", "block_table", "k_cache", "v_cache", "sinks")
"""Arguments with which some models change what attention computes and which have no counterpart here."""


def register_with_transformers(name: str = "quantattn", *, backend: str = "auto") -> None:
    """Make `name` an attention implementation of Hugging Face transformers.

        register_with_transformers()
        model = AutoModel.from_pretrained(path, attn_implementation="quantattn")

    A query sees what it sees with `attn_implementation="sdpa"`. Full, causal and windowed attention, padding, and
    sequences packed by `position_ids` stay O(Nq + Nk); any other pattern becomes a matrix (B, 1, Nq, Nk), and so do
    padding and packing in a traced model (`torch.compile`, `torch.export`), which has no values to read. Offsets
    `cu_seq_lens_q` and `cu_seq_lens_k` given to a model's forward pack sequences as they do for flash attention.

    A query that sees no key gets 0, and so does a padded place of a causal or windowed layer; torch puts other values
    there. `softcap`, `s_aux` (sinks) and `dropout` go on to `attention`, which says what it offers.

    Args:
        name: what models ask for.
        backend: as in `attention`.

    Raises:
        ModuleNotFoundError: transformers is not installed.
    """
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(name, partial(attention_of_module, backend=backend))
    AttentionMaskInterface.register(name, visibility)


class Packing(NamedTuple):
    """Which places of a batch are packed: offsets, and indices into the B·Nq and B·Nk places; None is all of them."""

    cu_q: Tensor
    cu_k: Tensor
    rows: Tensor | None = None
    columns: Tensor | None = None


@dataclass(frozen=True)
class Visibility:
    """What the queries of one forward pass see, found once and read by every layer.

    Attributes:
        mask: by place, inside each packed sequence.
        shape: (B, Nq, Nk) of the layers that it is for.
        keys: how many of the Nk can be seen; a cache allocated in advance ends in places that nobody sees yet.
        packing: None leaves the batch as it stands.
        written: the same as bool, broadcastable to (B, 1, Nq, Nk), True is seen.
    """

    mask: Mask
    shape: tuple[int, int, int]
    keys: int
    packing: Packing | None
    written: Callable[[], Tensor]


def attention_of_module(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Visibility | Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    cu_seq_lens_q: Tensor | None = None,
    cu_seq_lens_k: Tensor | None = None,
    *,
    backend: str = "auto",
    **others: Any,
) -> tuple[Tensor, None]:
    """The signature of `transformers.AttentionInterface`.

    Args:
        module: the layer; its `is_causal` counts where neither a mask nor `is_causal` is given.
        query: (B, H, Nq, E).
        key: (B, Hkv, Nk, E).
        value: (B, Hkv, Nk, Ev).
        attention_mask: from `visibility`; or broadcastable to (B, H, Nq, Nk), bool (True is seen) or additive.
        dropout: as in `attention`.
        scaling: factor of q·k; None is 1/√E.
        is_causal: where there is no mask, whether query i sees keys 0 … i only; a lone query sees all.
        sliding_window: where there is no mask, how many keys are seen on a side, the query's own place included.
        softcap: as in `attention`.
        s_aux: as `sinks` in `attention`.
        position_bias: additive, broadcastable to (B, H, Nq, Nk).
        cu_seq_lens_q: (N + 1,) offsets of packed sequences among the B·Nq queries.
        cu_seq_lens_k: the same among the B·Nk keys; None means `cu_seq_lens_q`.
        backend: as in `attention`.
        others: what models pass along.

    Returns:
        (B, Nq, H, Ev), and None for the weights, which are never formed.

    Raises:
        ValueError: as `attention`, for masks that do not fit, and for what `others` asks and is not offered.
    """
    _check_others(others)
    scaling = default_scale(query) if scaling is None else scaling
    width, value_width = max(query.shape[-1], value.shape[-1]), value.shape[-1]
    q, k, v = (tokens_first(x, width) for x in (query, key, value))
    shape = q.shape[0], q.shape[1], k.shape[1]
    if attention_mask is None:
        causal = is_causal if is_causal is not None else getattr(module, "is_causal", True)
        attention_mask = _unmasked(bool(causal), sliding_window, shape, q.device)
    mask, packing, bias = Mask(), None, position_bias
    if isinstance(attention_mask, Visibility):
        seen = attention_mask
        if seen.shape != shape:
            raise ValueError(f"the mask was made for (B, Nq, Nk) = {seen.shape}, got {shape}")
        k, v = k[:, : seen.keys], v[:, : seen.keys]
        if position_bias is None:
            mask, packing, attention_mask = seen.mask, seen.packing, None
        else:
            attention_mask = seen.written()[..., : seen.keys]
    if attention_mask is not None:
        if not isinstance(attention_mask, Tensor) or attention_mask.dim() != 4:
            got = tuple(attention_mask.shape) if isinstance(attention_mask, Tensor) else type(attention_mask).__name__
            raise ValueError(f"attention_mask must be (B, H, Nq, Nk) or made by this implementation, got {got}")
        bias = additive_mask(attention_mask, (shape[0], q.shape[2], shape[1], k.shape[1]))
        bias = bias if position_bias is None else position_bias[..., : k.shape[1]] + bias
    if cu_seq_lens_q is not None:
        packing = _offsets(cu_seq_lens_q, cu_seq_lens_k, packing, bias)
    call = partial(
        attention, mask=mask, bias=bias, scale=scaling, dropout=dropout, softcap=softcap, sinks=s_aux, backend=backend
    )
    out = call(q, k, v).out if packing is None else _packed(call, q, k, v, packing)
    return out[..., :value_width], None


def visibility(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    *,
    mask_function: Callable[..., Tensor],
    attention_mask: Tensor | None = None,
    **options: Any,
) -> Visibility | Tensor:
    """The signature of `transformers.AttentionMaskInterface`.

    Args:
        batch_size: B.
        q_length: Nq.
        kv_length: Nk.
        q_offset: place of the first query.
        kv_offset: place of the first key.
        mask_function: who sees whom by place, made by transformers or by a model.
        attention_mask: (B, places) bool, True is a token and False is padding.
        options: for transformers' own writing of the mask.

    Returns:
        `Visibility` for patterns that can be named, else (B, 1, Nq, Nk) bool.
    """
    from transformers.masking_utils import sdpa_mask

    options |= {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    written: Callable[[], Tensor] = partial(
        sdpa_mask, batch_size, q_length, kv_length, q_offset, kv_offset, mask_function, attention_mask, **options
    )
    pattern = _pattern(mask_function)
    if pattern is None or isinstance(q_offset, Tensor):
        return written()
    mask, sequences = pattern
    shape, first = (batch_size, q_length, kv_length), q_offset - kv_offset  # the first query's place among the keys
    keys = first + q_length if mask.right == 0 else kv_length
    if mask != Mask() and (first < 0 or keys > kv_length or first + q_length != keys):
        return written()  # the last query does not stand beside the last key
    if attention_mask is None and sequences is None:
        return Visibility(mask, shape, keys, None, written)
    if torch.compiler.is_compiling() or (attention_mask is not None and sequences is not None):
        return written()
    if sequences is not None:
        square = q_length == kv_length and first == 0
        packing = _of_sequences(sequences.expand(batch_size, -1))
        return Visibility(mask, shape, keys, packing, written) if square else written()
    assert attention_mask is not None
    tokens = attention_mask.bool()[:, kv_offset : kv_offset + keys]
    tokens = torch.nn.functional.pad(tokens, (0, keys - tokens.shape[1]))
    if tokens.all():
        return Visibility(mask, shape, keys, None, written)
    if mask.left is not None and not _one_run(tokens):
        return written()
    queries = None if mask == Mask() else tokens[:, first:]  # what is seen by all may be another axis than the queries'
    return Visibility(mask, shape, keys, _of_tokens(tokens, q_length, queries), written)


def _check_others(others: dict[str, Any]) -> None:
    for name in _UNKNOWN:
        if others.get(name) is not None:
            raise ValueError(f"{name} changes what a query sees in a way that is not offered; use eager attention")
    if others.get("output_attentions"):
        raise ValueError("output_attentions asks for weights, which are never formed; use eager attention")


def _unmasked(causal: bool, window: int | None, shape: tuple[int, int, int], device: torch.device) -> Visibility:
    """What a layer sees whose model made no mask."""
    _, n_q, n_k = shape
    mask, keys = top_left(n_q, n_k) if causal and n_q > 1 else (Mask(causal=causal), n_k)
    if window is not None:
        if n_q not in (1, keys):
            raise ValueError(f"a window of {window} between {n_q} queries and {n_k} keys needs a mask that places them")
        mask = Mask(causal=causal, window=(window - 1, window - 1))

    def written() -> Tensor:
        return mask.visible(n_q, keys, device)[None, None]

    return Visibility(mask, shape, keys, None, written)


def _pattern(function: Callable[..., Tensor]) -> tuple[Mask, Tensor | None] | None:
    """(who sees whom by place, (B, N) number of the packed sequence at each place); None where it is not known.

    Functions of transformers are known by their names and read by their closures, and anything else is left to be
    written out: a release that renames one costs memory and changes no result.
    """
    from transformers import masking_utils as made

    if function is made.causal_mask_function:
        return Mask(causal=True), None
    if function is made.bidirectional_mask_function:
        return Mask(), None
    if torch.compiler.is_compiling() or getattr(function, "__module__", None) != made.__name__:
        return None  # closures cannot be read while they are traced
    name, held = function.__qualname__.partition(".")[0], inspect.getclosurevars(function).nonlocals
    if name == "sliding_window_overlay":
        return Mask(window=(held["sliding_window"] - 1, None)), None
    if name == "sliding_window_bidirectional_overlay":
        return Mask(window=(held["sliding_window"], held["sliding_window"])), None
    if name == "packed_sequence_mask_function":
        return Mask(), held["packed_sequence_mask"]
    if name == "and_masks":
        return _all_of(held["mask_functions"])
    return None


def _all_of(functions: tuple[Callable[..., Tensor], ...]) -> tuple[Mask, Tensor | None] | None:
    """The pattern of functions that must all agree."""
    mask, sequences, renumbered = Mask(), None, False
    for function in functions:
        if getattr(function, "__qualname__", "").startswith("remap_positions_for_packed_sequence."):
            # Places counted within each sequence: as differences they are those of the batch.
            function, renumbered = inspect.getclosurevars(function).nonlocals["mask_function"], True
        found = _pattern(function)
        if found is None or (sequences is not None and found[1] is not None):
            return None
        mask, sequences = mask & found[0], found[1] if sequences is None else sequences
    return None if renumbered and sequences is None else (mask, sequences)


def _one_run(tokens: Tensor) -> bool:
    """Whether the tokens of each row stand side by side, so that leaving padding out moves none nearer to another."""
    starts = torch.nn.functional.pad(tokens, (1, 0))
    return bool(((starts[:, 1:] & ~starts[:, :-1]).sum(1) <= 1).all())


def _of_tokens(tokens: Tensor, n_q: int, queries: Tensor | None) -> Packing:
    """Padding (B, Nk) taken out of the keys and, where `queries` (B, Nq) are given, out of the queries."""
    columns, cu_k = tokens.flatten().nonzero()[:, 0], _cumulated(tokens)
    if queries is None:
        every = torch.arange(tokens.shape[0] + 1, dtype=torch.int32, device=tokens.device) * n_q
        return Packing(every, cu_k, None, columns)
    return Packing(_cumulated(queries), cu_k, queries.flatten().nonzero()[:, 0], columns)


def _of_sequences(sequences: Tensor) -> Packing:
    """A new sequence wherever the number (B, N) changes, and at the start of each row."""
    first = torch.ones_like(sequences, dtype=torch.bool)
    first[:, 1:] = sequences[:, 1:] != sequences[:, :-1]
    starts = first.flatten().nonzero()[:, 0]
    cu = torch.nn.functional.pad(starts, (0, 1), value=sequences.numel()).int()
    return Packing(cu, cu)


def _cumulated(tokens: Tensor) -> Tensor:
    """(B, N) bool → (B + 1,) int32 offsets of each row's tokens."""
    return torch.nn.functional.pad(tokens.sum(1).cumsum(0), (1, 0)).int()


def _offsets(cu_q: Tensor, cu_k: Tensor | None, packing: Packing | None, bias: Tensor | None) -> Packing:
    """The packing that a model's caller gave, which is the same as that by `position_ids` where both are there."""
    if bias is not None or (packing is not None and packing.columns is not None):
        raise ValueError("cu_seq_lens_q describes sequences without padding; got padding, a matrix or a bias beside it")
    return Packing(cu_q.int(), cu_q.int() if cu_k is None else cu_k.int())


def _packed(call: Callable[..., Attended], q: Tensor, k: Tensor, v: Tensor, packing: Packing) -> Tensor:
    """(B, Nq, H, D), computed on the packed places; a place that is left out gets 0."""
    shape, device = q.shape, q.device
    cu_q, cu_k, rows, columns = (None if x is None else x.to(device) for x in packing)
    q, k, v = (x.flatten(0, 1) for x in (q, k, v))
    if columns is not None:
        k, v = k[columns], v[columns]
    if rows is None:
        return call(q, k, v, cu_q, cu_k).out.view(shape)
    out = call(q[rows], k, v, cu_q, cu_k).out
    return out.new_zeros(shape[0] * shape[1], *shape[2:]).index_copy(0, rows, out).view(shape)
