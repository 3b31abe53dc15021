"""The history of a run's figures: one CSV file that a resumed run goes on writing."""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from quantattn.learn.files import write_text
from quantattn.learn.wide import WideCSV

COLUMNS = ("step", "metric", "value")


class History(Callback):
    """Appends figures to `folder`/metrics.csv as rows step, metric, value; step counts optimizer steps from 1.

    Of several processes the first alone writes.

    Training figures are written every `every` steps, validation figures after each validation. A run that goes on
    from a checkpoint drops the rows beyond it, which it is about to write again, and continues below.

    Args:
        folder: the run folder.
        every: optimizer steps between training rows.
    """

    def __init__(self, folder: str | Path, every: int = 1) -> None:
        self.path, self.every = Path(folder) / "metrics.csv", every
        self._written = -1

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Drop what a stopped run wrote after the checkpoint that this one starts from."""
        self._written = trainer.global_step
        if trainer.is_global_zero:
            self.rewind(trainer.global_step)
            for logger in trainer.loggers:
                if isinstance(logger, WideCSV):
                    logger.rewind(trainer.global_step)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Write the figures of a finished optimizer step when they are due."""
        step = trainer.global_step
        if step % self.every or step == self._written or not trainer.is_global_zero:
            return
        self._written = step
        figures = {n: v for n, v in trainer.callback_metrics.items() if n.startswith("train/")}
        self.append(step, figures)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the figures of a validation."""
        if not trainer.sanity_checking and trainer.is_global_zero:
            figures = {n: v for n, v in trainer.callback_metrics.items() if n.startswith("valid/")}
            self.append(trainer.global_step, figures)

    def append(self, step: int, figures: Mapping[str, Any]) -> None:
        """Add one row a figure.

        Raises:
            OSError: they could not be written; the error names the file.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        text = io.StringIO(newline="")
        writer = csv.writer(text)
        if not self.path.exists():
            writer.writerow(COLUMNS)
        writer.writerows((step, name, repr(float(value))) for name, value in sorted(figures.items()))
        try:
            with self.path.open("ab") as file:
                file.write(text.getvalue().encode())
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path)) from error

    def flush(self) -> None:
        """Have the disk hold every row, so that no checkpoint outlives the rows before it when a machine dies."""
        if self.path.exists():
            with self.path.open("ab") as file:
                os.fsync(file.fileno())

    def rewind(self, step: int) -> None:
        """Drop the rows beyond `step`."""
        if not self.path.exists():
            return
        rows = read_rows(self.path)
        text = io.StringIO(newline="")
        writer = csv.writer(text)
        writer.writerow(COLUMNS)
        writer.writerows((s, name, repr(value)) for s, name, value in rows if s <= step)
        write_text(self.path, text.getvalue())


def read_rows(path: Path) -> list[tuple[int, str, float]]:
    """The rows of a history, in order; a last line cut short, by a kill or a full disk, is left out.

    Raises:
        ValueError: the file is not a history.
    """
    raw = path.read_bytes()
    lines = list(csv.reader(io.StringIO(raw[: raw.rfind(b"\n") + 1].decode("utf-8", "replace"), newline="")))
    if lines and tuple(lines[0]) != COLUMNS:
        raise ValueError(f"{path} is not a history of figures: its first line is {lines[:1]}, expected {COLUMNS}")
    rows = []
    for number, line in enumerate(lines[1:], start=2):
        try:
            step, name, value = line
            rows.append((int(step), name, float(value)))
        except ValueError as error:
            raise ValueError(f"{path}:{number} is {line!r}, expected step, metric, value") from error
    return rows


def curves(path: Path) -> dict[str, tuple[list[float], list[float]]]:
    """Metric → (steps, values) of a history, finite values alone."""
    found: dict[str, tuple[list[float], list[float]]] = {}
    for step, name, value in read_rows(path) if path.exists() else []:
        if math.isfinite(value):
            steps, values = found.setdefault(name, ([], []))
            steps.append(float(step))
            values.append(value)
    return found
