"""What the sources of crypto venues share: how a feed is read, its two clocks, and its rows made a checked table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import polars as pl

from quantattn.data.market.levels import LevelTally, rebuild_levels
from quantattn.data.schema import CANONICAL_ORDER, CLEAR, UPDATE, Instrument, level_columns
from quantattn.data.sources.decimals import greatest_step, require_exponent, scaled
from quantattn.data.sources.source import Source, SourceReport, file_sha256, write_set_aside

SECOND = 10**9
EARLIEST, LATEST = 1_230_768_000 * SECOND, 4_102_444_800 * SECOND
"""2009 and 2100 in ns UTC: no crypto venue has a time outside, so a unit that was mistaken shows."""
NO_ORDER = 0
_TEXT = 200

ROWS: Mapping[str, pl.DataType] = {
    "entity": pl.String(),
    "line": pl.Int64(),
    "exchange_time": pl.Int64(),
    "received": pl.Int64(),
    "kind": pl.UInt8(),
    "side": pl.Int8(),
    "price": pl.Int64(),
    "size": pl.Int64(),
    "complete": pl.Boolean(),
    "broken": pl.Boolean(),
    "trade_id": pl.String(),
}
"""What a parser of a feed makes of a file, in the order of its lines. `exchange_time` is the venue's own stamp and
`received` that of whoever recorded the feed, ns UTC; one of them may be null. `complete` and `broken` as in
`quantattn.data.market.rebuild_levels`."""


class BadLine(ValueError):
    """A line that cannot be used; the sentence says what was found and what was expected, not where."""

    def __init__(self, reason: str, sentence: str) -> None:
        super().__init__(sentence)
        self.reason = reason


@dataclass(frozen=True)
class Reading:
    """Settings that every feed of a venue has; see the page of the source.

    Raises:
        ValueError: a setting that cannot be.
    """

    levels: int = 10
    price_exponent: int = -8
    size_exponent: int = -8
    tick: str | None = None
    on_gap: Literal["forget", "keep"] = "forget"
    on_bad: Literal["refuse", "quarantine"] = "refuse"
    set_aside: str | Path | None = None

    def __post_init__(self) -> None:
        if self.on_bad not in ("refuse", "quarantine"):
            raise ValueError(f"on_bad must be 'refuse' or 'quarantine', got {self.on_bad!r}")
        if (self.on_bad == "quarantine") != (self.set_aside is not None):
            raise ValueError(
                "on_bad='quarantine' and set_aside=FILE go together: what is left out must be written somewhere"
            )
        if self.on_gap not in ("forget", "keep"):
            raise ValueError(f"on_gap must be 'forget' or 'keep', got {self.on_gap!r}")
        if isinstance(self.levels, bool) or not isinstance(self.levels, int) or self.levels < 1:
            raise ValueError(f"levels must be at least 1, got {self.levels}")
        require_exponent("price_exponent", self.price_exponent)
        require_exponent("size_exponent", self.size_exponent)
        if self.tick is not None and self.step() < 1:
            raise ValueError(f"tick must be a price step above 0, got {self.tick!r}")

    def step(self) -> int:
        """`tick` in units of 10^price_exponent; 0 when it is not given."""
        if self.tick is None:
            return 0
        if not isinstance(self.tick, str):
            raise ValueError(f"tick must be decimal text such as '0.01', got {self.tick!r}")
        try:
            return scaled(self.tick, self.price_exponent)
        except ValueError as error:
            raise ValueError(f"tick: {error}") from error


@dataclass
class Account:
    """What happens while files are read: lines left out, files taken, sentences to report."""

    reading: Reading
    left_out: list[tuple[str, int, str, str]] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def bad(self, path: Path, line: int, error: BadLine, text: str) -> None:
        """Raise for a line, or leave it out and remember it."""
        if self.reading.on_bad == "refuse":
            raise ValueError(f"{path.name}, line {line}: {error}") from error
        shown = text if len(text) <= _TEXT else f"{text[:_TEXT]}…"
        self.left_out.append((path.name, line, error.reason, shown))

    def take(self, path: Path) -> None:
        """Note a file and the hash of its bytes."""
        self.files[path.name] = file_sha256(path)

    def report(self, rows: int) -> SourceReport:
        """What was read; writes what was left out where the reading says."""
        names = {"file": pl.String(), "line": pl.Int64(), "reason": pl.String(), "text": pl.String()}
        table = pl.DataFrame(self.left_out, schema=names, orient="row")
        if self.reading.set_aside is not None:
            write_set_aside(table, Path(self.reading.set_aside))
        counts = table.group_by("reason", maintain_order=True).len()
        return SourceReport(rows, dict(counts.iter_rows()), dict(self.files), tuple(self.notes))


@dataclass(frozen=True)
class LevelSource(Source):
    """A source of book events from a feed of levels.

    Attributes:
        tally: what did not go with the books that were rebuilt; None where the feed ships its books whole.
    """

    tally: LevelTally | None = None


def files_under(path: Path, what: str, endings: Sequence[str]) -> list[Path]:
    """The file itself, or those of a folder whose names have these endings, in the order of their names.

    Raises:
        ValueError: there is none, or two of them have one name.
    """
    if not path.exists():
        raise ValueError(f"{path} does not exist; expected {what} or a folder of them")
    if path.is_file():
        return [path]
    files = sorted(f for f in path.rglob("*") if f.is_file() and f.name.lower().endswith(tuple(endings)))
    if not files:
        raise ValueError(f"{path} holds no file that ends in {' or '.join(endings)}; expected {what}")
    names = [file.name for file in files]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"{path} holds two files named {twice}; expected names that differ")
    return files


def refuse_falls(rows: pl.DataFrame, bad: list[int], path: Path, account: Account) -> tuple[pl.DataFrame, list[int]]:
    """Leave out the rows whose time lies more than a second before that of an earlier line."""
    time = pl.coalesce("received", "exchange_time")
    falls = rows.select(time < time.cum_max() - SECOND).to_series()
    for row in falls.arg_true():
        line, stamp = rows["line"][row], rows.select(time)[row, 0]
        account.bad(
            path, line, BadLine("time falls", f"found {stamp} ns, more than a second before an earlier line"), ""
        )
        bad.append(line)
    return rows.filter(~falls), sorted(bad)


def set_clocks(rows: pl.DataFrame, account: Account, name: str) -> pl.DataFrame:
    """Add `event_time` and `available_time` to rows of one file in the order of its lines, and drop `received`.

    `available_time` is the receipt, since nothing was known before it; where it falls behind the line before by up to
    a second, a clock was set back, and it is raised to what that line has (parsers refuse more). `event_time` is the
    venue's stamp, or the receipt where there is none or where the venue's clock runs ahead of it. `exchange_time`
    keeps the stamp as it came. Without a receipt both are the venue's stamp, raised in the same way.
    """
    received, exchange = pl.col("received"), pl.col("exchange_time")
    made = rows.with_columns(available_time=pl.coalesce(received, exchange).cum_max()).with_columns(
        event_time=pl.min_horizontal(exchange, "available_time")
    )
    counted = made.select(
        raised=(pl.coalesce(received, exchange) < pl.col("available_time")).sum(),
        ahead=(exchange > pl.col("available_time")).sum(),
        most=(exchange - pl.col("available_time")).max(),
        without=exchange.is_null().sum(),
    ).row(0, named=True)
    if counted["ahead"]:
        account.notes.append(
            f"{name}: in {counted['ahead']:,} rows the venue's clock is ahead of receipt, by up to "
            f"{counted['most'] / SECOND:.3f} s; their event_time is the receipt and exchange_time the venue's stamp"
        )
    if counted["raised"]:
        account.notes.append(f"{name}: {counted['raised']:,} times fall by up to 1 s and were raised to the one before")
    if counted["without"]:
        account.notes.append(
            f"{name}: {counted['without']:,} rows have no stamp of the venue; event_time is the receipt"
        )
    return made.drop("received")


def refuse_overlaps(parts: Sequence[pl.DataFrame]) -> None:
    """Raise ValueError where two files of one entity overlap in time: the same rows twice, or files in no order."""
    ends: dict[str, int] = {}
    for part in parts:
        spans = part.group_by("entity").agg(first=pl.col("available_time").min(), last=pl.col("available_time").max())
        for entity, first, last in spans.sort("entity").iter_rows():
            if first < ends.get(entity, first):
                raise ValueError(
                    f"two files hold {entity} at the same time: {first} ns lies before {ends[entity]}, where the one "
                    "before ends; expected files that follow each other in the order of their names"
                )
            ends[entity] = last


def sort_rows(parts: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Rows in canonical order; `seq` counts them as they come."""
    rows = pl.concat(parts, how="diagonal").with_columns(
        seq=pl.int_range(pl.len(), dtype=pl.Int64), order_id=pl.lit(NO_ORDER, pl.Int64)
    )
    return rows.sort(CANONICAL_ORDER, maintain_order=True)


