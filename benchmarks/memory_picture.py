"""The picture of skill against the distance of what decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from matplotlib.axes import Axes

from quantattn.evaluate.drawing import INK, MODEL, MUTED, OTHER, THIRD, Figure, draw

LOOKS = {
    "encoder": (MODEL, "o", "-"),
    "encoder, context cut": (MODEL, "v", (0, (1, 2))),
    "GRU": (OTHER, "s", "-"),
    "temporal CNN": (THIRD, "^", "-"),
    "linear state space": (INK, "D", "-"),
}
"""Method → colour, mark and line."""
APART = 0.05
"""Methods stand so far apart along the axis, as a share of a distance, that their bars do not cover each other."""


def draw_memory(rows: Sequence[Mapping[str, str]]) -> Figure:
    """A mark a method and distance, the mean of its seeds, and beside it a bar for each of them, its interval.

    Args:
        rows: as `long_memory.py` writes them, of one size and budget.

    Raises:
        ValueError: no rows, or rows of several sizes or budgets.
    """
    made = {(row["size"], row["budget"]) for row in rows}
    if len(made) != 1:
        raise ValueError(f"expected rows of one size and budget, got {sorted(made) or 'none'}")
    distances = sorted({int(row["distance"]) for row in rows})

    def paint(axes: Axes) -> None:
        axes.axhline(1, color=MUTED, linewidth=1.2)
        axes.axhline(0.95, color=MUTED, linewidth=0.8, linestyle=(0, (1, 3)))
        for place, (method, (colour, mark, line)) in enumerate(LOOKS.items()):
            mine = {
                d: [row for row in rows if row["method"] == method and int(row["distance"]) == d] for d in distances
            }
            mine = {distance: cells for distance, cells in mine.items() if cells}
            if not mine:
                continue
            at = [distance * (1 + APART) ** (place - 2) for distance in mine]
            mean = [fmean(float(cell["skill"]) for cell in cells) for cells in mine.values()]
            axes.plot(at, mean, color=colour, linestyle=line, label=method, marker=mark, markersize=4)
            for place_of, cells in zip(at, mine.values(), strict=True):
                # Every seed by itself: some find what decides and some do not, and a mean of those is nobody's skill.
                beside = [place_of * (1 + APART / 4) ** n for n in range(1, len(cells) + 1)]
                axes.plot(beside, [float(cell["skill"]) for cell in cells], "_", color=colour, markersize=5)
                axes.vlines(beside, *([float(c[end]) for c in cells] for end in ("low", "high")), color=colour)
            if method == "encoder, context cut":
                theory = [fmean(float(cell["theory"]) for cell in cells) for cells in mine.values()]
                axes.plot(at, theory, "_", color=MUTED, markersize=14, label="what theory says of it")
        axes.set_xscale("log")
        axes.set_xticks(distances, [f"{d // 1000}k" if d >= 1000 else str(d) for d in distances])
        axes.minorticks_off()
        axes.set_xlim(distances[0] / 1.6, distances[-1] * 1.6)
        axes.set_xlabel("events back to what decides")
        axes.set_ylabel("share of the gap closed")
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))

    seeds = len({row["seed"] for row in rows})
    ((size, budget),) = made
    caption = (
        "Share of the gap between the best baseline and the best possible that is closed on later data, mean of at "
        f"most {seeds} seeds, size {size}, the time of {budget} steps of the encoder; beside it each seed with its "
        "95 % interval. The line at 1 is the Bayes bound, the dotted one 95 % of the way."
    )
    return draw("long-memory", "Skill against distance", caption, paint, size=(6.4, 3.2))
