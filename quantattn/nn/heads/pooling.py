"""One vector a decision out of the hidden states of its sequence."""

from __future__ import annotations

from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from quantattn.attention import Mask, attention
from quantattn.batch import PackedBatch
from quantattn.nn.config import EncoderConfig
from quantattn.nn.invariant import Linear
from quantattn.nn.rows import offsets_of_decisions

POOLINGS = ("last", "mean", "attention")


class Pooling(nn.Module):
    """One vector a decision out of the hidden states of its sequence; (T, C) → (Q, C).

    `last` is the state at the decision's row. `mean` and `attention` weigh all the rows that the decision may use:
    under a causal encoder those up to and including its own; under a bidirectional one the whole sequence, of which
    it is the last row. `attention` has a learned query for each head (Lee et al. 2019, arXiv 1810.00825), `mean` is
    the same with all scores equal to zero; both are computed by `attention`, exactly.
    """

    batch_invariant = False

    def __init__(self, encoder: EncoderConfig, kind: str) -> None:
        super().__init__()
        check_pooling(kind)
        self.kind, self.causal, self.backend = kind, encoder.causal, encoder.attention_backend
        self.shape = (encoder.n_heads, encoder.head_size)
        if kind == "attention":
            self.query = nn.Parameter(torch.zeros(self.shape))
            self.project_in = Linear(encoder.width, 2 * encoder.width, bias=False)
            nn.init.normal_(self.project_in.weight, std=encoder.width**-0.5)

    def forward(self, hidden: Tensor, batch: PackedBatch) -> Tensor:
        """(Q, C), rows in the order of `batch.positions`."""
        if self.kind == "last":
            return hidden[batch.positions]
        if self.kind == "mean":
            value = hidden.view(-1, *self.shape)
            key, query = torch.zeros_like(value), value.new_zeros(self.shape)
        else:
            key, value = self.project_in(hidden).unflatten(-1, (-1, self.shape[1])).chunk(2, dim=1)  # (T, H, D)
            query = self.query.to(key.dtype)
        order: bool | Literal["batch"] = "batch" if self.batch_invariant else True
        call = partial(attention, deterministic=order, backend=self.backend)
        if self.causal:
            # Decisions stand anywhere in their sequences, so every row asks and the decisions' answers are taken.
            queries = query.expand(hidden.shape[0], *self.shape)
            out = call(queries, key, value, batch.cu_seqlens, mask=Mask(causal=True)).out
            return out.flatten(1)[batch.positions]
        queries = query.expand(batch.positions.shape[0], *self.shape)
        cu_queries = offsets_of_decisions(batch.positions, batch.cu_seqlens)
        return call(queries, key, value, cu_queries, batch.cu_seqlens).out.flatten(1)


def check_pooling(kind: str) -> None:
    """Raise ValueError unless there is such a pooling."""
    if kind not in POOLINGS:
        raise ValueError(f"pooling must be one of {', '.join(POOLINGS)}, got {kind!r}")


def zero_linear(width: int, n_out: int) -> Linear:
    """A linear map that gives zeros until it is trained, so that an untrained head says nothing."""
    linear = Linear(width, n_out)
    nn.init.zeros_(linear.weight)
    nn.init.zeros_(linear.bias)
    return linear
