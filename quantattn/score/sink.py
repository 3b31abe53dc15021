"""Where scores go: a Delta table that takes each shard once."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

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


def check_place(folder: Path) -> bool:
    """Whether a table of scores stands there, of whichever plan.

    A folder with nothing in it but a log that is still empty is one in which a job was killed before it had made its
    table, and as good as an empty one.

    Raises:
        ValueError: it is something else, or nothing can be written there.
    """
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is no folder; name another with out=DIR")
    standing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not os.access(standing, os.W_OK):
        raise ValueError(f"{folder} cannot be written to; name another folder with out=DIR")
    if not folder.exists():
        return False
    if DeltaTable.is_deltatable(str(folder)):
        if not (DeltaTable(folder).metadata().description or "").startswith(_MARK):
            raise ValueError(f"{folder} is a Delta table that this library did not write; name another with out=DIR")
        return True
    if {path.name for path in folder.iterdir()} - {_LOG, QUARANTINE}:
        raise ValueError(f"{folder} holds something that is no table of scores; name an empty folder with out=DIR")
    return False


def read_plan(folder: Path) -> Mapping[str, Any]:
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
        folder: the table; made by the first shard.
        plan: what may be written here.

    Raises:
        ValueError: the folder holds the scores of another plan, or see `check_place`.
    """

    def __init__(self, folder: Path, plan: Plan) -> None:
        self.folder, self.plan = folder, plan
        check_place(folder)
        self._table()

    @property
    def rows(self) -> int:
        """How many rows are in the table."""
        table = self._table()
        return 0 if table is None else int(table.count())

    def written(self, shards: Iterable[str]) -> set[str]:
        """Those of the shards that are in the table."""
        table = self._table()
        return set() if table is None else {name for name in shards if self._has(table, name)}

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
            said = re.sub(r"\x1b\[[0-9;]*m", "", str(error))  # the library colours its sentences
            raise RuntimeError(f"{shard} could not be added to {self.folder}: {said}") from error
        return True

    def clean(self) -> int:
        """Remove the files that writers left behind who were killed before their commit, and count them.

        Only once every shard is in the table: then no file that no commit names will ever be named by one, and what
        other writers still hold would be refused.

        Raises:
            ValueError: shards are missing.
        """
        table = self._table()
        if table is None or not all(self._has(table, shard.name) for shard in self.plan.shards):
            raise ValueError(f"{self.folder} is not finished, so files in it may be those of a shard to come")
        # Those apart were written before the rows, which are all here by now.
        apart = DeltaSink(self.folder / QUARANTINE, self.plan)
        left: list[Path] = []
        for folder, each in ((self.folder, table), (apart.folder, apart._table())):
            named = set() if each is None else {uri.rsplit("/", 1)[-1] for uri in each.file_uris()}
            left += [path for path in folder.glob("*.parquet") if path.name not in named]
        for path in left:
            path.unlink(missing_ok=True)
        return len(left)

    def _made(self, rows: Table) -> DeltaTable:
        """The table, made and owned before any file of rows is there, by this writer or by another one just now."""
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            DeltaTable.create(
                self.folder,
                rows.schema,
                mode="ignore",
                description=f"{_MARK}{self.plan.sha}",
                configuration={_PLAN: json.dumps(self.plan.described, sort_keys=True)},
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

        It is opened anew each time: one that is kept and brought up to date gets slower with every commit.
        """
        if not DeltaTable.is_deltatable(str(self.folder)):
            return None
        table = DeltaTable(self.folder)
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
