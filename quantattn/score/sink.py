"""Where scores go: a Delta table that takes each shard once."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from arro3.core import Table
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import DeltaError

_MARK = "quantattn plan "
_LOG = "_delta_log"


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
    if {path.name for path in folder.iterdir()} - {_LOG}:
        raise ValueError(f"{folder} holds something that is no table of scores; name an empty folder with out=DIR")
    return False


class DeltaSink:
    """A Delta table of scores that belongs to one plan.

    Each shard is one transaction with an identifier of its own: writing it again, after a crash at any moment, changes
    nothing, and a second writer of the same shard is refused by the table itself.

    Args:
        folder: the table; made by the first shard.
        plan_sha: of the plan that may write here.

    Raises:
        ValueError: the folder holds the scores of another plan, or see `check_place`.
    """

    def __init__(self, folder: Path, plan_sha: str) -> None:
        self.folder, self.plan_sha = folder, plan_sha
        if not check_place(folder):
            return
        found = DeltaTable(folder).metadata().description or ""
        if found.removeprefix(_MARK) != plan_sha:
            raise ValueError(
                f"{folder} holds scores of plan {found.removeprefix(_MARK)[:12]}, this is plan {plan_sha[:12]}: the "
                "model, the data or a setting has changed; name another folder with out=DIR"
            )

    def has(self, shard: str) -> bool:
        """Whether the shard is in the table."""
        if not DeltaTable.is_deltatable(str(self.folder)):
            return False
        return DeltaTable(self.folder).transaction_version(f"{self.plan_sha}/{shard}") is not None

    def write(self, shard: str, columns: Mapping[str, Any]) -> None:
        """Add the rows of a shard, unless they are there already.

        Args:
            shard: its name.
            columns: name → Arrow array, all of one length.

        Raises:
            RuntimeError: the table could not be written, or another process wrote the same shard meanwhile.
        """
        if self.has(shard):
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        rows, once = Table.from_pydict(dict(columns)), Transaction(f"{self.plan_sha}/{shard}", 1)
        try:
            # The table is there, and says whose it is, before any file of rows is.
            DeltaTable.create(self.folder, rows.schema, mode="ignore", description=f"{_MARK}{self.plan_sha}")
            write_deltalake(
                self.folder, rows, mode="append", commit_properties=CommitProperties(app_transactions=[once])
            )
        except (DeltaError, OSError) as error:
            said = re.sub(r"\x1b\[[0-9;]*m", "", str(error))  # the library colours its sentences
            raise RuntimeError(f"{shard} could not be added to {self.folder}: {said}") from error
