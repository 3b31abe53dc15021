"""Commands that take Hydra overrides: their settings are composed before what carries them out is imported.

That takes seconds, which `--help`, `--cfg job` and a misspelt setting do not wait for.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from omegaconf import DictConfig

from quantattn.cli.config import flags_apart, run_application
from quantattn.cli.errors import UsageError
from quantattn.cli.stopping import stopping_on_sigterm

if TYPE_CHECKING:
    from quantattn.cli.sweep import Wanted

MADE_IN_TRAINING = ("data.prepare", "data.max_seq_len", "data.shuffle_labels", "data.kind")
"""Settings of data that scoring takes from the model."""


def train(arguments: list[str]) -> int:
    """Train as the arguments, Hydra overrides of `conf/train.yaml`, say."""
    kept = [flag for flag in flags_apart(arguments)[0] if flag not in ("-m", "--multirun")]

    def job(config: DictConfig) -> int:
        from quantattn.cli.train import train

        return train(config, kept)

    return run_application("train", arguments, job)


def sweep(arguments: list[str]) -> int:
    """Search as the arguments, Hydra overrides of `conf/sweep.yaml`, say."""
    flags, _ = flags_apart(arguments)
    if {"-m", "--multirun"} & set(flags):
        raise UsageError(
            "-m belongs to train; a sweep is one search, and the same command run again is a second worker"
        )
    if find_spec("optuna") is None:
        raise UsageError("a sweep needs a package that is not here: pip install 'quantattn[sweep]'")
    found: list[Wanted] = []

    def job(config: DictConfig) -> int:
        from quantattn.cli.sweep import look

        return look(config, found)

    code = run_application("sweep", arguments, job)
    if not found:
        return code
    from quantattn.cli.sweep import search

    with stopping_on_sigterm():
        return search(found[0], flags)


def score(arguments: list[str]) -> int:
    """Score as the arguments, Hydra overrides of `conf/score.yaml`, say."""
    for argument in arguments:
        if argument.lstrip("+").startswith(MADE_IN_TRAINING):
            key = argument.split("=")[0]
            raise UsageError(f"{key} stands in the model's folder, as it was in training, and cannot be given again")

    def job(config: DictConfig) -> int:
        from quantattn.cli.score import score_tables

        return score_tables(config)

    with stopping_on_sigterm():
        return run_application("score", _model_as_folder(arguments), job)


def export(arguments: list[str]) -> int:
    """Export as the arguments, Hydra overrides of `conf/export.yaml`, say."""

    def job(config: DictConfig) -> int:
        from quantattn.cli.export import export

        return export(config)

    return run_application("export", _model_as_folder(arguments), job)


def prepare(arguments: list[str]) -> int:
    """Prepare as the arguments, Hydra overrides of `conf/prepare.yaml`, say."""

    def job(config: DictConfig) -> int:
        from quantattn.cli.prepare import prepare

        return prepare(config)

    return run_application("prepare", arguments, job)


def changes(arguments: list[str]) -> int:
    """Compare filings as the arguments, Hydra overrides of `conf/changes.yaml`, say."""

    def job(config: DictConfig) -> int:
        from quantattn.cli.changes import compare

        return compare(config)

    return run_application("changes", arguments, job)


def bench(arguments: list[str]) -> int:
    """Measure as the arguments, Hydra overrides of `conf/bench.yaml`, say."""

    def job(config: DictConfig) -> int:
        from quantattn.cli.bench import measure

        return measure(config)

    return run_application("bench", arguments, job)


def _model_as_folder(arguments: list[str]) -> list[str]:
    """The arguments with another name for model=…, which Hydra takes for a choice from the group that training has."""
    return [f"model_folder={a.removeprefix('model=')}" if a.startswith("model=") else a for a in arguments]
