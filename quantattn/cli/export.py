"""`quantattn export`: a trained model as ONNX or as a program of torch, held against the library first."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from omegaconf import DictConfig
from rich.table import Table

from quantattn.cli import terminal
from quantattn.cli.config import plain
from quantattn.cli.errors import DONE, UsageError
from quantattn.cli.instantiate import settings
from quantattn.cli.settings import PathSettings
from quantattn.nn.export import FORMATS, export_model, require_onnx


@dataclass(frozen=True)
class ExportSettings:
    """Everything that `export.yaml` holds.

    Attributes:
        model_folder: folder of a model; `model=FOLDER` on the command line.
        paths: not used; output goes to `out`.
        out: folder to be made.
        format: "onnx" or "torch".
    """

    model_folder: str
    paths: PathSettings
    out: str
    format: Literal["onnx", "torch"]
    task_name: str = "export"

    def __post_init__(self) -> None:
        for name, key in (("model_folder", "model"), ("out", "out")):
            if not getattr(self, name).strip():
                raise ValueError(f"{key} must name a folder, got nothing")


def export(config: DictConfig) -> int:
    """Write the folder; its exit code."""
    asked = settings(ExportSettings, plain(config), "")
    if not Path(asked.model_folder).exists():
        raise UsageError(f"model={asked.model_folder}: there is no such folder")
    if asked.format == "onnx":
        try:
            require_onnx()
        except ImportError as error:
            raise UsageError(str(error)) from error
    out = terminal.console()
    found = export_model(
        asked.model_folder, asked.out, asked.format, watch=lambda line: out.print(line, soft_wrap=True)
    )
    table = Table("output", "error", "library's", "allowed", title="largest error against the model in float64")
    for row in found:
        table.add_row(row.name, *(f"{x:.2g}" for x in (row.worst, row.library_worst, row.allowed_worst)))
    out.print(table)
    out.print(f"{FORMATS[asked.format]} in {asked.out}", soft_wrap=True)
    return DONE
