"""What an encoder is, as plain values: the whole description that is stored beside its weights."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import pairwise
from types import MappingProxyType
from typing import Any

from quantattn.attention import BACKENDS

SIZES: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "tiny": {"n_layers": 2, "width": 64, "n_heads": 2, "hidden": 128},
        "small": {"n_layers": 6, "width": 384, "n_heads": 6, "hidden": 1024},
        "base": {"n_layers": 22, "width": 768, "n_heads": 12, "hidden": 1152},
        "long": {
            "n_layers": 22,
            "width": 768,
            "n_heads": 6,
            "hidden": 1152,
            "local_window": 256,
            "global_every": 8,
            "rotary_base": 1_000_000.0,
            "local_rotary_base": 10_000.0,
        },
    }
)
"""Named sizes. `base` has the shape of ModernBERT-base (Warner et al. 2024, arXiv 2412.13663, table 4);
`long` is the same with seven local layers after each global one, which leaves three of those (Gemma 3 has five local
ones to a global one: arXiv 2503.19786, section 2), windows as wide as Longformer's, heads of 128, whose products are
faster on a GPU than those of 64, and a rotary base for a million positions."""

MISSING = 0
"""Code of a value that is missing or unknown, in every field."""

MASKED = 1
"""Code of a value that was hidden from the encoder, in every field."""


@dataclass(frozen=True)
class EncoderConfig:
    """Description of an `Encoder` in plain values; `to_dict` and `from_dict` are inverse of each other.

    Attributes:
        codes: field → number K of codes; a batch's integer field holds 0 (missing), 1 (masked), …, K − 1.
        values: names of the float fields.
        n_layers: number of blocks.
        width: C, size of the residual stream; a multiple of 2 · n_heads.
        n_heads: H, query heads; the head size is D = width / n_heads.
        n_kv_heads: Hkv, key and value heads (grouped-query attention); None is n_heads.
        hidden: inner width of the SwiGLU feed-forward part.
        causal: a token sees itself and the past only; needed for several decisions in one sequence.
        qk_norm: RMS-normalise queries and keys before the rotation.
        local_window: how many tokens local layers see on each side (on the left only when causal); None makes
            every layer global.
        global_every: layer i is global when i is a multiple of this, local otherwise.
        rotary_base: base of the rotary frequencies of global layers (Su et al. 2021, arXiv 2104.09864).
        local_rotary_base: the same for local layers; None is rotary_base.
        time_rotary: share in [0, 1] of the rotated pairs that turn with event time instead of position.
        time_periods: (shortest, longest) period in seconds of the pairs that turn with time, spaced by equal ratios.
        value_frequencies: learned sine and cosine features for each float field, beside the value itself.
        value_frequency_scale: standard deviation of the normal law from which their frequencies are drawn.
        value_edges: float field → T + 1 rising edges of the T bins of its piecewise-linear features, beside the value
            itself; a field that is not named has none.
        vectors: name of what a few tokens carry (the embedding of a filing) → (center, scale) of each of its E numbers,
            which is read as (v − center) / scale, at most ±8; a name that is not there is not read.
        dropout: probability of zeroing an entry of a residual branch while training.
        norm_eps: ε of every RMS norm.
        gradient_checkpointing: what backward computes again. True keeps block inputs only; "feed_forward" keeps beside
            them what attention and its two products gave, and computes norms, rotations and the feed-forward part.
        compile: run the encoder through `torch.compile`; one graph on a GPU, on a CPU the parts between attentions.
        attention_backend: handed to `attention(backend=…)`.

    Raises:
        ValueError, TypeError: a value out of its range or of the wrong type, named in the message.
    """

    codes: Mapping[str, int] = field(default_factory=dict)
    values: tuple[str, ...] = ()
    n_layers: int = 22
    width: int = 768
    n_heads: int = 12
    n_kv_heads: int | None = None
    hidden: int = 1152
    causal: bool = False
    qk_norm: bool = False
    local_window: int | None = None
    global_every: int = 3
    rotary_base: float = 10_000.0
    local_rotary_base: float | None = None
    time_rotary: float = 0.0
    time_periods: tuple[float, float] = (1e-3, 86_400.0)
    value_frequencies: int = 0
    value_frequency_scale: float = 1.0
    value_edges: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    vectors: Mapping[str, tuple[tuple[float, float], ...]] = field(default_factory=dict)
    dropout: float = 0.0
    norm_eps: float = 1e-6
    gradient_checkpointing: bool | str = False
    compile: bool = False
    attention_backend: str = "auto"

    def __post_init__(self) -> None:
        object.__setattr__(self, "codes", _checked_codes(self.codes))
        object.__setattr__(self, "values", _checked_names("values", self.values))
        object.__setattr__(self, "time_periods", _checked_periods(self.time_periods))
        both = sorted(set(self.codes) & set(self.values))
        if both:
            raise ValueError(f"a field is either codes or values, {both} are given as both")
        object.__setattr__(self, "value_edges", _checked_edges(self.value_edges, self.values))
        object.__setattr__(self, "vectors", _checked_vectors(self.vectors, {*self.codes, *self.values}))
        if not self.codes and not self.values:
            raise ValueError("an encoder needs at least one field in codes or values, got none")
        for name in ("n_layers", "width", "n_heads", "hidden", "global_every"):
            _check_int(name, getattr(self, name), least=1)
        _check_int("value_frequencies", self.value_frequencies, least=0)
        for name in ("n_kv_heads", "local_window"):
            if getattr(self, name) is not None:
                _check_int(name, getattr(self, name), least=1)
        if not isinstance(self.gradient_checkpointing, bool) and self.gradient_checkpointing != "feed_forward":
            got = repr(self.gradient_checkpointing)
            raise ValueError(f"gradient_checkpointing must be true, false or feed_forward, got {got}")
        for name in ("causal", "qk_norm", "compile"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"{name} must be true or false, got {getattr(self, name)!r}")
        for name, low, high in _REALS:
            value = getattr(self, name)
            if value is not None or name != "local_rotary_base":
                object.__setattr__(self, name, _checked_real(name, value, low, high))
        if self.attention_backend not in ("auto", *BACKENDS):
            names = ", ".join(("auto", *BACKENDS))
            raise ValueError(f"attention_backend must be one of {names}, got {self.attention_backend!r}")
        if self.width % (2 * self.n_heads):
            raise ValueError(f"width must be a multiple of 2 · n_heads = {2 * self.n_heads}, got {self.width}")
        if self.n_heads % self.kv_heads:
            raise ValueError(f"n_kv_heads must divide n_heads = {self.n_heads}, got {self.kv_heads}")

    @property
    def head_size(self) -> int:
        """D, size of one head."""
        return self.width // self.n_heads

    @property
    def kv_heads(self) -> int:
        """Hkv, number of key and value heads."""
        return self.n_heads if self.n_kv_heads is None else self.n_kv_heads

    @property
    def time_pairs(self) -> int:
        """How many of the D / 2 rotated pairs turn with time."""
        return round(self.time_rotary * (self.head_size // 2))

    @property
    def value_features(self) -> int:
        """Inputs of the value projection: for each field the value, a missing flag, 2 features a frequency, 1 a bin."""
        bins = sum(len(edges) - 1 for edges in self.value_edges.values())
        return len(self.values) * (2 + 2 * self.value_frequencies) + bins

    @property
    def n_parameters(self) -> int:
        """Number of trainable scalars of the encoder, from the sizes alone."""
        c, d, h, kv = self.width, self.head_size, self.n_heads, self.kv_heads
        inputs = sum(self.codes.values()) + self.value_features + sum(map(len, self.vectors.values()))
        embed = inputs * c + len(self.values) * self.value_frequencies
        block = c * d * (h + 2 * kv) + c * c + 3 * c * self.hidden + 2 * c + (2 * d if self.qk_norm else 0)
        return embed + self.n_layers * block + c

    def is_local(self, layer: int) -> bool:
        """Whether block `layer` (from 0) sees a window only."""
        return self.local_window is not None and layer % self.global_every != 0

    @classmethod
    def of_size(
        cls, size: str, *, codes: Mapping[str, int], values: Sequence[str] = (), **overrides: Any
    ) -> EncoderConfig:
        """The named size with some of its values replaced.

        Raises:
            ValueError: no such size.
            TypeError: an override that is no attribute of the configuration.
        """
        if size not in SIZES:
            raise ValueError(f"size must be one of {', '.join(SIZES)}, got {size!r}")
        return cls(codes=codes, values=tuple(values), **{**SIZES[size], **_known(overrides)})

    def with_changes(self, **overrides: Any) -> EncoderConfig:
        """The same description with some values replaced."""
        return replace(self, **_known(overrides))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values: dicts, lists, strings, numbers, true, false, null."""
        plain = asdict(self)
        edges = {name: list(found) for name, found in self.value_edges.items()}
        vectors = {name: [list(pair) for pair in found] for name, found in self.vectors.items()}
        lists = {"values": list(self.values), "time_periods": list(self.time_periods)}
        return plain | lists | {"value_edges": edges, "vectors": vectors}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> EncoderConfig:
        """Inverse of `to_dict`; every key must be there and no other, but for those that older models lack.

        Raises:
            ValueError, TypeError: naming the key that is missing, unknown or wrong.
        """
        plain = {**_NOT_YET, **plain}
        missing = sorted({f.name for f in fields(cls)} - set(plain))
        if missing:
            raise ValueError(f"encoder configuration lacks {', '.join(missing)}")
        return cls(**_known(plain))


