"""One run from prepared data to a model folder, a closing table and a report."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback
from lightning.pytorch.loggers import Logger
from torch import nn

from quantattn.data.prepared import Prepared
from quantattn.evaluate import ReportData, Table, write_report
from quantattn.learn.budget import find_budget, within_memory
from quantattn.learn.card import Card
from quantattn.learn.checkpoint import load_weights
from quantattn.learn.closing import Exactness, Story, close, figures_of
from quantattn.learn.completing import arrays, calibrated, completed, placed
from quantattn.learn.coverage import with_coverage
from quantattn.learn.datamodule import PreparedData, epoch_batches, shared
from quantattn.learn.files import write_json
from quantattn.learn.fit import ALONE, Fitted, Progress, fit
from quantattn.learn.folder import LOADER, commit, environment
from quantattn.learn.history import curves
from quantattn.learn.keeping import described_data, keep
from quantattn.learn.looking import with_attention
from quantattn.learn.module import OptimizerFactory, Training
from quantattn.learn.optimisers import Schedule
from quantattn.learn.parallel import World, leave
from quantattn.learn.predict import predict
from quantattn.learn.pretraining import close_pretraining
from quantattn.learn.rows import training_rows
from quantattn.learn.trainer import TrainerSettings
from quantattn.learn.tuning import Tuning, like, restrain, started, summary
from quantattn.nn import Encoder, EncoderConfig, Model, Objective, load_model
from quantattn.nn.transfer import Transfer


class ExactnessError(RuntimeError):
    """The attention that a run would use fails its certificate."""


@dataclass(frozen=True)
class RunSettings:
    """What a run is made of beside its data and its model.

    Attributes:
        title: for the report.
        question: one sentence: what is predicted, for what, from what.
        max_tokens: budget of tokens a batch.
        seed: of initial weights, order, dropout and masking.
        trainer: how it is trained.
        train: whether to train; otherwise the weights of `resume` are evaluated.
        test: whether to look at the test rows.
        described: name → value, for the report.
        card: plain values to keep in the model's folder, so that scoring can prepare data the same way.
        exactness: what was found of the attention that the run uses; None when nobody looked.
        tuning: what it takes up of another model, and what of it is trained.
        calibrate: scale the temperature of classes on the validation rows.
        conformal: share of outcomes that sets or intervals should hold, calibrated on the validation rows.
        trials: runs that this one was chosen from, itself included; None when nobody said.
        licence: of the data, in words, for the model's card.
    """

    title: str
    question: str
    max_tokens: int
    seed: int
    trainer: TrainerSettings
    train: bool
    test: bool
    described: Mapping[str, str]
    card: Mapping[str, Any]
    exactness: Exactness | None = None
    tuning: Tuning = Tuning()  # noqa: RUF009  # frozen
    calibrate: bool = False
    conformal: float | None = None
    trials: int | None = None
    licence: str = "unknown"


@dataclass(frozen=True)
class Outcome:
    """What came out of a run.

    Attributes:
        fitted: how training ended, if there was any.
        table: the closing table, if there is one.
        figures: by name.
        started: sentences on the weights that it began with.
    """

    fitted: Fitted | None
    table: Table | None
    figures: Mapping[str, float]
    started: tuple[str, ...] = ()


def run(
    folder: Path,
    prepared: Prepared,
    encoder: EncoderConfig,
    objective: Objective,
    optimizer: OptimizerFactory,
    settings: RunSettings,
    *,
    callbacks: Sequence[Callback] = (),
    loggers: Sequence[Logger] = (),
    watch: Callable[[Progress], None] | None = None,
    resume: Path | None = None,
    world: World = ALONE,
) -> Outcome:
    """Train, keep the best weights as a model folder, and evaluate them on the test rows.

    Of several processes all train, and the first one does the rest alone.

    Raises:
        LeakError: the audit of the data failed.
        ExactnessError: the attention that the run would use is not exact.
        LossError: the loss became NaN or infinite.
        OutOfMemory: a batch does not fit into memory.
        ValueError: settings that do not fit the data, named in the sentence.
    """
    prepared.audit.require()
    alone_here = world.rank == 0
    if settings.exactness is not None:
        if alone_here:
            write_json(folder / "certificate.json", settings.exactness.document)
        if not settings.exactness.passed:
            raise ExactnessError(settings.exactness.sentence)
    objective = objective.fitted(training_rows(prepared))
    random.seed(settings.seed)  # a checkpoint keeps the state of this generator too
    torch.manual_seed(settings.seed)
    model, taken, frozen = begin(encoder, objective, prepared, settings.tuning)
    documents = {"environment": environment(), "data": described_data(prepared), "tuning": summary(taken, model)}
    for name, document in documents.items() if alone_here else ():
        write_json(folder / f"{name}.json", document)
    total = total_steps(prepared, settings)
    module = Training(
        model,
        objective,
        optimizer=optimizer,
        schedule=schedule_of(settings.trainer, total),
        seed=settings.seed,
        layer_decay=settings.tuning.layer_decay,
        frozen=frozen,
        **share_of(world, settings.trainer),
    )
    fitted = None
    if settings.train:
        fitted = _fit(module, prepared, folder, settings, total, callbacks, loggers, watch, resume, world)
        leave()
        if fitted.stopped or not alone_here:
            return Outcome(fitted, None, {})
    else:
        load_weights(module, resume)
    figures = completed(module.model, prepared, settings, fitted, folder)
    settings = calibrated(module.model, prepared, settings)
    begun = () if taken is None else taken.sentences()
    table, report = None, None
    try:
        if settings.test:
            table, report, found = evaluate(folder, prepared, module, settings, begun)
            figures |= found
    finally:  # what was trained is kept also where its evaluation fails
        documents["metrics"] = {"figures": figures, "table": None if table is None else table.to_dict()}
        _keep(module.model, folder, prepared, settings, documents, report)
    write_json(folder / "metrics.json", documents["metrics"])
    return Outcome(fitted, table, figures, begun)


def _keep(
    model: Model,
    folder: Path,
    prepared: Prepared,
    settings: RunSettings,
    documents: Mapping[str, Mapping[str, Any]],
    report: ReportData | None,
) -> None:
    """Write the model's folder, and the report, which names the model."""
    card = Card(
        title=settings.title,
        question=settings.question,
        licence=settings.licence,
        settings=settings.card,
        causal=model.encoder.config.causal,
        data=documents["data"],
        metrics=documents["metrics"],
        environment=documents["environment"],
        certificate=None if settings.exactness is None else settings.exactness.document,
        trials=settings.trials,
    )
    extra = {**settings.card, **({} if settings.trials is None else {"trials": settings.trials})}
    sha = keep(model, folder / "model", prepared, card=card.text(), extra=extra, exactness=settings.exactness)
    if report is not None:
        write_report(folder / "report.html", replace(report, hashes={**report.hashes, "model": sha}))


