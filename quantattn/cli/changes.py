"""`quantattn changes`: how much an item changed from each filing of a company to its next, one row a filing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from rich.console import Console
from rich.table import Table as RichTable

from quantattn.cli import terminal
from quantattn.cli.config import plain
from quantattn.cli.errors import DONE, UsageError
from quantattn.cli.instantiate import instantiate, settings
from quantattn.cli.preparation import check_source
from quantattn.cli.settings import DataSettings, PathSettings
from quantattn.data.filings.changes import SEEN, require_name, scan_changes, write_changes
from quantattn.data.filings.item_table import item_names

_MOST_SHOWN = 20
_CHANGES = {"change_words": "change", "change_tfidf": "by tf-idf", "change_embedding": "by embedding"}
"""Column of the table → its title on the screen."""


@dataclass(frozen=True)
class ChangeSettings:
    """Everything that `changes.yaml` holds.

    Attributes:
        data: the filings: source and path alone.
        paths: not used; output goes to `out`.
        item: which one, 1A by default.
        embeddings: folder of what score.py wrote with `output=embeddings unit=item`; None compares words alone.
        in_sample: whether to use embeddings of filings from before the model had seen its last one too.
        out: the table to write, .parquet or .csv.
        allow_targets: more prefixes that a `_target_` may have.
    """

    data: DataSettings
    paths: PathSettings
    item: str | int | float
    out: str
    embeddings: str | None = None
    in_sample: bool = False
    task_name: str = "changes"
    allow_targets: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        item_names([self.item])
        require_name(Path(self.out))
        if self.data.kind != "filings":
            raise ValueError(f"changes are of filings, but data is {self.data.kind}; give data=filings data.path=DIR")


def compare(config: DictConfig) -> int:
    """Write the table; its exit code."""
    asked = settings(ChangeSettings, plain(config), "")
    check_source(asked.data.source, asked.data.path, asked.allow_targets)
    if asked.embeddings is not None and not Path(asked.embeddings).is_dir():
        raise UsageError(f"embeddings={asked.embeddings}: there is no such folder")
    source: Any = instantiate(asked.data.source, "data.source", asked.allow_targets)
    source = source.source() if hasattr(source, "source") else source
    out = terminal.console()
    aside: Mapping[str, int] = source.report.rows_set_aside
    for why, count in aside.items():
        out.print(f"set aside: {count:,} files, {why}")
    table = scan_changes(source.frame, asked.item, asked.embeddings, in_sample=asked.in_sample)
    write_changes(table, Path(asked.out))
    out.print(
        f"{asked.out}: item {table['item'][0]} of {table.height:,} filings, {table['reason'].null_count():,} compared"
    )
    _show(table, out)
    shown = {"reason": "not compared"}
    if asked.embeddings is not None:
        shown["embedding_reason"] = "no change of embeddings"
    for column, what in shown.items():
        reasons = Counter(why for why in table[column] if why is not None)
        for why, count in sorted(reasons.items()):
            out.print(f"  {what}: {count:,}, {why}")
    if (table["embedding_reason"] == SEEN).any():
        out.print("  in_sample=true gives those too, for a look at the past; a backtest may not use them")
    return DONE


def _show(table: Any, out: Console) -> None:
    """Print the compared filings that changed most, by words."""
    rows = sorted(table.filter(table["reason"].is_null()).iter_rows(named=True), key=lambda row: -row["change_words"])
    if not rows:
        return
    drawn = RichTable("public", "filer", "form", "words before", "words", *_CHANGES.values())
    for row in rows[:_MOST_SHOWN]:
        public = datetime.fromtimestamp(row["available_time"] // 10**9, UTC).date().isoformat()
        words = (f"{row[name]:,}" for name in ("earlier_words", "words"))
        changes = ("–" if row[name] is None else f"{row[name]:.4f}" for name in _CHANGES)
        drawn.add_row(public, row["entity"], row["form"], *words, *changes)
    out.print(drawn)
    if len(rows) > _MOST_SHOWN:
        out.print(f"  the {_MOST_SHOWN} of {len(rows):,} whose words changed most")
