"""Heads: what is read off hidden states, for each decision or for each token."""

from quantattn.nn.heads.decision import (
    ClassificationConfig,
    DecisionHead,
    GaussianConfig,
    OrdinalConfig,
    QuantileConfig,
    RegressionConfig,
)
from quantattn.nn.heads.pooling import Pooling
from quantattn.nn.heads.registry import HeadConfig, head_from_dict, head_to_dict, make_head
from quantattn.nn.heads.tokens import EventsConfig, EventsHead, TimeConfig, TimeHead

__all__ = [
    "ClassificationConfig",
    "DecisionHead",
    "EventsConfig",
    "EventsHead",
    "GaussianConfig",
    "HeadConfig",
    "OrdinalConfig",
    "Pooling",
    "QuantileConfig",
    "RegressionConfig",
    "TimeConfig",
    "TimeHead",
    "head_from_dict",
    "head_to_dict",
    "make_head",
]