def begin(
    encoder: EncoderConfig, objective: Objective, prepared: Prepared, tuning: Tuning
) -> tuple[Model, Transfer | None, tuple[nn.Module, ...]]:
    """The model that a run begins with, what it took of another one, and its parts that stay as they are."""
    folder = tuning.folder()
    source = None if folder is None else load_model(folder)
    if source is not None:
        encoder = like(encoder, source.encoder.config)
    model = Model(Encoder(encoder), objective.heads(encoder, prepared.classes))
    taken = None if source is None else started(model, source, prepared)
    return model, taken, restrain(model, tuning)


def _fit(
    module: Training,
    prepared: Prepared,
    folder: Path,
    settings: RunSettings,
    total: int,
    callbacks: Sequence[Callback],
    loggers: Sequence[Logger],
    watch: Callable[[Progress], None] | None,
    resume: Path | None,
    world: World,
) -> Fitted:
    for logger in loggers:
        logger.log_hyperparams(dict(settings.described))
    workers, share = settings.trainer.workers, share_of(world, settings.trainer)
    beside = folder / (f"{LOADER}{world.rank}" if world.rank else LOADER)
    with shared(prepared.train, beside, workers) as train:
        data = PreparedData(
            train,
            prepared.valid,
            max_tokens=settings.max_tokens,
            seed=settings.seed,
            batches=total * settings.trainer.batches_a_step,
            step=settings.trainer.batches_a_step,
            workers=workers,
            rank=share["rank"],
            world=share["ranks"],
            one_batch=settings.trainer.one_batch,
        )
        training = partial(
            fit,
            module,
            data,
            folder,
            settings.trainer,
            total_steps=total,
            callbacks=callbacks,
            loggers=loggers,
            watch=watch,
            resume=resume,
            world=world,
        )
        find = partial(find_budget, module, prepared.train, settings.trainer) if world.size == 1 else None
        return within_memory(training, settings.max_tokens, int(prepared.train.lengths.max()), find)


