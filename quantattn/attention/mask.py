"""Which keys a query may see: the one definition of visibility."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_BEYOND = 1 << 30
"""A bound of this many keys or more is none: offsets are int32, and sums of bounds and places must stay so."""


@dataclass(frozen=True)
class Mask:
    """Visibility as an interval of relative positions.

    With Nq queries and Nk keys, query i stands beside key i + Nk − Nq (aligned bottom-right, so that the last
    query stands beside the last key). Key j is visible iff −left ≤ j − (i + Nk − Nq) ≤ right:

        Nq = 2, Nk = 4, causal:   ■ ■ ■ ·
                                  ■ ■ ■ ■

    Args:
        causal: no key after the query's own place; the same as right = 0.
        window: (left, right), how many keys before and after its own place a query may see; None is unbounded.

    Masks combine: `a & b` sees what both see, `a | b` what either sees.

    Raises:
        ValueError: a window that is not a pair, or has a negative bound.
        TypeError: a causal that is not a bool.
    """

    causal: bool = False
    window: tuple[int | None, int | None] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.causal, bool):
            raise TypeError(f"causal must be True or False, got {self.causal!r}")
        if self.window is None:
            return
        pair = isinstance(self.window, (tuple, list)) and len(self.window) == 2
        if not pair or any(type(bound) not in (int, type(None)) for bound in self.window):
            raise ValueError(f"window must be (left, right) of ints or None, got {self.window!r}")
        object.__setattr__(self, "window", tuple(self.window))
        if any(w is not None and w < 0 for w in self.window):
            raise ValueError(f"window bounds count keys and must be ≥ 0, got {self.window!r}")

    @property
    def left(self) -> int | None:
        """How many keys before its own place a query may see; None is all."""
        return _reach(self.window[0]) if self.window else None

    @property
    def right(self) -> int | None:
        """How many keys after its own place a query may see; None is all."""
        right = self.window[1] if self.window else None
        return 0 if self.causal else _reach(right)

    def visible(self, n_q: int, n_k: int, device: torch.device | str = "cpu") -> Tensor:
        """(Nq, Nk) bool, the mask written out; for specifications and tests only."""
        beside = torch.arange(n_q, device=device)[:, None] + (n_k - n_q)
        relative = torch.arange(n_k, device=device)[None, :] - beside
        seen = torch.ones(n_q, n_k, dtype=torch.bool, device=device)
        if self.left is not None:
            seen &= relative >= -self.left
        if self.right is not None:
            seen &= relative <= self.right
        return seen

    def key_range(self, first: int, last: int, n_q: int, n_k: int) -> tuple[int, int]:
        """Half-open range of keys that at least one of the queries first … last − 1 may see."""
        shift = n_k - n_q
        start = 0 if self.left is None else max(0, first + shift - self.left)
        stop = n_k if self.right is None else min(n_k, last + shift + self.right)
        return min(start, n_k), max(min(start, n_k), stop)

    def __and__(self, other: Mask) -> Mask:
        return _from_bounds(_least(self.left, other.left), _least(self.right, other.right))

    def __or__(self, other: Mask) -> Mask:
        return _from_bounds(_most(self.left, other.left), _most(self.right, other.right))


def _reach(bound: int | None) -> int | None:
    return bound if bound is not None and bound < _BEYOND else None


def _least(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else min(a, b)


def _most(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else max(a, b)


def _from_bounds(left: int | None, right: int | None) -> Mask:
    if right == 0:
        return Mask(causal=True, window=None if left is None else (left, 0))
    return Mask(window=None if left is None and right is None else (left, right))
