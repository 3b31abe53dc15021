"""Sequences that go on: the states of new tokens from the keys and values of those before them.

    states, kept = go_on(encoder, new, Past.empty(encoder, len(new.cu_seqlens) - 1))
    states, kept = go_on(encoder, newer, kept)

gives, bit for bit and however the sequences were cut into pieces, the rows of `encoder(batch)` over everything at once
inside `batch_invariant(encoder)`: there a row is a function of its own token and of the keys and values up to it.

Dimensions: N sequences, P tokens before, T new tokens, Hkv key/value heads, D head size, C model width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from quantattn.attention import Mask, attention
from quantattn.batch import PackedBatch
from quantattn.nn.encoder import Encoder
from quantattn.nn.invariant import batch_invariant


@dataclass(frozen=True)
class Past:
    """What is kept of N sequences so that they can go on; P tokens in all.

    Attributes:
        lengths: (N,) int64, tokens before, 0 for a sequence that begins.
        began: (N,) int64, time of the first token, ns; of no meaning where there is none.
        layers: keys and values of each layer, two (P, Hkv, D) tensors, one sequence after the other.
    """

    lengths: Tensor
    began: Tensor
    layers: tuple[tuple[Tensor, Tensor], ...]

    @staticmethod
    def empty(encoder: Encoder, n: int) -> Past:
        """The past of n sequences that begin."""
        config, weight = encoder.config, encoder.norm.weight
        none = weight.new_empty(0, config.kv_heads, config.head_size)
        zero = torch.zeros(n, dtype=torch.int64, device=weight.device)
        return Past(zero, zero, ((none, none),) * config.n_layers)

    def of(self, numbers: Tensor) -> Past:
        """That of the sequences of these numbers (M,) int64, in their order."""
        offsets = _offsets(self.lengths)
        lengths = self.lengths[numbers]
        rows = _ranges(offsets[:-1][numbers], lengths)
        return Past(lengths, self.began[numbers], tuple((k[rows], v[rows]) for k, v in self.layers))

    @staticmethod
    def joined(parts: list[Past]) -> Past:
        """The sequences of several one after the other."""
        pairs = zip(*(part.layers for part in parts), strict=True)
        layers = tuple((torch.cat([k for k, _ in each]), torch.cat([v for _, v in each])) for each in pairs)
        return Past(torch.cat([part.lengths for part in parts]), torch.cat([part.began for part in parts]), layers)

    def to(self, device: torch.device | str) -> Past:
        """The same on another device."""
        layers = tuple((k.to(device), v.to(device)) for k, v in self.layers)
        return Past(self.lengths.to(device), self.began.to(device), layers)


class _Going:
    """In the place of a share of a pack: attention of new tokens over those before them and themselves.

    Attributes:
        kept: keys and values of the layers that have been computed, those before and the new ones.
    """

    def __init__(self, past: Past, cu_seqlens: Tensor) -> None:
        self.past, self.cu_new = past, cu_seqlens
        new = cu_seqlens.diff().long()
        whole = _offsets(past.lengths + new)
        self.cu_whole = whole.to(torch.int32)
        self.rows = _ranges(whole[:-1] + past.lengths, new)
        """(T,) where the new tokens stand among all."""
        before = _ranges(whole[:-1], past.lengths)
        self.order = torch.argsort(torch.cat([before, self.rows]))
        self.kept: list[tuple[Tensor, Tensor]] = []

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, backend: str) -> Tensor:
        """(T, H, D), keys and values of this layer's past in front of the new ones."""
        held_k, held_v = self.past.layers[len(self.kept)]
        k, v = torch.cat([held_k, k])[self.order], torch.cat([held_v, v])[self.order]
        self.kept.append((k, v))
        return attention(q, k, v, self.cu_new, self.cu_whole, mask=mask, deterministic="batch", backend=backend).out


@torch.no_grad()
def go_on(encoder: Encoder, new: PackedBatch, past: Past) -> tuple[Tensor, Past]:
    """(T, C) states of the new tokens of N sequences, and what is to be kept of them now; dropout must be off.

    Args:
        encoder: a causal one.
        new: the tokens that follow those of `past`, in the same order of sequences; a sequence may have none.
        past: of the tokens before.

    Raises:
        ValueError: the encoder is bidirectional, or `past` is of another number of sequences or layers.
    """
    config = encoder.config
    if not config.causal:
        raise ValueError("a sequence goes on under a causal encoder only; in this one every token sees those after it")
    if len(past.lengths) != new.n_sequences or len(past.layers) != config.n_layers:
        raise ValueError(
            f"{new.n_sequences} sequences and {config.n_layers} layers go on, but the past is of {len(past.lengths)} "
            f"sequences and {len(past.layers)} layers"
        )
    shape = (int(past.lengths.sum()), config.kv_heads, config.head_size)
    if any(x.shape != shape for pair in past.layers for x in pair):
        raise ValueError(f"keys and values of the past must be {shape}, got {[tuple(k.shape) for k, _ in past.layers]}")
    with batch_invariant(encoder):
        going = _Going(past, new.cu_seqlens)
        time = new.time.new_zeros(int(going.cu_whole[-1]))
        time[going.rows] = new.time
        had = past.lengths > 0
        time[going.cu_whole[:-1].long()[had]] = past.began[had]
        wide, local = encoder.rotations(time, going.cu_whole, going.rows)
        x, branch = encoder.embedding(new.fields, new.vectors), None
        for block in encoder.blocks:
            x, branch = block(x, new.cu_seqlens, local if block.local else wide, None, going, branch=branch)
        began = past.began.clone()
        fresh = ~had & (new.cu_seqlens.diff() > 0)
        began[fresh] = new.time[new.cu_seqlens[:-1].long()[fresh]]
        kept = Past(past.lengths + new.cu_seqlens.diff().long(), began, tuple(going.kept))
        return encoder.norm(x + branch), kept


def rest(batch: PackedBatch, skipped: Tensor) -> PackedBatch:
    """The batch without the first `skipped` (N,) tokens of its sequences, and without decisions at them.

    Targets are left behind.
    """
    cu = batch.cu_seqlens.long()
    lengths = cu.diff() - skipped
    if bool((lengths < 0).any()) or bool((skipped < 0).any()):
        raise ValueError(
            f"{skipped.tolist()[:8]} … tokens cannot be left out of sequences of {cu.diff().tolist()[:8]} …"
        )
    rows = _ranges(cu[:-1] + skipped, lengths)
    new_cu = _offsets(lengths)
    place = torch.full((batch.n_tokens,), -1, dtype=torch.int64, device=rows.device)
    place[rows] = torch.arange(len(rows), device=rows.device)
    made = place[batch.positions] >= 0
    vectors = {}
    for name, each in batch.vectors.items():
        own = place[each.rows] >= 0
        vectors[name] = type(each)(place[each.rows[own]], each.values[own])
    return PackedBatch(
        fields={name: column[rows] for name, column in batch.fields.items()},
        time=batch.time[rows],
        cu_seqlens=new_cu.to(torch.int32),
        max_seqlen=int(lengths.max()) if len(lengths) else 0,
        positions=place[batch.positions[made]],
        keys=batch.keys[made],
        vectors=vectors,
    )


def _offsets(lengths: Tensor) -> Tensor:
    return torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])


def _ranges(start: Tensor, lengths: Tensor) -> Tensor:
    """Start[0], start[0] + 1, … (lengths[0] of them), start[1], and so on."""
    offsets = _offsets(lengths)
    count = torch.arange(int(offsets[-1]), device=start.device)
    return count + torch.repeat_interleave(start - offsets[:-1], lengths)
