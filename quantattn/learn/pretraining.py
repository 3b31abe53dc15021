"""How a run without labels ends: its loss on test rows beside what the frequencies of the training rows alone give."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from quantattn.data.pack import SequenceSet
from quantattn.data.prepared import Prepared
from quantattn.evaluate import ReportData, Table, choose_blocks, likelihood_figures, likelihood_table
from quantattn.learn.closing import Curves, Story, caveats, learning_curves, report
from quantattn.learn.rows import gaps_of, rows_inside
from quantattn.nn import Encoder, EventsConfig, Model, NextEvent, Objective, Several, TimeConfig

QUESTION = "No label: what is predicted are events of the data themselves, in the fields {fields}, from other events."
TIME = (
    "The time until the next event: the encoder's mean −ln of its density per second is {encoder:.4f}, that of one "
    "law for all events, fitted to the training rows, {unigram:.4f} nats. Lower is better."
)
WHAT_A_DECISION_IS = (
    "There are no labels here: what the figures count as a decision is one event of the data that was predicted from "
    "others. How well the encoder will serve a task with labels cannot be seen from them."
)


def close_pretraining(
    prepared: Prepared, model: Model, objective: Objective, curves: Curves, story: Story, *, seed: int = 0
) -> tuple[Table, ReportData]:
    """The closing table and the report of an objective that predicts the data themselves.

    Its baselines know no context: `unigram` gives every code its share among the training rows, each count raised by
    one; `uniform` gives all codes the same probability. All are asked for the same targets. The table is of codes; what
    the time until the next event cost, a density, which has a unit, is said beside it.
    """
    test = prepared.test
    methods = {"encoder": model, "unigram": without_context(model, prepared.train), "uniform": without_context(model)}
    losses, counts, times = losses_of(methods, test, objective)
    last = test.stop - 1
    time, entity = test.table.time[last], test.table.entity_of(last)
    table = likelihood_table(losses, counts, choose_blocks(time, entity), seed=seed)
    figures = likelihood_figures(table, learning_curves(curves))
    fields = dict.fromkeys(name for head in model.head_configs.values() for name in getattr(head, "fields", ()))
    story = replace(story, question=QUESTION.format(fields=", ".join(fields)))
    limits = (WHAT_A_DECISION_IS, *caveats(table, int(time.max() - time.min())))
    if times:
        limits = (TIME.format(encoder=times["encoder"], unigram=times["unigram"]), *limits)
    return table, report(prepared, story, table, figures, limits)


def without_context(model: Model, train: SequenceSet | None = None) -> Model:
    """A model with the same heads that says the same of every event: what is usual in `train`, or nothing.

    Of codes their log frequencies, or all zero; of times the law of the head that fits them, or the untrained one.

    Raises:
        ValueError: a head that is not over the data.
    """
    made = Model(Encoder(replace(model.encoder.config, n_layers=1, compile=False)), model.head_configs)
    for head, config in zip(made.heads.values(), made.head_configs.values(), strict=True):
        if not isinstance(config, (EventsConfig, TimeConfig)):
            raise ValueError(f"without labels every head is over the data, got a {config.kind} head")
        project: Any = head.project
        codes = model.encoder.config.codes
        nn.init.zeros_(project.weight)
        if train is None:
            continue
        if isinstance(config, TimeConfig):
            project.bias.data.copy_(usual_time(config, gaps_of(train), len(project.bias)))
        else:
            project.bias.data.copy_(torch.cat([log_shares(train, name, codes[name]) for name in config.fields]))
    return made.to(next(model.parameters()).device).eval()


def log_shares(train: SequenceSet, name: str, size: int) -> Tensor:
    """(size,) ln of each code's share among the rows that lie in a sequence, each row counted once, plus one a code."""
    inside = rows_inside(train)
    counts = torch.bincount(torch.tensor(train.table.fields[name])[inside].long(), minlength=size) + 1
    return (counts / counts.sum()).log()


def usual_time(config: TimeConfig, seconds: Tensor, size: int) -> Tensor:
    """(size,) parameters of the head's law that fit these times best, of the log-normal with a single component."""
    zero, positive = int((seconds == 0).sum()), seconds[seconds > 0]
    found = torch.zeros(size)
    found[0] = math.log(zero + 1) - math.log(len(positive) + 1)
    if config.density == "exponential":
        found[1] = config.mean - float(positive.mean().log())
    return found


@torch.no_grad()
def losses_of(
    models: Mapping[str, Model], test: SequenceSet, objective: Objective
) -> tuple[dict[str, Tensor], Tensor, dict[str, float]]:
    """Method → (S,) float64 summed losses of each sequence over its codes, and (S,) how many targets each has.

    And method → mean loss of the times, where the objective predicts them.
    """
    losses = {name: torch.zeros(len(test), dtype=torch.float64) for name in models}
    counts = torch.zeros(len(test), dtype=torch.float64)
    times: dict[str, float] = {}
    codes = without_time(objective)
    for s in range(len(test)):
        batch = test.pack([s])
        for name, model in models.items():
            # Steps of training count upwards from 0, so these draws are nobody else's.
            given = batch.to(next(model.parameters()).device)
            scored = codes(model, given, step=-1 - s)
            counts[s] = float(scored.logs["count"])
            losses[name][s] = float(scored.loss) * counts[s]
            if codes is not objective:
                logs = objective(model, given, step=-1 - s).logs
                cost = sum(float(value) for what, value in logs.items() if what.endswith("nll_time"))
                times[name] = times.get(name, 0.0) + cost * float(counts[s])
    return losses, counts, {name: total / max(float(counts.sum()), 1.0) for name, total in times.items()}


def without_time(objective: Objective) -> Objective:
    """The objective without the time until the next event; the same object when it does not predict it."""
    if isinstance(objective, NextEvent) and objective.time is not None:
        return replace(objective, time=None)
    if isinstance(objective, Several):
        parts = {name: without_time(part) for name, part in objective.parts.items()}
        if any(parts[name] is not part for name, part in objective.parts.items()):
            return replace(objective, parts=parts)
    return objective
