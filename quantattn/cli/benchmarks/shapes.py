"""What attention is timed on: shapes as conf/bench.yaml writes them, one by one and in groups that have a name."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quantattn.attention import Mask
from quantattn.cli.benchmarks.peers import PEERS
from quantattn.cli.errors import UsageError, nearest

ALL = "all"
"""Name of all groups together, in their order."""
_MASKS = {"full": Mask(), "causal": Mask(causal=True)}
_EXPECTED = "[head size, tokens | ragged, full | causal | [left, right], and possibly {queries: …, heads_k: …}]"


@dataclass(frozen=True)
class Shape:
    """B sequences of N tokens, H heads of size D, Hkv of them for keys; or a pack of sequences of many lengths.

    Attributes:
        d: head size.
        n: keys of a sequence, of the longest one of a pack.
        batch: sequences.
        heads: query heads.
        heads_k: key heads.
        mask: who sees whom.
        queries: of a sequence, where it has fewer of them than keys; such a shape is timed forward alone.
        lengths: of the sequences of a pack, one after the other; empty for a dense batch.
    """

    d: int
    n: int
    batch: int
    heads: int
    heads_k: int
    mask: Mask
    queries: int | None = None
    lengths: tuple[int, ...] = ()

    @property
    def kind(self) -> str:
        """In what it differs from a dense batch with as many queries as keys and as many heads of both."""
        found = ["ragged"] if self.lengths else []
        found += [] if self.queries is None else [f"{self.queries} queries"]
        found += [] if self.heads == self.heads_k else [f"H/Hkv {self.heads // self.heads_k}"]
        return ", ".join(found) or "dense"

    @property
    def tokens(self) -> int:
        """Queries of all sequences."""
        return sum(self.lengths) or self.batch * (self.queries or self.n)

    @property
    def passes(self) -> tuple[str, ...]:
        """What is timed."""
        return ("forward", "backward") if self.queries is None else ("forward",)

    def flops(self, backward: bool) -> float:
        """Floating-point operations by the FlashAttention convention; a mask counts the pairs that it shows."""
        if self.lengths:
            pairs = sum(_pairs(n, n, self.mask) for n in self.lengths)
        else:
            pairs = self.batch * _pairs(self.queries or self.n, self.n, self.mask)
        return (10.0 if backward else 4.0) * self.heads * pairs * self.d

    def __str__(self) -> str:
        kind = "" if self.kind == "dense" else f", {self.kind}"
        return f"D {self.d} N {self.n} {describe(self.mask)}{kind}"


@dataclass(frozen=True)
class Case:
    """A shape and who is timed on it, by names of `PEERS`."""

    shape: Shape
    peers: tuple[str, ...]


def _pairs(n_q: int, n_k: int, mask: Mask) -> float:
    """(query, key) pairs that the mask shows; half of all under a causal one, as the convention has it."""
    if mask == Mask():
        return float(n_q) * n_k
    if mask == Mask(causal=True) and n_q == n_k:
        return n_q**2 / 2
    shown = (mask.key_ranges(i, i + 1, n_q, n_k) for i in range(n_q))
    return float(sum(stop - start for ranges in shown for start, stop in ranges))


def describe(mask: Mask) -> str:
    """full, causal, or the window's bounds, and a prefix."""
    if mask == Mask():
        return "full"
    prefix = f", prefix {mask.prefix}" if mask.prefix else ""
    return "causal" if mask == Mask(causal=True) else f"window {mask.left}:{mask.right}{prefix}"


def log_normal_lengths(
    *, tokens: int, shortest: int, longest: int, median: float, sigma: float, seed: int
) -> tuple[int, ...]:
    """Lengths of sequences, log-normal and cut to [shortest, longest], `tokens` in all; the last one takes the rest."""
    rng, found, left = random.Random(seed), [], tokens
    while left:
        n = min(longest, max(shortest, round(rng.lognormvariate(math.log(median), sigma))))
        n = n if left - n >= shortest else left
        found.append(n)
        left -= n
    return tuple(found)


def read(settings: Mapping[str, Any]) -> list[Case]:
    """The cases that `shapes` asks for: a group's name, all, or a list of names and of shapes of one's own.

    A shape of one's own is timed for all peers; `peers`, where it is given, stands in the place of any other list.

    Raises:
        UsageError: a name that there is not, or an entry that is no shape.
    """
    groups, asked = settings["groups"], settings["shapes"]
    if settings["peers"] is not None:
        _check_peers("peers", settings["peers"])
    entries = [asked] if isinstance(asked, str) else asked
    if not isinstance(entries, list) or not entries:
        raise UsageError(f"shapes: expected {', '.join(groups)}, {ALL}, or a list of {_EXPECTED}, got {asked}")
    cases = []
    for entry in entries:
        if isinstance(entry, str):
            for name in groups if entry == ALL else [entry]:
                if name not in groups:
                    raise UsageError(f"shapes: there is no group {name!r}{nearest(name, (*groups, ALL))}")
                group = groups[name]
                _check_peers(f"groups.{name}.peers", group["peers"])
                peers = tuple(settings["peers"] or group["peers"])
                cases += [Case(_shape(one, settings), peers) for one in group["shapes"]]
        else:
            cases.append(Case(_shape(entry, settings), tuple(settings["peers"] or PEERS)))
    return cases


def _check_peers(where: str, names: Sequence[str]) -> None:
    for name in names:
        if name not in PEERS:
            raise UsageError(f"{where}: there is no {name!r}{nearest(str(name), PEERS)}")


def _shape(entry: Any, settings: Mapping[str, Any]) -> Shape:
    try:
        d, n, mask, *more = entry
        options = dict(*more)
        heads = settings["width"] // d
        queries, heads_k = options.pop("queries", None), options.pop("heads_k", heads)
        seen = _MASKS[mask] if isinstance(mask, str) else Mask(window=tuple(mask))
        if options or heads < 1 or heads % heads_k or (queries is not None and (n == "ragged" or not 0 < queries < n)):
            raise ValueError
        if n == "ragged":
            lengths = log_normal_lengths(**settings["ragged"])
            return Shape(d, max(lengths), len(lengths), heads, heads_k, seen, lengths=lengths)
        return Shape(d, n, max(1, settings["tokens"] // n), heads, heads_k, seen, queries)
    except (TypeError, KeyError, ValueError, ZeroDivisionError):
        raise UsageError(f"shapes: expected {_EXPECTED}, got {entry}") from None
