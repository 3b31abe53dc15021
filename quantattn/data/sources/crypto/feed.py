"""What the sources of crypto venues share: settings, an account of what happens, and the rows of a feed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import polars as pl

from quantattn.data.sources.decimals import require_exponent, scaled
from quantattn.data.sources.source import SourceReport, file_sha256, write_set_aside

SECOND = 10**9
EARLIEST, LATEST = 1_230_768_000 * SECOND, 4_102_444_800 * SECOND
"""2009 and 2100 in ns UTC: no crypto venue has a time outside, so a unit that was mistaken shows."""
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
    """What happens while files are read: lines left out and how many, files taken, sentences to report."""

    reading: Reading
    left_out: list[tuple[str, int, str, str]] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    losses: int = 0
    empty: list[int] = field(default_factory=list)
    """Empty lines at the end of what was read of a file; those between lines are bad, those at its end are none."""
    first: dict[str, str] = field(default_factory=dict)
    """File → what was wrong with the first of its lines that were left out."""

    def again(self) -> Account:
        """An empty account of the same reading."""
        return Account(self.reading)

    def bad(self, path: Path, line: int, error: BadLine, text: str) -> None:
        """Raise for a line, or leave it out and remember it."""
        if self.reading.on_bad == "refuse":
            raise ValueError(f"{path.name}, line {line}: {error}") from error
        self.losses += 1
        self.first.setdefault(path.name, f"line {line}: {error}")
        shown = text if len(text) <= _TEXT else f"{text[:_TEXT]}…"
        self.left_out.append((path.name, line, error.reason, shown))

    def take(self, path: Path) -> None:
        """Note a file and the hash of its bytes."""
        self.files[path.name] = file_sha256(path)

    def ended(self, path: Path) -> None:
        """Note the empty lines at the end of a file."""
        if self.empty:
            self.notes.append(f"{path.name}: {len(self.empty):,} empty lines at its end")
            self.empty.clear()

    def nothing(self, path: Path, more: str = "") -> ValueError:
        """Of a file no line of which can be used: why."""
        why = ""
        if path.name in self.first:
            count = sum(name == path.name for name, *_ in self.left_out)
            why = f"; {count:,} lines cannot, the first in {self.first[path.name]}"
        return ValueError(f"{path.name} holds no row that can be used{why}{more}")

    def report(self, rows: int) -> SourceReport:
        """What was read; writes what was left out where the reading says."""
        names = {"file": pl.String(), "line": pl.Int64(), "reason": pl.String(), "text": pl.String()}
        table = pl.DataFrame(self.left_out, schema=names, orient="row")
        if self.reading.set_aside is not None:
            write_set_aside(table, Path(self.reading.set_aside))
        counts = table.group_by("reason", maintain_order=True).len()
        return SourceReport(rows, dict(counts.iter_rows()), dict(self.files), tuple(self.notes))


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
