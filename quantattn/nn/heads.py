"""From hidden states to predictions: pooling a decision's past, and the heads that read it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from quantattn.attention import Mask, attention
from quantattn.batch import IGNORE, PackedBatch
from quantattn.nn.config import EncoderConfig
from quantattn.nn.invariant import Linear
from quantattn.nn.rows import offsets_of_decisions

POOLINGS = ("last", "mean", "attention")

_LOGITS_AT_ONCE = 1 << 24


@dataclass(frozen=True)
class ClassificationConfig:
    """A head that gives each decision one logit a class. `classes` are their names, in the order of the codes."""

    kind: ClassVar[str] = "classification"
    classes: tuple[str, ...]
    pooling: str = "last"

    def __post_init__(self) -> None:
        object.__setattr__(self, "classes", tuple(self.classes))
        if len(self.classes) < 2 or not all(isinstance(name, str) for name in self.classes):
            raise ValueError(f"classes must name at least two classes, got {self.classes!r}")
        if len(set(self.classes)) != len(self.classes):
            raise ValueError(f"classes names a class twice: {sorted(self.classes)!r:.200}")
        _check_pooling(self.pooling)


@dataclass(frozen=True)
class RegressionConfig:
    """A head that gives each decision one value, mean + std · output."""

    kind: ClassVar[str] = "regression"
    mean: float = 0.0
    std: float = 1.0
    pooling: str = "last"

    def __post_init__(self) -> None:
        for name in ("mean", "std"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not _finite(value):
                raise ValueError(f"{name} must be a finite number, got {value!r:.40}")
        if self.std <= 0:
            raise ValueError(f"std must be positive, got {self.std}")
        _check_pooling(self.pooling)


@dataclass(frozen=True)
class EventsConfig:
    """A head that gives each token one logit a code of each of `fields`."""

    kind: ClassVar[str] = "events"
    fields: tuple[str, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "fields", tuple(self.fields))
        if not self.fields or not all(isinstance(name, str) for name in self.fields):
            raise ValueError(f"fields must name at least one field of codes, got {self.fields!r}")
        if len(set(self.fields)) != len(self.fields):
            raise ValueError(f"fields names a field twice: {sorted(self.fields)!r:.200}")


HeadConfig = ClassificationConfig | RegressionConfig | EventsConfig


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
        _check_pooling(kind)
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


class ClassificationHead(nn.Module):
    """Logits of K classes. The weights begin at zero, so an untrained model is exactly undecided: loss ln K."""

    def __init__(self, encoder: EncoderConfig, config: ClassificationConfig) -> None:
        super().__init__()
        self.config = config
        self.pooling = Pooling(encoder, config.pooling)
        self.project = _zero_linear(encoder.width, len(config.classes))

    def forward(self, pooled: Tensor) -> Tensor:
        """(Q, K) float32 logits of pooled states (Q, C)."""
        return self.project(pooled).float()  # type: ignore[no-any-return]

    def scores(self, logits: Tensor) -> dict[str, Tensor]:
        """`prob` (Q, K) float32, rows sum to one."""
        return {"prob": logits.softmax(dim=-1)}


class RegressionHead(nn.Module):
    """One value a decision; the output is in units of standard deviations from the mean of its configuration."""

    def __init__(self, encoder: EncoderConfig, config: RegressionConfig) -> None:
        super().__init__()
        self.config = config
        self.pooling = Pooling(encoder, config.pooling)
        self.project = _zero_linear(encoder.width, 1)

    def forward(self, pooled: Tensor) -> Tensor:
        """(Q,) float32, standardised, of pooled states (Q, C)."""
        return self.project(pooled).float().squeeze(-1)  # type: ignore[no-any-return]

    def scores(self, output: Tensor) -> dict[str, Tensor]:
        """`value` (Q,) float32 in the target's own unit."""
        return {"value": self.config.mean + self.config.std * output}


