"""Heads that say something about each decision: classes, ordered classes, a value, its quantiles, its Gaussian."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from quantattn.nn.config import EncoderConfig
from quantattn.nn.heads.pooling import Pooling, check_pooling, zero_linear

_LARGEST_LOG_DEVIATION = 7.0
"""Bound of ln σ of a Gaussian head, in standard deviations of the target: σ stays within e^±7 ≈ 1,100."""


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
        check_pooling(self.pooling)


@dataclass(frozen=True)
class OrdinalConfig(ClassificationConfig):
    """A head for classes that have an order, that of `classes`, lowest first."""

    kind: ClassVar[str] = "ordinal"


@dataclass(frozen=True)
class RegressionConfig:
    """A head that gives each decision one value, mean + std · output."""

    kind: ClassVar[str] = "regression"
    mean: float = 0.0
    std: float = 1.0
    pooling: str = "last"

    def __post_init__(self) -> None:
        check_scale(self.mean, self.std)
        check_pooling(self.pooling)


@dataclass(frozen=True)
class GaussianConfig(RegressionConfig):
    """A head that gives each decision a value and the standard deviation of what may come instead of it."""

    kind: ClassVar[str] = "gaussian"


@dataclass(frozen=True)
class QuantileConfig:
    """A head that gives each decision the quantiles of its value at `levels`, which rise and hold the median."""

    kind: ClassVar[str] = "quantile"
    levels: tuple[float, ...]
    mean: float = 0.0
    std: float = 1.0
    pooling: str = "last"

    def __post_init__(self) -> None:
        object.__setattr__(self, "levels", tuple(self.levels))
        numbers = all(isinstance(level, float) and 0 < level < 1 for level in self.levels)
        if not numbers or not all(low < high for low, high in pairwise(self.levels)) or 0.5 not in self.levels:
            raise ValueError(f"levels must rise within (0, 1) and have 0.5 among them, got {self.levels!r:.200}")
        check_scale(self.mean, self.std)
        check_pooling(self.pooling)


class DecisionHead(nn.Module, ABC):
    """Says something about each decision, from one vector a decision; its weights begin at zero."""

    config: ClassificationConfig | RegressionConfig | QuantileConfig

    def __init__(
        self, encoder: EncoderConfig, config: ClassificationConfig | RegressionConfig | QuantileConfig, n_out: int
    ) -> None:
        super().__init__()
        self.config = config
        self.pooling = Pooling(encoder, config.pooling)
        self.project = zero_linear(encoder.width, n_out)

    @abstractmethod
    def forward(self, pooled: Tensor) -> Tensor:
        """(Q, …) float32 output of pooled states (Q, C), to which losses are applied."""

    @abstractmethod
    def scores(self, output: Tensor) -> dict[str, Tensor]:
        """Name → (Q,) or (Q, K) float32, what is told to a user."""


class ClassificationHead(DecisionHead):
    """Logits of K classes. The weights begin at zero, so an untrained model is exactly undecided: loss ln K."""

    config: ClassificationConfig

    def __init__(self, encoder: EncoderConfig, config: ClassificationConfig) -> None:
        super().__init__(encoder, config, len(config.classes))

    def forward(self, pooled: Tensor) -> Tensor:
        """(Q, K) float32 logits."""
        return self.project(pooled).float()  # type: ignore[no-any-return]

    def scores(self, output: Tensor) -> dict[str, Tensor]:
        """`prob` (Q, K) float32, rows sum to one."""
        return {"prob": output.softmax(dim=-1)}


class OrdinalHead(DecisionHead):
    """Proportional odds: P(y > k) = σ(s − b_k) for one score s a decision and rising cuts b (McCullagh 1980).

    The output is ln P(y = k). With a = s − b_{k−1} and c = s − b_k it is

        ln(σ(a) − σ(c)) = ln σ(a) + ln σ(−c) + ln(1 − e^{−(a − c)}),

    whose last term is of the width b_k − b_{k−1} alone, so nothing cancels. Widths are e^w with learned w, so cuts
    rise. An untrained head is exactly undecided: loss ln K.
    """

    config: OrdinalConfig

    def __init__(self, encoder: EncoderConfig, config: OrdinalConfig) -> None:
        super().__init__(encoder, config, 1)
        share = torch.arange(1, len(config.classes), dtype=torch.float64) / len(config.classes)
        cuts = torch.logit(share)
        self.first_cut = nn.Parameter(cuts[:1].float())
        self.log_width = nn.Parameter(cuts.diff().log().float())

    def forward(self, pooled: Tensor) -> Tensor:
        """(Q, K) float32 logarithms of probabilities; as logits of a softmax they are the same law."""
        width = self.log_width.float().exp()
        cuts = torch.cat([self.first_cut.float(), self.first_cut.float() + width.cumsum(0)])  # (K − 1,)
        above = self.project(pooled).float() - cuts  # (Q, K − 1), s − b_k
        edge = above.new_zeros(above.shape[0], 1)
        not_below = torch.cat([edge, functional.logsigmoid(above)], dim=-1)
        not_above = torch.cat([functional.logsigmoid(-above), edge], dim=-1)
        return not_below + not_above + functional.pad((-torch.expm1(-width)).log(), (1, 1))

    def scores(self, output: Tensor) -> dict[str, Tensor]:
        """`prob` (Q, K) float32, rows sum to one."""
        return {"prob": output.softmax(dim=-1)}


class RegressionHead(DecisionHead):
    """One value a decision; the output is in units of standard deviations from the mean of its configuration."""

    config: RegressionConfig

    def __init__(self, encoder: EncoderConfig, config: RegressionConfig) -> None:
        super().__init__(encoder, config, 1)

    def forward(self, pooled: Tensor) -> Tensor:
        """(Q,) float32, standardised."""
        return self.project(pooled).float().squeeze(-1)  # type: ignore[no-any-return]

    def scores(self, output: Tensor) -> dict[str, Tensor]:
        """`value` (Q,) float32 in the target's own unit."""
        return {"value": self.config.mean + self.config.std * output}


