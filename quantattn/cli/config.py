"""Hydra at the door: where the configuration lies, how an application is run, and what its errors say."""

from __future__ import annotations

import io
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, redirect_stdout
from importlib import resources
from pathlib import Path
from typing import Any

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException, OverrideParseException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from quantattn.cli.errors import (
    DONE,
    INTERRUPTED,
    STOPPED,
    USAGE,
    UsageError,
    complain,
    exit_code,
    nearest,
    wants_traceback,
)
from quantattn.learn.secrets import is_secret, redact_text

HYDRA_VERSION = "1.3"
NOTE = "multirun.yaml"
"""What Hydra writes into the folder of a multirun."""
_WITH_VALUE = {"--cfg", "-c", "--package", "-p", "--config-path", "-cp", "--config-name", "-cn", "--config-dir", "-cd"}
_WITH_VALUE |= {"--info", "-i", "--experimental-rerun"}


class _Stopped(BaseException):
    """A job was stopped by a signal, so that no further one begins; Hydra passes on what is no Exception."""


def conf_folder() -> Path:
    """The folder of yaml files: inside the installed package, or beside it in a checkout."""
    package = Path(str(resources.files("quantattn")))
    for folder in (package / "conf", package.parent / "conf"):
        if (folder / "train.yaml").is_file():
            return folder
    raise UsageError(f"the configuration is missing: {package / 'conf'} holds no train.yaml; install quantattn again")


def run_folder(root: str, task: str, now: str) -> str:
    """The resolver behind `paths.output_dir`: one folder a run, or one a job below the folder of a multirun."""
    if HydraConfig.initialized():
        node = HydraConfig.get()
        if node.mode == RunMode.MULTIRUN:
            return str(Path(node.sweep.dir) / node.sweep.subdir)
    return str(Path(root) / task / now)


def prepared_setting(path: str, name: str) -> Any:
    """The resolver behind `conf/data/prepared.yaml`, imported with all that reads shards where there are some."""
    from quantattn.cli.sharding import training_setting

    return training_setting(path, name)


def register_resolvers() -> None:
    """Make `${run_folder:…}` and `${prepared:…}` known to OmegaConf; calling it again changes nothing."""
    OmegaConf.register_new_resolver("run_folder", run_folder, replace=True)
    OmegaConf.register_new_resolver("prepared", prepared_setting, replace=True)


def plain(node: Any) -> Any:
    """The node with every interpolation resolved, as dicts, lists and scalars."""
    return OmegaConf.to_container(node, resolve=True, throw_on_missing=True)


def compose(name: str, overrides: list[str], folder: Path | None = None) -> DictConfig:
    """The configuration `name`.yaml after `overrides`, with no run started."""
    register_resolvers()
    GlobalHydra.instance().clear()
    with hydra.initialize_config_dir(str(folder or conf_folder()), version_base=HYDRA_VERSION):
        return hydra.compose(name, overrides)


def run_application(name: str, arguments: list[str], task: Callable[[DictConfig], int]) -> int:
    """Run `task` on the configuration `name`.yaml and what the command line adds to it.

    Hydra sees the arguments as its own, so its flags work (`--cfg job`, `-m`, `--help`, `--config-dir`), and passwords
    are left out of what it prints and writes. Failures of a job become its exit code, and a multirun answers with its
    worst. It ends with a job that a signal has stopped.

    Raises:
        UsageError: the configuration cannot be composed; the sentence names the key and the nearest known one.
    """
    register_resolvers()
    # Without this Hydra prints its own account of an error and leaves; with it the exception reaches us.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    codes: list[int] = []
    sweeps: set[Path] = set()
    printed, capturing = io.StringIO(), ExitStack()

    def job(config: DictConfig) -> int:
        capturing.close()
        if HydraConfig.get().mode == RunMode.MULTIRUN and not sweeps:
            sweeps.add(Path(HydraConfig.get().sweep.dir))
            without_secrets(Path(HydraConfig.get().sweep.dir) / NOTE)
        try:
            codes.append(task(config))
        except (HydraException, OmegaConfBaseException) as error:
            complain(name, UsageError(explain(name, error, arguments)))
            codes.append(USAGE)
        except Exception as error:
            code = exit_code(error)
            if code is None:
                raise
            complain(name, error)
            codes.append(code)
        if codes[-1] in (STOPPED, INTERRUPTED):
            raise _Stopped
        return codes[-1]

    before = sys.argv
    sys.argv = [f"quantattn {name}", *flags_first(arguments)]
    capturing.enter_context(redirect_stdout(printed))
    try:
        hydra.main(config_path=str(conf_folder()), config_name=name, version_base=HYDRA_VERSION)(job)()
    except (HydraException, OmegaConfBaseException) as error:
        if wants_traceback():
            raise
        raise UsageError(explain(name, error, arguments)) from None
    except _Stopped:
        pass
    finally:
        sys.argv = before
        capturing.close()
        print(_without_secrets(printed.getvalue(), arguments), end="")
        for folder in sweeps:
            remove_if_nothing_began(folder)
    return max(codes, default=DONE)


def _without_secrets(printed: str, arguments: list[str]) -> str:
    """What Hydra prints, without passwords; of `--cfg job -p NAME` it prints the value alone when that is a scalar."""
    if printed.strip() and is_secret(_package(flags_first(arguments))):
        return "'***'\n"
    return redact_text(printed)


def _package(arguments: list[str]) -> str:
    """What the flag -p, or --package in any of its spellings, names; nothing without it."""
    for at, flag in enumerate(arguments):
        name, _, value = flag.partition("=")
        if name == "-p" or (len(name) > 2 and "--package".startswith(name)):
            return value or "".join(arguments[at + 1 : at + 2])
        if flag.startswith("-p"):
            return flag[2:]
    return ""


