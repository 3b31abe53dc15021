"""Encoders over packed event sequences, their heads, objectives and files."""

from quantattn.nn.config import MASKED, MISSING, SIZES, EncoderConfig
from quantattn.nn.encoder import Encoder
from quantattn.nn.ensemble import Ensemble
from quantattn.nn.heads import (
    ClassificationConfig,
    EventsConfig,
    GaussianConfig,
    HeadConfig,
    OrdinalConfig,
    QuantileConfig,
    RegressionConfig,
    TimeConfig,
)
from quantattn.nn.invariant import batch_invariant
from quantattn.nn.model import Artefact, Model, check_decisions
from quantattn.nn.objectives import (
    Coles,
    Gaussian,
    Loss,
    MaskedEvents,
    MaskedLanguage,
    NextEvent,
    NextWindow,
    Objective,
    Outcome,
    Quantile,
    Regression,
    Several,
    TrainingRows,
)
from quantattn.nn.pretrained import load_model, save_pretrained

__all__ = [
    "MASKED",
    "MISSING",
    "SIZES",
    "Artefact",
    "ClassificationConfig",
    "Coles",
    "Encoder",
    "EncoderConfig",
    "Ensemble",
    "EventsConfig",
    "Gaussian",
    "GaussianConfig",
    "HeadConfig",
    "Loss",
    "MaskedEvents",
    "MaskedLanguage",
    "Model",
    "NextEvent",
    "NextWindow",
    "Objective",
    "OrdinalConfig",
    "Outcome",
    "Quantile",
    "QuantileConfig",
    "Regression",
    "RegressionConfig",
    "Several",
    "TimeConfig",
    "TrainingRows",
    "batch_invariant",
    "check_decisions",
    "load_model",
    "save_pretrained",
]
