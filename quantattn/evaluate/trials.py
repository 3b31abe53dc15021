"""The page of a search over settings: every trial, how the best one came about, and which settings matter."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from quantattn.evaluate.compare import decimals
from quantattn.evaluate.drawing import INK, MODEL, MUTED, OTHER, Figure, draw, short
from quantattn.evaluate.page import drawn, render_page, write_page
from quantattn.evaluate.report import Cell, Sheet

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Trial:
    """One trial.

    Attributes:
        number: in order of beginning, from 0.
        state: complete, pruned, failed, running or waiting.
        value: the figure it was compared by; of a pruned one the last before it was ended; None where there is none.
        settings: name → value, as text.
        seconds: that it trained.
        why: it failed.
    """

    number: int
    state: str
    value: float | None
    settings: Mapping[str, str]
    seconds: float | None = None
    why: str = ""


@dataclass(frozen=True)
class Study:
    """A search.

    Attributes:
        name: of the study.
        metric: the figure that trials are compared by.
        maximise: whether a high one is good.
        space: setting → its range or choices, as text.
        trials: all of them, in order of number.
        importance: setting → its share in what makes a trial good; empty where there are too few trials to say.
    """

    name: str
    metric: str
    maximise: bool
    space: Mapping[str, str]
    trials: tuple[Trial, ...]
    importance: Mapping[str, float] = field(default_factory=dict)

    @property
    def complete(self) -> tuple[Trial, ...]:
        """The trials that came to their end, with a finite figure."""
        return tuple(t for t in self.trials if t.state == "complete" and t.value is not None and math.isfinite(t.value))

    @property
    def best(self) -> Trial | None:
        """Of the complete trials the best; of equal ones the first."""
        if not self.complete:
            return None
        sign = -1 if self.maximise else 1
        return min(self.complete, key=lambda trial: sign * float(trial.value or 0.0))

    @property
    def frontier(self) -> list[tuple[int, float]]:
        """Number and value of every trial that was better than all complete ones before it."""
        found: list[tuple[int, float]] = []
        for trial in self.complete:
            value = float(trial.value or 0.0)
            if not found or (value > found[-1][1] if self.maximise else value < found[-1][1]):
                found.append((trial.number, value))
        return found


def trials_figure(study: Study) -> Figure | None:
    """The value of each trial against its number, and the best so far; None before one is complete."""
    if not study.complete:
        return None
    values = [float(trial.value or 0.0) for trial in study.complete]
    margin = 0.08 * (max(values) - min(values)) or 0.01 * abs(values[0]) or 1.0
    low, high = min(values) - margin, max(values) + margin

    def paint(axes: Axes) -> None:
        from matplotlib.ticker import MaxNLocator

        for state, colour, filled in (("complete", MODEL, True), ("pruned", OTHER, False)):
            mine = [(t.number, t.value) for t in study.trials if t.state == state and t.value is not None]
            points = [(x, min(max(y, low), high)) for x, y in mine if math.isfinite(y)]
            if points:
                x, y = zip(*points, strict=True)
                face = colour if filled else "none"
                axes.plot(x, y, "o", color=colour, markerfacecolor=face, markersize=4, label=state, clip_on=False)
        failed = [t.number for t in study.trials if t.state == "failed"]
        if failed:
            axes.plot(failed, [high] * len(failed), "x", color=MUTED, markersize=5, label="failed", clip_on=False)
        numbers, reached = zip(*[*study.frontier, (len(study.trials) - 1, study.frontier[-1][1])], strict=True)
        axes.step(numbers, reached, where="post", color=INK, linewidth=1.2, label="best so far")
        axes.set_ylim(low, high)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("trial")
        axes.set_ylabel(short(study.metric))
        axes.legend()

    caption = (
        f"{study.metric} on the validation rows, {'high' if study.maximise else 'low'} is good. A pruned trial stands "
        "at its last validation, at the edge when that lies beyond the complete ones."
    )
    return draw("trials", "Every trial", caption, paint, (7.0, 3.2))


def importance_figure(study: Study) -> Figure | None:
    """The share of each setting in what makes a trial good; None where nothing was said."""
    if not study.importance:
        return None
    ordered = sorted(study.importance.items(), key=lambda one: one[1])

    def paint(axes: Axes) -> None:
        axes.barh([short(name) for name, _ in ordered], [share for _, share in ordered], color=MODEL, height=0.5)
        axes.grid(axis="y", visible=False)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")

    caption = (
        "How far the better tenth of the complete trials is told from the rest by each setting alone (PED-ANOVA, "
        "Watanabe et al. 2023), as shares. It says what moved the figure inside this space and nothing of causes."
    )
    return draw("importance", "Which settings matter", caption, paint, (4.6, 0.32 * len(ordered) + 0.7))


def trials_sheet(study: Study) -> Sheet:
    """One row a trial."""
    digits = decimals([float(trial.value or 0.0) for trial in study.complete])

    def number(value: float | None, form: str) -> Cell:
        there = value is not None and math.isfinite(value)
        return Cell(form.format(value), sort=repr(value)) if there else Cell("–")

    rows = []
    for trial in study.trials:
        value = number(trial.value, f"{{:.{digits}f}}")
        if study.best is not None and trial.number == study.best.number:
            value = Cell(value.text, sort=value.sort, best=True)
        settings = (trial.settings.get(name, "–") for name in study.space)
        rows.append(
            (
                Cell(str(trial.number), sort=str(trial.number)),
                Cell(trial.state, between=short(trial.why, 120), sort=trial.state),
                value,
                *(Cell(_shortened(text), sort=text) for text in settings),
                number(trial.seconds, "{:.0f}"),
            )
        )
    note = "Bold is the best. A trial's folder has its number."
    return Sheet("Trials", note, ("trial", "state", study.metric, *study.space, "seconds"), tuple(rows))


def _shortened(text: str) -> str:
    try:
        return f"{float(text):.4g}"
    except ValueError:
        return short(text)


def render_study(study: Study, created: str | None = None) -> str:
    """The page: what was found, every trial, and the space; the same study gives the same bytes."""
    figures = [figure for figure in (trials_figure(study), importance_figure(study)) if figure is not None]
    states = Counter(trial.state for trial in study.trials)
    return render_page(
        "sweep.html.j2",
        study=study,
        created=created,
        states=", ".join(f"{count:,} {state}" for state, count in sorted(states.items())),
        best=[] if study.best is None else [(name, _shortened(text)) for name, text in study.best.settings.items()],
        value="" if study.best is None else f"{study.best.value:.5g}",
        drawings=[(figure, drawn(figure)) for figure in figures],
        sheet=trials_sheet(study),
    )


def write_study(path: str | os.PathLike[str], study: Study, created: str | None = None) -> Path:
    """Render to `path`: written beside it, flushed, and renamed."""
    return write_page(path, render_study(study, created))