class GaussianHead(DecisionHead):
    """The mean and ln σ of a Gaussian a decision, both in standard deviations of the target.

    ln σ is 7 · tanh(x / 7), so that no σ is so small that a single error could fill the gradient.
    """

    config: GaussianConfig

    def __init__(self, encoder: EncoderConfig, config: GaussianConfig) -> None:
        super().__init__(encoder, config, 2)

    def forward(self, pooled: Tensor) -> Tensor:
        """(Q, 2) float32: mean and ln σ, standardised."""
        mean, raw = self.project(pooled).float().unbind(-1)
        return torch.stack([mean, _LARGEST_LOG_DEVIATION * torch.tanh(raw / _LARGEST_LOG_DEVIATION)], dim=-1)

    def scores(self, output: Tensor) -> dict[str, Tensor]:
        """`value` and `deviation` (Q,) float32 in the target's own unit."""
        value = self.config.mean + self.config.std * output[:, 0]
        return {"value": value, "deviation": self.config.std * output[:, 1].exp()}


class QuantileHead(DecisionHead):
    """The quantiles of each decision's value at the levels of its configuration, in its standard deviations."""

    config: QuantileConfig

    def __init__(self, encoder: EncoderConfig, config: QuantileConfig) -> None:
        super().__init__(encoder, config, len(config.levels))

    def forward(self, pooled: Tensor) -> Tensor:
        """(Q, L) float32, standardised, one a level; while training they may cross."""
        return self.project(pooled).float()  # type: ignore[no-any-return]

    def scores(self, output: Tensor) -> dict[str, Tensor]:
        """`quantile_<level>` and `value`, the median, (Q,) float32 in the target's own unit.

        Those that cross are put in order, which makes none worse (Chernozhukov et al. 2010, Econometrica 78(3)).
        """
        ordered = self.config.mean + self.config.std * output.sort(dim=-1).values
        by_level = dict(zip(self.config.levels, ordered.unbind(-1), strict=True))
        return {"value": by_level[0.5], **{f"quantile_{level!r}": rows for level, rows in by_level.items()}}


def check_scale(mean: float, std: float) -> None:
    """Raise ValueError unless both are finite numbers and `std` is positive."""
    for name, value in (("mean", mean), ("std", std)):
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not _finite(value):
            raise ValueError(f"{name} must be a finite number, got {value!r:.40}")
    if std <= 0:
        raise ValueError(f"std must be positive, got {std}")


def _finite(value: int | float) -> bool:
    return abs(value) <= sys.float_info.max  # an integer may be too large for a float