class EventsHead(nn.Module):
    """Logits of the codes of several fields for each token, from one product."""

    def __init__(self, encoder: EncoderConfig, config: EventsConfig) -> None:
        super().__init__()
        unknown = [name for name in config.fields if name not in encoder.codes]
        if unknown:
            raise ValueError(f"the encoder has no codes for {', '.join(unknown)}; it has {', '.join(encoder.codes)}")
        self.config = config
        self.sizes = [encoder.codes[name] for name in config.fields]
        self.project = _zero_linear(encoder.width, sum(self.sizes))

    def forward(self, hidden: Tensor) -> dict[str, Tensor]:
        """Field → (R, K) float32 logits for rows (R, C) of hidden states."""
        logits = self.project(hidden).float().split(self.sizes, dim=-1)
        return dict(zip(self.config.fields, logits, strict=True))

    def nll(self, hidden: Tensor, targets: Mapping[str, Tensor]) -> Tensor:
        """(F,) float32: summed negative log-likelihood, in nats, of each field's codes at rows (R, C).

        Targets are (R,) int64, `IGNORE` for none. Logits are made for some rows at a time and made again in backward,
        so that memory does not grow with R times the size of the vocabulary.
        """
        wanted = torch.stack([targets[name] for name in self.config.fields], dim=-1)  # (R, F)
        step = max(1, _LOGITS_AT_ONCE // sum(self.sizes))
        if hidden.shape[0] <= step:
            return self._nll(hidden, wanted)
        pieces = zip(torch.split(hidden, step), torch.split(wanted, step), strict=True)
        return torch.stack([checkpoint(self._nll, h, w, use_reentrant=False) for h, w in pieces]).sum(dim=0)

    def _nll(self, hidden: Tensor, wanted: Tensor) -> Tensor:
        logits = self(hidden)
        sums = [
            functional.cross_entropy(logits[name], wanted[:, i], ignore_index=IGNORE, reduction="sum")
            for i, name in enumerate(self.config.fields)
        ]
        return torch.stack(sums)


Head = ClassificationHead | RegressionHead | EventsHead


def make_head(encoder: EncoderConfig, config: HeadConfig) -> Head:
    """The head that a configuration describes."""
    if isinstance(config, ClassificationConfig):
        return ClassificationHead(encoder, config)
    if isinstance(config, RegressionConfig):
        return RegressionHead(encoder, config)
    return EventsHead(encoder, config)


def head_to_dict(config: HeadConfig) -> dict[str, Any]:
    """Plain JSON values, with the registry name of the head under `kind`."""
    plain = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(config).items()}
    return {"kind": config.kind, **plain}


def head_from_dict(plain: Mapping[str, Any]) -> HeadConfig:
    """Inverse of `head_to_dict`.

    Raises:
        ValueError: unknown kind, a missing or unknown key, or a value that the head refuses.
    """
    kinds: dict[str, type[HeadConfig]] = {c.kind: c for c in (ClassificationConfig, RegressionConfig, EventsConfig)}
    kind = plain.get("kind")
    if not isinstance(kind, str) or kind not in kinds:
        raise ValueError(f"kind of a head must be one of {', '.join(kinds)}, got {kind!r}")
    rest = {name: value for name, value in plain.items() if name != "kind"}
    expected = {f.name for f in fields(kinds[kind])}
    if set(rest) != expected:
        raise ValueError(f"a {kind} head has the keys {sorted(expected)}, got {sorted(rest)}")
    for name in ("classes", "fields"):
        if name in rest and not isinstance(rest[name], list):
            raise ValueError(f"{name} of a {kind} head must be a list of names, got {rest[name]!r}")
    return kinds[kind](**rest)


def _check_pooling(kind: str) -> None:
    if kind not in POOLINGS:
        raise ValueError(f"pooling must be one of {', '.join(POOLINGS)}, got {kind!r}")


def _finite(value: int | float) -> bool:
    return abs(value) <= sys.float_info.max  # an integer may be too large for a float


def _zero_linear(width: int, n_out: int) -> Linear:
    linear = Linear(width, n_out)
    nn.init.zeros_(linear.weight)
    nn.init.zeros_(linear.bias)
    return linear
