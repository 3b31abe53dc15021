"""The picture of a benchmark of attention: speed and memory against length, and single shapes beside each other."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

# Okabe and Ito (2008), and greys; readable on white and on black. A pair of one colour is one implementation twice.
_LOOKS = {
    "quantattn": ("#0072b2", "o"),
    "quantattn_unordered": ("#56b4e9", "."),
    "flash_cute": ("#d55e00", "s"),
    "flash_cute_deterministic": ("#b8860b", "."),
    "cudnn": ("#009e73", "^"),
    "sdpa_flash": ("#cc79a7", "v"),
    "torch_varlen": ("#cc79a7", "v"),
    "flex": ("#e69f00", "D"),
    "standard": ("#999999", "x"),
}
_MORE = (("#666666", "P"), ("#8c6bb1", "*"), ("#a6761d", "h"))
"""Looks of implementations with no look of their own, in turn."""
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "speeds",
    "font.family": "sans-serif",
    "font.size": 9,
    "text.color": "#777777",
    "axes.labelcolor": "#777777",
    "axes.edgecolor": "#888888",
    "axes.titlelocation": "left",
    "axes.titlesize": 9,
    "xtick.color": "#777777",
    "ytick.color": "#777777",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.alpha": 0.3,
    "legend.frameon": False,
    "lines.linewidth": 1.5,
    "lines.markersize": 4,
}
_COLUMNS = {"impl", "D", "N", "mask", "pass", "tflops", "peak_mib"}
_OTHERS = {"written_mib", "workspace_mib", "tokens_per_s"}
"""What rows of other benchmarks have beside these."""
_WIDTH = 0.8
"""Share of a shape's place that its bars fill."""
_TICKS = 7
"""Marks of an axis at most."""
_PASSES = ("forward", "backward")
_BARS_IN_LINE = 6
"""Shapes beside each other, of which more get a second line."""
_LEFT, _RIGHT, _GAP, _TITLE, _CURVE, _BAR, _LENGTHS, _NAME = 0.7, 0.15, 0.12, 0.3, 1.5, 1.15, 0.5, 1.85
"""Inches: margins, between panels, above one, of a panel of curves and of bars, below curves, a name."""


@dataclass(frozen=True)
class _Point:
    """What the picture says of a row."""

    impl: str
    d: int
    n: int
    mask: str
    kind: str
    stage: str
    tflops: float
    peak: float

    @property
    def family(self) -> tuple[int, str]:
        """Dense shapes of one family differ in their length alone."""
        return self.d, self.mask

    @property
    def shape(self) -> tuple[int, int, str, str]:
        """What bars stand above."""
        return self.d, self.n, self.mask, self.kind


def draw_speeds(rows: Sequence[Mapping[str, object]]) -> str:
    """An SVG: a column of panels for each head size and mask that has several lengths, and bars for the other shapes.

    In a column TFLOP/s of forward and backward and the memory of the backward, where it was measured, against the
    length, a curve an implementation. Below them a panel of bars a pass, a group of bars a shape; ours, which is the
    first implementation, has its figure on it. What was not measured (NaN) is not drawn.

    Args:
        rows: as `bench=attention` writes them: impl, D, N, mask, pass ("forward", "backward"), tflops, peak_mib, and
            kind, "dense" where there is none.

    Raises:
        ValueError: no rows, rows without one of the columns, or those of another benchmark.
    """
    if foreign := _OTHERS & set(rows[0] if rows else ()):
        raise ValueError(f"expected rows of bench=attention, got those of another, with {', '.join(sorted(foreign))}")
    if missing := _COLUMNS - set(rows[0] if rows else ()):
        raise ValueError(f"expected rows of bench=attention, got none with {', '.join(sorted(missing))}")
    points = [point for point in map(_point, rows) if math.isfinite(point.tflops)]
    if not points:
        raise ValueError("expected rows of bench=attention, got none that was measured")
    families = _families(points)
    single = list(dict.fromkeys(p.shape for p in points if p.kind != "dense" or p.family not in families))
    looks = _looks(point.impl for point in points)
    in_line = math.ceil(len(single) / math.ceil(len(single) / _BARS_IN_LINE)) if single else 0
    lines = [single[i : i + in_line] for i in range(0, len(single), in_line or 1)]
    curves = _curves(points) if families else []
    width = _LEFT + max(2.2 * len(families), 1.2 * in_line, 5.6) + _RIGHT
    names = min(int(width / _NAME), len(looks))
    bottom = 0.1 + 0.2 * math.ceil(len(looks) / names)
    heights = [_TITLE + (_CURVE + _GAP) * len(curves) + _LENGTHS] if curves else []
    heights += [(_TITLE + _BAR) * len(_stages(points, shapes)) + _under(shapes) for shapes in lines]
    buffer = io.StringIO()
    with mpl.rc_context(_STYLE):
        canvas = Canvas(figsize=(width, sum(heights) + bottom))
        canvas.patch.set_alpha(0)
        FigureCanvasSVG(canvas)
        top = sum(heights) + bottom
        if curves:
            _draw_curves(canvas, top, points, families, looks)
        for i, shapes in enumerate(lines, len(heights) - len(lines)):
            _draw_bars(canvas, top - sum(heights[:i]), points, shapes, in_line, looks)
        handles = [Line2D([], [], color=colour, marker=mark) for colour, mark in looks.values()]
        canvas.legend(handles, list(looks), loc="lower center", ncols=names, borderaxespad=0.3)
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        canvas.savefig(buffer, format="svg", metadata=nothing)
    return buffer.getvalue()


