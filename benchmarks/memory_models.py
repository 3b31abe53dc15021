"""What an encoder is set beside: a GRU, a temporal convolution and a linear state space, over the same packed batches.

All three are a `Stack`: the encoder's own embedding, blocks of the form x + mixer(norm(x)), a last norm, and the rows
at decisions, so that the library's heads, objectives and training take them as they take an `Encoder`. They are causal,
and no sequence sees another.

Dimensions: N sequences, T packed tokens, C model width, L the longest sequence, S states.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from quantattn.batch import PackedBatch
from quantattn.nn import EncoderConfig
from quantattn.nn.embed import Embedding
from quantattn.nn.encoder import FeedForward
from quantattn.nn.norm import RMSNorm


@dataclass(frozen=True)
class Place:
    """Where rows lie in their sequences.

    Attributes:
        sequence: (T,) number of the row's sequence.
        before: (T,) rows of the sequence before it.
        after: (T,) rows of the sequence behind it.
        count: N.
        longest: L.
    """

    sequence: Tensor
    before: Tensor
    after: Tensor
    count: int
    longest: int

    @staticmethod
    def of(batch: PackedBatch) -> Place:
        """The places of a batch's rows."""
        bounds = batch.cu_seqlens.long()
        row = torch.arange(batch.n_tokens, device=bounds.device)
        sequence = torch.searchsorted(bounds[1:], row, right=True)
        before, after = row - bounds[sequence], bounds[sequence + 1] - 1 - row
        return Place(sequence, before, after, batch.n_sequences, batch.max_seqlen)


class Stack(nn.Module):
    """Blocks of one kind in place of a transformer's; calling it is calling an `Encoder`."""

    def __init__(self, config: EncoderConfig, mixers: list[nn.Module]) -> None:
        super().__init__()
        self.config = config
        self.embedding = Embedding(config)
        self.mixers = nn.ModuleList(mixers)
        self.norms = nn.ModuleList(RMSNorm(config.width, config.norm_eps) for _ in mixers)
        self.norm = RMSNorm(config.width, config.norm_eps)

    def forward(self, batch: PackedBatch, at_decisions: bool = False) -> Tensor:
        """(T, C), or (Q, C) of the decisions' rows."""
        x, place = self.embedding(batch.fields, batch.vectors), Place.of(batch)
        for norm, mixer in zip(self.norms, self.mixers, strict=True):
            x = x + mixer(norm(x), place)
        x = self.norm(x)
        return x[batch.positions] if at_decisions else x  # type: ignore[no-any-return]


