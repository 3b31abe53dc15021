"""One process that works on a study: it takes up a lost trial or a new one, runs it, and says how it went."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console

from quantattn.cli import show
from quantattn.cli.config import plain, run_application
from quantattn.cli.errors import DONE, INTERRUPTED, STOPPED, USAGE, UsageError
from quantattn.cli.instantiate import settings
from quantattn.cli.preparation import prepare
from quantattn.cli.searching.space import Parameter, as_override
from quantattn.cli.searching.study import (
    SweepSettings,
    alive,
    begun_here,
    counted,
    draw,
    give_back,
    give_up_silent,
    lost,
)
from quantattn.cli.settings import TrainSettings
from quantattn.cli.train import build, train_held
from quantattn.data.prepared import Prepared
from quantattn.learn.folder import holding
from quantattn.learn.pruning import Pruning

if TYPE_CHECKING:
    from optuna import Study, Trial


@dataclass(frozen=True)
class Search:
    """What is searched, and where.

    Attributes:
        space: setting → what it may be.
        metric: figure of the validation rows.
        flags: of Hydra, for every trial.
        overrides: settings that all trials have.
        root: folder of the study's trials.
        asked: how it is searched.
    """

    space: dict[str, Parameter]
    metric: str
    flags: tuple[str, ...]
    overrides: tuple[str, ...]
    root: Path
    asked: SweepSettings

    def arguments(self, values: dict[str, str], *more: str) -> list[str]:
        """The arguments of `quantattn train` for the trial with these values."""
        return [*self.flags, *self.overrides, *(f"{name}={value}" for name, value in values.items()), *more]

    def check_values(self) -> None:
        """Try the ends of every range and every choice alone, without data.

        Settings of the model that are searched together may need each other, so these are only composed.

        Raises:
            UsageError: naming the value.
        """
        models = [name for name in self.space if name.startswith("model.")]
        for name, each in self.space.items():
            alone = len(models) < 2 or name not in models
            for value in each.tried():
                said: list[str] = []

                def job(config: DictConfig, alone: bool = alone, said: list[str] = said) -> int:
                    try:
                        asked = settings(TrainSettings, plain(config), "")
                        if alone:
                            build(asked)
                    except (UsageError, OmegaConfBaseException) as error:
                        if alone:
                            said.append(str(error))
                    return DONE

                try:
                    run_application("train", self.arguments({name: value}), job)
                except UsageError as error:
                    raise UsageError(f"space: {error}") from None
                if said:
                    raise UsageError(f"space.{name}: {value} cannot be tried: {said[0]}")


class Reader:
    """Prepares data, or hands out again what it has prepared for the trial before; holds trials to the same rows."""

    def __init__(self, study: Study) -> None:
        self.study = study
        self._known: tuple[str, Prepared] | None = None

    def __call__(self, asked: TrainSettings, splits: Any) -> Prepared:
        """The data of a trial.

        Raises:
            ValueError: they are validated on other rows than those of the trials before.
        """
        what = repr((asked.data, asked.labels, asked.splits, asked.shards, asked.seed))
        if self._known is None or self._known[0] != what:
            self._known = what, prepare(asked, splits)
        rows, before = rows_of(self._known[1]), self.study.user_attrs.get("rows")
        if before is None:
            self.study.set_user_attr("rows", rows)
        elif rows != before:
            raise ValueError("its validation rows are not those of the trials before it, so they cannot be compared")
        return self._known[1]


def rows_of(prepared: Prepared) -> str:
    """A hash of the validation decisions, whose, when and with which outcome; without outcomes, of all that went in."""
    whole, targets = sha256(), prepared.valid.decisions.targets
    if not targets:
        return sha256(json.dumps(dict(prepared.hashes), sort_keys=True).encode()).hexdigest()
    whole.update(prepared.as_of["valid"].tobytes())
    whole.update("\0".join(map(str, prepared.entity["valid"].tolist())).encode())
    for name, values in sorted(targets.items()):
        whole.update(name.encode() + values.tobytes())
    return whole.hexdigest()


class Held:
    """A trial whose folder this process holds until the end of the block."""

    def __init__(self, trial: Trial, folder: Path, stack: ExitStack, again: bool) -> None:
        self.trial, self.folder, self.again = trial, folder, again
        self._stack = stack

    @property
    def number(self) -> int:
        """Of the trial in its study."""
        return self.trial.number

    def __enter__(self) -> Held:
        return self

    def __exit__(self, *why: object) -> None:
        self._stack.close()


class Worker:
    """Takes trials and works on them.

    Args:
        study: that others work on too.
        like: what is searched.
        console: where it is told.
    """

    def __init__(self, study: Study, like: Search, console: Console) -> None:
        self.study, self.like, self.console = study, like, console
        self.read, self.began = Reader(study), time.monotonic()
        self.done = 0

    def take(self) -> Held | None:
        """A trial that somebody was killed at, or a new one while the study lacks some; None when it has all."""
        from optuna import Trial
        from optuna.trial import TrialState

        for number in give_up_silent(self.study, self.like.root):
            self.console.print(f"trial {number} is given up: its machine gave no sign of life")
        for frozen in lost(self.study, self.like.root):
            stack = self._hold(frozen.number)
            if stack is None:
                continue  # somebody is at work on it
            now = self.study.get_trials(deepcopy=False)[frozen.number]
            if now.state == TrialState.RUNNING:
                return self._held(Trial(self.study, frozen._trial_id), stack, again=True)
            stack.close()
        while len(counted(self.study)) < self.like.asked.trials:
            trial = self.study.ask()
            if sum(each.number < trial.number for each in counted(self.study)) >= self.like.asked.trials:
                give_back(self.study, trial)
            elif (stack := self._hold(trial.number)) is not None:
                return self._held(trial, stack, again=False)
        return None

    def _hold(self, number: int) -> ExitStack | None:
        stack = ExitStack()
        try:
            stack.enter_context(holding(self.like.root / str(number)))
        except ValueError:
            return None
        return stack

    def _held(self, trial: Trial, stack: ExitStack, again: bool) -> Held:
        begun_here(trial, self.like.root)
        stack.enter_context(alive(trial))
        return Held(trial, self.like.root / str(trial.number), stack, again)

    def work(self, held: Held) -> tuple[int | None, str]:
        """Run the trial and say in the study how it went.

        Returns:
            The exit code when a signal has stopped it, else None; and why it failed, "" when it did not.
        """
        from optuna.exceptions import StorageInternalError

        trial, like = held.trial, self.like
        values = draw(self.study, trial, like.space, like.asked)
        shown = " ".join(f"{name}={value}" for name, value in values.items())
        again = "goes on, " if held.again else ""
        self.console.print(f"trial {held.number}: {again}{shown}")
        pruning, failed = Pruning(like.metric, judge_of(trial)), list[str]()
        own = f"paths.output_dir={as_override(str(held.folder))}"
        arguments = like.arguments(values, own, "ckpt_path=auto", "test=false")
        try:
            code = attempt(arguments, pruning, held.folder, self.console, self.read, failed)
        except StorageInternalError:
            raise  # nothing can be told
        except Exception:
            self._tell(held, False, None, " ".join(failed))
            raise
        if code in (STOPPED, INTERRUPTED):
            return code, ""
        value = None if code else figure_of(held.folder, like.metric)
        if value is None and not failed:
            failed.append(f"it has no finite {like.metric}")
        self._tell(held, pruning.pruned, value, " ".join(failed))
        return None, " ".join(failed)

    def _tell(self, held: Held, pruned: bool, value: float | None, why: str) -> None:
        """Tell the study, and the console how far it is."""
        from optuna.trial import TrialState

        number, study, every = held.number, self.study, counted(self.study)
        if study.get_trials(deepcopy=False)[number].state != TrialState.RUNNING:
            self.console.print(f"trial {number} was given up by another worker meanwhile, and stays so")
            return
        if value is None:
            held.trial.set_user_attr("why", why)
            study.tell(number, state=TrialState.FAIL)
        else:
            held.trial.set_user_attr("seconds", seconds_of(held.folder))
            study.tell(number, None if pruned else value, state=TrialState.PRUNED if pruned else TrialState.COMPLETE)
        self.done += 1
        left = (time.monotonic() - self.began) / self.done * max(self.like.asked.trials - len(every), 0)
        result = (
            "failed" if value is None else f"pruned at {value:.5g}" if pruned else f"{self.like.metric} {value:.5g}"
        )
        complete = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        best = f"; best {study.best_value:.5g} of trial {study.best_trial.number}" if complete else ""
        self.console.print(
            f"trial {number}: {result}{best}; {len(every)} of {self.like.asked.trials} begun, {show.clock(left)} left"
        )


def attempt(
    arguments: list[str],
    pruning: Pruning,
    folder: Path,
    console: Console,
    read: Callable[[TrainSettings, Any], Prepared],
    failed: list[str],
) -> int:
    """The exit code of one training run in a folder that is held; why it failed is added to `failed`."""

    def job(config: DictConfig) -> int:
        try:
            given = plain(config)
            asked = settings(TrainSettings, given, "")
            parts = build(asked)
            parts["callbacks"].append(pruning)
            return train_held(asked, given, parts, folder, console, read)
        except Exception as error:
            failed.append(" ".join(str(error).split()) or type(error).__name__)
            raise

    try:
        return run_application("train", arguments, job)
    except UsageError as error:  # settings that do not compose
        failed.append(str(error))
        return USAGE


def judge_of(trial: Trial) -> Callable[[int, float], bool]:
    """What reports a validation of the trial, once, and asks the pruner."""

    def judge(step: int, value: float) -> bool:
        if step not in trial.storage.get_trial(trial._trial_id).intermediate_values:
            trial.report(value, step)
        return trial.should_prune()

    return judge


def figure_of(folder: Path, metric: str) -> float | None:
    """A figure of a run that has ended; None where it is not finite."""
    value = json.loads((folder / "metrics.json").read_text("utf-8"))["figures"].get(metric)
    return None if value is None else float(value)


def seconds_of(folder: Path) -> float:
    """How long a run has trained, since it began or last went on."""
    return float(json.loads((folder / "metrics.json").read_text("utf-8"))["figures"].get("seconds") or 0.0)
