"""Heads by the name of their kind: made from a configuration, and written as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from torch import nn

from quantattn.nn.config import EncoderConfig
from quantattn.nn.heads.decision import (
    ClassificationConfig,
    ClassificationHead,
    GaussianConfig,
    GaussianHead,
    OrdinalConfig,
    OrdinalHead,
    QuantileConfig,
    QuantileHead,
    RegressionConfig,
    RegressionHead,
)
from quantattn.nn.heads.tokens import EventsConfig, EventsHead, TimeConfig, TimeHead

HeadConfig = ClassificationConfig | RegressionConfig | QuantileConfig | EventsConfig | TimeConfig

_HEADS: Mapping[type[HeadConfig], type[nn.Module]] = {
    ClassificationConfig: ClassificationHead,
    OrdinalConfig: OrdinalHead,
    RegressionConfig: RegressionHead,
    GaussianConfig: GaussianHead,
    QuantileConfig: QuantileHead,
    EventsConfig: EventsHead,
    TimeConfig: TimeHead,
}
_LISTS = {"classes": "names", "fields": "names", "levels": "numbers"}


def make_head(encoder: EncoderConfig, config: HeadConfig) -> nn.Module:
    """The head that a configuration describes."""
    return _HEADS[type(config)](encoder, config)


def head_to_dict(config: HeadConfig) -> dict[str, Any]:
    """Plain JSON values, with the registry name of the head under `kind`."""
    plain = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(config).items()}
    return {"kind": config.kind, **plain}


def head_from_dict(plain: Mapping[str, Any]) -> HeadConfig:
    """Inverse of `head_to_dict`.

    Raises:
        ValueError: unknown kind, a missing or unknown key, or a value that the head refuses.
    """
    kinds = {config.kind: config for config in _HEADS}
    kind = plain.get("kind")
    if not isinstance(kind, str) or kind not in kinds:
        raise ValueError(f"kind of a head must be one of {', '.join(kinds)}, got {kind!r}")
    rest = {name: value for name, value in plain.items() if name != "kind"}
    expected = {f.name for f in fields(kinds[kind])}
    if set(rest) != expected:
        raise ValueError(f"a {kind} head has the keys {sorted(expected)}, got {sorted(rest)}")
    for name, what in _LISTS.items():
        if name in rest and not isinstance(rest[name], list):
            raise ValueError(f"{name} of a {kind} head must be a list of {what}, got {rest[name]!r}")
    return kinds[kind](**rest)
