"""What the yaml of a command may say, as dataclasses: unknown keys and values of another type are refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any, Literal

from quantattn.attention.choose import BACKENDS
from quantattn.learn.trainer import TrainerSettings
from quantattn.learn.tuning import Tuning
from quantattn.nn import SIZES, EncoderConfig


@dataclass(frozen=True)
class AttentionSettings:
    """Which implementation computes attention."""

    backend: str = "auto"

    def __post_init__(self) -> None:
        if self.backend != "auto" and self.backend not in BACKENDS:
            raise ValueError(f"attention.backend must be one of auto, {', '.join(BACKENDS)}, got {self.backend!r}")


@dataclass(frozen=True)
class PathSettings:
    """Where things go."""

    log_dir: str
    output_dir: str

    def __post_init__(self) -> None:
        if not self.output_dir.strip():
            raise ValueError("paths.output_dir must name a folder, got nothing")


@dataclass(frozen=True)
class ModelSettings:
    """An encoder: a size, and what to change about it; None leaves a setting to the size.

    `value_bins` is the most bins of a float field's piecewise-linear features; their edges come from training rows.
    """

    size: str
    causal: bool = False
    qk_norm: bool | None = None
    n_layers: int | None = None
    width: int | None = None
    n_heads: int | None = None
    n_kv_heads: int | None = None
    hidden: int | None = None
    local_window: int | None = None
    global_every: int | None = None
    rotary_base: float | None = None
    local_rotary_base: float | None = None
    time_rotary: float | None = None
    value_frequencies: int | None = None
    value_frequency_scale: float | None = None
    value_bins: int = 0
    dropout: float | None = None
    gradient_checkpointing: bool | str | None = None
    compile: bool | None = None

    def __post_init__(self) -> None:
        if self.size not in SIZES:
            raise ValueError(f"model.size must be one of {', '.join(SIZES)}, got {self.size!r}")
        if self.value_bins < 0:
            raise ValueError(f"model.value_bins must be at least 0, got {self.value_bins}")
        self.encoder({"kind": 9}, (), "auto")

    def encoder(
        self,
        codes: Mapping[str, int],
        values: tuple[str, ...],
        backend: str,
        value_edges: Mapping[str, tuple[float, ...]] = MappingProxyType({}),
        vectors: Mapping[str, tuple[tuple[float, float], ...]] = MappingProxyType({}),
    ) -> EncoderConfig:
        """The encoder for data with these fields and vectors, and with bins of these edges for the float fields.

        Raises:
            ValueError: settings that do not go together.
        """
        changes = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("size", "value_bins")}
        given = {name: value for name, value in changes.items() if value is not None}
        return EncoderConfig.of_size(
            self.size,
            codes=codes,
            values=values,
            attention_backend=backend,
            value_edges=dict(value_edges),
            vectors=dict(vectors),
            **given,
        )


@dataclass(frozen=True)
class DataSettings:
    """Where data come from and how they become sequences.

    Attributes:
        kind: "market" (order-book events), "filings" (documents) or "table" (events of many entities).
        path: folder or file of the raw data; None for data that are made.
        source: `_target_` of what reads them, with its settings.
        prepare: settings of the preparation that belongs to the kind.
        max_seq_len: the most tokens of a sequence.
        max_tokens_per_batch: the most tokens of a batch; "auto" finds how many fit into memory.
        shuffle_labels: permute the labels within each part, as a control: nothing may be found then.
    """

    kind: Literal["market", "filings", "table"]
    source: Mapping[str, Any]
    prepare: Mapping[str, Any]
    max_seq_len: int
    max_tokens_per_batch: int | Literal["auto"]
    path: str | None = None
    shuffle_labels: bool = False

    def __post_init__(self) -> None:
        if self.max_seq_len < 1:
            raise ValueError(f"max_seq_len must be at least 1, got {self.max_seq_len}")
        if self.max_tokens_per_batch != "auto" and self.max_tokens_per_batch < self.max_seq_len:
            raise ValueError(
                f"max_tokens_per_batch = {self.max_tokens_per_batch} must be at least max_seq_len = {self.max_seq_len}"
            )


@dataclass(frozen=True)
class TrainSettings:
    """Everything that `train.yaml` holds."""

    task_name: str
    title: str
    question: str
    seed: int
    data: DataSettings
    labels: Mapping[str, Any]
    splits: Mapping[str, Any]
    model: ModelSettings
    objective: Mapping[str, Any]
    optimizer: Mapping[str, Any]
    trainer: TrainerSettings
    tuning: Tuning
    callbacks: Mapping[str, Any]
    logger: Mapping[str, Any]
    paths: PathSettings
    attention: AttentionSettings = field(default_factory=AttentionSettings)
    tags: tuple[str, ...] = ()
    ckpt_path: str | None = None
    train: bool = True
    test: bool = True
    calibrate: bool = False
    conformal: float | None = None
    optimized_metric: str | None = None
    trials: int | None = None
    print_config: bool = False
    licence: str = "unknown"
    shards: str | None = None
    allow_targets: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"seed must be a whole number from 0 to 2^63 - 1, got {self.seed}")
        if self.conformal is not None and not 0 < self.conformal < 1:
            raise ValueError(f"conformal must be a share between 0 and 1, such as 0.9, got {self.conformal}")
        if self.trials is not None and self.trials < 1:
            raise ValueError(f"trials must count this run too, so it is 1 or more, got {self.trials}")
        if not self.licence.strip() or "\n" in self.licence:
            raise ValueError(f"licence must be one line in words, got {self.licence!r:.80}")
