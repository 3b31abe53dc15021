"""Rotary angles from positions and from event times; the rotation itself is `attention.rotation`."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from quantattn.attention import operators
from quantattn.nn.config import EncoderConfig
from quantattn.nn.invariant import elementwise
from quantattn.nn.rows import starts_of_rows

_SECONDS = 1e-9


def position_frequencies(pairs: int, base: float, device: torch.device | str = "cpu") -> Tensor:
    """(pairs,) float64 radians a position: base^(−i / pairs), i = 0 … pairs − 1."""
    return torch.pow(base, -_steps(pairs, device) / pairs)


def time_frequencies(pairs: int, periods: tuple[float, float], device: torch.device | str = "cpu") -> Tensor:
    """(pairs,) float64 radians a second: 2π / period, with periods from shortest to longest by equal ratios."""
    shortest, longest = periods
    return torch.pow(longest / shortest, -_steps(pairs, device) / max(1, pairs - 1)) * (2 * math.pi / shortest)


def rotary_table(
    config: EncoderConfig,
    base: float,
    time: Tensor,
    cu_seqlens: Tensor,
    rows: Tensor | None = None,
    *,
    batch_invariant: bool = False,
) -> tuple[Tensor, Tensor]:
    """What queries and keys are multiplied by: (cos, cos) and (−sin, sin) of the angles, (T, 1, D) float32 each.

    Given `rows` (n,) int64, those of these rows of the pack alone, (n, 1, D).

    The first pairs turn with the position within the sequence, the last `config.time_pairs` with the seconds since
    the sequence's first token. Nanoseconds are subtracted as integers and angles are formed in float64, so neither
    the epoch nor a million positions costs precision; adding a constant to all times of a sequence changes no bit.
    """
    pairs, periods = config.head_size // 2, config.time_periods
    cos, sin = _table_op(time, cu_seqlens, pairs, config.time_pairs, base, *periods, batch_invariant, rows)
    return cos, sin


def _table_shapes(time: Tensor, cu_seqlens: Tensor, pairs: int, *rest: Any) -> tuple[Tensor, Tensor]:
    rows: Tensor | None = rest[5] if len(rest) > 5 else None  # a default may be left out
    shape = ((time if rows is None else rows).shape[0], 1, 2 * pairs)
    return time.new_empty(shape, dtype=torch.float32), time.new_empty(shape, dtype=torch.float32)


# A compiler would rather compute sines again in float64, in every layer and for every head, than read them from memory:
# it cannot look into an operator.
@operators.operator(
    "rotary_table",
    "(Tensor time, Tensor cu_seqlens, int pairs, int time_pairs, float base, float shortest, float longest, "
    "bool batch_invariant, Tensor? rows=None) -> (Tensor, Tensor)",
    _table_shapes,
)
def _table_op(
    time: Tensor, cu_seqlens: Tensor, pairs: int, time_pairs: int,
    base: float, shortest: float, longest: float, batch_invariant: bool, rows: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    row = torch.arange(time.shape[0], device=time.device) if rows is None else rows
    start = starts_of_rows(cu_seqlens, time.shape[0])[row]
    angles = []
    if pairs > time_pairs:
        position = row - start
        angles.append(position.double()[:, None] * position_frequencies(pairs - time_pairs, base, time.device))
    if time_pairs:
        seconds = (time[row] - time[start]).double() * _SECONDS
        angles.append(seconds[:, None] * time_frequencies(time_pairs, (shortest, longest), time.device))
    angle = torch.cat(angles, dim=-1).unsqueeze(1)  # (T, 1, D / 2)
    cos = elementwise(torch.cos, angle, batch_invariant).float()
    sin = elementwise(torch.sin, angle, batch_invariant).float()
    return torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1)


def _steps(pairs: int, device: torch.device | str) -> Tensor:
    return torch.arange(pairs, dtype=torch.float64, device=device)