def _place(canvas: Canvas, x: float, y: float, width: float, height: float, **shared: Any) -> Axes:
    """Axes whose lower left corner is (x, y), in inches. Solved layouts differ in their last digits from run to run."""
    w, h = canvas.get_size_inches()
    axes = canvas.add_axes((x / w, y / h, width / w, height / h), **shared)
    axes.patch.set_alpha(0)
    axes.tick_params(length=0)
    return axes


def _point(row: Mapping[str, object]) -> _Point:
    number = {name: float(str(row[name])) for name in ("tflops", "peak_mib")}
    impl, d, n, mask, stage = (str(row[name]) for name in ("impl", "D", "N", "mask", "pass"))
    kind = str(row.get("kind") or "dense")
    return _Point(impl, int(d), int(n), mask, kind, stage, number["tflops"], number["peak_mib"])


def _families(points: Sequence[_Point]) -> list[tuple[int, str]]:
    """Head sizes and masks of which several lengths were measured, full before causal."""
    lengths: dict[tuple[int, str], set[int]] = {}
    for point in points:
        if point.kind == "dense":
            lengths.setdefault(point.family, set()).add(point.n)
    found = [family for family, known in lengths.items() if len(known) > 1]
    return sorted(found, key=lambda family: (family[0], family[1] != "full", family[1]))