class Recurrent(nn.Module):
    """A GRU (Cho et al. 2014, arXiv 1406.1078) with `hidden` states, and a map back to C."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.cell = nn.GRU(width, hidden, batch_first=True)
        self.project_out = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor, place: Place) -> Tensor:
        """(T, C) → (T, C); rows are laid out as (N, L), with zeros behind the shorter sequences."""
        padded = x.new_zeros(place.count, place.longest, x.shape[1]).index_put((place.sequence, place.before), x)
        with torch.autocast(x.device.type, enabled=False):  # it would compute in float16, whose gradients may vanish
            states = self.cell(padded.to(self.cell.weight_hh_l0.dtype))[0]
        return self.project_out(states[place.sequence, place.before])  # type: ignore[no-any-return]


class Convolution(nn.Module):
    """A causal convolution with `taps` taps, `dilation` rows apart, into `hidden` channels, SiLU, and a map back to C.

    Stacked with dilations 1, 2, 4, … it is the temporal convolutional network of Bai et al. 2018, arXiv 1803.01271.
    """

    def __init__(self, width: int, hidden: int, dilation: int, taps: int = 3) -> None:
        super().__init__()
        self.dilation, self.taps = dilation, taps
        self.project_in = nn.Linear(taps * width, hidden)
        self.project_out = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor, place: Place) -> Tensor:
        """(T, C) → (T, C)."""
        seen = torch.cat([earlier(x, tap * self.dilation, place.before) for tap in range(self.taps)], dim=1)
        return self.project_out(functional.silu(self.project_in(seen)))  # type: ignore[no-any-return]


class StateSpace(nn.Module):
    """A linear recurrence of S complex states, read out linearly, and a feed-forward part behind it.

        h_t = λ h_{t−1} + √(1 − |λ|²) B x_t,  y_t = Re(C h_t) + x_t,  y_t + SwiGLU(norm(y_t))

    with |λ| < 1 by λ = exp(−exp(ν) + i θ): the LRU of Orvieto et al. 2023, arXiv 2303.06349, of the family of S4D (Gu
    et al. 2022, arXiv 2206.11893). The times in which states decay begin spread from 1 to `reach` by equal ratios, with
    phases of at most a turn in that time.
    """

    def __init__(self, config: EncoderConfig, states: int, reach: int) -> None:
        super().__init__()
        slow = torch.linspace(0, math.log(reach), states)
        self.log_decay = nn.Parameter(-slow)
        self.phase = nn.Parameter(2 * math.pi * torch.rand(states) * (-slow).exp())
        self.project_in = nn.Linear(config.width, 2 * states, bias=False)
        self.project_out = nn.Linear(2 * states, config.width, bias=False)
        self.norm = RMSNorm(config.width, config.norm_eps)
        self.feed_forward = FeedForward(config)

    def decay(self) -> Tensor:
        """(S,) complex λ."""
        return torch.exp(torch.complex(-self.log_decay.exp(), self.phase))

    def drive(self, x: Tensor) -> Tensor:
        """(T, S) complex √(1 − |λ|²) B x."""
        gain = torch.sqrt(-torch.expm1(-2 * self.log_decay.exp()))
        into = self.project_in(x).to(self.phase.dtype).view(len(x), -1, 2)
        return torch.view_as_complex(into.contiguous()) * gain

    def forward(self, x: Tensor, place: Place) -> Tensor:
        """(T, C) → (T, C)."""
        with torch.autocast(x.device.type, enabled=False):
            decay = self.decay()
        state: Tensor = Recurrence.apply(decay, self.drive(x), place)  # type: ignore[no-untyped-call]
        y = x + self.project_out(torch.view_as_real(state).flatten(1))
        return y + self.feed_forward(self.feed_forward.project_in(self.norm(y)))  # type: ignore[no-any-return]


class Recurrence(torch.autograd.Function):
    """h_t = λ h_{t−1} + u_t within each sequence, in ⌈log₂ L⌉ passes over all rows; backward is the same in reverse."""

    @staticmethod
    def forward(ctx: Any, decay: Tensor, drive: Tensor, place: Place) -> Tensor:
        """(T, S) states of (S,) λ and (T, S) u, all complex."""
        state = _doubled(decay, drive, place.before, place.longest)
        ctx.save_for_backward(decay, state)
        ctx.place = place
        return state

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:  # type: ignore[override]
        """g_t = ∂h_t + λ* g_{t+1} is the gradient of u, and Σ g_t h*_{t−1} that of λ."""
        decay, state = ctx.saved_tensors
        place: Place = ctx.place
        driven = _doubled(decay.conj(), grad.flip(0), place.after.flip(0), place.longest).flip(0)
        return (driven * earlier(state, 1, place.before).conj()).sum(dim=0), driven, None


def _doubled(decay: Tensor, drive: Tensor, before: Tensor, longest: int) -> Tensor:
    """Σ_{i<L} λ^i u_{t−i}: after the pass with step s every row has the terms i < 2 s."""
    state, step = drive, 1
    while step < longest:
        state = state + decay * earlier(state, step, before)
        decay, step = decay * decay, 2 * step
    return state


def earlier(x: Tensor, steps: int, before: Tensor) -> Tensor:
    """(T, …) whose row t is row t − steps of x, or 0 where that lies before its sequence."""
    if steps == 0:
        return x
    rows = min(steps, len(x))
    moved = torch.cat([x.new_zeros(rows, x.shape[1]), x[: len(x) - rows]])
    return moved.masked_fill((before < steps)[:, None], 0)


def gru(config: EncoderConfig, hidden: int, reach: int) -> Stack:
    """Two layers; more of them learn no better, and take their time one row after the other."""
    return Stack(config, [Recurrent(config.width, hidden) for _ in range(2)])


def convolutions(config: EncoderConfig, hidden: int, reach: int) -> Stack:
    """As many layers as it takes to see `reach` rows: with three taps 1 + 2 (2^n − 1)."""
    layers = math.ceil(math.log2((reach + 1) / 2 + 0.5))
    return Stack(config, [Convolution(config.width, hidden, 2**layer) for layer in range(layers)])


def state_space(config: EncoderConfig, hidden: int, reach: int) -> Stack:
    """As many layers as the encoder, with its feed-forward parts."""
    return Stack(config, [StateSpace(config, hidden, reach) for _ in range(config.n_layers)])


MAKERS: dict[str, Callable[[EncoderConfig, int, int], Stack]] = {
    "GRU": gru,
    "temporal CNN": convolutions,
    "linear state space": state_space,
}
"""Name → what makes one of an encoder's description, a size, and how many rows a decision must see."""


def size_of(module: nn.Module) -> int:
    """Number of trainable scalars."""
    return sum(p.numel() for p in module.parameters() if p.requires_grad)


def beside(name: str, config: EncoderConfig, reach: int, parameters: int) -> Stack:
    """The model of that name whose number of parameters is nearest to `parameters`.

    Raises:
        ValueError: not within 5 %.
    """
    low, high = 1, 2
    with torch.device("meta"):
        while size_of(MAKERS[name](config, high, reach)) < parameters:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if size_of(MAKERS[name](config, middle, reach)) < parameters else (low, middle)
        off = {hidden: abs(size_of(MAKERS[name](config, hidden, reach)) / parameters - 1) for hidden in (low, high)}
    hidden = min(off, key=lambda each: off[each])
    if off[hidden] > 0.05:
        raise ValueError(f"a {name} that sees {reach} rows cannot be made with {parameters} ± 5 % parameters")
    return MAKERS[name](config, hidden, reach)
