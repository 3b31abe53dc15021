"""What is wrong with a batch whose loss is no number, and with a figure that nobody logs."""

from __future__ import annotations

import datetime as dt
import difflib
import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from quantattn.batch import PackedBatch
from quantattn.nn import Model, Objective

ALWAYS = (None, "train/loss", "train/lr", "train/grad_norm", "valid/loss")
"""What a callback may watch in every run: nothing, or figures that each has."""


def watched_of(callback: Any) -> str | None:
    """Name of the figure that a callback watches, if it does."""
    return getattr(callback, "monitor", None)


def sequences_of(batch: PackedBatch, first: int, last: int) -> PackedBatch:
    """The sequences first … last − 1 of a batch, as a batch."""
    start, stop = (int(batch.cu_seqlens[n]) for n in (first, last))
    inside = (batch.positions >= start) & (batch.positions < stop)
    offsets = batch.cu_seqlens[first : last + 1] - start

    def cut(target: Tensor) -> Tensor:
        return target[inside] if len(target) == len(inside) else target[start:stop]

    return replace(
        batch,
        fields={name: column[start:stop] for name, column in batch.fields.items()},
        time=batch.time[start:stop],
        cu_seqlens=offsets,
        max_seqlen=int(offsets.diff().max()) if last > first else 0,
        positions=batch.positions[inside] - start,
        keys=batch.keys[inside],
        targets={name: cut(target) for name, target in batch.targets.items()},
        vectors={name: each.between(start, stop) for name, each in batch.vectors.items()},
    )


@torch.no_grad()
def bad_sequence(model: Model, objective: Objective, batch: PackedBatch, step: int) -> int | None:
    """The first sequence of the batch whose loss alone is no number, found by halves; None when none is by itself."""

    def bad(first: int, last: int) -> bool:
        part = sequences_of(batch, first, last)
        return not math.isfinite(float(objective(model, part, step=step).loss))

    first, last = 0, batch.n_sequences
    with torch.random.fork_rng(devices=[]):
        while last - first > 1:
            middle = (first + last) // 2
            if bad(first, middle):
                last = middle
            elif bad(middle, last):
                first = middle
            else:
                return None
        return first if bad(first, last) else None


def whereabouts(batch: PackedBatch, sequence: int) -> str:
    """Which rows of the data a sequence is, in words, and the first of its fields that is infinite, if one is."""
    part = sequences_of(batch, sequence, sequence + 1)
    keys = part.keys.tolist()
    decisions = f"decisions {', '.join(map(str, keys[:8]))}{' …' if len(keys) > 8 else ''}" if keys else "no decision"
    times = [moment(int(part.time[row])) for row in (0, -1)] if part.n_tokens else ["–", "–"]
    said = f"sequence {sequence} of {batch.n_sequences}: {part.n_tokens} tokens, {times[0]} … {times[1]}, {decisions}"
    for name, column in part.fields.items():
        infinite = column.isinf().nonzero().flatten() if column.is_floating_point() else column[:0]
        if len(infinite):
            return f"{said}, {name} is infinite at its row {int(infinite[0])}"
    return said


def moment(nanoseconds: int) -> str:
    """A time as UTC text, to the second."""
    return dt.datetime.fromtimestamp(nanoseconds // 10**9, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def check_monitors(callbacks: Iterable[Any], logged: Iterable[str]) -> None:
    """Refuse a callback that watches a figure which nobody logs, before any training.

    Args:
        callbacks: those with a `monitor`.
        logged: names of the objective's figures.

    Raises:
        ValueError: naming the figure and the nearest known one.
    """
    known = (*ALWAYS[1:], *(f"valid/{name}" for name in logged if name not in ("loss", "count")))
    for each in callbacks:
        name = watched_of(each)
        if name is None or name in known:
            continue
        close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
        hint = f"did you mean {close[0]!r}?" if close else f"there is {', '.join(known)}"
        raise ValueError(f"{type(each).__name__} watches monitor={name!r}, which this run does not log; {hint}")
