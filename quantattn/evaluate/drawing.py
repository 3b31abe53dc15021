"""Drawings as inline SVG: deterministic, readable in light and dark, with text alternatives.

Matplotlib lays a figure out; the SVG is then made fit for a page: colours become CSS variables with a neutral
fall-back, so the page's theme paints it; ids get the figure's name as a prefix, so that several figures share a page;
sizes are left to the page; a title and a description are put in for readers who cannot see it.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK, MUTED, RULE = "#010203", "#010204", "#010205"
MODEL, OTHER, THIRD, SHADE = "#010206", "#010207", "#010208", "#010209"

# What each stand-in colour becomes. The fall-backs are readable on white and on black; the hues are those of Okabe and
# Ito (2008), which people with the common colour deficiencies can tell apart.
_PAINT = {
    INK: "var(--figure-ink, #777)",
    MUTED: "var(--figure-muted, #888)",
    RULE: "var(--figure-rule, #8884)",
    MODEL: "var(--figure-model, #0072b2)",
    OTHER: "var(--figure-other, #d55e00)",
    THIRD: "var(--figure-third, #009e73)",
    SHADE: "var(--figure-shade, #0072b2)",
}

_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.edgecolor": RULE,
    "axes.labelcolor": MUTED,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": RULE,
    "grid.linewidth": 0.6,
    "text.color": INK,
    "xtick.color": RULE,
    "ytick.color": RULE,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "legend.fontsize": 9,
    "lines.linewidth": 1.8,
    "text.parse_math": False,  # a class may be called "$x"
}


@dataclass(frozen=True)
class Figure:
    """A drawing for a report.

    Attributes:
        name: identifier on the page, letters, digits and hyphens.
        title: one line, plain text.
        caption: what a reader should see in it, plain text; also the description for those who cannot.
        svg: an `<svg>` element.
    """

    name: str
    title: str
    caption: str
    svg: str


MOST_POINTS = 400
"""A curve is thinned to about so many points; a report should stay small."""


def draw(
    name: str, title: str, caption: str, paint: Callable[[Axes], None], size: tuple[float, float] = (4.6, 3.0)
) -> Figure:
    """Lay out what `paint` draws on the axes, and make the SVG fit for a page."""
    return draw_stack(name, title, caption, [paint], [1.0], size)


def draw_stack(
    name: str,
    title: str,
    caption: str,
    paints: Sequence[Callable[[Axes], None]],
    heights: Sequence[float],
    size: tuple[float, float],
) -> Figure:
    """The same for axes under each other that share the horizontal one; `heights` are their shares."""
    if not re.fullmatch(r"[a-z][a-z0-9-]*", name):
        raise ValueError(f"a figure's name is made of letters, digits and hyphens, got {name!r}")
    # Half a second, which whoever names a figure without drawing one does not wait for.
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure as Canvas

    buffer = io.StringIO()
    with mpl.rc_context({**_STYLE, "svg.hashsalt": name}), warnings.catch_warnings():
        # Letters that the measuring font lacks are only measured a little wrong; the reader's browser has them.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        canvas = Canvas(figsize=size, layout="constrained")
        FigureCanvasSVG(canvas)
        stack = canvas.subplots(len(paints), sharex=True, squeeze=False, height_ratios=heights)[:, 0]
        for axes, paint in zip(stack, paints, strict=True):
            axes.tick_params(length=0)
            paint(axes)
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        canvas.savefig(buffer, format="svg", transparent=True, metadata=nothing)
    return Figure(name, title, caption, _for_page(buffer.getvalue(), name, title, caption))


def _for_page(text: str, name: str, title: str, caption: str) -> str:
    text = text[text.index("<svg") :].strip()
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    text = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', text)
    text = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", text)
    text = re.sub(r'href="#([^"]+)"', rf'href="#{name}-\1"', text)
    text = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>\s*", "", text, flags=re.DOTALL)
    text = re.sub(r"font-family: [^;\"]*;? ?", "", text)  # the page's own
    for stand_in, paint in _PAINT.items():
        text = text.replace(stand_in, paint)
    box = re.search(r'viewBox="[^"]+"', text)
    if box is None:
        raise RuntimeError(f"the SVG writer gave figure {name!r} no viewBox")
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" {box[0]} role="img" '
        f'style="stroke-linejoin: round; stroke-linecap: butt" aria-labelledby="{name}-title {name}-desc">\n'
        f'<title id="{name}-title">{escape(title)}</title>\n<desc id="{name}-desc">{escape(caption)}</desc>'
    )
    return head + text[text.index(">") + 1 :]


def short(text: str, most: int = 28) -> str:
    """`text` on one line and at most `most` letters long, for labels; a long label would leave no room to draw in."""
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 1] + "…"


def thinned(n: int) -> NDArray[np.int64]:
    """At most `MOST_POINTS` row numbers in 0 … n − 1, evenly spread, with both ends."""
    return np.unique(np.linspace(0, n - 1, min(n, MOST_POINTS)).round().astype(np.int64))


SECOND = 1_000_000_000
_DAY = 86_400 * SECOND
_STEPS = (
    *(mantissa * 10**power for power in range(9) for mantissa in (1, 2, 5)),
    *(SECOND * s for s in (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 10_800, 21_600, 43_200)),
    *(_DAY * d for d in (1, 2, 4, 7, 14)),
)
_MONTHS = (1, 2, 3, 6, 12, 24, 60, 120, 240, 600)


def time_ticks(first: int, last: int, most: int = 5) -> tuple[list[int], list[str], str]:
    """Round times for an axis from `first` to `last`, ns UTC, and how to write them.

    Returns:
        The times in ns, at most `most` + 1 of them; their labels; and a note to stand beside the axis.
    """
    span = last - first
    step = next((step for step in _STEPS if span <= most * step), None)
    if step is None:
        return _month_ticks(first, last, most)
    ticks = list(range(-(-first // step) * step, last + 1, step))
    if step < SECOND:
        start = first // SECOND * SECOND
        return ticks, [f"+{(t - start) / SECOND:.9g} s" for t in ticks], f"after {_utc(start, '%Y-%m-%d %H:%M:%S')} UTC"
    if step >= _DAY:
        return ticks, [_utc(t, "%Y-%m-%d") for t in ticks], "UTC"
    days = sorted({_utc(first, "%Y-%m-%d"), _utc(last, "%Y-%m-%d")})
    form = "%H:%M:%S" if step < 60 * SECOND else "%H:%M"
    return ticks, [_utc(t, form) for t in ticks], f"{' to '.join(days)}, UTC"


def _month_ticks(first: int, last: int, most: int) -> tuple[list[int], list[str], str]:
    start, end = (np.datetime64(t, "ns").astype("datetime64[M]").astype(int) for t in (first, last))
    step = next(months for months in _MONTHS if end - start <= most * months)
    months = np.arange(-(-start // step) * step, end + 1, step).astype("datetime64[M]")
    ticks = [t for t in months.astype("datetime64[ns]").astype(np.int64).tolist() if first <= t <= last]
    return ticks, [_utc(t, "%Y" if step % 12 == 0 else "%Y-%m") for t in ticks], "UTC"


def _utc(time: int, form: str) -> str:
    return datetime.fromtimestamp(time // SECOND, UTC).strftime(form)


def clock_axis(axes: Axes, first: int, last: int) -> None:
    """Label a horizontal axis that counts seconds after `first` (ns UTC) with times of day or dates."""
    ticks, labels, note = time_ticks(first, last)
    axes.set_xticks([(t - first) / SECOND for t in ticks], labels)
    axes.set_xlabel(note)
