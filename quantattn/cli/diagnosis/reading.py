"""How the doctor reads data: with the configuration that training would use, and bad rows set aside."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hydra
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from quantattn.cli.config import compose, explain
from quantattn.cli.errors import UsageError, nearest
from quantattn.cli.instantiate import instantiate
from quantattn.cli.preparation import parameters
from quantattn.data.recognise import Format
from quantattn.data.recognise.long_table import quoted
from quantattn.data.sources.source import Source


@dataclass(frozen=True)
class Reading:
    """A source about to be read.

    Attributes:
        form: of the data.
        path: where they are.
        settings: of the source, as overrides write them.
        scan: the function that reads.
        given: what it is called with.
        prepare: settings of the preparation that the configuration has.
    """

    form: Format
    path: Path
    settings: Mapping[str, str]
    scan: Callable[..., Source]
    given: Mapping[str, Any]
    prepare: Mapping[str, Any]

    def overrides(self) -> list[str]:
        """The part of a command line that names the data."""
        return [f"data.path={quoted(str(self.path))}", *(f"data.source.{k}={v}" for k, v in self.settings.items())]

    def read(self, set_aside: Path) -> Source:
        """Read, with what breaks a rule left out and written to `set_aside`, unless the user said otherwise.

        Raises:
            UsageError: a setting is lacking that only the user can know, or has a value that cannot be.
            ValueError: the data cannot be read, in one sentence.
        """
        given = dict(self.given)
        if "on_bad" in given and "on_bad" not in self.settings:
            given["on_bad"] = "quarantine"
        if "set_aside" in given and given["on_bad"] == "quarantine" and given["set_aside"] is None:
            given["set_aside"] = set_aside
        return self._call(given)

    def refuses(self) -> bool:
        """Whether the data have something for which the source, as it is configured, refuses them all."""
        if "on_bad" not in self.given or self.given["on_bad"] != "refuse":
            return False
        try:
            self._call(dict(self.given))
        except ValueError:
            return True
        return False

    def _call(self, given: dict[str, Any]) -> Source:
        try:
            return self.scan(**given)
        except TypeError as error:
            raise UsageError(f"--set: {error}") from error
        except ValueError as error:
            lacking = [name for name in self.form.asks if name not in self.settings and _names(name, str(error))]
            if not lacking:
                raise
            raise UsageError(f"{error}; say {asked(self.form, lacking)}") from error


def open_reading(form: Format, path: Path, told: Mapping[str, str], said: Sequence[str]) -> Reading:
    """Compose the configuration of a format.

    Args:
        form: of the data.
        path: a file or a folder.
        told: settings that the data themselves tell, as overrides write them.
        said: settings of the user, NAME=VALUE.

    Raises:
        UsageError: an unknown setting, a value that cannot be, or one that is lacking.
    """
    base = compose("train", [f"data={form.name}"])
    node = OmegaConf.to_container(base.data.source, resolve=False)
    assert isinstance(node, dict)
    scan = hydra.utils.get_object(str(node["_target_"]))
    settings = dict(told) | _said(form, said, parameters(scan) - {"path"})
    lacking = [name for name in form.asks if node.get(name) == "???" and name not in settings]
    if lacking:
        raise UsageError(f"{path}: what cannot be told from the data has to be said: {asked(form, lacking)}")
    plus = {name: "" if name in node else "+" for name in settings}
    overrides = [f"data={form.name}", f"data.path={quoted(str(path))}"]
    overrides += [f"{plus[name]}data.source.{name}={value}" for name, value in settings.items()]
    try:
        data = OmegaConf.to_container(compose("train", overrides).data, resolve=True, throw_on_missing=True)
    except (HydraException, OmegaConfBaseException) as error:
        raise UsageError(explain("train", error, overrides)) from error
    assert isinstance(data, dict)
    given = {name: _made(value, f"data.source.{name}") for name, value in data["source"].items() if name != "_target_"}
    return Reading(form, path, settings, scan, given, data["prepare"])


def _made(value: Any, where: str) -> Any:
    """A setting, or the object that it names by `_target_`."""
    return instantiate(value, where) if isinstance(value, Mapping) and "_target_" in value else value


def asked(form: Format, names: Sequence[str]) -> str:
    """What to say, for each of several settings."""
    parts = [form.asks[name].rpartition(": ") for name in names]
    return "; ".join(f"--set {example} ({what})" for what, _, example in parts)


def _said(form: Format, said: Sequence[str], known: set[str]) -> dict[str, str]:
    settings = {}
    for each in said:
        name, equals, value = each.partition("=")
        if not equals:
            raise UsageError(f"--set {each}: write NAME=VALUE")
        if name not in known:
            raise UsageError(f"--set {name}: {form.title} has no such setting{nearest(name, known)}")
        settings[name] = value
    return settings


def _names(name: str, sentence: str) -> bool:
    return re.search(rf"\b{name}\b", sentence) is not None
