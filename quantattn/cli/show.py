"""What a person sees while a run goes on and when it ends."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Bar
from rich.table import Table as RichTable
from rich.text import Text
from rich.tree import Tree

from quantattn.data.prepared import PARTS, Prepared
from quantattn.evaluate import Table
from quantattn.learn.secrets import redact

if TYPE_CHECKING:
    from quantattn.learn.fit import Progress

SHOWN = ("log_loss", "macro_f1", "mcc", "balanced_accuracy", "brier", "ece", "mse", "mae", "r2", "rank_ic")
SECONDS_BETWEEN_LINES = 10.0


@contextmanager
def progress(console: Console) -> Iterator[Callable[[Progress], None]]:
    """A function to tell where the run stands: a bar on a terminal, a line every ten seconds elsewhere."""
    if console.is_terminal:
        columns = (
            TextColumn("training"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[losses]}"),
            TextColumn("{task.fields[left]}"),
        )
        with Bar(*columns, console=console, transient=True) as bar:
            task = bar.add_task("training", total=None, losses="", left="")

            def move(at: Progress) -> None:
                left = f"{pace(at)}{clock(at.seconds_left)} left"
                bar.update(task, completed=at.step, total=at.total, losses=losses(at), left=left)

            yield move
        return
    printed = -math.inf

    def line(at: Progress) -> None:
        nonlocal printed
        now = time.monotonic()
        if now - printed >= SECONDS_BETWEEN_LINES or at.step == at.total:
            printed = now
            console.print(f"step {at.step}/{at.total}  {losses(at)}  {pace(at)}{clock(at.seconds_left)} left")

    yield line


def data_lines(prepared: Prepared) -> list[str]:
    """What the data are, what was left out of them, and what the audit said."""
    sizes = ", ".join(f"{name} {len(getattr(prepared, name).decisions):,}" for name in PARTS)
    read = ", ".join(f"{what} {number:,}" for what, number in prepared.counts.items())
    # Windows of one filing train as decisions of their own, and are judged as one.
    what = "windows" if any(f"{name} windows" in prepared.counts for name in PARTS) else "decisions"
    lines = [f"data: {read}", f"{what}: {sizes}"]
    if prepared.dropped:
        lines.append("left out: " + ", ".join(f"{why} {number:,}" for why, number in prepared.dropped.items()))
    ran = [check for check in prepared.audit.checks if check.verdict != "not run"]
    said = f"audit: {sum(check.verdict == 'passed' for check in ran)} of {len(ran)} checks passed"
    if idle := [f"{check.name} ({check.sentence})" for check in prepared.audit.checks if check.verdict == "not run"]:
        said += f"; {len(idle)} not run: {', '.join(idle)}"
    return [*lines, *(f"note: {note}" for note in prepared.notes), said]


def settings_tree(given: Mapping[str, Any], name: str = "settings") -> Tree:
    """Settings, their groups as branches, without secrets."""
    tree = Tree(name)
    for key, value in redact(dict(given)).items():
        if isinstance(value, Mapping) and value:
            tree.add(settings_tree(value, key))
        else:
            tree.add(Text(f"{key}: {json.dumps(value, ensure_ascii=False)}"))
    return tree


def losses(at: Progress) -> str:
    """The latest losses."""
    valid = "" if at.valid_loss is None else f"  valid {at.valid_loss:.4f}"
    return f"loss {at.train_loss:.4f}{valid}"


def pace(at: Progress) -> str:
    """Tokens a second, the share of the time spent waiting for batches, and of the device's peak; "" while unknown."""
    if not math.isfinite(at.tokens_per_second):
        return ""
    used = f"{at.utilisation:.1%} of peak  " if math.isfinite(at.utilisation) else ""
    return f"{at.tokens_per_second:,.0f} tokens/s  loader {at.loader_wait_share:.1%}  {used}"


def clock(seconds: float) -> str:
    """A time as minutes and seconds; "–:––" when it is not known."""
    if not math.isfinite(seconds):
        return "–:––"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"


def closing(console: Console, table: Table) -> None:
    """Print the closing table, and its verdict in words."""
    from quantattn.evaluate import verdict  # and drawings, which scoring does without

    known = {metric.name for metric in table.metrics}
    names = [name for name in SHOWN if name in known] or [metric.name for metric in table.metrics]
    titles = {metric.name: metric.title for metric in table.metrics}
    drawn = RichTable(title=f"{table.decisions:,} test decisions, {table.level:.0%} intervals", title_justify="left")
    drawn.add_column("")
    for name in names:
        drawn.add_column(titles[name].split(" (")[0], justify="right")
    for row in table.rows:
        cells = []
        for name in names:
            figure = row.figures.get(name)
            if figure is None:
                cells.append("–")
                continue
            between = "" if figure.low is None or figure.high is None else f"\n{figure.low:.3f} … {figure.high:.3f}"
            cells.append(f"{figure.value:.4f}{between}")
        drawn.add_row(row.method, *cells, style="bold" if row.role == "model" else None)
    console.print(drawn)
    words = verdict(table)
    console.print(f"{words.headline} {words.better}")
    console.print(words.sure)