_FAR = 1e30
"""No edge lies beyond this and no bin is narrower than its inverse: what is computed with them in float32 is finite."""

_NOT_YET: Mapping[str, Any] = MappingProxyType({"value_frequency_scale": 1.0, "value_edges": {}, "vectors": {}})
"""Settings that came later, with the values that models from before them have."""

_REALS: tuple[tuple[str, float, float], ...] = (
    ("rotary_base", 1.0, math.inf),
    ("local_rotary_base", 1.0, math.inf),
    ("time_rotary", 0.0, 1.0),
    ("value_frequency_scale", 0.0, math.inf),
    ("dropout", 0.0, 1.0),
    ("norm_eps", 0.0, 1.0),
)


def _known(overrides: Mapping[str, Any]) -> dict[str, Any]:
    names = [f.name for f in fields(EncoderConfig)]
    unknown = sorted(set(overrides) - set(names))
    if unknown:
        raise TypeError(f"an encoder has no setting {', '.join(map(str, unknown))}; it has {', '.join(names)}")
    return dict(overrides)


def _check_int(name: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")


def _checked_real(name: str, value: Any, low: float, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number, got {value!r}")
    if not low <= value <= min(high, sys.float_info.max):  # an integer may be too large for a float
        raise ValueError(f"{name} must be finite and in [{low}, {high}], got {value!r:.40}")
    return float(value)


def _checked_codes(codes: Any) -> dict[str, int]:
    if not isinstance(codes, Mapping):
        raise TypeError(f"codes must map field names to numbers of codes, got {codes!r}")
    _checked_names("codes", tuple(codes))
    for name, count in codes.items():
        _check_int(f"codes[{name!r}]", count, least=2)
    return dict(codes)


def _checked_names(what: str, names: Any) -> tuple[str, ...]:
    if isinstance(names, str) or not isinstance(names, (tuple, list)):
        raise TypeError(f"{what} must be a sequence of field names, got {names!r}")
    for name in names:
        if not isinstance(name, str) or not name:
            raise TypeError(f"{what} must hold names of fields, got {name!r}")
    if len(set(names)) != len(names):
        raise ValueError(f"{what} names a field twice: {sorted(names)}")
    return tuple(names)


def _checked_edges(edges: Any, values: tuple[str, ...]) -> dict[str, tuple[float, ...]]:
    if not isinstance(edges, Mapping):
        raise TypeError(f"value_edges must map float fields to edges of bins, got {edges!r:.80}")
    if unknown := sorted(set(edges) - set(values)):
        raise ValueError(f"value_edges names {unknown}, which are none of the float fields {list(values)}")
    found: dict[str, tuple[float, ...]] = {}
    for name, each in edges.items():
        if not isinstance(each, (tuple, list)) or len(each) < 2:
            raise TypeError(f"value_edges[{name!r}] must be two numbers or more, got {each!r:.80}")
        found[name] = tuple(_checked_real(f"value_edges[{name!r}]", x, -_FAR, _FAR) for x in each)
        if any(high - low < 1 / _FAR for low, high in pairwise(found[name])):
            raise ValueError(f"value_edges[{name!r}] must rise, got {found[name]!s:.80}")
    return found


def _checked_vectors(vectors: Any, taken: set[str]) -> dict[str, tuple[tuple[float, float], ...]]:
    if not isinstance(vectors, Mapping):
        raise TypeError(f"vectors must map names to (center, scale) of each number, got {vectors!r:.80}")
    _checked_names("vectors", tuple(vectors))
    if both := sorted(taken & set(vectors)):
        raise ValueError(f"a field is either codes, values or vectors, {both} are given twice")
    found: dict[str, tuple[tuple[float, float], ...]] = {}
    for name, pairs in vectors.items():
        if (
            not isinstance(pairs, (tuple, list))
            or not pairs
            or any(not isinstance(pair, (tuple, list)) or len(pair) != 2 for pair in pairs)
        ):
            raise TypeError(f"vectors[{name!r}] must be one (center, scale) or more, got {pairs!r:.80}")
        where = f"vectors[{name!r}]"
        found[name] = tuple(
            (_checked_real(where, center, -_FAR, _FAR), _checked_real(where, scale, 1 / _FAR, _FAR))
            for center, scale in pairs
        )
    return found


def _checked_periods(periods: Any) -> tuple[float, float]:
    if not isinstance(periods, (tuple, list)) or len(periods) != 2:
        raise TypeError(f"time_periods must be (shortest, longest) in seconds, got {periods!r}")
    shortest, longest = (_checked_real("time_periods", p, 0.0, math.inf) for p in periods)
    if not 0 < shortest <= longest:
        raise ValueError(f"time_periods must satisfy 0 < shortest ≤ longest, got {(shortest, longest)}")
    return shortest, longest
