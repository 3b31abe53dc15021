"""`quantattn train`: from a configuration to a run folder."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console

from quantattn.cli import show, terminal
from quantattn.cli.certify import backends_used, certify
from quantattn.cli.claim import claim_folder
from quantattn.cli.config import flatten, plain
from quantattn.cli.errors import DONE, UsageError, nearest
from quantattn.cli.instantiate import instantiate, settings
from quantattn.cli.launch import end_with_launcher
from quantattn.cli.preparation import check_data, check_goal, prepare
from quantattn.cli.settings import TrainSettings
from quantattn.cli.stopping import stopping_on_sigterm
from quantattn.cli.team import Team, started_here, world_of
from quantattn.data.prepared import Prepared
from quantattn.data.protocol.splits.plan import require_fold
from quantattn.data.value_edges import value_edges, vector_scales
from quantattn.nn import Encoder, EncoderConfig

if TYPE_CHECKING:
    from quantattn.learn.closing import Exactness
    from quantattn.learn.run import RunSettings


def train(config: DictConfig, flags: Sequence[str] = ()) -> int:
    """One training run; its exit code. `flags` are those of Hydra, for the processes that it starts."""
    from quantattn.learn.folder import holding
    from quantattn.learn.parallel import joined

    given = plain(config)
    asked = settings(TrainSettings, given, "")
    folder = Path(asked.paths.output_dir)
    parts = build(asked)
    world = world_of(asked)
    if world is None:
        return started_here(asked, folder, flags)
    console = terminal.console(quiet=world.rank > 0)
    with stopping_on_sigterm(), ExitStack() as stack:
        resume = None
        if world.rank == 0:
            stack.enter_context(holding(folder))
            resume = claim_folder(folder, asked, given)
        if world.size == 1:
            return _train(asked, given, parts, folder, resume, console)
        end_with_launcher()
        team = Team(world, stack.enter_context(joined(world, asked.trainer.accelerator)))
        return _train(asked, given, parts, folder, resume, console, team)


def train_held(
    asked: TrainSettings,
    given: Mapping[str, Any],
    parts: Mapping[str, Any],
    folder: Path,
    console: Console,
    read: Callable[[TrainSettings, Any], Prepared] | None = None,
) -> int:
    """One training run of one process in a folder that it holds already; its exit code.

    `read` prepares data otherwise than `prepare`.
    """
    return _train(asked, given, parts, folder, claim_folder(folder, asked, given), console, read=read)


def build(asked: TrainSettings) -> dict[str, Any]:
    """Everything that the settings name by `_target_`, made and checked before any data are read."""
    allow = asked.allow_targets
    check_data(asked)
    if asked.ckpt_path not in (None, "auto") and not Path(asked.ckpt_path).exists():
        raise UsageError(
            f"ckpt_path={asked.ckpt_path}: there is no such checkpoint; auto, a .ckpt file or a run folder is"
        )
    if asked.optimized_metric is not None:
        check_metric(asked.optimized_metric, asked.test)
    check_start(asked)
    check_budget(asked)
    objective = instantiate(asked.objective, "objective", allow)
    check_goal(asked, objective)
    if asked.calibrate and (objective.goal != "classes" or asked.objective.get("ordinal")):
        raise UsageError("calibrate=true scales the logits of classes; it goes with objective=outcome or focal")
    if asked.conformal is not None and objective.goal == "data":
        raise UsageError("conformal=… makes sets of classes and intervals of values; this objective predicts neither")
    splits = instantiate(asked.splits, "splits", allow)
    check_fold(asked, splits)
    try:
        backends_used(asked.model.encoder({"kind": 9}, (), asked.attention.backend), asked.trainer)
    except ValueError as error:
        raise UsageError(f"attention.{error}") from error
    return {
        "splits": splits,
        "objective": objective,
        "optimizer": checked_optimizer(instantiate(asked.optimizer, "optimizer", allow)),
        "callbacks": [checked_callback(node, f"callbacks.{name}", allow) for name, node in asked.callbacks.items()],
        "loggers": [of_group("logger", node, f"logger.{name}", allow) for name, node in asked.logger.items()],
    }


def check_fold(asked: TrainSettings, splits: Any) -> None:
    """Refuse what is no plan of splits, and a fold that it does not have."""
    if not hasattr(splits, "n_folds"):
        raise UsageError(f"splits._target_ must name a plan of splits, got {type(splits).__name__}")
    try:
        require_fold(asked.data.prepare.get("fold", -1), splits.n_folds)
    except ValueError as error:
        raise UsageError(f"data.prepare.fold: {error}") from error


def check_budget(asked: TrainSettings) -> None:
    """Refuse to find how many tokens fit where that cannot be tried."""
    from quantattn.learn.budget import require_limit

    if asked.data.max_tokens_per_batch == "auto":
        try:
            require_limit(asked.trainer)
        except ValueError as error:
            raise UsageError(str(error)) from error


def check_start(asked: TrainSettings) -> None:
    """Refuse to begin with a model that is not there."""
    try:
        asked.tuning.folder()
    except ValueError as error:
        raise UsageError(str(error)) from error


def check_metric(name: str, tests: bool) -> None:
    """Refuse to optimise a figure that no run, or none that tests nothing, has, before one is made in vain."""
    from quantattn.learn.closing import TEST_FIGURES  # and drawings

    known = ("valid/loss", "seconds", *(TEST_FIGURES if tests else ()))
    if name not in known:
        where = "a run" if tests else "a run with test=false"
        raise UsageError(f"optimized_metric={name}: {where} has no such figure{nearest(name, known)}")


def checked_callback(node: Mapping[str, Any], where: str, allow: tuple[str, ...]) -> Any:
    """The callback; the patience of early stopping, which Lightning takes as it comes, is checked here."""
    patience = node.get("patience", 1)
    if isinstance(patience, bool) or not isinstance(patience, int) or patience < 1:
        raise UsageError(f"{where}.patience must be a whole number from 1, got {patience!r}")
    return of_group("callbacks", node, where, allow)


def of_group(group: str, node: Mapping[str, Any], where: str, allow: tuple[str, ...]) -> Any:
    """What the node names; that it is of another class Lightning would find out in the middle of a run."""
    from quantattn.learn.fit import KINDS

    made = instantiate(node, where, allow)
    if not isinstance(made, KINDS[group]):
        raise UsageError(
            f"{where}._target_ must name a {KINDS[group].__name__} of Lightning, got {type(made).__name__}"
        )
    return made


def checked_optimizer(make: Any) -> Any:
    """The optimizer's factory, tried on one number, so that a bad learning rate is found now."""
    import torch

    try:
        tried = make([{"params": [torch.nn.Parameter(torch.zeros(1))]}])
    except (ValueError, TypeError, LookupError, HydraException, OmegaConfBaseException) as error:
        raise UsageError(f"optimizer: {error}") from error
    if not isinstance(tried, torch.optim.Optimizer):
        raise UsageError(f"optimizer._target_ must name an optimizer of torch, got a {type(tried).__name__}")
    return make