_FIRST = ("entity", "event_time", "available_time", "seq", "kind", "side", "price", "size")
_LAST = ("exchange_time", "trade_id")


def trade_source(rows: pl.DataFrame, account: Account, extras: Sequence[str] = ()) -> Source:
    """Numbered rows that are all trades as a source of schema `Trades`."""
    frame = rows.select(*_FIRST, *_LAST, *(name for name in extras if name in rows.columns))
    return Source(frame.lazy(), instruments(rows, account), account.report(frame.height))


def level_source(rows: pl.DataFrame, account: Account, from_empty: bool = False) -> LevelSource:
    """Numbered rows of changes, snapshots and trades as book events, the books rebuilt."""
    reading = account.reading
    made = rebuild_levels(
        rows.select(*_FIRST, "order_id", "complete", "broken", *_LAST),
        reading.levels,
        from_empty=from_empty,
        forget_at_breaks=reading.on_gap == "forget",
    )
    unseen = {name: count for name, count in vars(made.tally).items() if count}
    if unseen:
        account.notes.append(
            f"not as the rebuilt books stood: {', '.join(f'{name} {n:,}' for name, n in unseen.items())}"
        )
    opened = set(rows.filter(pl.col("kind") == CLEAR)["entity"])
    never = sorted(set(rows.filter(pl.col("kind") == UPDATE)["entity"]) - opened)
    if never and not from_empty:
        shown = ", ".join(never[:5]) + (f" and {len(never) - 5} more" if len(never) > 5 else "")
        account.notes.append(f"no snapshot of {shown} came, so there is no book of it")
    return LevelSource(made.frame.lazy(), instruments(rows, account), account.report(made.frame.height), made.tally)


