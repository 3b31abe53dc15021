"""The picture of a benchmark of attention: TFLOP/s of every implementation, shape by shape."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure as Canvas

# Okabe and Ito (2008); readable on white and on black.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#999999")
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "speeds",
    "font.family": "sans-serif",
    "font.size": 9,
    "text.color": "#777777",
    "axes.labelcolor": "#777777",
    "axes.edgecolor": "#888888",
    "xtick.color": "#777777",
    "ytick.color": "#777777",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.alpha": 0.3,
    "legend.frameon": False,
}
_COLUMNS = {"impl", "D", "N", "mask", "pass", "tflops"}
_OTHERS = {"written_mib", "workspace_mib", "tokens_per_s"}
"""What rows of other benchmarks have beside these."""
_WIDTH = 0.8
"""Share of a shape's place that its bars fill."""


def draw_speeds(rows: Sequence[Mapping[str, object]]) -> str:
    """An SVG: a panel a pass, a group of bars a shape, a bar an implementation, ours with its figure on it.

    Args:
        rows: as `bench=attention` writes them: impl, D, N, mask, pass ("forward", "backward"), tflops. The first
            implementation is ours; a shape that one has no row for has no bar of it.

    Raises:
        ValueError: no rows, rows without one of the columns, or those of another benchmark.
    """
    if foreign := _OTHERS & set(rows[0] if rows else ()):
        raise ValueError(f"expected rows of bench=attention, got those of another, with {', '.join(sorted(foreign))}")
    if missing := _COLUMNS - set(rows[0] if rows else ()):
        raise ValueError(f"expected rows of bench=attention, got none with {', '.join(sorted(missing))}")
    names = list(dict.fromkeys(str(row["impl"]) for row in rows))
    shapes = list(dict.fromkeys((str(row["D"]), str(row["N"]), str(row["mask"])) for row in rows))
    passes = list(dict.fromkeys(str(row["pass"]) for row in rows))
    buffer = io.StringIO()
    with mpl.rc_context(_STYLE):
        canvas = Canvas(figsize=(max(5.0, 1.1 * len(shapes)), 2.3 * len(passes) + 0.4), layout="constrained")
        canvas.patch.set_alpha(0)
        FigureCanvasSVG(canvas)
        panels = canvas.subplots(len(passes), 1, squeeze=False, sharex=True)[:, 0]
        for axes, stage in zip(panels, passes, strict=True):
            found = {
                (str(row["impl"]), str(row["D"]), str(row["N"]), str(row["mask"])): float(str(row["tflops"]))
                for row in rows
                if row["pass"] == stage
            }
            _panel(axes, found, names, shapes)
            axes.set_title(f"{stage}, TFLOP/s", loc="left", fontsize=9)
        handles, labels = panels[0].get_legend_handles_labels()
        canvas.legend(handles, labels, loc="outside lower center", ncols=len(labels))
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        canvas.savefig(buffer, format="svg", metadata=nothing)
    return buffer.getvalue()


def _panel(
    axes: Axes,
    found: Mapping[tuple[str, str, str, str], float],
    names: Sequence[str],
    shapes: Sequence[tuple[str, str, str]],
) -> None:
    step = _WIDTH / len(names)
    for place, name in enumerate(names):
        here = [(i, found[name, *shape]) for i, shape in enumerate(shapes) if (name, *shape) in found]
        x = [i - _WIDTH / 2 + (place + 0.5) * step for i, _ in here]
        colour = _COLOURS[place % len(_COLOURS)]
        bars = axes.bar(x, [value for _, value in here], 0.92 * step, label=name, color=colour)
        if place == 0:
            axes.bar_label(bars, fmt="%.0f", fontsize=7, color=colour, padding=1)
    axes.patch.set_alpha(0)
    axes.set_xticks(range(len(shapes)), [f"D {d}\n{_tokens(n)} {mask}" for d, n, mask in shapes])
    axes.tick_params(length=0)


def _tokens(n: str) -> str:
    return f"{int(n) // 1024}k" if int(n) % 1024 == 0 else n