def _train(
    asked: TrainSettings,
    given: Mapping[str, Any],
    parts: Mapping[str, Any],
    folder: Path,
    resume: Path | None,
    console: Console,
    team: Team | None = None,
    read: Callable[[TrainSettings, Any], Prepared] | None = None,
) -> int:
    from quantattn.learn.parallel import World
    from quantattn.learn.run import run as run_training
    from quantattn.learn.settle import with_budget

    if asked.print_config:
        console.print(show.settings_tree(given))
    console.print(f"run folder {folder}" + from_where(resume, asked.train))
    if team is None:
        prepared = (read or prepare)(asked, parts["splits"])
    else:
        prepared, resume = team.prepare(asked, parts["splits"], resume)
    tell_data(prepared, folder if team is None or team.world.rank == 0 else None, console)
    encoder = encoder_of(asked, prepared)
    console.print(model_line(encoder))
    exactness = certify(encoder, asked.trainer) if team is None or team.world.rank == 0 else None
    what = (prepared, encoder, parts["objective"], parts["optimizer"])
    wanted = run_settings(asked, given, prepared, exactness)
    if asked.data.max_tokens_per_batch == "auto":
        wanted = with_budget(folder, *what, wanted, resume, console.print)
    with show.progress(console) as watch:
        outcome = run_training(
            folder,
            *what,
            wanted,
            callbacks=parts["callbacks"],
            loggers=parts["loggers"],
            watch=watch,
            resume=resume,
            world=World() if team is None else team.world,
        )
    fitted = outcome.fitted
    if fitted is not None and fitted.stopped:
        console.print(f"stopped at step {fitted.step}; ckpt_path=auto paths.output_dir={folder} goes on")
        return 128 + (fitted.signal or signal.SIGTERM)
    if team is not None and team.world.rank > 0:
        return DONE
    if fitted is not None:
        best = f"best validation loss {fitted.best_value:.4f} at step {fitted.best_step}"
        if fitted.best_step < 0:
            best = "never validated, so the last weights are kept: trainer.validate_every is more than its steps"
        console.print(f"trained {fitted.step} steps in {fitted.seconds:.0f} s; {best}")
    for line in outcome.started:
        console.print(f"weights of {asked.tuning.start}: {line}")
    if outcome.table is not None:
        show.closing(console, outcome.table)
        console.print(f"report {folder / 'report.html'}")
    console.print(f"model  {folder / 'model'}")
    optimized(asked.optimized_metric, outcome.figures)
    return DONE


