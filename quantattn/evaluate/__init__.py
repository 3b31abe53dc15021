"""How good, compared with what, and how sure: figures, baselines, intervals, the closing table and the report.

Plain arrays in, plain values out. The drawing half (figures, report) and what judges tables of scores are loaded on
first use, so that somebody who wants a number does not pay for matplotlib or polars.
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
    from quantattn.evaluate.assessment import Assessment, Terms, assess
    from quantattn.evaluate.certificate import render_certificate, write_certificate
    from quantattn.evaluate.drawing import Figure
    from quantattn.evaluate.figures import classification_figures, regression_figures
    from quantattn.evaluate.forecasts import Forecasts, judge_classes, judge_values
    from quantattn.evaluate.inference import MeanTest, diebold_mariano, mean_test, newey_west
    from quantattn.evaluate.likelihood import likelihood_figures, likelihood_table
    from quantattn.evaluate.panel import Panel, as_panel
    from quantattn.evaluate.portfolio import LongShort, capacity, drawdown, long_short
    from quantattn.evaluate.ranking import Ranking, judge_ranking
    from quantattn.evaluate.report import Check, ReportData, render_report, verdict, write_report
    from quantattn.evaluate.score_page import Told, report_on
    from quantattn.evaluate.scores import Columns, Scores, read_scores, scan_table, with_outcomes
    from quantattn.evaluate.sharpe import Sharpe, deflated_sharpe, probabilistic_sharpe, sharpe_ratio

_LATER = {
    "Assessment": "assessment",
    "Terms": "assessment",
    "assess": "assessment",
    "Forecasts": "forecasts",
    "judge_classes": "forecasts",
    "judge_values": "forecasts",
    "MeanTest": "inference",
    "diebold_mariano": "inference",
    "mean_test": "inference",
    "newey_west": "inference",
    "Panel": "panel",
    "as_panel": "panel",
    "LongShort": "portfolio",
    "capacity": "portfolio",
    "drawdown": "portfolio",
    "long_short": "portfolio",
    "Ranking": "ranking",
    "judge_ranking": "ranking",
    "Told": "score_page",
    "report_on": "score_page",
    "Columns": "scores",
    "Scores": "scores",
    "read_scores": "scores",
    "scan_table": "scores",
    "with_outcomes": "scores",
    "Sharpe": "sharpe",
    "deflated_sharpe": "sharpe",
    "probabilistic_sharpe": "sharpe",
    "sharpe_ratio": "sharpe",
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
    "Assessment",
    "Blocks",
    "Check",
    "Columns",
    "Figure",
    "Forecasts",
    "Interval",
    "LongShort",
    "MeanTest",
    "Panel",
    "Ranking",
    "Reliability",
    "ReportData",
    "Row",
    "Scores",
    "Sharpe",
    "Table",
    "Terms",
    "Told",
    "Words",
    "aggregate_probabilities",
    "as_panel",
    "assess",
    "baseline_probabilities",
    "baseline_values",
    "boosted_probabilities",
    "boosting_is_installed",
    "bootstrap_interval",
    "capacity",
    "choose_blocks",
    "classification_figures",
    "classification_metrics",
    "closing_table",
    "confusion_matrix",
    "deflated_sharpe",
    "diebold_mariano",
    "drawdown",
    "judge_classes",
    "judge_ranking",
    "judge_values",
    "likelihood_figures",
    "likelihood_table",
    "long_short",
    "mean_test",
    "newey_west",
    "probabilistic_sharpe",
    "read_scores",
    "regression_figures",
    "regression_metrics",
    "regression_table",
    "reliability",
    "render_certificate",
    "render_report",
    "report_on",
    "scan_table",
    "sharpe_ratio",
    "verdict",
    "with_outcomes",
    "word_values",
    "write_certificate",
    "write_report",
]


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(importlib.import_module(f"quantattn.evaluate.{_LATER[name]}"), name)
    raise AttributeError(f"module 'quantattn.evaluate' has no attribute {name!r}")
