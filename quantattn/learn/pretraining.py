"""How a run without labels ends: its loss on test rows beside what the frequencies of the training rows alone give."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from quantattn.data.pack import SequenceSet
from quantattn.data.prepared import Prepared
from quantattn.evaluate import ReportData, Table, choose_blocks, likelihood_figures, likelihood_table
from quantattn.learn.closing import Curves, Story, caveats, learning_curves, report
from quantattn.learn.rows import rows_inside
from quantattn.nn import Encoder, EventsConfig, Model, Objective

QUESTION = "No label: what is predicted are events of the data themselves, in the fields {fields}, from other events."
WHAT_A_DECISION_IS = (
    "There are no labels here: what the figures count as a decision is one event of the data that was predicted from "
    "others. How well the encoder will serve a task with labels cannot be seen from them."
)


def close_pretraining(
    prepared: Prepared, model: Model, objective: Objective, curves: Curves, story: Story, *, seed: int = 0
) -> tuple[Table, ReportData]:
    """The closing table and the report of an objective that predicts the data themselves.

    Its baselines know no context: `unigram` gives every code its share among the training rows, each count raised by
    one; `uniform` gives all codes the same probability. All are asked for the same targets.
    """
    test = prepared.test
    methods = {"encoder": model, "unigram": without_context(model, prepared.train), "uniform": without_context(model)}
    losses, counts = losses_of(methods, test, objective)
    last = test.stop - 1
    time, entity = test.table.time[last], test.table.entity_of(last)
    table = likelihood_table(losses, counts, choose_blocks(time, entity), seed=seed)
    figures = likelihood_figures(table, learning_curves(curves))
    fields = dict.fromkeys(name for head in model.head_configs.values() for name in getattr(head, "fields", ()))
    story = replace(story, question=QUESTION.format(fields=", ".join(fields)))
    limits = (WHAT_A_DECISION_IS, *caveats(table, int(time.max() - time.min())))
    return table, report(prepared, story, table, figures, limits)


def without_context(model: Model, train: SequenceSet | None = None) -> Model:
    """A model with the same heads whose logits are constants: log frequencies of the codes in `train`, or all zero.

    Raises:
        ValueError: a head that is not over codes of the data.
    """
    made = Model(Encoder(replace(model.encoder.config, n_layers=1, compile=False)), model.head_configs)
    for head, config in zip(made.heads.values(), made.head_configs.values(), strict=True):
        if not isinstance(config, EventsConfig):
            raise ValueError(f"without labels every head is over codes of the data, got a {config.kind} head")
        project: Any = head.project
        codes = model.encoder.config.codes
        nn.init.zeros_(project.weight)
        if train is not None:
            shares = [log_shares(train, name, codes[name]) for name in config.fields]
            project.bias.data.copy_(torch.cat(shares))
    return made.to(next(model.parameters()).device).eval()


def log_shares(train: SequenceSet, name: str, size: int) -> Tensor:
    """(size,) ln of each code's share among the rows that lie in a sequence, each row counted once, plus one a code."""
    inside = rows_inside(train)
    counts = torch.bincount(torch.tensor(train.table.fields[name])[inside].long(), minlength=size) + 1
    return (counts / counts.sum()).log()


@torch.no_grad()
def losses_of(models: Mapping[str, Model], test: SequenceSet, objective: Objective) -> tuple[dict[str, Tensor], Tensor]:
    """Method → (S,) float64 summed losses of each sequence, and (S,) how many targets each sequence has."""
    losses = {name: torch.zeros(len(test), dtype=torch.float64) for name in models}
    counts = torch.zeros(len(test), dtype=torch.float64)
    for s in range(len(test)):
        batch = test.pack([s])
        for name, model in models.items():
            # Steps of training count upwards from 0, so these draws are nobody else's.
            scored = objective(model, batch.to(next(model.parameters()).device), step=-1 - s)
            counts[s] = float(scored.logs["count"])
            losses[name][s] = float(scored.loss) * counts[s]
    return losses, counts
