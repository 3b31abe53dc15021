"""`quantattn evaluate SCORES`: how good a table of scores is, ours or not, beside baselines, as a page."""

from __future__ import annotations

import argparse
import datetime as dt
import hashlib
import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable

from quantattn.cli.errors import DONE, UsageError
from quantattn.cli.terminal import console
from quantattn.evaluate.assessment import Terms
from quantattn.evaluate.report import ReportData, cells, days_of, verdict, write_report
from quantattn.evaluate.score_page import Told, report_on
from quantattn.evaluate.score_report import plain
from quantattn.evaluate.scores import Columns, read_scores, scan_table, with_outcomes

TRIALS, ACCOUNT = "trials", "trials.json"
"""Column and key that say how many trials a model was chosen from; file of a sweep with their number."""
NAMED = ("entity", "time", "score", "outcome")
OPTIONAL = {
    "horizon": "steps that an outcome spans; the shortest is judged",
    "end": "when an outcome was known",
    "available": "when a score was there to be used; later than its time is refused",
    "volume": "traded value of the entity in a period, for the capacity curve",
    "volatility": "standard deviation of its returns; from known outcomes by default",
    "regime": "names of times; calm and turbulent by default",
}
"""Columns that a table may have → what they hold."""
QUESTIONS = {
    "return": "Which of {entities:,} entities earn more than the others after each of {times:,} times{span}, from "
    "{name}.",
    "value": "A value for each of {entities:,} entities at {times:,} times{span}, from {name}.",
    "class": "Which of {classes} comes next, for {entities:,} entities at {times:,} times{span}, from {name}.",
}


