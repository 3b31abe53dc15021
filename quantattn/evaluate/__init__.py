"""How good, compared with what, and how sure: figures, baselines, intervals, the closing table and the report.

Plain arrays in, plain values out. The drawing half (figures, report) is loaded on first use, so that somebody who
wants a number does not pay for matplotlib.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from quantattn.evaluate.baselines import baseline_probabilities, baseline_values
from quantattn.evaluate.boosting import (
    NOT_INSTALLED,
    aggregate_probabilities,
    boosted_probabilities,
    boosting_is_installed,
)
from quantattn.evaluate.calibration import Reliability, reliability
from quantattn.evaluate.compare import Row, Table, closing_table, regression_table
from quantattn.evaluate.metrics import (
    CLASSIFICATION,
    IGNORE,
    REGRESSION,
    classification_metrics,
    confusion_matrix,
    regression_metrics,
)
from quantattn.evaluate.significance import Blocks, Interval, bootstrap_interval, choose_blocks
from quantattn.evaluate.words import Words, word_values

if TYPE_CHECKING:
    from quantattn.evaluate.certificate import render_certificate, write_certificate
    from quantattn.evaluate.drawing import Figure
    from quantattn.evaluate.figures import classification_figures, regression_figures
    from quantattn.evaluate.likelihood import likelihood_figures, likelihood_table
    from quantattn.evaluate.report import Check, ReportData, render_report, verdict, write_report

_DRAWN = {
    "Figure": "drawing",
    "classification_figures": "figures",
    "render_certificate": "certificate",
    "write_certificate": "certificate",
    "likelihood_figures": "likelihood",
    "likelihood_table": "likelihood",
    "regression_figures": "figures",
    "Check": "report",
    "ReportData": "report",
    "render_report": "report",
    "verdict": "report",
    "write_report": "report",
}

__all__ = [
    "CLASSIFICATION",
    "IGNORE",
    "NOT_INSTALLED",
    "REGRESSION",
    "Blocks",
    "Check",
    "Figure",
    "Interval",
    "Reliability",
    "ReportData",
    "Row",
    "Table",
    "Words",
    "aggregate_probabilities",
    "baseline_probabilities",
    "baseline_values",
    "boosted_probabilities",
    "boosting_is_installed",
    "bootstrap_interval",
    "choose_blocks",
    "classification_figures",
    "classification_metrics",
    "closing_table",
    "confusion_matrix",
    "likelihood_figures",
    "likelihood_table",
    "regression_figures",
    "regression_metrics",
    "regression_table",
    "reliability",
    "render_certificate",
    "render_report",
    "verdict",
    "word_values",
    "write_certificate",
    "write_report",
]


def __getattr__(name: str) -> Any:
    if name in _DRAWN:
        return getattr(importlib.import_module(f"quantattn.evaluate.{_DRAWN[name]}"), name)
    raise AttributeError(f"module 'quantattn.evaluate' has no attribute {name!r}")
