"""Lightning's figures as a wide table, one column a figure, that a run which goes on goes on writing.

Lightning's own CSVLogger deletes the table of the run that it goes on with.
"""

from __future__ import annotations

import csv
import io
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities import rank_zero_only

from quantattn.learn.files import write_text

STEP, EPOCH = "step", "epoch"


class WideCSV(Logger):
    """Appends a row to `folder`/metrics.csv whenever figures are logged; empty where a row lacks a figure.

    Lightning counts steps from 0, so that the row of step s is of optimizer step s + 1, and tells the epoch; who logs
    to loggers directly counts as they like. Settings are not written: they stand in the run's config.yaml.

    Args:
        folder: of the table; made with the first row.
    """

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.path = Path(folder) / "metrics.csv"
        self._columns: list[str] | None = None

    @property
    def name(self) -> str:
        """Of the folder."""
        return self.path.parent.name

    @property
    def version(self) -> str:
        """A run has one."""
        return ""

    def log_hyperparams(self, params: dict[str, Any] | Namespace, *given: Any, **named: Any) -> None:
        """They stand in config.yaml."""

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Add one row; a figure that is new adds a column to all rows.

        Raises:
            OSError: it could not be written; the error names the file.
        """
        row = {**metrics, STEP: step}
        if self._columns is None:
            self._columns = list(self._read()[0])
        new = sorted(set(row) - set(self._columns) - {STEP, EPOCH})
        if new or not self._columns:
            rows = self._read()[1]
            self._columns = [STEP, EPOCH, *(c for c in self._columns if c not in (STEP, EPOCH)), *new]
            self._write([*rows, row])
            return
        try:
            with self.path.open("ab") as file:
                file.write(_text(self._columns, [row]).encode())
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path)) from error

    @rank_zero_only
    def rewind(self, done: int) -> None:
        """Drop the rows of optimizer steps after `done`, which a run that goes on from there is about to write again.

        A last line cut short by a kill goes too.
        """
        self._columns, rows = self._read()
        if self._columns:
            self._write([row for row in rows if int(row[STEP]) < done + (row.get(EPOCH, "") == "")])

    def _read(self) -> tuple[list[str], list[dict[str, Any]]]:
        if not self.path.is_file():
            return [], []
        raw = self.path.read_bytes()
        lines = list(csv.reader(io.StringIO(raw[: raw.rfind(b"\n") + 1].decode(), newline="")))
        if not lines:
            return [], []
        columns, *rows = lines
        if columns[:2] != [STEP, EPOCH] or any(len(row) != len(columns) for row in rows):
            raise ValueError(f"{self.path} is not a table of figures: its first line is {columns}")
        return columns, [dict(zip(columns, row, strict=True)) for row in rows]

    def _write(self, rows: list[dict[str, Any]]) -> None:
        assert self._columns is not None
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_text(self.path, _text(self._columns, [dict(zip(self._columns, self._columns, strict=True)), *rows]))


def _text(columns: list[str], rows: list[dict[str, Any]]) -> str:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows([row.get(name, "") for name in columns] for row in rows)
    return text.getvalue()
