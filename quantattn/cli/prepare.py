"""`quantattn prepare`: a source as a folder of sorted Parquet shards, which `data=prepared` reads."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from omegaconf import DictConfig
from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar

from quantattn.cli import show, terminal
from quantattn.cli.config import plain
from quantattn.cli.errors import DONE, UsageError
from quantattn.cli.instantiate import settings
from quantattn.cli.preparation import check_source
from quantattn.cli.settings import TrainSettings
from quantattn.cli.sharding import PREPARED, ShardSettings, write_shards
from quantattn.cli.stopping import stopping_on_sigterm
from quantattn.data.shards import Manifest, Progress, Written
from quantattn.data.shards.records import Shard

SHOWN = 20
"""Entities that the closing lines name."""


def prepare(config: DictConfig) -> int:
    """Write what is lacking in the folder of shards; its exit code."""
    given = plain(config)
    out, entities = given.pop("out"), given.pop("entities")
    cut = settings(ShardSettings, given.pop("cut"), "cut")
    asked = settings(TrainSettings, given, "")
    if not isinstance(out, str) or not out.strip():
        raise UsageError(f"out must name a folder, got {out!r}")
    if entities is not None and (not isinstance(entities, list) or not all(isinstance(each, str) for each in entities)):
        raise UsageError(f"entities must be a list of names, got {entities!r}")
    check_source(asked.data.source, asked.data.path, asked.allow_targets)
    console = terminal.console()
    with stopping_on_sigterm(), moving(console) as watch:
        written = write_shards(
            asked.data, Path(out), allow=asked.allow_targets, cut=cut, entities=entities, watch=watch
        )
    for line in closing_lines(Path(out), written, asked.data.kind):
        console.print(line)
    return DONE


@contextmanager
def moving(console: Console) -> Iterator[Callable[[Progress], None]]:
    """A function to tell how far it is: a bar on a terminal, a line every ten seconds elsewhere."""
    if console.is_terminal:
        with Bar(
            TextColumn("rows"), BarColumn(), TextColumn("{task.fields[said]}"), console=console, transient=True
        ) as bar:
            task = bar.add_task("rows", total=None, said="")
            yield lambda at: bar.update(task, completed=at.done + at.standing, total=at.total, said=said(at))
        return
    printed = time.monotonic()

    def line(at: Progress) -> None:
        nonlocal printed
        if time.monotonic() - printed >= show.SECONDS_BETWEEN_LINES:
            printed = time.monotonic()
            console.print(said(at))

    yield line


def said(at: Progress) -> str:
    """Rows done and in all, and the time left."""
    left = at.seconds_left
    return (
        f"{at.done + at.standing:,} of {at.total:,} rows  {show.clock(left if math.isfinite(left) else math.nan)} left"
    )


def closing_lines(out: Path, written: Written, kind: str) -> Iterator[str]:
    """What stands in the folder, what was read for it, and what was set aside."""
    manifest, tally = written.manifest, written.tally
    shards, report = [shard for shard in manifest.shards if shard.rows], manifest.report
    size = sum(shard.size for shard in shards) / 2**20
    rows = sum(shard.rows for shard in shards)
    yield f"{out}: {rows:,} rows in {len(shards)} shards, {size:.1f} MiB"
    yield f"  shards written {tally.written:,}, left as they stood {tally.kept:,}, removed {tally.removed:,}"
    yield from _lines_of_entities(manifest, shards)
    yield f"  from {len(report.files)} files, {report.rows_read:,} rows read"
    for note in report.notes:
        yield f"  note: {note}"
    for reason, count in report.rows_set_aside.items():
        yield f"  set aside: {count:,} rows, {reason}"
    if not report.rows_set_aside:
        yield "  nothing was set aside"
    if manifest.lacking:
        more = f", and {len(manifest.lacking) - 1:,} more" if len(manifest.lacking) > 1 else ""
        yield f"not finished: {manifest.lacking[0]}{more}; other processes may be at it, or prepare again"
    else:
        yield f"train on it: python train.py data={PREPARED[kind]} data.path={out}"


def _lines_of_entities(manifest: Manifest, shards: list[Shard]) -> Iterator[str]:
    """What there is of each entity; of a table, of which a shard holds many, nothing."""
    if manifest.table is not None:
        return
    prices = {
        each.entity: f"; prices in 10^{each.price_exponent}, tick {each.tick}, sizes in 10^{each.size_exponent}"
        for each in manifest.instruments
    }
    runs: dict[str, list[Shard]] = {name: [] for record in manifest.records for name in record.names}
    for shard in shards:
        runs[shard.place.entity].append(shard)
    for number, (name, own) in enumerate(sorted(runs.items())):
        if number == SHOWN:
            yield f"  and {len(runs) - SHOWN:,} more"
            return
        span = f", {own[0].place.period} to {own[-1].place.period}" if own else ""
        yield f"  {name}: {sum(shard.rows for shard in own):,} rows{span}{prices.get(name, '')}"
