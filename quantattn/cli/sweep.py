"""`quantattn sweep`: trials of an experiment in a study that several workers share, and the best one evaluated."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from quantattn.cli import terminal
from quantattn.cli.config import plain
from quantattn.cli.errors import DONE, UsageError, nearest
from quantattn.cli.instantiate import settings
from quantattn.cli.searching.best import evaluate_best
from quantattn.cli.searching.space import Parameter, read_space
from quantattn.cli.searching.study import (
    DIRECTIONS,
    SweepSettings,
    check_url,
    claim_study,
    in_state,
    open_study,
    telling,
)
from quantattn.cli.searching.telling import tell, write_account
from quantattn.cli.searching.worker import Search, Worker
from quantattn.cli.settings import TrainSettings
from quantattn.cli.train import build
from quantattn.learn.folder import made_and_open
from quantattn.learn.secrets import redact

UNCOMPARED = {
    *("paths", "tags", "title", "question", "test", "trials", "logger", "ckpt_path", "shards", "optimized_metric"),
    "print_config",
    *("data.path", "data.source.path", "trainer.threads", "trainer.workers", "task_name"),
}
"""Settings in which the workers of a study may differ."""
OWN = ("sweep", "space", "optimized_metric")
"""Settings that a trial is not told."""
GIVEN = {"paths.output_dir": "give paths.log_dir or sweep.name", "ckpt_path": "leave it out", "trials": "leave it out"}
"""Settings that a sweep makes itself → what to do instead."""
IN_A_ROW = 3
"""Trials that may fail one after the other before a worker takes it that something else is wrong."""


@dataclass(frozen=True)
class Wanted:
    """What the command line asks for."""

    asked: SweepSettings
    train: TrainSettings
    space: dict[str, Parameter]
    metric: str
    overrides: tuple[str, ...]
    described: dict[str, Any]


def look(config: DictConfig, found: list[Wanted]) -> int:
    """Check everything that can be checked before a study is opened."""
    given = plain(config)
    asked = settings(SweepSettings, given.pop("sweep"), "sweep")
    space, metric = given.pop("space"), given["optimized_metric"] or "valid/loss"
    if metric not in DIRECTIONS:
        why = "trials are never compared on test rows; " if metric.startswith("test/") else ""
        known = ", ".join(DIRECTIONS)
        hint = nearest(metric, DIRECTIONS) if not why else ""
        raise UsageError(f"optimized_metric={metric}: {why}a sweep compares {known}{hint if 'mean' in hint else ''}")
    train = settings(TrainSettings, {**given, "optimized_metric": None}, "")
    build(train)
    trainer = train.trainer
    if trainer.ranks > 1:
        raise UsageError(
            f"a trial runs in one process, and trainer.devices={trainer.devices} asks for more; start one worker a "
            "device with the same command instead"
        )
    if trainer.max_steps is not None and trainer.validate_every > trainer.max_steps:
        raise UsageError("trials are compared by validations: trainer.validate_every is more than trainer.max_steps")
    if not train.train:
        raise UsageError("a sweep trains: train=false is not for it")
    overrides = [each for each in HydraConfig.get().overrides.task if not _key(each).startswith(OWN)]
    parameters = read_space(space, metric)
    for each in overrides:
        if _key(each) in GIVEN:
            raise UsageError(f"a sweep sets {_key(each)} itself: {GIVEN[_key(each)]}")
        if _key(each) in parameters:
            raise UsageError(f"{_key(each)} is searched over and given as well: leave it out, or ~space.{_key(each)}")
    if asked.storage is not None:
        check_url(asked.storage)
    described = {"metric": metric, "settings": compared(given)}
    described |= {name: getattr(asked, name) for name in ("sampler", "pruner", "startup", "seed")}
    found.append(Wanted(asked, train, parameters, metric, tuple(overrides), described))
    return DONE


def compared(given: dict[str, Any], where: str = "") -> dict[str, Any]:
    """The settings in which the workers of a study agree, without secrets."""
    kept = {}
    for name, value in redact(given).items():
        key = f"{where}.{name}" if where else name
        if key not in UNCOMPARED:
            kept[name] = compared(value, key) if isinstance(value, dict) else value
    return kept


def _key(override: str) -> str:
    return override.lstrip("+~").split("=")[0]


def search(wanted: Wanted, flags: list[str]) -> int:
    """Work on the study until it has its trials, then evaluate the best; the exit code."""
    asked, train, console = wanted.asked, wanted.train, terminal.console()
    root = Path(train.paths.log_dir) / train.task_name / "sweep" / asked.name
    name = f"{train.task_name}/{asked.name}"
    url = asked.storage or f"sqlite:///{root.absolute() / 'study.db'}"
    like = Search(wanted.space, wanted.metric, tuple(flags), wanted.overrides, root, asked)
    like.check_values()
    with telling(url):
        with locked(root):
            study = open_study(url, name, wanted.metric, asked, train.trainer)
            claim_study(study, name, url, wanted.space, wanted.described)
        console.print(f"study {name} in {redact(url)}, trials in {root}")
        worker, in_a_row = Worker(study, like, console), 0
        while (trial := worker.take()) is not None:
            with trial:
                code, failed = worker.work(trial)
            write_account(study, wanted.metric, redact(url), root)
            if code is not None:
                console.print(f"stopped in trial {trial.number}; the same command goes on with it")
                return code
            in_a_row = in_a_row + 1 if failed else 0
            if in_a_row == IN_A_ROW:
                raise RuntimeError(f"{in_a_row} trials in a row have failed, the last one because {failed}")
        tell(study, wanted.metric, redact(url), root, console)
        if running := in_state(study, "RUNNING"):
            console.print(
                f"{len(running)} trials are still at work elsewhere; whoever ends last evaluates the best one"
            )
            return DONE
        if not in_state(study, "COMPLETE"):
            raise RuntimeError(f"no trial of study {name} came to its end, so there is no best one")
        return evaluate_best(study, like, console) if train.test else DONE


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Make `folder`, and be the one process on this machine in the block; a folder left empty goes again."""
    with made_and_open(folder) as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