def run(arguments: list[str]) -> int:
    """Judge SCORES, print the closing table and write the page."""
    asked = _parser().parse_args(arguments)
    for path in (asked.out, asked.json):
        if path and not path.parent.is_dir():
            raise UsageError(f"{path}: there is no folder {path.parent} to write to")
    columns = Columns(
        **{name: getattr(asked, name) for name in (*NAMED, *OPTIONAL)},
        beside=tuple(asked.beside),
    )
    table = scan_table(asked.scores)
    if asked.outcomes:
        table = with_outcomes(table, scan_table(asked.outcomes), columns)
    tables = read_scores(table, asked.kind, columns, horizon=asked.steps)
    first = next(iter(tables.values()))
    hashes = {name: sha256_of(getattr(asked, name)) for name in ("scores", "outcomes") if getattr(asked, name)}
    asks = QUESTIONS[asked.kind].format(
        entities=len(first.data.names),
        times=first.data.times.size,
        span=f", {days}" if (days := days_of(first.data.times)) else "",
        name=asked.scores.name,
        classes=", ".join(first.classes),
    )
    told = Told(
        title=asked.title or f"Scores of {asked.scores.name}",
        question=asked.question or asks,
        hashes=hashes,
        available=asked.available is not None,
        created=dt.datetime.now(dt.UTC).strftime("%Y-%m-%d %H:%M UTC"),
    )
    trials = trials_of(asked.trials, table)
    terms = Terms(asked.quantiles, asked.cost_bps, trials, asked.trial_variance, asked.level, asked.seed)
    data = report_on(tables, asked.kind, told, terms)
    out = console()
    tell(out, data)
    write_report(asked.out, data)
    out.print(f"report {asked.out}")
    if asked.json:
        document = {"table": data.table.to_dict(), "sheets": plain(data.sheets), "hashes": hashes}
        asked.json.write_text(json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n", "utf-8")
    return DONE


def trials_of(said: str | None, table: Any) -> int | None:
    """How many scores were tried: as was said, or as a sweep has counted; None when neither says.

    Args:
        said: a number, the folder of a sweep, of a run or of its model; None takes what the table's scores carry.
        table: of scores, a lazy frame; those of a model that a sweep has chosen have a column `trials`.

    Raises:
        UsageError: it is none of these, or a number below what the table carries.
    """
    carried = None
    if TRIALS in table.collect_schema().names():
        carried = table.select(TRIALS).max().collect().item()
        if carried is not None and (not isinstance(carried, int) or carried < 1):
            raise UsageError(f"column {TRIALS} must hold whole numbers from 1, it has {carried!r}")
    if said is None:
        return carried
    found = int(said) if said.isdecimal() else counted_in(Path(said))
    if carried is not None and found < carried:
        raise UsageError(f"--trials {said}: the model behind these scores was chosen from {carried:,} trials alone")
    return found


def counted_in(folder: Path) -> int:
    """The trials that a sweep has counted, or that a model was chosen from.

    Raises:
        UsageError: the folder does not say.
    """
    account = folder / ACCOUNT
    places = (account, folder / "config.json", folder / "model" / "config.json")
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        raise UsageError(f"--trials {folder}: neither a number nor a folder of a sweep, a run or a model")
    try:
        document = json.loads(found.read_text("utf-8"))
        trials = (document if found == account else document["extra"]).get(TRIALS)
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise UsageError(f"--trials: {found} cannot be read: {error}") from error
    if isinstance(trials, bool) or not isinstance(trials, int):
        raise UsageError(f"--trials: {found} does not say from how many trials it was chosen")
    return trials


def tell(out: Console, data: ReportData) -> None:
    """Print what was left out, the closing table and the first screen's words."""
    for why, count in data.dropped.items():
        out.print(f"left out: {count:,} rows, {why}")
    drawn = RichTable(
        title=f"{data.table.decisions:,} decisions, {data.table.level:.0%} intervals", title_justify="left"
    )
    drawn.add_column("")
    for metric in data.table.metrics:
        drawn.add_column(metric.title, justify="right")
    for row, figures in cells(data.table):
        texts = [f"{cell.text}\n{cell.between}" if cell.between else cell.text for cell in figures]
        drawn.add_row(row.method, *texts, style="bold" if row.role == "model" else None)
    out.print(drawn)
    words = data.said or verdict(data.table)
    for sentence in (words.headline, words.better, words.sure, words.cost[1]):
        if sentence:
            out.print(sentence)


def sha256_of(path: Path) -> str:
    """Of a file, its sha256; of a folder, the sha256 of its files' names and sha256."""
    if path.is_file():
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    whole = hashlib.sha256()
    for inner in sorted(p for p in path.rglob("*") if p.is_file()):
        whole.update(f"{inner.relative_to(path).as_posix()}\0{sha256_of(inner)}\n".encode())
    return whole.hexdigest()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("quantattn evaluate", description="Judge a table of scores beside baselines.")
    add = parser.add_argument
    add("scores", type=Path, help="Parquet, CSV, a folder of Parquet files, or a Delta table")
    add("--kind", required=True, choices=("return", "value", "class"), help="what the outcome is")
    add("--out", type=Path, default=Path("scores.html"), help="the page (%(default)s)")
    add("--json", type=Path, help="the figures as JSON, too")
    add("--outcomes", type=Path, help="a table with the outcomes, joined by entity and time (and horizon)")
    for name in NAMED:
        add(f"--{name}", default=name, metavar="COLUMN", help="what the column is called (%(default)s)")
    for name, holds in OPTIONAL.items():
        add(f"--{name}", metavar="COLUMN", help=holds)
    add("--steps", type=int, help="steps that every outcome spans, without --horizon (1, where entities share times)")
    add("--beside", metavar="COLUMN", nargs="*", default=[], help="scores of other methods")
    add("--quantiles", type=int, default=5, help="the highest is bought, the lowest sold (%(default)s)")
    add("--cost-bps", type=float, default=10.0, help="of every unit traded, in 1/10,000 (%(default)s)")
    add("--trials", help="how many scores were tried before this one was shown; or the folder of a sweep or its model")
    add("--trial-variance", type=float, help="variance of the trials' Sharpe ratios, a period")
    add("--level", type=float, default=0.95, help="of confidence (%(default)s)")
    add("--seed", type=int, default=0, help="of the resamples (%(default)s)")
    add("--title", help="of the page")
    add("--question", help="one sentence: what was predicted")
    return parser
