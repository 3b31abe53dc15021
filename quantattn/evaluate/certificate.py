"""The certificate of exactness as a page: is it an approximation, how far is it from the truth, what was checked."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quantattn.evaluate.certificate_parts import SECTIONS, number, summaries
from quantattn.evaluate.drawing import MODEL, MUTED, OTHER, Figure, draw, short
from quantattn.evaluate.page import drawn, render_page, write_page

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_FIELDS = ("backend", "case", "dtype", "quantity", "worst", "standard", "allowed", "verdict", "note")


@dataclass(frozen=True)
class Group:
    """The checks of one backend in one dtype.

    Attributes:
        backend: what was checked.
        dtype: of the inputs.
        passed: checks within their budget.
        failed: checks outside it.
        refused: checks that the backend says it does not offer.
        ratio: largest error as a multiple of what standard attention loses in the dtype; None where none compares.
        used: largest share of an error budget; None where no budget is above zero.
    """

    backend: str
    dtype: str
    passed: int
    failed: int
    refused: int
    ratio: float | None
    used: float | None


def groups(findings: Sequence[Mapping[str, Any]]) -> list[Group]:
    """The findings summed up by backend and dtype, in the order in which they first occur."""
    by: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for finding in findings:
        by.setdefault((finding["backend"], finding["dtype"]), []).append(finding)
    found = []
    for (backend, dtype), members in by.items():
        counted = [f for f in members if f["verdict"] != "not offered"]
        # A control is a mistake made on purpose: its distance from the truth is to be large. A slope is no error.
        measured = [f for f in counted if backend != "control" and f["quantity"] != "slope"]
        ratios = [float(f["worst"]) / float(f["standard"]) for f in measured if float(f["standard"]) > 0]
        shares = [float(f["worst"]) / float(f["allowed"]) for f in measured if float(f["allowed"]) > 0]
        found.append(
            Group(
                backend,
                dtype,
                passed=sum(f["verdict"] == "pass" for f in members),
                failed=sum(f["verdict"] == "fail" for f in members),
                refused=len(members) - len(counted),
                ratio=max(ratios, default=None),
                used=max(shares, default=None),
            )
        )
    return found


ERROR_COLUMNS = {
    "worst": "Largest error",
    "mean": "Mean",
    "q999": "99.9 %",
    "standard": "Standard: largest",
    "standard_mean": "Mean",
    "standard_q999": "99.9 %",
    "ratio": "Ratio of the largest",
    "ulp_median": "Median, ulp",
    "ulp_q999": "99.9 %, ulp",
    "bound": "Bound",
    "used": "Share of it",
}
"""Numbers of a row of the error table → how a column is called."""


COMPARED = {
    "caught": "distance from the right answer",
    "failures": "problems outside their budget",
    "slope": "power of the length",
    "all": "everything",
}
"""What was compared → how the table of every check calls it, where that is not its own name."""


def budget_figure(found: Sequence[Group]) -> Figure | None:
    """The largest share of its error budget that each backend used in each dtype; None when nothing was measured."""
    rows = [group for group in found if group.used is not None and math.isfinite(group.used)]
    if not rows:
        return None

    def paint(axes: Axes) -> None:
        for place, group in enumerate(reversed(rows)):
            used, colour = float(group.used or 0), OTHER if group.failed else MODEL
            axes.plot([0, used], [place, place], color=colour, linewidth=5, alpha=0.35)
            axes.plot([used], [place], "o", color=colour, markersize=6)
            axes.annotate(f"{used:.0%}", (used, place), (7, 0), textcoords="offset points", va="center")
        axes.axvline(1, color=MUTED, linewidth=1.2, linestyle=(0, (5, 3)))
        axes.set_yticks(range(len(rows)), [short(f"{group.backend}, {group.dtype}") for group in reversed(rows)])
        axes.set_ylim(-0.6, len(rows) - 0.4)
        axes.set_xlim(0, max(1.15, 1.25 * max(float(group.used or 0) for group in rows)))
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        axes.grid(axis="y", visible=False)
        axes.set_xlabel("largest error, as a share of what is allowed")

    caption = (
        "What is allowed is about twice what standard attention itself loses in the dtype, both against float64; the "
        "dashed line is the limit."
    )
    return draw("budget", "How much of the error budget is used", caption, paint, (4.6, 0.26 * len(rows) + 0.7))


def render_certificate(document: Mapping[str, Any]) -> str:
    """The certificate as one HTML page, self-contained like the report.

    Args:
        document: plain values, as the JSON of a validation holds them: "ok", "statement", "device", "versions"
            (name → version) and "findings", each with backend, case, dtype, quantity, worst, standard, allowed,
            verdict ("pass", "fail", "not offered") and note; numbers may be the strings "inf" and "nan". A full
            validation also has "headline", "sha", "sources", "configurations", "ranges" (dtype, worst, standard),
            "errors" (rows of the error table) and, of each finding, "cases" and "seeds".

    Raises:
        ValueError: the document, one of its findings or one of its errors lacks a field.
    """
    if missing := {"ok", "statement", "device", "versions", "findings"} - set(document):
        raise ValueError(f"the certificate lacks {', '.join(sorted(missing))}")
    for place, finding in enumerate(document["findings"]):
        if missing := set(_FIELDS) - set(finding):
            raise ValueError(f"finding {place} of the certificate lacks {', '.join(sorted(missing))}")
    for place, row in enumerate(document.get("errors", ())):
        if missing := {"backend", "dtype", "d", "length", "mask", "result", *ERROR_COLUMNS} - set(row):
            raise ValueError(f"row {place} of the error table lacks {', '.join(sorted(missing))}")
    found = groups(document["findings"])
    sections = [(said, rows) for part, said in SECTIONS.items() if (rows := summaries(document["findings"], part))]
    figure = budget_figure(found)
    return render_page(
        "certificate.html.j2",
        document=document,
        groups=found,
        sections=sections,
        errors=document.get("errors", ()),
        columns=ERROR_COLUMNS,
        every=[f for f in document["findings"] if f["verdict"] == "fail" or not _stands_in_the_table(f)],
        figure=figure,
        drawing=drawn(figure) if figure else None,
        numbers=("worst", "standard", "allowed"),
        number=number,
        compared=COMPARED,
        word=_word,
        passed=sum(group.passed for group in found),
        failed=sum(group.failed for group in found),
    )


def write_certificate(path: str | os.PathLike[str], document: Mapping[str, Any]) -> Path:
    """Render to `path`: written beside it, flushed, and renamed."""
    return write_page(path, render_certificate(document))


def _stands_in_the_table(finding: Mapping[str, Any]) -> bool:
    """Whether a row of the error table says the same."""
    return str(finding["case"]).startswith(("bound: ", "random: table, "))


def _word(finding: Mapping[str, Any]) -> str:
    """The verdict of one check; of a mistake made on purpose, whether it was caught."""
    if finding["backend"] == "control" and finding["quantity"] != "slope":
        return "caught" if finding["verdict"] == "pass" else "NOT CAUGHT"
    return "FAILED" if finding["verdict"] == "fail" else str(finding["verdict"])
