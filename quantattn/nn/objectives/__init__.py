"""What a model is trained for: objectives take a model and a batch and give a loss and figures to log."""

from quantattn.nn.objectives.contrastive import Coles, NextWindow
from quantattn.nn.objectives.masked import MaskedEvents, MaskedLanguage
from quantattn.nn.objectives.next_event import NextEvent
from quantattn.nn.objectives.objective import Goal, Loss, Objective, TrainingRows
from quantattn.nn.objectives.outcome import Outcome
from quantattn.nn.objectives.regression import Gaussian, Quantile, Regression
from quantattn.nn.objectives.several import Several

__all__ = [
    "Coles",
    "Gaussian",
    "Goal",
    "Loss",
    "MaskedEvents",
    "MaskedLanguage",
    "NextEvent",
    "NextWindow",
    "Objective",
    "Outcome",
    "Quantile",
    "Regression",
    "Several",
    "TrainingRows",
]
