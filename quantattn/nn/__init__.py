"""Encoders over packed event sequences, their heads, objectives and files."""

from quantattn.nn.config import MASKED, MISSING, SIZES, EncoderConfig
from quantattn.nn.encoder import Encoder
from quantattn.nn.heads import ClassificationConfig, EventsConfig, HeadConfig, RegressionConfig
from quantattn.nn.invariant import batch_invariant
from quantattn.nn.model import Artefact, Model, check_decisions
from quantattn.nn.objectives import Loss, MaskedEvents, MaskedLanguage, NextEvent, Objective, Outcome, Regression
from quantattn.nn.pretrained import load_model, save_pretrained

__all__ = [
    "MASKED",
    "MISSING",
    "SIZES",
    "Artefact",
    "ClassificationConfig",
    "Encoder",
    "EncoderConfig",
    "EventsConfig",
    "HeadConfig",
    "Loss",
    "MaskedEvents",
    "MaskedLanguage",
    "Model",
    "NextEvent",
    "Objective",
    "Outcome",
    "Regression",
    "RegressionConfig",
    "batch_invariant",
    "check_decisions",
    "load_model",
    "save_pretrained",
]
