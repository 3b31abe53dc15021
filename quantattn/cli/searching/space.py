"""What a sweep searches over: ranges of numbers and lists of choices for any setting, read from plain values."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from quantattn.cli.errors import UsageError, nearest

if TYPE_CHECKING:
    from optuna import Trial

RANGE = ("low", "high", "log", "step")
OF_THE_SWEEP = {
    "paths": "each trial has its own folder",
    "ckpt_path": "each trial begins anew, or goes on where it was killed",
    "test": "no trial reads the test rows",
    "train": "each trial is trained",
    "trials": "it is counted",
    "seed": "the best of several seeds is luck; average over them with `quantattn ensemble`",
    "optimized_metric": "trials are compared by one figure",
    "objective": "losses of different objectives cannot be compared",
    "labels": "trials would be judged by different outcomes",
    "splits": "trials would be judged on different rows",
    "data.source": "trials would be judged on different rows",
    "data.path": "trials would be judged on different rows",
    "data.shuffle_labels": "trials would be judged by different outcomes",
    **dict.fromkeys(("sweep", "space", "hydra", "task_name", "allow_targets"), "it is of the sweep itself"),
    "trainer.validate_every": "trials are compared at the same validations",
    **dict.fromkeys(("trainer.devices", "trainer.nodes", "trainer.strategy"), "a trial is one process"),
}
"""Settings that no trial may change → why."""
FREE = ("log_loss",)
"""Ends of figures that mean the same under any objective, so that it may be searched over."""


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, both included; whole ones when both are."""

    low: int | float
    high: int | float
    log: bool = False
    step: int | float | None = None

    @property
    def whole(self) -> bool:
        """Whether it is of whole numbers."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    def suggest(self, trial: Trial, name: str) -> str:
        """The trial's number, as Hydra reads it."""
        if self.whole:
            step = 1 if self.step is None else int(self.step)
            return str(trial.suggest_int(name, int(self.low), int(self.high), log=self.log, step=step))
        return repr(float(trial.suggest_float(name, self.low, self.high, log=self.log, step=self.step)))

    def tried(self) -> tuple[str, ...]:
        """The ends."""
        return (repr(self.low), repr(self.high))


@dataclass(frozen=True)
class Choices:
    """Values to choose from, as Hydra reads them."""

    values: tuple[str, ...]

    def suggest(self, trial: Trial, name: str) -> str:
        """The trial's choice."""
        return str(trial.suggest_categorical(name, self.values))

    def tried(self) -> tuple[str, ...]:
        """All of them."""
        return self.values


Parameter = Range | Choices


def read_space(node: Any, metric: str) -> dict[str, Parameter]:
    """Setting → what it may be, from nested or dotted names.

    A list is of choices, a mapping with `low` and `high` is a range, any other mapping holds more settings.

    Raises:
        UsageError: naming the setting: neither, an empty one, or one that no trial may change.
    """
    found: dict[str, Parameter] = {}
    for name, value in _leaves(node, ""):
        if name in found:
            raise UsageError(f"space.{name} stands there twice")
        _refuse(name, metric)
        found[name] = _choices(name, value) if isinstance(value, list) else _range(name, value)
    if not found:
        raise UsageError(
            "space is empty: give a setting a range, +space.optimizer.lr='{low: 1e-4, high: 1e-2, log: true}'"
        )
    return found


def _refuse(name: str, metric: str) -> None:
    for head, why in OF_THE_SWEEP.items():
        if name == head or name.startswith(f"{head}."):
            if head == "objective" and metric.endswith(FREE):
                continue
            more = (
                "; optimized_metric=valid/log_loss allows it for focal or weighted ones" if head == "objective" else ""
            )
            raise UsageError(f"space.{name}: {why}{more}")


def plain_space(space: Mapping[str, Parameter]) -> dict[str, Any]:
    """The space as plain values, as a study keeps it."""
    return {
        name: list(each.values) if isinstance(each, Choices) else {key: getattr(each, key) for key in RANGE}
        for name, each in space.items()
    }


def _leaves(node: Any, where: str) -> Iterator[tuple[str, Any]]:
    if not isinstance(node, Mapping):
        raise UsageError(f"space must be a group of settings, got {node!r}")
    for key, value in node.items():
        name = f"{where}.{key}" if where else str(key)
        if isinstance(value, list) or (isinstance(value, Mapping) and {"low", "high"} & set(value)):
            yield name, value
        elif isinstance(value, Mapping):
            yield from _leaves(value, name)
        else:
            raise UsageError(f"space.{name} must be a range {{low: …, high: …}} or a list of choices, got {value!r}")


def _choices(name: str, values: list[Any]) -> Choices:
    written = tuple(as_override(value) for value in values)
    if not written or len(set(written)) < len(written):
        raise UsageError(f"space.{name} must list choices that differ, got {values!r}")
    return Choices(written)


def _range(name: str, node: Mapping[str, Any]) -> Range:
    for key in node:
        if key not in RANGE:
            raise UsageError(f"unknown setting space.{name}.{key}{nearest(str(key), RANGE)}")
    for key in ("low", "high", "step"):
        value = node.get(key)
        if key == "step" and value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise UsageError(f"space.{name}.{key} must be a number, got {value!r}")
    low, high, log, step = node["low"], node["high"], node.get("log", False), node.get("step")
    if not isinstance(log, bool):
        raise UsageError(f"space.{name}.log must be true or false, got {log!r}")
    if low > high:
        raise UsageError(f"space.{name} must rise from low to high, got {low} and {high}")
    if log and (low <= 0 or step is not None):
        raise UsageError(f"space.{name}: a logarithmic range has low above 0 and no step, got low {low}, step {step}")
    made = Range(low, high, log, step)
    if step is not None and (step <= 0 or (made.whole and not isinstance(step, int))):
        raise UsageError(f"space.{name}.step must be above 0, and whole in a whole range, got {step}")
    return made


def as_override(value: Any) -> str:
    """A plain value as Hydra's grammar reads it."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, list):
        return f"[{','.join(map(as_override, value))}]"
    if isinstance(value, Mapping):
        return f"{{{','.join(f'{key}:{as_override(inner)}' for key, inner in value.items())}}}"
    text = str(value)
    bare = re.fullmatch(r"[A-Za-z_/.][\w./@-]*", text) and text.lower() not in ("null", "true", "false", "nan", "inf")
    return text if bare else json.dumps(text, ensure_ascii=False)
