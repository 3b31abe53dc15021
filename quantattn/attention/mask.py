"""Which keys a query may see: the one definition of visibility."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from quantattn.attention.rules import rule_named

_BEYOND = 1 << 30
"""A bound of this many keys or more is none: offsets are int32, and sums of bounds and places must stay so."""


@dataclass(frozen=True)
class Mask:
    """Visibility as an interval of relative positions, and a prefix.

    With Nq queries and Nk keys, query i stands beside key i + Nk − Nq (aligned bottom-right, so that the last
    query stands beside the last key). Key j is visible iff −left ≤ j − (i + Nk − Nq) ≤ right, or j < prefix:

        Nq = 2, Nk = 4, causal:   ■ ■ ■ ·
                                  ■ ■ ■ ■

    Args:
        causal: no key after the query's own place; the same as right = 0.
        window: (left, right), how many keys before and after its own place a query may see; None is unbounded.
        prefix: how many keys at the start every query sees beside that (a prefix-LM with `causal`, global keys with
            a window).
        rule: name of a rule of one's own (`register_mask_rule`), which hides more.

    Masks combine: `a & b` sees what both see, `a | b` what either sees; where no interval, prefix and rule
    does (two different prefixes under &, a rule under |), it is refused.

    Raises:
        ValueError: a window that is not a pair, or a negative bound or prefix.
        TypeError: a causal that is not a bool.
    """

    causal: bool = False
    window: tuple[int | None, int | None] | None = None
    prefix: int = 0
    rule: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.causal, bool):
            raise TypeError(f"causal must be True or False, got {self.causal!r}")
        if type(self.prefix) is not int or self.prefix < 0:
            raise ValueError(f"prefix counts keys and must be an int ≥ 0, got {self.prefix!r}")
        if self.rule is not None:
            rule_named(self.rule)
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
        if self.prefix:
            seen |= torch.arange(n_k, device=device)[None, :] < self.prefix
        return self.under_rule(seen, (0, n_q), (0, n_k), n_q, n_k)

    def under_rule(self, seen: Tensor, queries: tuple[int, int], keys: tuple[int, int], n_q: int, n_k: int) -> Tensor:
        """What of a block of visible pairs its rule leaves; the block itself without one."""
        if self.rule is None:
            return seen
        query = torch.arange(*queries, device=seen.device)[:, None]
        key = torch.arange(*keys, device=seen.device)[None, :]
        return seen & rule_named(self.rule).of(query, key, n_q, n_k)

    def blocks(self, n_q: int, n_k: int, block_q: int, block_k: int) -> Tensor:
        """(⌈Nq / block_q⌉, ⌈Nk / block_k⌉) int8: 0 where a block is empty, 1 partly visible, 2 full.

        By the bounds, from the corners of a block; under a rule a block that they leave is 1.
        """
        counts = torch.empty(-(-n_q // block_q), -(-n_k // block_k), dtype=torch.int8)
        for i in range(counts.shape[0]):
            rows = (i * block_q, min((i + 1) * block_q, n_q))
            for j in range(counts.shape[1]):
                counts[i, j] = self.of_block(rows, (j * block_k, min((j + 1) * block_k, n_k)), n_q, n_k)
        return counts

    def of_block(self, queries: tuple[int, int], keys: tuple[int, int], n_q: int, n_k: int) -> int:
        """0 when no query of the half-open range sees a key of the other, 2 when every one sees all, else 1."""
        shift = n_k - n_q
        least, most = keys[0] - (queries[1] - 1 + shift), keys[1] - 1 - (queries[0] + shift)
        whole = (self.left is None or least >= -self.left) and (self.right is None or most <= self.right)
        if whole or keys[1] <= self.prefix:
            return 2 if self.rule is None else 1
        # The nearest pair decides whether anything is visible: relative positions fill [least, most] without a gap.
        some = (self.left is None or most >= -self.left) and (self.right is None or least <= self.right)
        return 1 if some or keys[0] < self.prefix else 0

    def key_range(self, first: int, last: int, n_q: int, n_k: int) -> tuple[int, int]:
        """Half-open range of keys that at least one of the queries first … last − 1 may see by their distance."""
        shift = n_k - n_q
        start = 0 if self.left is None else max(0, first + shift - self.left)
        stop = n_k if self.right is None else min(n_k, last + shift + self.right)
        return min(start, n_k), max(min(start, n_k), stop)

    def key_ranges(self, first: int, last: int, n_q: int, n_k: int) -> list[tuple[int, int]]:
        """The same with the prefix: disjoint ranges, none of them empty, in order."""
        start, stop = self.key_range(first, last, n_q, n_k)
        prefix = min(self.prefix, n_k)
        if start <= prefix:
            ranges = [(0 if prefix else start, max(stop, prefix))]
        else:
            ranges = [(0, prefix), (start, stop)]
        return [r for r in ranges if r[0] < r[1]]

    def __and__(self, other: Mask) -> Mask:
        a, b = self, other
        bounds = _least(a.left, b.left), _least(a.right, b.right)
        if a.prefix != b.prefix and not (a._unbounded or b._unbounded):
            raise ValueError(f"masks with prefixes {a.prefix} and {b.prefix} have no intersection that is a mask")
        if None not in (a.rule, b.rule) and a.rule != b.rule:
            raise ValueError(f"masks with rules {a.rule!r} and {b.rule!r}: register one rule that is both")
        return _from_bounds(*bounds, b.prefix if a._unbounded else a.prefix, a.rule or b.rule)

    def __or__(self, other: Mask) -> Mask:
        if self == other:
            return self
        if self.rule is not None or other.rule is not None:
            raise ValueError(
                f"a union with rule {self.rule or other.rule!r} is no mask: register a rule that is the union"
            )
        bounds = _most(self.left, other.left), _most(self.right, other.right)
        return _from_bounds(*bounds, max(self.prefix, other.prefix), None)

    @property
    def _unbounded(self) -> bool:
        return self.left is None and self.right is None


def _reach(bound: int | None) -> int | None:
    return bound if bound is not None and bound < _BEYOND else None


def _least(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else min(a, b)


def _most(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else max(a, b)


def _from_bounds(left: int | None, right: int | None, prefix: int, rule: str | None) -> Mask:
    if right == 0:
        return Mask(causal=True, window=None if left is None else (left, 0), prefix=prefix, rule=rule)
    unbounded = left is None and right is None
    return Mask(window=None if unbounded else (left, right), prefix=0 if unbounded else prefix, rule=rule)