def run_settings(
    asked: TrainSettings, given: Mapping[str, Any], prepared: Prepared, exactness: Exactness | None
) -> RunSettings:
    """What the run is told beside its data, its encoder and its objective."""
    from quantattn.learn.completing import require_rows
    from quantattn.learn.run import RunSettings
    from quantattn.learn.secrets import redact

    if asked.conformal is not None:
        require_rows(prepared, asked.conformal)
    auto = asked.data.max_tokens_per_batch == "auto"  # then `with_budget` says how many
    shown = redact(dict(given))
    described = {name: str(value) for name, value in leaves(shown) if not name.startswith(("paths", "hydra"))}
    return RunSettings(
        title=asked.title,
        question=asked.question,
        max_tokens=asked.data.max_seq_len if auto else int(asked.data.max_tokens_per_batch),
        seed=asked.seed,
        trainer=asked.trainer,
        train=asked.train,
        test=asked.test,
        described=described,
        card={name: shown[name] for name in ("data", "labels", "objective")} | {"classes": list(prepared.classes)},
        exactness=exactness,
        tuning=asked.tuning,
        calibrate=asked.calibrate,
        conformal=asked.conformal,
        trials=asked.trials,
        licence=asked.licence,
    )


def tell_data(prepared: Prepared, folder: Path | None, console: Console) -> None:
    """Print what the data are, and write into the folder, if any, what became of each document."""
    for line in show.data_lines(prepared):
        console.print(line)
    if prepared.account and folder is not None:
        (folder / "account.csv").write_text(prepared.account, "utf-8")
        console.print(f"what became of each file: {folder / 'account.csv'}")


def encoder_of(asked: TrainSettings, prepared: Prepared) -> EncoderConfig:
    """The encoder for these data, which reads numbers by what its training rows say of their scale."""
    bins = asked.model.value_bins
    edges = value_edges(prepared.train, prepared.values, bins) if bins else {}
    scales = vector_scales(prepared.train)
    return asked.model.encoder(prepared.codes, prepared.values, asked.attention.backend, edges, scales)


def model_line(config: EncoderConfig) -> str:
    """The encoder's shape and size in words."""
    import torch

    with torch.device("meta"):
        encoder = Encoder(config.with_changes(compile=False))
    embedding, blocks = (sum(p.numel() for p in part.parameters()) for part in (encoder.embedding, encoder.blocks))
    wide = sum(not config.is_local(layer) for layer in range(config.n_layers))
    near = f"{wide} see everything, the others {config.local_window}"
    sees = "all see everything" if wide == config.n_layers else near
    return (
        f"model: {config.n_layers} blocks of width {config.width} with {config.n_heads} heads, {sees}; "
        f"{embedding:,} parameters in the embedding, {blocks:,} in the blocks"
    )


def from_where(resume: Path | None, trains: bool) -> str:
    """Which checkpoint a run begins with, in words."""
    return "" if resume is None else f", {'going on from' if trains else 'evaluating'} {resume}"


def optimized(name: str | None, figures: Mapping[str, float]) -> None:
    """Raise UsageError when the figure that a sweep is to optimise is not there."""
    if name is not None and not math.isfinite(figures.get(name, math.nan)):
        raise UsageError(f"optimized_metric={name}: this run has no such figure{nearest(name, figures)}")


def leaves(node: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Every dotted setting with its value, groups left out."""
    for key in flatten(dict(node)):
        value: Any = node
        for part in key.split("."):
            value = value[part]
        if not isinstance(value, Mapping):
            yield key, value
