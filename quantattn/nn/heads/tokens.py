"""Heads that say something about each token: the codes of its fields, and the time until the next one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from quantattn.batch import IGNORE
from quantattn.nn.config import EncoderConfig
from quantattn.nn.heads.decision import check_scale
from quantattn.nn.heads.pooling import zero_linear
from quantattn.nn.invariant import elementwise

DENSITIES = ("lognormal", "exponential")
_MOST_COMPONENTS = 1024
_LOGITS_AT_ONCE = 1 << 24
_HALVINGS = 60
_LARGEST_LOG_DEVIATION = 4.0
"""Bound of ln σ of a component, in standard deviations of ln τ: e^−4 keeps one from standing on a single gap."""


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


@dataclass(frozen=True)
class TimeConfig:
    """A head that gives each token the law of the time until the next one, see `TimeHead`.

    Attributes:
        density: "lognormal" (a mixture) or "exponential".
        components: of the mixture.
        mean: of ln τ over the training rows, τ in seconds.
        std: standard deviation of ln τ over the training rows.
    """

    kind: ClassVar[str] = "time"
    density: str = "lognormal"
    components: int = 8
    mean: float = 0.0
    std: float = 1.0

    def __post_init__(self) -> None:
        if self.density not in DENSITIES:
            raise ValueError(f"density must be one of {', '.join(DENSITIES)}, got {self.density!r}")
        count = self.components
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= _MOST_COMPONENTS:
            raise ValueError(f"components must be a whole number from 1 to {_MOST_COMPONENTS}, got {count!r}")
        check_scale(self.mean, self.std)


class EventsHead(nn.Module):
    """Logits of the codes of several fields for each token, from one product."""

    def __init__(self, encoder: EncoderConfig, config: EventsConfig) -> None:
        super().__init__()
        unknown = [name for name in config.fields if name not in encoder.codes]
        if unknown:
            raise ValueError(f"the encoder has no codes for {', '.join(unknown)}; it has {', '.join(encoder.codes)}")
        self.config = config
        self.sizes = [encoder.codes[name] for name in config.fields]
        self.project = zero_linear(encoder.width, sum(self.sizes))

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


class TimeHead(nn.Module):
    """The law of the time τ ≥ 0 until the next event, in seconds: a mass at τ = 0 and a density over τ > 0.

    P(τ = 0) = σ(h), because events of one moment are common and no density can speak of them. Over τ > 0 the density is
    (1 − σ(h)) · f with f one of

        lognormal    Σ_k w_k N(z; μ_k, σ_k) / (std · τ), z = (ln τ − mean) / std  (Shchur et al. 2020, arXiv 1909.12127)
        exponential  λ e^{−λ τ}, λ = e^{r − mean}

    Mass and density integrate to one. Untrained, σ(h) = ½ and f is a mixture around the mean of the configuration,
    whose components are one deviation wide, or the exponential with the rate e^{−mean}.
    """

    def __init__(self, encoder: EncoderConfig, config: TimeConfig) -> None:
        super().__init__()
        self.config = config
        self.project = zero_linear(encoder.width, 2 if config.density == "exponential" else 1 + 3 * config.components)
        if config.density == "lognormal" and config.components > 1:
            # Components that begin alike would stay alike: each gets the same gradient.
            spread = torch.linspace(-1, 1, config.components)
            with torch.no_grad():
                self.project.bias[1 + config.components : 1 + 2 * config.components] = spread

    def forward(self, hidden: Tensor) -> Tensor:
        """(R, 2) or (R, 1 + 3 · components) float32 parameters of the law for rows (R, C) of hidden states."""
        return self.project(hidden).float()  # type: ignore[no-any-return]

    def log_likelihood(self, parameters: Tensor, seconds: Tensor) -> Tensor:
        """(R,) float32: ln P(τ = 0) where `seconds` (R,) is 0, and the logarithm of the density elsewhere."""
        moment = seconds == 0
        log_time = seconds.where(~moment, 1).log().float()
        shape = self._log_density(parameters[:, 1:], log_time)
        at_once = parameters[:, 0]
        return torch.where(moment, functional.logsigmoid(at_once), functional.logsigmoid(-at_once) + shape)

    def quantiles(self, parameters: Tensor, levels: Sequence[float]) -> Tensor:
        """(R, L) float64 seconds: the smallest τ with P(time ≤ τ) ≥ level, 0 where the mass at 0 reaches it.

        Of a mixture it is found by halving an interval of z 60 times. A row's bits do not depend on the others.
        """
        p = parameters.double()
        at_once = elementwise(torch.sigmoid, p[:, 0], True)
        found = []
        for level in levels:
            beyond = ((level - at_once) / (1 - at_once)).clamp(min=0)  # the level within the density
            shape = self._exponential if self.config.density == "exponential" else self._mixture
            found.append(shape(p[:, 1:], beyond).where(at_once < level, 0.0))
        return torch.stack(found, dim=-1)

    def _exponential(self, parameters: Tensor, level: Tensor) -> Tensor:
        mean_time = elementwise(torch.exp, self.config.mean - parameters[:, 0], True)
        return -elementwise(torch.log1p, -level, True) * mean_time

    def _mixture(self, parameters: Tensor, level: Tensor) -> Tensor:
        weight, center, width = parameters.chunk(3, dim=-1)
        bound = _LARGEST_LOG_DEVIATION
        deviation = elementwise(lambda x: (bound * torch.tanh(x / bound)).exp(), width.contiguous(), True)
        share = elementwise(torch.exp, (weight - weight.amax(1, keepdim=True)).contiguous(), True)
        parts = list(zip(*(x.unbind(1) for x in (share, center, deviation)), strict=True))
        total = sum(w for w, _, _ in parts)
        low, high = (center - 9 * deviation).amin(1), (center + 9 * deviation).amax(1)
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            below = sum(w * elementwise(torch.special.ndtr, (middle - m) / s, True) for w, m, s in parts) / total
            low, high = middle.where(below < level, low), high.where(below < level, middle)
        return elementwise(torch.exp, self.config.mean + self.config.std * high, True)

    def nll(self, hidden: Tensor, seconds: Tensor) -> Tensor:
        """() float32: summed negative log-likelihood, in nats, of the times (R,) at rows (R, C); NaN is no time."""
        known = ~seconds.isnan()
        found = self.log_likelihood(self(hidden), seconds.where(known, 1))
        return -found.where(known, 0).sum()

    def _log_density(self, parameters: Tensor, log_time: Tensor) -> Tensor:
        mean, std = self.config.mean, self.config.std
        if self.config.density == "exponential":
            log_rate = parameters[:, 0] - mean
            return log_rate - (log_rate + log_time).exp()
        weight, center, width = parameters.chunk(3, dim=-1)  # (R, K) each
        log_deviation = _LARGEST_LOG_DEVIATION * torch.tanh(width / _LARGEST_LOG_DEVIATION)
        z = ((log_time - mean) / std)[:, None]
        each = -0.5 * ((z - center) * (-log_deviation).exp()).square() - log_deviation - 0.5 * math.log(2 * math.pi)
        return torch.logsumexp(weight.log_softmax(dim=-1) + each, dim=-1) - math.log(std) - log_time