def _looks(names: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Colour and mark of each implementation, in the order of the looks that are known."""
    given = list(dict.fromkeys(names))
    known = {name: _LOOKS[name] for name in _LOOKS if name in given}
    unknown = [name for name in given if name not in _LOOKS]
    return known | {name: _MORE[i % len(_MORE)] for i, name in enumerate(unknown)}


def _curves(points: Sequence[_Point]) -> list[tuple[str, str]]:
    """(pass, what) of the panels of a column."""
    found = [(stage, "tflops") for stage in _PASSES if any(p.stage == stage for p in points)]
    last = found[-1][0]
    return found + [(last, "peak")] * any(p.stage == last and p.peak > 0 for p in points)


def _stages(points: Sequence[_Point], shapes: Sequence[tuple[int, int, str, str]]) -> list[str]:
    return [stage for stage in _PASSES if any(p.stage == stage and p.shape in shapes for p in points)]


def _draw_curves(
    canvas: Canvas,
    top: float,
    points: Sequence[_Point],
    families: Sequence[tuple[int, str]],
    looks: Mapping[str, tuple[str, str]],
) -> None:
    wide = (canvas.get_figwidth() - _LEFT - _RIGHT + _GAP) / len(families)
    curves = _curves(points)
    above: list[Axes | None] = [None] * len(families)
    for level, (stage, what) in enumerate(curves):
        y = top - _TITLE - (_CURVE + _GAP) * level - _CURVE
        first: Axes | None = None
        for column, (d, mask) in enumerate(families):
            shared = {"sharex": above[column], "sharey": first}
            axes = _place(canvas, _LEFT + wide * column, y, wide - _GAP, _CURVE, **shared)
            for name, (colour, mark) in looks.items():
                mine = [p for p in points if (p.impl, p.stage, p.kind) == (name, stage, "dense")]
                mine = sorted((p for p in mine if p.family == (d, mask)), key=lambda p: p.n)
                values = [p.tflops if what == "tflops" else p.peak for p in mine]
                front = 3 if name == next(iter(looks)) else 2
                axes.plot([p.n for p in mine], values, color=colour, marker=mark, zorder=front)
            if above[column] is None:
                axes.set_title(f"D {d}, {mask}")
                _length_axis(axes, sorted({p.n for p in points if p.kind == "dense" and p.family == (d, mask)}))
            last = level == len(curves) - 1
            axes.tick_params(labelbottom=last, labelleft=first is None)
            axes.tick_params(axis="x", labelsize=8)
            axes.set_xlabel("N" if last else "")
            first, above[column] = first or axes, axes
        if first is None:
            continue
        first.set_ylabel(f"{stage}, {'TFLOP/s' if what == 'tflops' else 'peak MiB'}")
        if what == "tflops":
            first.set_ylim(bottom=0)
        else:
            _memory_axis(first, [p.peak for p in points if p.stage == stage and p.family in families and p.peak > 0])


def _length_axis(axes: Axes, lengths: Sequence[int]) -> None:
    axes.set_xscale("log", base=2)
    every = -(-len(lengths) // _TICKS)
    axes.set_xticks(lengths[::every], [_tokens(n) for n in lengths[::every]])


def _memory_axis(axes: Axes, peaks: Sequence[float]) -> None:
    """Powers of two around what there is."""
    low, high = math.floor(math.log2(min(peaks))), math.ceil(math.log2(max(peaks)))
    high = max(high, low + 1)
    axes.set_yscale("log", base=2)
    axes.set_ylim(2.0**low, 2.0**high)
    ticks = [2.0**power for power in range(low, high + 1, -(-(high - low) // _TICKS))]
    axes.set_yticks(ticks, [f"{tick:,g}" if tick < 1024 else f"{tick / 1024:g}k" for tick in ticks])


def _draw_bars(
    canvas: Canvas,
    top: float,
    points: Sequence[_Point],
    shapes: Sequence[tuple[int, int, str, str]],
    in_line: int,
    looks: Mapping[str, tuple[str, str]],
) -> None:
    stages = _stages(points, shapes)
    for level, stage in enumerate(stages):
        y = top - (_TITLE + _BAR) * (level + 1)
        axes = _place(canvas, _LEFT, y, canvas.get_figwidth() - _LEFT - _RIGHT, _BAR)
        found = {(p.impl, p.shape): p.tflops for p in points if p.stage == stage and p.shape in shapes}
        names = [name for name in looks if any(impl == name for impl, _ in found)]
        step = _WIDTH / len(names)
        for place, name in enumerate(names):
            mine = [(i, found[name, shape]) for i, shape in enumerate(shapes) if (name, shape) in found]
            x = [i - _WIDTH / 2 + (place + 0.5) * step for i, _ in mine]
            axes.bar(x, [value for _, value in mine], 0.92 * step, color=looks[name][0])
            for left, (_, value) in zip(x, mine, strict=True):
                if name == next(iter(looks)):  # flush right: beside it another bar may be higher
                    place_of = (left + step / 2, value)
                    axes.annotate(
                        f"{value:.0f}", place_of, (0, 1), textcoords="offset points", ha="right", va="bottom",
                        fontsize=7, color=looks[name][0],
                    )  # fmt: skip
        axes.yaxis.set_major_locator(MaxNLocator(4))
        axes.set_title(f"{stage}, TFLOP/s")
        axes.margins(y=0.12)
        axes.set_xlim(-0.5, in_line - 0.5)
        axes.set_xticks(range(len(shapes)), [_label(*shape) for shape in shapes])
        axes.tick_params(labelbottom=level == len(stages) - 1)


def _under(shapes: Sequence[tuple[int, int, str, str]]) -> float:
    """Inches of what is written below bars."""
    return 0.2 + 0.16 * max(1 + _label(*shape).count("\n") for shape in shapes)


def _label(d: int, n: int, mask: str, kind: str) -> str:
    """D and the length, the mask, and in what the shape is not dense; a line each."""
    ragged = kind.startswith("ragged")
    more = [part for part in kind.split(", ") if part not in ("dense", "ragged")]
    return "\n".join([f"D {d}, {'ragged' if ragged else _tokens(n)}", mask, *more])


def _tokens(n: int) -> str:
    return f"{n // 1024}k" if n % 1024 == 0 else str(n)
