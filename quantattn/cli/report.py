"""`quantattn report RUN RUN …`: the closing tables of several runs on one page."""

from __future__ import annotations

import argparse
import datetime as dt
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from quantattn.cli.errors import DONE, UsageError
from quantattn.cli.evaluate import tell
from quantattn.cli.terminal import console
from quantattn.evaluate.comparison import Run, compare_runs, table_of
from quantattn.evaluate.report import Check, write_report
from quantattn.learn.closing import VERDICTS
from quantattn.nn.folder import parse_json, read_file, told

_LARGEST = 1 << 26
_ANCHOR = re.compile(r"(?:^|[\s,\[{:-])&[\w.-]+(?=\s|$)", re.MULTILINE)
OWN = ("paths.", "hydra.", "task_name")
"""Settings that say where a run is kept, and not what it did."""


def run(arguments: list[str]) -> int:
    """Write the page of the runs and print their closing table."""
    parser = argparse.ArgumentParser(
        "quantattn report", description="Set the closing tables of runs beside each other."
    )
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="a run folder; two or more")
    parser.add_argument("--out", type=Path, default=Path("runs.html"), help="the page (%(default)s)")
    asked = parser.parse_args(arguments)
    if len(asked.runs) == 1:
        raise UsageError(f"name two runs or more; what one run found stands in {asked.runs[0] / 'report.html'}")
    if not asked.out.parent.is_dir():
        raise UsageError(f"{asked.out}: there is no folder {asked.out.parent} to write to")
    if len({folder.resolve() for folder in asked.runs}) < len(asked.runs):
        raise UsageError("a run is named twice")
    names = short_names(asked.runs)
    runs = [read_run(folder, name) for folder, name in zip(asked.runs, names, strict=True)]
    data = compare_runs(runs, dt.datetime.now(dt.UTC).strftime("%Y-%m-%d %H:%M UTC"))
    out = console()
    tell(out, data)
    write_report(asked.out, data)
    out.print(f"report {asked.out}")
    return DONE


def short_names(folders: list[Path]) -> list[str]:
    """The last parts of each path, as many as it takes to tell them apart."""
    parts = [folder.resolve().parts for folder in folders]
    for most in range(1, max(map(len, parts))):
        names = ["/".join(own[-most:]) for own in parts]
        if len(set(names)) == len(names):
            return names
    return [str(folder) for folder in folders]


def read_run(folder: Path, name: str) -> Run:
    """A run from `metrics.json`, `data.json` and `config.yaml` of its folder.

    Raises:
        UsageError: there is no run, or it has no closing table (it has not ended, or test=false).
        ValueError: a file that does not hold what a run writes.
    """
    if not (folder / "metrics.json").is_file():
        raise UsageError(f"{folder} is no run that has ended: there is no metrics.json in it")
    metrics, data = _document(folder / "metrics.json"), _document(folder / "data.json")
    if not isinstance(metrics.get("table"), dict):
        raise UsageError(f"{folder} has no closing table; it was run with test=false")
    try:
        table = table_of(metrics["table"])
    except ValueError as error:
        raise ValueError(f"{folder / 'metrics.json'} holds {told(error)}") from error
    return Run(
        name=name,
        table=table,
        settings={k: v for k, v in _flat(_config(folder / "config.yaml")) if not k.startswith(OWN)},
        hashes=_hashes(folder / "data.json", data),
        checks=_checks(folder / "data.json", data),
        dropped=_dropped(folder / "data.json", data),
    )


def _dropped(path: Path, data: Mapping[str, Any]) -> dict[str, int]:
    dropped = data.get("dropped")
    if not isinstance(dropped, dict) or not all(type(count) is int and count >= 0 for count in dropped.values()):
        raise ValueError(f"{path} must hold counts by reason under dropped, got {told(repr(dropped)):.80}")
    return dropped


def _hashes(path: Path, data: Mapping[str, Any]) -> dict[str, str]:
    hashes = data.get("hashes")
    if not isinstance(hashes, dict) or not all(isinstance(value, str) for value in hashes.values()):
        raise ValueError(f"{path} must hold hashes by name under hashes, got {told(repr(hashes)):.80}")
    return hashes


def _checks(path: Path, data: Mapping[str, Any]) -> tuple[Check, ...]:
    audit = data.get("audit")
    checks = audit.get("checks") if isinstance(audit, dict) else None
    if not isinstance(checks, list):
        raise ValueError(f"{path} must hold the checks of an audit under audit.checks, got {told(repr(audit)):.80}")
    found = []
    for check in checks:
        known = isinstance(check, dict) and all(
            isinstance(check.get(key), str) for key in ("name", "verdict", "sentence")
        )
        if not known or check["verdict"] not in VERDICTS:
            raise ValueError(
                f"{path} must give name, verdict ({', '.join(VERDICTS)}) and sentence of each check, "
                f"got {told(repr(check)):.160}"
            )
        found.append(Check(check["name"], VERDICTS[check["verdict"]], check["sentence"]))
    return tuple(found)


def _document(path: Path) -> Mapping[str, Any]:
    found = parse_json(path, _read(path))
    if not isinstance(found, dict):
        raise ValueError(f"{path} holds {type(found).__name__}, expected an object")
    return found


def _config(path: Path) -> Any:
    """The settings of a run as plain values; nothing that an interpolation names is looked up."""
    text = _read(path).decode("utf-8", "replace")
    if (anchor := _ANCHOR.search(text)) is not None:
        # A few nested ones stand for more memory than there is, and no run writes any.
        raise ValueError(f"{path} has a YAML anchor, {told(anchor.group().strip())}; the settings of a run have none")
    try:
        found = OmegaConf.to_container(OmegaConf.create(text))
    except Exception as error:  # OmegaConf asserts, and the parser below it has errors of its own
        raise ValueError(f"{path} cannot be read: {told(error) or type(error).__name__}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path} holds {type(found).__name__}, expected settings by name")
    return found


def _read(path: Path) -> bytes:
    try:
        return read_file(path, _LARGEST)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(inner, f"{name}.{key}" if name else str(key))
    else:
        yield name, str(value)
