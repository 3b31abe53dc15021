"""How often the sets or intervals of a model held what came, for its report and its figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from quantattn.evaluate.conformal import Conformal
from quantattn.evaluate.report import Cell, ReportData, Sheet


def with_coverage(
    report: ReportData, kept: Mapping[str, Any], said: Mapping[str, Any], outcome: Any
) -> tuple[ReportData, dict[str, float]]:
    """The report with a table of coverage on the test rows, and the same as figures; both as they were without one.

    Args:
        report: of the run.
        kept: what is kept with the model; `conformal` among it, see `Conformal.as_dict`, or not.
        said: scores of the test rows.
        outcome: (Q,) what came.
    """
    if "conformal" not in kept:
        return report, {}
    conformal = Conformal.from_dict(kept["conformal"])
    found = conformal.covered(said, outcome)
    of_sets = conformal.score == "prob"
    size = "classes in a set" if of_sets else "width of an interval"
    row = (
        Cell("sets of classes" if of_sets else "intervals", sort="0"),
        *(
            Cell("–" if value is None else form.format(value), sort=repr(value))
            for value, form in (
                (found.stated, "{:.1%}"),
                (found.found.value, "{:.1%}"),
                (found.found.low, "{:.1%}"),
                (found.found.high, "{:.1%}"),
                (found.size, "{:.4g}"),
                (conformal.rows, "{:,}"),
                (found.rows, "{:,}"),
            )
        ),
    )
    note = (
        "Split conformal prediction: wide enough for the stated share of the validation rows. The interval is Clopper "
        "and Pearson's, as if test rows were independent. Coverage is promised where validation and test rows are "
        "exchangeable; in a market they are not quite, and the validation rows have chosen among the weights as well."
    )
    head = ("", "stated", "held", "low", "high", size, "calibrated on", "tested on")
    figures = {"test/coverage": found.found.value, "test/coverage_size": found.size}
    ends = {"test/coverage_low": found.found.low, "test/coverage_high": found.found.high}
    figures |= {name: value for name, value in ends.items() if value is not None}
    return replace(report, sheets=(*report.sheets, Sheet("Conformal coverage", note, head, (row,)))), figures