def shown_source(rows: pl.DataFrame, account: Account) -> LevelSource:
    """Numbered rows of books shipped whole, and of trades, each of which shows the last book of its entity."""
    names = [name for level in range(1, account.reading.levels + 1) for name in level_columns(level)]
    place = (
        pl.when(pl.col("kind") == UPDATE).then(pl.int_range(pl.len(), dtype=pl.UInt32)).forward_fill().over("entity")
    )
    sizes = [name for name in names if "_size_" in name]
    frame = (
        rows.lazy()
        .with_columns(place.alias("_place"))
        .with_columns(pl.col(names).gather(pl.col("_place")))
        .with_columns(pl.col(sizes).fill_null(0))
        .select(*_FIRST, "order_id", *_LAST, *names)
        .collect()
    )
    return LevelSource(frame.lazy(), instruments(rows, account), account.report(frame.height))


def instruments(rows: pl.DataFrame, account: Account) -> tuple[Instrument, ...]:
    """One for each entity; without a given tick its is the greatest step that divides all its prices and 1."""
    reading, found = account.reading, []
    prices = [name for name in rows.columns if name == "price" or "_price_" in name]
    for (entity,), own in rows.group_by("entity"):
        step = reading.step() or greatest_step([own[name] for name in prices], 10**-reading.price_exponent)
        found.append(Instrument(str(entity), reading.price_exponent, step, reading.size_exponent))
    found.sort(key=lambda each: each.entity)
    if reading.tick is None:
        ticks = ", ".join(f"{each.entity} {each.tick}" for each in found[:10]) + (" …" if len(found) > 10 else "")
        account.notes.append(
            f"ticks are the greatest steps that divide 1 and all prices here, in 10^{reading.price_exponent}: "
            f"{ticks}; give tick= where files have to agree"
        )
    return tuple(found)
