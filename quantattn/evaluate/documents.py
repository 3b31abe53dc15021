"""The picture of a benchmark of long documents: tokens a second and memory of each encoder, by what it sees."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure as Canvas

_OURS, _WHOLE, _WINDOWS = "#0072b2", "#e69f00", "#999999"  # Okabe and Ito (2008), and a grey
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "documents",
    "font.family": "sans-serif",
    "font.size": 9,
    "text.color": "#777777",
    "axes.labelcolor": "#777777",
    "axes.edgecolor": "#888888",
    "xtick.color": "#777777",
    "ytick.color": "#777777",
    "axes.spines.top": False,
    "axes.spines.right": False,
}
_COLUMNS = {"impl", "sees", "pass", "tokens_per_s", "peak_mib", "tokens", "documents"}
_BAR, _ABOVE = 0.36, 0.9
"""Inches: height of a bar's line, and of titles and axis together."""


def draw_documents(rows: Sequence[Mapping[str, object]]) -> str:
    """An SVG: a line of two panels a pass, tokens a second and, where it was measured, peak memory.

    A bar an encoder, in the order of the rows, with what it sees: ours blue, of the others orange those that see
    documents whole and grey those that see windows. What was not measured has a line without a bar.

    Args:
        rows: as `bench=documents` writes them.

    Raises:
        ValueError: no rows, rows of another benchmark, or none that was measured.
    """
    if missing := _COLUMNS - set(rows[0] if rows else ()):
        raise ValueError(f"expected rows of bench=documents, got none with {', '.join(sorted(missing))}")
    if not any(_known(row, "tokens_per_s") for row in rows):
        raise ValueError("expected rows of bench=documents, got none that was measured")
    passes = {
        name: [row for row in rows if row["pass"] == name] for name in dict.fromkeys(str(r["pass"]) for r in rows)
    }
    columns = {"tokens_per_s": ("thousand tokens/s", 1e3)}
    if any(_known(row, "peak_mib") for row in rows):
        columns["peak_mib"] = ("peak memory, GiB", 1024.0)
    heights = [_BAR * len(of_pass) + _ABOVE for of_pass in passes.values()]
    buffer = io.StringIO()
    with mpl.rc_context(_STYLE):
        canvas = Canvas(figsize=(3.0 + 2.6 * len(columns), sum(heights)), layout="constrained")
        FigureCanvasSVG(canvas)
        grid = canvas.subplots(len(passes), len(columns), squeeze=False, sharey="row", height_ratios=heights)
        for line, (name, of_pass) in zip(grid, passes.items(), strict=True):
            for axes, (column, (label, unit)) in zip(line, columns.items(), strict=True):
                _bars(axes, of_pass, column, unit)
                axes.set_title(f"{name}, {label}", loc="left", fontsize=9)
        canvas.savefig(buffer, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    return buffer.getvalue()


def _bars(axes: Axes, rows: Sequence[Mapping[str, object]], column: str, unit: float) -> None:
    values = [_number(row, column) / unit if _known(row, column) else 0.0 for row in rows]
    places = list(range(len(rows)))
    axes.barh(places, values, color=[_colour(row) for row in rows], height=0.7)
    for place, value in zip(places, values, strict=True):
        said = f" {value:,.0f}" if value >= 10 else f" {value:.1f}" if value else " not measured"
        axes.annotate(said, (value, place), va="center", fontsize=8)
    axes.set_yticks(places, [f"{row['impl']}\n{row['sees']}" for row in rows], fontsize=7)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.margins(x=0.2)


def _colour(row: Mapping[str, object]) -> str:
    if str(row["impl"]).startswith("quantattn"):
        return _OURS
    return _WHOLE if str(row["sees"]).startswith("whole") else _WINDOWS


def _known(row: Mapping[str, object], column: str) -> bool:
    return 0 < _number(row, column) < math.inf


def _number(row: Mapping[str, object], column: str) -> float:
    return float(str(row[column]))
