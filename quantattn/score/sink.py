"""Where scores go: a Delta table that takes each shard once."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from arro3.core import Table
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError

from quantattn.score.plan import Plan, changed

_MARK = "quantattn plan "
_PLAN = "quantattn.plan"
_LOG = "_delta_log"
QUARANTINE = "_quarantine"
"""Folder inside that of a table, for what has no score; names that begin so are none of the table's own."""
TRIES = 1000
"""How often a commit is tried again that others came before."""

BETWEEN_CHECKPOINTS = 20
"""Commits after which the log is summed up: who opens the table reads those since then one by one."""
STORES = ("s3", "s3a", "gs", "az", "abfs", "abfss")
"""Schemes of the object stores that tables can be written to, with credentials from the environment."""
Place = Path | str
"""A folder, or the URL of a prefix in an object store."""


def place_of(written: str) -> Place:
    """The folder or prefix that is written so; file:// is a folder.

    Raises:
        ValueError: another scheme, or a URL with credentials, which would stand in logs.
    """
    scheme, mark, rest = written.partition("://")
    if not mark:
        return Path(written)
    if scheme == "file":
        return Path(unquote(rest))
    if scheme not in STORES:
        raise ValueError(f"{scheme}:// is no place for a table of scores: name a folder, or {'://, '.join(STORES)}://")
    if "@" in rest.split("/")[0] and scheme not in ("abfs", "abfss"):  # where it stands before the account's name
        raise ValueError(f"credentials do not belong into a URL ({scheme}://…): give them in the environment")
    return written.rstrip("/")


def check_place(place: Place) -> bool:
    """Whether a table of scores stands there, of whichever plan.

    A folder with nothing in it but a log that is still empty is one in which a job was killed before it had made its
    table, and as good as an empty one. Of a prefix in an object store only tables are looked for.

    Raises:
        ValueError: it is something else, or nothing can be written there.
        RuntimeError: the object store does not answer.
    """
    if isinstance(place, Path):
        if place.exists() and not place.is_dir():
            raise ValueError(f"{place} is no folder; name another with out=DIR")
        standing = next(path for path in (place, *place.absolute().parents) if path.exists())
        if not os.access(standing, os.W_OK):
            raise ValueError(f"{place} cannot be written to; name another folder with out=DIR")
        if not place.exists():
            return False
    if (table := _opened(place)) is not None:
        if not (table.metadata().description or "").startswith(_MARK):
            raise ValueError(f"{place} is a Delta table that this library did not write; name another with out=DIR")
        return True
    if isinstance(place, Path) and {path.name for path in place.iterdir()} - {_LOG, QUARANTINE}:
        raise ValueError(f"{place} holds something that is no table of scores; name an empty folder with out=DIR")
    return False


def apart(place: Place) -> Place:
    """Where the rows without a score of a table go."""
    return place / QUARANTINE if isinstance(place, Path) else f"{place}/{QUARANTINE}"


def _opened(place: Place) -> DeltaTable | None:
    """The table as it now is, when there is one.

    It is opened anew each time: one that is kept and brought up to date gets slower with every commit.
    """
    try:
        return DeltaTable(place) if DeltaTable.is_deltatable(str(place)) else None
    except (DeltaError, OSError) as error:
        raise RuntimeError(f"{place} cannot be read: {_plain(error)}") from error


def _plain(error: Exception) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", str(error))  # the library colours its sentences


def read_plan(folder: Place) -> Mapping[str, Any]:
    """What the plan of a table of scores is made of, as it stands in the table's own metadata.

    Raises:
        ValueError: there is no table of scores, or one without its plan.
    """
    if not check_place(folder):
        raise ValueError(f"{folder} holds no table of scores")
    written = DeltaTable(folder).metadata().configuration.get(_PLAN)
    if written is None:
        raise ValueError(f"{folder} was written by an earlier version, which kept no plan beside its scores")
    return dict(json.loads(written))


