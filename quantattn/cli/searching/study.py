"""A study in a database that several processes and machines share: whose it is, its draws, its trials and their count.

A trial is one folder and one row of the database. While a process works on it, it holds the folder's lock and leaves a
sign of life in the row; the kernel lets go of the lock of a process that was killed, so its trial is known for lost at
once on the same machine, and after `SILENT` seconds on another.
"""

from __future__ import annotations

import hashlib
import platform
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from quantattn.cli.claim import changed_key
from quantattn.cli.errors import UsageError, nearest
from quantattn.cli.searching.space import Parameter, plain_space
from quantattn.learn.secrets import redact_urls
from quantattn.learn.trainer import TrainerSettings

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.pruners import BasePruner
    from optuna.samplers import BaseSampler
    from optuna.trial import FrozenTrial

DIRECTIONS: Mapping[str, Literal["minimize", "maximize"]] = {
    "valid/loss": "minimize",
    "valid/log_loss": "minimize",
    "valid/accuracy": "maximize",
}
"""Figure that trials are compared by → which way is better; all of them are of the validation rows."""
BEAT, SILENT = 30.0, 300.0
"""Seconds between signs of life, and without one after which a trial of another machine is given up."""
UNBORN = 60.0
"""Seconds that a process has between asking for a trial and saying who it is."""
SCHEMES = ("sqlite", "mysql", "mariadb", "postgresql", "oracle", "mssql")


