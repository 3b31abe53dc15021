"""What travels together: from a launch to a kernel, and inside one. A field that is None is compiled away."""

from __future__ import annotations

from typing import Any, NamedTuple


class Strides(NamedTuple):
    """Elements between neighbours along batch (or sequence), row, head and column."""

    b: Any
    n: Any
    h: Any
    d: Any


class Bounds(NamedTuple):
    """The bounds of a `Mask`: key j is visible to query i iff −left ≤ j − (i + Nk − Nq) ≤ right, or j < prefix."""

    left: Any = None
    right: Any = None
    prefix: Any = None


class Terms(NamedTuple):
    """What acts on scores and weights beside the scale, in the order of its action.

    Attributes:
        scales: (H,) float32, a factor of each head beside the scale.
        softcap: c of c·tanh(s / c).
        slopes: (H,) float32, ALiBi: −slope·|distance| is added.
        bias: additive mask.
        bias_s: its stride by sequence, and by head, query and key the next three; 0 along an axis of one entry.
        segments_q: int32 for each query row; a query sees the keys of its own segment.
        segments_k: int32 for each key row.
        rule: jit function (query, key, Nq, Nk) → whether the key is visible.
        sinks: (H,) float32, one more score in every row's sum, whose value is 0.
        seed: (1,) int64, of the dropout.
        threshold: a weight is kept where 32 random bits are below it.
    """

    scales: Any = None
    softcap: Any = None
    slopes: Any = None
    bias: Any = None
    bias_s: Any = None
    bias_h: Any = None
    bias_i: Any = None
    bias_j: Any = None
    segments_q: Any = None
    segments_k: Any = None
    rule: Any = None
    sinks: Any = None
    seed: Any = None
    threshold: Any = None

    @property
    def plain(self) -> bool:
        """Whether a score is nothing but scale · q·k."""
        return self.scales is None and self.softcap is None and self.slopes is None and self.bias is None

    @property
    def hides(self) -> bool:
        """Whether keys may be invisible for other reasons than bounds, so that no block can be known to be full."""
        return any(x is not None for x in (self.bias, self.segments_q, self.rule))


class Place(NamedTuple):
    """Where a tile lies: batch index, sequence, its first row, and where queries and keys of the sequence stand."""

    batch: Any
    sequence: Any
    first: Any
    q_start: Any
    n_q: Any
    k_start: Any
    n_k: Any


class Visit(NamedTuple):
    """The blocks that a tile visits, as rows: `apart` blocks from `start` on, and [low, high), full from … to …."""

    start: Any
    apart: Any
    low: Any
    full_low: Any
    full_high: Any
    high: Any


class Head(NamedTuple):
    """What one head knows: factor of q·k in base 2, start of its bias, slope in base 2, its own factor."""

    unit: Any
    bias: Any
    slope: Any
    own: Any
