"""The encoders of `bench=documents`, and how documents reach each of them: whole, or cut into windows.

A peer is a module from a `Feed` to hidden states (T, C) of its T real tokens, in order. One that cannot be made here
raises ImportError, ValueError or RuntimeError with the reason.

Dimensions: B rows of n places, T real tokens, C model width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from quantattn.batch import PackedBatch
from quantattn.cli.benchmarks.encoder_peers import (
    FIELD,
    GLOBAL_BASE,
    LOCAL_BASE,
    Compiled,
    longformer_model,
    modernbert_model,
)
from quantattn.nn import Encoder, EncoderConfig
from quantattn.nn.config import SIZES

FAMILIES = ("modernbert", "longformer")
"""Whose windows there are."""


class Piece(NamedTuple):
    """Tokens [start, stop) of a document."""

    document: int
    start: int
    stop: int


@dataclass(frozen=True)
class Feed:
    """What one call reads: rows of tokens end to end, or padded to one length.

    Attributes:
        tokens: (T,) int64 of a pack, (B, n) int64 of padded rows, 0 where nothing is.
        real: (B, n) bool, whether a token is there; None for a pack.
        offsets: (B + 1,) int32, where the rows begin among the real tokens.
        longest: tokens of the longest row.
        documents: (T,) int64, the document of each real token.
    """

    tokens: Tensor
    real: Tensor | None
    offsets: Tensor
    longest: int
    documents: Tensor


@dataclass(frozen=True)
class Peer:
    """An encoder and what it reads.

    Attributes:
        make: from the shape, the tokens of its longest row and what is to be compiled.
        window: whose windows it reads, "modernbert" or "longformer"; None reads documents whole.
        padded: whether rows are padded to one length, that of the window, or of the longest document of a call.
        pattern: which keys of its row a token attends to, in words.
    """

    make: Callable[[EncoderConfig, int, Compiled], nn.Module]
    window: str | None
    padded: bool
    pattern: str


def pieces(lengths: Sequence[int], window: int | None) -> list[Piece]:
    """The documents, or their windows, in order; the last window of a document is what is left of it."""
    return [
        Piece(document, start, min(n, start + (window or n)))
        for document, n in enumerate(lengths)
        for start in range(0, n, window or n)
    ]


def calls(rows: Sequence[Piece], tokens: int, width: int | None) -> list[list[Piece]]:
    """Rows in order, as many a call as `tokens` allow but at least one; a row costs its length, or `width` places."""
    made: list[list[Piece]] = []
    room = 0
    for row in rows:
        cost = width or row.stop - row.start
        if not made or cost > room:
            made.append([])
            room = tokens
        made[-1].append(row)
        room -= cost
    return made


def feeds(
    documents: Sequence[Tensor], window: int | None, padded: bool, tokens: int, device: torch.device
) -> Iterator[Feed]:
    """What is read of documents (n_i,) int64, whole or in windows, in calls of at most `tokens` places."""
    rows = pieces([len(document) for document in documents], window)
    for call in calls(rows, tokens, window if padded else None):
        lengths = [row.stop - row.start for row in call]
        offsets = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
        flat = torch.cat([documents[row.document][row.start : row.stop] for row in call])
        of = torch.repeat_interleave(torch.tensor([row.document for row in call]), torch.tensor(lengths))
        real = None
        if padded:
            n = window or max(lengths)
            real = torch.arange(n) < torch.tensor(lengths)[:, None]
            flat = torch.zeros(real.shape, dtype=torch.int64).masked_scatter(real, flat)
            real = real.to(device)
        yield Feed(flat.to(device), real, offsets.to(device), max(lengths), of.to(device))


class Packed(nn.Module):
    """Our encoder."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, feed: Feed) -> Tensor:
        """(T, C)."""
        ends = feed.offsets[1:].long() - 1
        time = torch.arange(len(feed.tokens), device=feed.tokens.device)
        fields = {FIELD: feed.tokens}
        hidden: Tensor = self.encoder(PackedBatch(fields, time, feed.offsets, feed.longest, ends, ends))
        return hidden


class Padded(nn.Module):
    """A model of transformers, with its mask; of Longformer each row's first token sees and is seen by all of it."""

    def __init__(self, model: nn.Module, first_is_global: bool = False) -> None:
        super().__init__()
        self.model, self.first_is_global = model, first_is_global

    def forward(self, feed: Feed) -> Tensor:
        """(T, C)."""
        assert feed.real is not None
        more = {}
        if self.first_is_global:
            more["global_attention_mask"] = torch.zeros_like(feed.tokens).index_fill_(
                1, torch.zeros(1, dtype=torch.int64, device=feed.tokens.device), 1
            )
        hidden: Tensor = self.model(input_ids=feed.tokens, attention_mask=feed.real.long(), **more)[0]
        return hidden[feed.real]


def ours(size: str | None, config: EncoderConfig, longest: int, compiled: Compiled) -> nn.Module:
    """`quantattn.Encoder` with the attention of a named size, or with ModernBERT's."""
    encoder = Encoder(patterned(size, config).with_changes(compile=compiled == "model"))
    if compiled == "blocks":
        for block in encoder.blocks:
            block.compile()
    return Packed(encoder)


def patterned(size: str | None, config: EncoderConfig) -> EncoderConfig:
    """The shape with what the layers of a named size see, and its heads where it is as wide; for None with what
    those of ModernBERT see, 64 tokens each side.
    """
    modernbert = {"local_window": 64, "rotary_base": GLOBAL_BASE, "local_rotary_base": LOCAL_BASE}
    named = modernbert if size is None else SIZES[size]
    names = ["local_window", "global_every", "rotary_base", "local_rotary_base"]
    names += ["n_heads"] if named.get("width") == config.width else []
    return config.with_changes(**{name: named[name] for name in names if name in named})


def modernbert(implementation: str, config: EncoderConfig, longest: int, compiled: Compiled) -> nn.Module:
    """Hugging Face ModernBERT; `compiled` is not for it: flex compiles its attention by itself, sdpa nothing."""
    return Padded(modernbert_model(implementation, patterned(None, config), longest))


def longformer(config: EncoderConfig, longest: int, compiled: Compiled) -> nn.Module:
    """Hugging Face Longformer, which is not compiled."""
    return Padded(longformer_model(config, longest), first_is_global=True)


_THIRD = "every third layer everything, the others 64 tokens each side"
_EIGHTH = "every eighth layer everything, the others 256 tokens each side; 6 heads of 128"
_LONGFORMER = "256 tokens each side, and the first token"

PEERS: dict[str, Peer] = {
    "quantattn": Peer(partial(ours, "base"), None, False, "everything"),
    "quantattn_long": Peer(partial(ours, "long"), None, False, _EIGHTH),
    "quantattn_windows": Peer(partial(ours, None), "modernbert", False, _THIRD),
    "modernbert_flex": Peer(partial(modernbert, "flex_attention"), "modernbert", True, _THIRD),
    "modernbert_sdpa": Peer(partial(modernbert, "sdpa"), "modernbert", True, _THIRD),
    "modernbert_flex_whole": Peer(partial(modernbert, "flex_attention"), None, True, _THIRD),
    "longformer": Peer(longformer, "longformer", True, _LONGFORMER),
    "longformer_whole": Peer(longformer, None, True, _LONGFORMER),
}
"""Name in the results → the encoder."""
