"""Embeddings by comparison: slices of one sequence are near each other, slices of others far (CoLES, next window).

A slice is embedded as the hidden state at its last token, of length one. Which slices are compared is a function of
(seed, step) and the lengths of the sequences; the lengths are read from the device once a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from quantattn.batch import PackedBatch
from quantattn.nn.config import EncoderConfig
from quantattn.nn.heads import HeadConfig
from quantattn.nn.model import Model
from quantattn.nn.objectives.objective import Goal, Loss, TrainingRows, generator_of
from quantattn.nn.objectives.slices import slices_of


@dataclass(frozen=True)
class Coles:
    """Contrastive learning for event sequences (Babaev et al. 2022, arXiv 2002.08232).

    loss = (Σ d² over pairs of slices of one sequence + Σ max(0, margin − d)² over the `negatives` nearest slices of
    other sequences of each slice) / number of both kinds of pairs, d the distance of two embeddings of length one.

    Attributes:
        slices: of each sequence.
        shortest, longest: tokens of a slice, drawn with equal chances, at most those of the sequence.
        margin: distance at which slices of two sequences are far enough apart.
        negatives: of each slice, the hardest ones of the batch.
        seed: of the slices.
    """

    goal: ClassVar[Goal] = "data"
    slices: int = 5
    shortest: int = 16
    longest: int = 128
    margin: float = 0.5
    negatives: int = 5
    seed: int = 0

    def __post_init__(self) -> None:
        if self.slices < 2 or self.negatives < 1:
            raise ValueError(f"two slices and one negative or more, got {self.slices} and {self.negatives}")
        if not 1 <= self.shortest <= self.longest:
            raise ValueError(f"a slice has 1 ≤ shortest ≤ longest tokens, got {self.shortest} and {self.longest}")
        if not 0 < self.margin <= 2:
            raise ValueError(f"margin must lie in (0, 2], the distances of vectors of length one; got {self.margin}")

    def fitted(self, rows: TrainingRows) -> Coles:
        """Itself."""
        return self

    def heads(self, encoder: EncoderConfig, classes: Sequence[str]) -> dict[str, HeadConfig]:
        """None: the embedding is the encoder's."""
        return {}

    def __call__(self, model: Model, batch: PackedBatch, *, step: int | None = None) -> Loss:
        """Logs: loss, nearest_is_own (share of slices whose nearest slice is of the same sequence), count (slices)."""
        draw = generator_of(f"coles, seed {self.seed}, step {step}", step)
        starts, stops, owner = [], [], []
        for n, (first, last) in enumerate(spans(batch)):
            for _ in range(self.slices):
                low, high = (min(length, last - first) for length in (self.shortest, self.longest))
                length = int(torch.randint(low, high + 1, (), generator=draw))
                start = first + int(torch.randint(last - first - length + 1, (), generator=draw))
                starts.append(start)
                stops.append(start + length)
                owner.append(n)
        points = embedded(model, slices_of(batch, starts, stops))
        label = torch.tensor(owner, device=points.device)
        loss = contrastive_loss(points, label, self.margin, self.negatives)
        own = nearest_is_own(points.detach(), label)
        count = label.new_full((), len(owner))
        return Loss(loss, {"loss": loss.detach(), "nearest_is_own": own, "count": count})


@dataclass(frozen=True)
class NextWindow:
    """Tell the window that follows from those that follow in other sequences (InfoNCE: Oord et al. 2018, 1807.03748).

    Each sequence of two tokens or more is cut in two at a place drawn with equal chances, each side at most `window`
    tokens; a and b are the embeddings of the sides. loss = mean of −ln softmax_j(a_i · b_j / temperature) at j = i.

    Attributes:
        window: the most tokens on each side.
        temperature: of the softmax.
        seed: of the places.
    """

    goal: ClassVar[Goal] = "data"
    window: int = 128
    temperature: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        if self.window < 1 or not 0 < self.temperature < float("inf"):
            raise ValueError(f"window from 1 and a positive temperature, got {self.window} and {self.temperature}")

    def fitted(self, rows: TrainingRows) -> NextWindow:
        """Itself."""
        return self

    def heads(self, encoder: EncoderConfig, classes: Sequence[str]) -> dict[str, HeadConfig]:
        """None: the embedding is the encoder's."""
        return {}

    def __call__(self, model: Model, batch: PackedBatch, *, step: int | None = None) -> Loss:
        """Logs: loss, accuracy (share of windows whose own follower is the likeliest), count (windows)."""
        draw = generator_of(f"next window, seed {self.seed}, step {step}", step)
        before: list[tuple[int, int]] = []
        after: list[tuple[int, int]] = []
        for first, last in spans(batch):
            if last - first < 2:
                continue
            cut = first + int(torch.randint(1, last - first, (), generator=draw))
            before.append((max(first, cut - self.window), cut))
            after.append((cut, min(last, cut + self.window)))
        starts, stops = ([span[side] for span in (*before, *after)] for side in (0, 1))
        points = embedded(model, slices_of(batch, starts, stops))
        logits = points[: len(before)] @ points[len(before) :].T / self.temperature  # (W, W)
        own = torch.arange(len(before), device=points.device)
        loss = functional.cross_entropy(logits, own, reduction="sum") / max(len(before), 1)
        right = (logits.argmax(dim=-1) == own).sum() / max(len(before), 1) if len(before) else loss.detach()
        return Loss(loss, {"loss": loss.detach(), "accuracy": right, "count": own.new_full((), len(before))})


def contrastive_loss(points: Tensor, label: Tensor, margin: float, negatives: int) -> Tensor:
    """() the loss of `Coles` for embeddings (P, C) of sequences `label` (P,)."""
    same = label[:, None] == label
    positive = torch.triu(same, diagonal=1).nonzero()
    distance = torch.cdist(points.detach(), points.detach()).masked_fill(same, torch.inf)
    near = distance.topk(min(negatives, len(points)), dim=1, largest=False)
    first = torch.arange(len(points), device=points.device)
    far_enough = near.values.isfinite()  # a batch of few sequences has not so many others
    pairs = torch.stack([first[:, None].expand_as(near.indices)[far_enough], near.indices[far_enough]], dim=1)
    attract = (points[positive[:, 0]] - points[positive[:, 1]]).square().sum(dim=1)
    apart = functional.pairwise_distance(points[pairs[:, 0]], points[pairs[:, 1]], eps=1e-6)
    total = attract.sum() + functional.relu(margin - apart).square().sum()
    return total / max(len(positive) + len(pairs), 1)


def nearest_is_own(points: Tensor, label: Tensor) -> Tensor:
    """() the share of points whose nearest other point has the same label; 0 when there is none."""
    if len(points) < 2:
        return points.new_zeros(())
    distance = torch.cdist(points, points).fill_diagonal_(torch.inf)
    return (label[distance.argmin(dim=1)] == label).float().mean()


def embedded(model: Model, slices: PackedBatch) -> Tensor:
    """(P, C) float32, the embedding of each slice, of length one."""
    return functional.normalize(model.encoder(slices, at_decisions=True).float(), dim=-1)


def spans(batch: PackedBatch) -> list[tuple[int, int]]:
    """First row and the row after the last of each sequence that has a token."""
    starts = batch.cu_seqlens.tolist()
    return [(a, b) for a, b in pairwise(starts) if b > a]
