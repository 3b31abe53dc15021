"""The picture of the generations of attention: time, bytes moved and memory against length."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure as Canvas

# Okabe and Ito (2008), in the order of the generations; readable on white and on black.
_COLOURS = ("#999999", "#d55e00", "#0072b2", "#009e73", "#cc79a7")
_MARKS = ("o", "s", "^", "v", "D")
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "generations",
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 4,
}
PANELS = {
    "ms": "time, ms",
    "written_mib": "written to memory, MiB",
    "read_mib": "read from memory, MiB",
    "expected_peak_mib": "allocated, MiB",
}
"""Column of the results → what its axis says."""


def draw_generations(rows: Sequence[Mapping[str, object]]) -> str:
    """An SVG: a line of panels a mask, a curve a generation, both axes logarithmic, so that a slope is a power of N.

    Args:
        rows: as the benchmark writes them, with impl, N, mask and the columns of `PANELS`; a column that was not
            measured holds nan and gets no panel.

    Raises:
        ValueError: no rows, or rows without one of the columns.
    """
    if missing := {"impl", "N", "mask", *PANELS} - set(rows[0] if rows else ()):
        raise ValueError(f"expected rows of bench=generations, got none with {', '.join(sorted(missing))}")
    names = list(dict.fromkeys(str(row["impl"]) for row in rows))
    masks = list(dict.fromkeys(str(row["mask"]) for row in rows))
    columns = [column for column in PANELS if any(_drawable(row[column]) for row in rows)]
    buffer = io.StringIO()
    with mpl.rc_context(_STYLE):
        canvas = Canvas(figsize=(2.9 * len(columns), 2.6 * len(masks) + 0.4), layout="constrained")
        FigureCanvasSVG(canvas)
        grid = canvas.subplots(len(masks), len(columns), squeeze=False)
        for line, mask in zip(grid, masks, strict=True):
            for axes, column in zip(line, columns, strict=True):
                of_mask = [row for row in rows if row["mask"] == mask]
                _panel(axes, of_mask, names, column)
                axes.set_title(f"{PANELS[column]} ({mask})", loc="left", fontsize=9)
        for axes in grid[-1]:
            axes.set_xlabel("N, tokens")
        handles, labels = grid[0, 0].get_legend_handles_labels()
        canvas.legend(handles, labels, loc="outside lower center", ncols=len(labels))
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        canvas.savefig(buffer, format="svg", metadata=nothing)
    return buffer.getvalue()


def _panel(axes: Axes, rows: Sequence[Mapping[str, object]], names: Sequence[str], column: str) -> None:
    """One curve a generation, and what N and N² would be from the least of the first values."""
    lengths: list[float] = []
    for place, name in enumerate(names):
        mine = [row for row in rows if row["impl"] == name and _drawable(row[column])]
        points = sorted((_number(row["N"]), _number(row[column])) for row in mine)
        x, y = [point[0] for point in points], [point[1] for point in points]
        lengths += x
        colour, mark = _COLOURS[place % len(_COLOURS)], _MARKS[place % len(_MARKS)]
        # Curves that coincide must not hide each other: later ones have larger, hollow marks.
        size = 4 + 1.5 * max(0, place - 2)
        axes.plot(x, y, label=name, color=colour, marker=mark, markersize=size, markerfacecolor="none")
    if not lengths:
        return
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    _guides(axes, lengths)
    axes.xaxis.set_major_formatter(_tokens)


def _guides(axes: Axes, lengths: Sequence[float]) -> None:
    """Faint lines that grow as N and as N², from the lower left corner of what is drawn."""
    if len(set(lengths)) < 2:
        return
    low, high = min(lengths), max(lengths)
    bottom, top = axes.get_ylim()
    grows: tuple[tuple[str, Callable[[float], float]], ...] = (("N", lambda r: r), ("N²", lambda r: r**2))
    for label, power in grows:
        end = min(high, low * (top / bottom) ** (1 / (1 if label == "N" else 2)))
        axes.plot(
            [low, end], [bottom, bottom * power(end / low)], color="#888888", linewidth=0.8, linestyle=(0, (2, 3))
        )
        axes.annotate(label, (end, bottom * power(end / low)), color="#888888", ha="right", va="bottom", fontsize=8)
    axes.set_ylim(bottom, top)


def _tokens(value: float, _: object = None) -> str:
    return f"{value / 1024:g}k" if value >= 1024 else f"{value:g}"


def _drawable(value: object) -> bool:
    return 0 < _number(value) < math.inf


def _number(value: object) -> float:
    return float(str(value))