def remove_if_nothing_began(sweep: Path) -> None:
    """Remove the folder of a multirun in which every job was refused: Hydra has written its own note there alone."""
    if [path for path in sweep.rglob("*") if not path.is_dir()] != [sweep / NOTE]:
        return
    shutil.rmtree(sweep)
    for parent in sweep.parents[:3]:  # multirun, the task, paths.log_dir
        if parent == Path() or any(parent.iterdir()):
            break
        parent.rmdir()


def without_secrets(note: Path) -> None:
    """Leave passwords out of what Hydra has written down of a multirun."""
    from quantattn.learn.files import write_text

    write_text(note, redact_text(note.read_text("utf-8")))


def flags_first(arguments: list[str]) -> list[str]:
    """The arguments with flags before overrides: Hydra's parser takes overrides in one row only."""
    flags, overrides = flags_apart(arguments)
    return [*flags, *overrides]


def flags_apart(arguments: list[str]) -> tuple[list[str], list[str]]:
    """The flags among the arguments with their values, and the overrides.

    Raises:
        UsageError: for a value without a key, and for --experimental-rerun, which would load a pickle.
    """
    flags: list[str] = []
    overrides: list[str] = []
    waiting = iter(arguments)
    for argument in waiting:
        if argument.split("=")[0] == "--experimental-rerun":
            raise UsageError("--experimental-rerun loads a pickle and is refused; give the overrides again instead")
        if argument.startswith("="):
            raise UsageError(f"{argument!r} is no setting: write key=value")
        if not argument.startswith("-"):
            overrides.append(argument)
            continue
        flags.append(argument)
        if argument in _WITH_VALUE:
            flags.extend(value for value in [next(waiting, None)] if value is not None)
    return flags, overrides


def explain(name: str, error: Exception, arguments: list[str]) -> str:
    """One sentence for an error of Hydra or OmegaConf, with the nearest known key or option."""
    text = str(error)
    overrides = [a for a in arguments if "=" in a and not a.startswith("-")]
    if match := re.search(r"Could not override '([^']+)'", text):
        key = match[1].split("@")[0]
        return f"unknown setting {key!r}{nearest_key(key, name, overrides)}"
    if match := re.search(r"Could not find '([^']+)'\s+Available options in '([^']+)':((?:\n\t.*)*)", text):
        return _no_such(match[2], match[1].removeprefix(f"{match[2]}/"), match[3].split())
    if match := re.search(r"Could not load '([^'/]+)/([^']+)'", text):  # one of a list of options
        return _no_such(match[1], match[2], [path.stem for path in (conf_folder() / match[1]).glob("*.yaml")])
    if match := re.search(r"Missing mandatory value: (\S+)", text):
        # An interpolation of the missing setting has a key of its own.
        full = str(getattr(error, "full_key", None))
        full = full if full.endswith(match[1]) else match[1]
        key = "model" if full == "model_folder" else full
        return f"{key} is missing: give {key}=…"
    if match := re.search(r"Error parsing override '([^'=]*)'", text):
        return f"{match[1]!r} is no setting: write key=value"
    if isinstance(error, OverrideParseException):  # whose words may quote a password
        key = error.override.split("=")[0]
        return f"the value of {key} cannot be read: put it in quotes of its own, such as {key}='\"a, b (c)\"'"
    if match := re.search(r"raised while resolving interpolation: (.*)", text):
        return match[1]
    first = text.strip().split("\n")[0]
    cause = str(error.__cause__).split("\n")[0] if error.__cause__ is not None else ""
    return f"{first}: {cause}" if cause and cause not in first else first


def _no_such(group: str, choice: str, options: list[str]) -> str:
    hint, there = nearest(choice, options), ", ".join(sorted(options))
    return f"{group}={choice}: there is no such {group}{hint}" + ("" if there in hint else f" ({there})")


def nearest_key(key: str, name: str, overrides: list[str]) -> str:
    """What to write instead of the unknown `key`, judged by the configuration as it is without it."""
    usable = [o for o in overrides if _key(o) != key]
    while True:
        try:
            config = compose(name, usable)
            break
        except (HydraException, OmegaConfBaseException) as error:
            match = re.search(r"Could not override '([^']+)'", str(error))
            fewer = [o for o in usable if match is not None and _key(o) != match[1]]
            if not usable:
                return ""
            # Lists of a multirun, for instance, compose one by one only: then the defaults have to do.
            usable = fewer if match is not None and len(fewer) < len(usable) else []
    groups = [path.name for path in conf_folder().iterdir() if path.is_dir()]
    known = [*flatten(OmegaConf.to_container(config, resolve=False)), *groups]
    if close := nearest_name(key, known):
        return f"; did you mean {close!r}?"
    head, _, last = key.rpartition(".")
    siblings = [k for k in known if k.rpartition(".")[0] == head]
    return nearest(last, [k.rpartition(".")[2] for k in siblings]) if head and siblings else ""


def _key(override: str) -> str:
    """The dotted key of an override, without its sign and package."""
    return override.lstrip("+~").split("=")[0].split("@")[0]


def nearest_name(key: str, known: list[str]) -> str | None:
    """The known dotted key most like `key`, or one whose last part is the same."""
    import difflib

    same_end = [k for k in known if k.rpartition(".")[2] == key.rpartition(".")[2]]
    if len(same_end) == 1:
        return same_end[0]
    close = difflib.get_close_matches(key, known, n=1, cutoff=0.7)
    return close[0] if close else None


def flatten(node: Any, prefix: str = "") -> Iterator[str]:
    """Every dotted key of nested dicts, inner nodes too."""
    for key, value in node.items() if isinstance(node, dict) else ():
        yield f"{prefix}{key}"
        yield from flatten(value, f"{prefix}{key}.")
