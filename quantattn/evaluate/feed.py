"""The picture of a feed: its price, its spread and how busy it is over time, with its gaps and halts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from quantattn.evaluate.drawing import INK, MODEL, OTHER, SECOND, SHADE, THIRD, Figure, clock_axis, draw_stack, short
from quantattn.evaluate.page import drawn, render_page, write_page

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = NDArray[np.float64]
_CAPTION = "Grey: the longest gaps. Orange: halts."


@dataclass(frozen=True)
class Feed:
    """B stretches of time of one entity, those without a row left out.

    Attributes:
        entity: whose.
        time: (B,) int64, where each begins, ns UTC.
        width: of a stretch in ns.
        price: (B,) the last mid, trade or close, in units of currency; None without prices.
        low, high: (B,) the least and the greatest.
        spread: (B,) the mean spread in ticks; None without a book.
        rate: (B,) events a minute.
        gaps: start and end of the longest stretches without a row, ns UTC.
        halts: the same of halts; an end of None is the end of the data.
    """

    entity: str
    time: NDArray[np.int64]
    width: int
    price: Array | None
    low: Array | None
    high: Array | None
    spread: Array | None
    rate: Array
    gaps: Sequence[tuple[int, int]] = ()
    halts: Sequence[tuple[int, int | None]] = ()


def draw_feed(feed: Feed, title: str) -> Figure:
    """Price, spread and events a minute, as far as the feed has them, under each other."""
    first, last = int(feed.time[0]), int(feed.time[-1]) + feed.width
    paints: list[Callable[[Axes], None]] = []
    heights: list[float] = []
    if feed.price is not None:
        paints.append(lambda axes: _price(axes, feed, first))
        heights.append(3)
    if feed.spread is not None:
        spread = feed.spread
        paints.append(lambda axes: _line(axes, feed, first, spread, "spread, ticks", THIRD))
        heights.append(1.2)
    paints.append(lambda axes: _line(axes, feed, first, feed.rate, "events a minute", OTHER))
    heights.append(1.2)
    paints = [_marked(paint, feed, first, last) for paint in paints]
    paints[-1] = _clocked(paints[-1], first, last)
    what = [name for name, there in (("price", feed.price), ("spread", feed.spread)) if there is not None]
    caption = f"{', '.join([*what, 'events a minute'])} of {feed.entity}. {_CAPTION}"
    size = (9.0, 1.0 + 0.9 * sum(heights))
    return draw_stack("feed", title, caption[0].upper() + caption[1:], paints, heights, size)


def _price(axes: Axes, feed: Feed, first: int) -> None:
    assert feed.price is not None
    assert feed.low is not None
    assert feed.high is not None
    x = _seconds(feed.time, first)
    axes.fill_between(x, feed.low, feed.high, step="post", color=SHADE, alpha=0.25, linewidth=0)
    axes.plot(x, feed.price, drawstyle="steps-post", color=MODEL, linewidth=1.2)
    axes.set_ylabel(f"price of {short(feed.entity, 20)}")
    axes.ticklabel_format(axis="y", useOffset=False)


def _line(axes: Axes, feed: Feed, first: int, values: Array, label: str, colour: str) -> None:
    axes.plot(_seconds(feed.time, first), values, drawstyle="steps-post", color=colour, linewidth=1.0)
    axes.set_ylabel(label)
    top = np.nanmax(values) if np.isfinite(values).any() else 1.0
    # Bursts would otherwise press everything else to the ground.
    if top > 50 * np.nanmedian(values) > 0:
        axes.set_yscale("symlog", linthresh=top / 100)
    axes.set_ylim(bottom=0)


def _marked(paint: Callable[[Axes], None], feed: Feed, first: int, last: int) -> Callable[[Axes], None]:
    def painted(axes: Axes) -> None:
        for start, end in feed.gaps:
            axes.axvspan((start - first) / SECOND, (end - first) / SECOND, color=INK, alpha=0.35, linewidth=1)
        for start, stop in feed.halts:
            axes.axvspan(
                (start - first) / SECOND, ((stop or last) - first) / SECOND, color=OTHER, alpha=0.3, linewidth=0
            )
        paint(axes)

    return painted


def _clocked(paint: Callable[[Axes], None], first: int, last: int) -> Callable[[Axes], None]:
    def painted(axes: Axes) -> None:
        paint(axes)
        clock_axis(axes, first, last)

    return painted


def _seconds(time: NDArray[np.int64], first: int) -> Array:
    return np.asarray((time - first) / SECOND, np.float64)


def write_feed(path: str | Path, figure: Figure, lines: Sequence[tuple[str, str]]) -> Path:
    """Write the picture as a file that needs nothing but itself: .svg alone, or .html with `lines` below it.

    Raises:
        ValueError: the name ends in neither.
    """
    target = Path(path)
    ending = target.suffix.lower()
    if ending == ".svg":
        return write_page(target, drawn(figure).replace('style="', 'style="font-family: sans-serif; ', 1) + "\n")
    if ending != ".html":
        raise ValueError(f"a picture is written as .svg or .html, got {target.name}")
    page = render_page("feed.html.j2", title=figure.title, figure=figure, drawing=drawn(figure), lines=lines)
    return write_page(target, page)