class DeltaSink:
    """A Delta table of scores that belongs to one plan.

    Each shard is one transaction with an identifier of its own. The state of the table in which a writer found no such
    transaction is the one that its own builds on, so the table itself refuses the second of two writers of one shard;
    and writing a shard again, after a crash at any moment, changes nothing.

    Args:
        folder: the table's place; made by the first shard.
        plan: what may be written here.

    Raises:
        ValueError: the folder holds the scores of another plan, or see `check_place`.
    """

    def __init__(self, folder: Place, plan: Plan) -> None:
        self.folder, self.plan = folder, plan
        check_place(folder)
        self._seen = self._table()

    @property
    def rows(self) -> int:
        """How many rows are in the table."""
        table = self._table()
        return 0 if table is None else int(table.count())

    def written(self, shards: Iterable[str]) -> set[str]:
        """Those of the shards that are in the table."""
        table = self._seen = self._table()
        return set() if table is None else {name for name in shards if self._has(table, name)}

    def known(self, shard: str) -> bool:
        """Whether a shard was in the table when this last wrote to it or asked what is `written`; opens nothing."""
        return self._seen is not None and self._has(self._seen, shard)

    def write(self, shard: str, columns: Mapping[str, Any] | Table) -> bool:
        """Add the rows of a shard, unless they are there already; whether they were added.

        Args:
            shard: its name.
            columns: name → Arrow array, all of one length, or a table of them.

        Raises:
            ValueError: the table is that of another plan.
            RuntimeError: the table could not be written.
        """
        rows = columns if isinstance(columns, Table) else Table.from_pydict(dict(columns))
        once = Transaction(self._name(shard), 1)
        try:
            table = self._table() or self._made(rows)
            if self._has(table, shard):
                return False
            once_only = CommitProperties(app_transactions=[once], max_commit_retries=TRIES)
            write_deltalake(table, rows, mode="append", commit_properties=once_only)
        except (DeltaError, OSError) as error:
            if isinstance(error, CommitFailedError) and self.written([shard]):
                return False  # by another writer, while this one was at it
            raise RuntimeError(f"{shard} could not be added to {self.folder}: {_plain(error)}") from error
        self._seen = table  # not before: two threads never use one
        return True

    def clean(self) -> int:
        """Remove the files that writers left behind who were killed before their commit, and count them.

        Only once every shard is in the table: then no file that no commit names will ever be named by one, and what
        other writers still hold would be refused. In an object store they are left to `DeltaTable.vacuum`.

        Raises:
            ValueError: shards are missing.
        """
        table = self._table()
        if table is None or not all(self._has(table, shard.name) for shard in self.plan.shards):
            raise ValueError(f"{self.folder} is not finished, so files in it may be those of a shard to come")
        if not isinstance(self.folder, Path):
            return 0
        # Those apart were written before the rows, which are all here by now.
        without = apart(self.folder)
        left: list[Path] = []
        for folder, each in ((self.folder, table), (Path(without), DeltaSink(without, self.plan)._table())):
            named = set() if each is None else {uri.rsplit("/", 1)[-1] for uri in each.file_uris()}
            left += [path for path in folder.glob("*.parquet") if path.name not in named]
        for path in left:
            path.unlink(missing_ok=True)
        return len(left)

    def _made(self, rows: Table) -> DeltaTable:
        """The table, made and owned before any file of rows is there, by this writer or by another one just now."""
        if isinstance(self.folder, Path):
            self.folder.mkdir(parents=True, exist_ok=True)
        try:
            DeltaTable.create(
                self.folder,
                rows.schema,
                mode="ignore",
                description=f"{_MARK}{self.plan.sha}",
                configuration={
                    _PLAN: json.dumps(self.plan.described, sort_keys=True),
                    "delta.checkpointInterval": str(BETWEEN_CHECKPOINTS),
                },
                raise_if_key_not_exists=False,
            )
        except DeltaError:
            if not DeltaTable.is_deltatable(str(self.folder)):
                raise
        table = self._table()
        assert table is not None
        return table

    def _table(self) -> DeltaTable | None:
        """The table as it now is, when there is one.

        Raises:
            ValueError: it is that of another plan.
        """
        table = _opened(self.folder)
        if table is None:
            return None
        metadata = table.metadata()
        sha = (metadata.description or "").removeprefix(_MARK)
        if sha != self.plan.sha:
            kept = metadata.configuration.get(_PLAN)
            why = "" if kept is None else f" ({changed(json.loads(kept), self.plan.described)})"
            raise ValueError(
                f"{self.folder} holds scores of plan {sha[:12]}, this is plan {self.plan.sha[:12]}: the model, the "
                f"data, a setting or the code has changed{why}; name another folder with out=DIR"
            )
        return table

    def _has(self, table: DeltaTable, shard: str) -> bool:
        return table.transaction_version(self._name(shard)) is not None

    def _name(self, shard: str) -> str:
        return f"{self.plan.sha}/{shard}"