@dataclass(frozen=True)
class SweepSettings:
    """How a space is searched; see `conf/sweep.yaml`."""

    name: str
    trials: int
    storage: str | None = None
    sampler: Literal["tpe", "random"] = "tpe"
    pruner: Literal["median", "hyperband", "none"] = "median"
    startup: int = 5
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.name or "/" in self.name or self.name in (".", "..", BEST):
            raise ValueError(f"sweep.name must be the name of a folder, other than {BEST}, got {self.name!r}")
        for name, least in (("trials", 1), ("startup", 1), ("seed", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"sweep.{name} must be {least} or more, got {getattr(self, name)}")


BEST = "best"
"""Folder beside those of the trials in which the best one is evaluated on the test rows."""


@contextmanager
def telling(url: str) -> Iterator[None]:
    """Turn what the database says into one sentence, without user and password.

    Raises:
        ValueError: it cannot be reached, or not be used.
    """
    from optuna.exceptions import StorageInternalError
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (SQLAlchemyError, StorageInternalError) as error:
        cause = error.__cause__ if isinstance(error, StorageInternalError) else error
        raise ValueError(_unusable(url, str(getattr(cause, "orig", None) or cause))) from None


def _unusable(url: str, said: str) -> str:
    scheme, shown = url.split("://")[0].split("+")[0], redact_urls(url)
    hint = nearest(scheme, SCHEMES) if scheme not in SCHEMES else ""
    return f"sweep.storage={shown} cannot be used: {redact_urls(said.replace(url, shown)).splitlines()[0]}{hint}"


def check_url(url: str) -> None:
    """Refuse what is no URL of a database that outlives the process."""
    if "://" not in url:
        raise UsageError(
            "sweep.storage must be a URL such as sqlite:///study.db or postgresql://USER@HOST/NAME, got "
            f"{redact_urls(url)!r}"
        )
    if url in ("sqlite://", "sqlite:///") or ":memory:" in url:
        raise UsageError("sweep.storage is in memory: name a file, sqlite:///study.db")
    if url.startswith("sqlite:///") and not (folder := Path(url.removeprefix("sqlite:///")).parent).is_dir():
        raise UsageError(f"sweep.storage={url}: there is no folder {folder}")


def open_study(url: str, name: str, metric: str, asked: SweepSettings, trainer: TrainerSettings) -> Study:
    """The study of this name, made if it is not there; its sampler is chosen trial by trial, see `draw`."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    # Writers of one file wait for each other.
    waits = {"connect_args": {"timeout": 60}} if url.startswith("sqlite") else {"pool_pre_ping": True}
    try:
        storage = optuna.storages.RDBStorage(url, engine_kwargs=waits)
    except ImportError as error:  # of the package that speaks to such a server
        raise UsageError(_unusable(url, str(error.__cause__ or error))) from None
    return optuna.create_study(
        storage=storage,
        study_name=name,
        direction=DIRECTIONS[metric],
        pruner=_pruner(asked, trainer),
        sampler=optuna.samplers.RandomSampler(seed=0),
        load_if_exists=True,
    )


def _pruner(asked: SweepSettings, trainer: TrainerSettings) -> BasePruner:
    from optuna.pruners import HyperbandPruner, MedianPruner, NopPruner

    if asked.pruner == "median":
        return MedianPruner(n_startup_trials=asked.startup)
    if asked.pruner == "hyperband":
        return HyperbandPruner(min_resource=trainer.validate_every, max_resource=trainer.max_steps or "auto")
    return NopPruner()


def _sampler(asked: SweepSettings, number: int) -> BaseSampler:
    """What draws trial `number`: its draw depends on the seed, its number and the trials before it alone."""
    from optuna.samplers import RandomSampler, TPESampler

    seed = int.from_bytes(hashlib.sha256(f"{asked.seed}/{number}".encode()).digest()[:4], "big")
    if asked.sampler == "random":
        return RandomSampler(seed=seed)
    return TPESampler(seed=seed, n_startup_trials=max(asked.startup, 2))


def draw(study: Study, trial: Trial, space: Mapping[str, Parameter], asked: SweepSettings) -> dict[str, str]:
    """Setting → the trial's value, as Hydra reads it; what it has drawn before stays."""
    study.sampler = _sampler(asked, trial.number)
    values = {name: each.suggest(trial, name) for name, each in space.items()}
    trial.set_user_attr("values", values)
    return values


def claim_study(
    study: Study, name: str, url: str, space: Mapping[str, Parameter], described: Mapping[str, Any]
) -> None:
    """Write into a new study what it is of; refuse one that is of something else.

    Raises:
        UsageError: naming the first thing that differs, with both values.
    """
    now = {"space": plain_space(space), **described}
    before = study.user_attrs
    for key, value in now.items():
        if key not in before:
            study.set_user_attr(key, value)
        elif before[key] != value:
            raise UsageError(
                f"study {name!r} in {redact_urls(url)} was begun with another {changed_key(key, before[key], value)}; "
                "go on with the same, or begin another with sweep.name=NAME"
            )


def counted(study: Study) -> list[FrozenTrial]:
    """Every trial of the study, failed and pruned ones too, in order of number.

    Left out are those that were drawn when enough had been, and given back before anything was trained.
    """
    return [trial for trial in study.get_trials(deepcopy=False) if not trial.user_attrs.get("given back")]


def in_state(study: Study, *states: str) -> list[FrozenTrial]:
    """The counted trials in one of these states: RUNNING, COMPLETE, PRUNED, FAIL."""
    return [trial for trial in counted(study) if trial.state.name in states]


def give_back(study: Study, trial: Trial) -> None:
    """Say that nothing was tried."""
    from optuna.trial import TrialState

    trial.set_user_attr("given back", True)
    study.tell(trial, state=TrialState.FAIL)


def lost(study: Study, root: Path) -> list[FrozenTrial]:
    """Trials that somebody began and may not be at work on any more: their folder is here, or nobody said who began it.

    Whether they are lost their folder's lock says.
    """
    from optuna.trial import TrialState

    found = []
    for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        begun = trial.datetime_start.timestamp() if trial.datetime_start is not None else 0.0
        if _is_here(trial, root) if "folder" in trial.user_attrs else time.time() - begun > UNBORN:
            found.append(trial)
    return found


def begun_here(trial: Trial, root: Path) -> None:
    """Say in a trial where it is worked on."""
    trial.set_user_attr("machine", platform.node())
    trial.set_user_attr("folder", str((root / str(trial.number)).absolute()))


def _is_here(trial: FrozenTrial, root: Path) -> bool:
    """Whether a trial lies in this folder, on this machine or a shared disk: then a lock says who is at work on it."""
    folder = (root / str(trial.number)).absolute()
    same = trial.user_attrs.get("machine") == platform.node() or folder.is_dir()
    return same and trial.user_attrs.get("folder") == str(folder)


def give_up_silent(study: Study, root: Path) -> list[int]:
    """Mark as failed the trials of other machines that have not given a sign of life for long; their numbers."""
    from optuna import Trial
    from optuna.trial import TrialState

    gone = []
    for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        silent = time.time() - trial.user_attrs.get("alive", time.time())
        if not _is_here(trial, root) and silent > SILENT:
            Trial(study, trial._trial_id).set_user_attr("why", f"its machine gave no sign of life for {silent:.0f} s")
            study.tell(trial.number, state=TrialState.FAIL)
            gone.append(trial.number)
    return gone


@contextmanager
def alive(trial: Trial) -> Iterator[None]:
    """Leave a sign of life every `BEAT` seconds."""
    from optuna.exceptions import OptunaError

    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(BEAT):
            # What is wrong with the database the trial itself finds out, when it has something to say.
            with suppress(OptunaError):
                trial.storage.set_trial_user_attr(trial._trial_id, "alive", time.time())

    trial.set_user_attr("alive", time.time())
    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