def share_of(world: World, trainer: TrainerSettings) -> dict[str, int]:
    """Which of the processes that share the batches of a step this is, and how many they are."""
    return {"rank": world.rank if trainer.sharing > 1 else 0, "ranks": trainer.sharing}


def evaluate(
    folder: Path, prepared: Prepared, module: Training, settings: RunSettings, begun: tuple[str, ...] = ()
) -> tuple[Table, ReportData, dict[str, float]]:
    """The closing table, the report and figures on the test rows; `begun` are words on the first weights."""
    device, half = placed(settings.trainer)
    story = Story(
        settings.title,
        settings.question,
        settings.described,
        {"commit": commit()},
        settings.exactness,
        (*(f"Weights of {settings.tuning.start}: {line}." for line in begun), *chosen_from(settings.trials)),
        created=dt.datetime.now(dt.UTC).strftime("%Y-%m-%d %H:%M UTC"),
    )
    learning = curves(folder / "metrics.csv")
    heads, found = module.model.decision_heads(), dict[str, float]()
    if heads:
        scores = predict(module.model, prepared.test, settings.max_tokens, device=device, autocast=half)
        target = next(iter(heads))
        table, report = close(prepared, target, scores, learning, story, seed=settings.seed)
        outcome = prepared.test.decisions.targets[target]
        report, found = with_coverage(report, settings.card, arrays(scores), outcome)
        report = with_attention(report, module.model, prepared, target, scores, device=device, autocast=half)
    else:
        model = module.model.to(device).eval()
        table, report = close_pretraining(prepared, model, module.objective, learning, story, seed=settings.seed)
    return table, report, figures_of(table) | found


def chosen_from(trials: int | None) -> tuple[str, ...]:
    """What the number of trials that a run was chosen from forbids to conclude, for its report."""
    if trials is None or trials < 2:
        return ()
    return (
        f"This run was chosen from {trials:,} trials: what it shows on the rows by which it was chosen is better than "
        f"it will be again, and a Sharpe ratio from its scores has to be deflated by {trials:,}.",
    )


def schedule_of(trainer: TrainerSettings, total: int) -> Schedule:
    """The learning-rate schedule that the settings describe."""
    return Schedule(total, trainer.warmup, trainer.lr_floor, trainer.schedule)


def total_steps(prepared: Prepared, settings: RunSettings) -> int:
    """Optimizer steps of the run: the smaller of `max_steps` and what `max_epochs` amounts to."""
    trainer = settings.trainer
    limits = [] if trainer.max_steps is None else [trainer.max_steps]
    if trainer.max_epochs is not None:
        epochs, step = trainer.max_epochs, trainer.batches_a_step
        limits.append(epoch_batches(prepared.train, settings.max_tokens, settings.seed, epochs, step) // step)
    return min(limits)
