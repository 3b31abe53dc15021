"""What a run's model looked at for a few of its test decisions: a table for the report, with dates."""

from __future__ import annotations

import datetime as dt
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from quantattn.batch import IGNORE
from quantattn.data.pack import SequenceSet
from quantattn.data.prepared import Prepared
from quantattn.evaluate.report import Cell, ReportData, Sheet
from quantattn.nn import Model
from quantattn.nn.attended import attended

EACH = 3
"""Decisions of each of the two kinds."""
TOP = 3
"""Events of a decision."""


def with_attention(
    report: ReportData,
    model: Model,
    prepared: Prepared,
    target: str,
    said: Mapping[str, Tensor],
    *,
    device: str = "cpu",
    autocast: torch.dtype | None = None,
) -> ReportData:
    """The report with a table of what the encoder's last layer attends to at chosen test decisions.

    Of classes the surest forecasts that came true and the surest that did not, of values the highest and the lowest.

    Args:
        report: of the run.
        model: moved to `device`.
        prepared: whose test rows were scored.
        target: name of the outcome.
        said: scores of all test rows, see `predict`.
        device: where the model runs.
        autocast: dtype of products and attention; None computes in the parameters' own.
    """
    model = model.to(device).eval()
    rows = []
    with torch.autocast(torch.device(device).type, dtype=autocast or torch.float32, enabled=autocast is not None):
        for key, forecast, came in _chosen(prepared, torch.tensor(prepared.test.decisions.targets[target]), said):
            entity, when = str(prepared.entity["test"][key]), int(prepared.as_of["test"][key])
            name = (Cell(f"{entity}, {_moment(when)}", sort=f"{when:020d}"),)
            rows.append(
                (*name, Cell(forecast, sort=forecast), Cell(came, sort=came), *_looked_at(model, prepared.test, key))
            )
    if not rows:
        return report
    surest = "the surest that came true and the surest that did not"
    chosen = surest if prepared.classes else "those with the highest and with the lowest forecast"
    note = (
        f"Chosen test decisions: {chosen}. Weights of the attention of the last layer, mean over its heads, that "
        "add up to 100 % over all events seen; small figures are when an event was known (UTC) and how many events "
        "before the decision it is. A weight says where the model looked, not why."
    )
    places = tuple(f"looked at, {place}" for place in ("most", "second", "third"))
    head = ("decision", "forecast", "what came", *places, "events seen")
    return replace(report, sheets=(*report.sheets, Sheet("What the model looked at", note, head, tuple(rows))))


def _chosen(prepared: Prepared, outcome: Tensor, said: Mapping[str, Tensor]) -> list[tuple[int, str, str]]:
    """Number of each decision, what was said, and what came."""
    if prepared.classes:
        sure, guess = said["prob"].double().max(dim=1)
        known, names = outcome != IGNORE, prepared.classes
        found = [_highest(sure, known & (guess == outcome)), _highest(sure, known & (guess != outcome))]
        return [(q, f"{names[guess[q]]}, {float(sure[q]):.0%}", names[outcome[q]]) for q in [*found[0], *found[1]]]
    value, there = said["value"].double(), outcome.isfinite()
    ends = dict.fromkeys([*_highest(value, there), *_highest(-value, there)[::-1]])
    return [(q, f"{float(value[q]):.4g}", f"{float(outcome[q]):.4g}") for q in ends]


def _highest(values: Tensor, there: Tensor) -> list[int]:
    """Numbers of the highest of these values, the highest first and the first of equal ones."""
    rows = there.nonzero()[:, 0]
    best = rows[values[rows].sort(descending=True, stable=True).indices[:EACH]]
    return [int(row) for row in best]


def _looked_at(model: Model, sequences: SequenceSet, key: int) -> list[Cell]:
    """The largest weights with their events, and how many events there were."""
    place = bisect_right(sequences.first, key) - 1
    batch = sequences.pack([place])
    own = batch.keys == key
    one = replace(batch, positions=batch.positions[own], keys=batch.keys[own], targets={})
    found = attended(model.encoder, one.to(next(model.parameters()).device), top=TOP, by_batch=False)
    weights, back = (rows[0].double().tolist() for rows in found)
    row = int(sequences.decisions.row[key])
    cells = []
    for weight, distance in zip(weights, map(int, back), strict=True):
        if distance < 0:
            cells.append(Cell("–"))
            continue
        when = _moment(int(sequences.table.time[row - distance]))
        cells.append(Cell(f"{weight:.1%}", f"{when}, {distance:,} before", repr(weight)))
    seen = row + 1 - int(sequences.start[place])
    return [*cells, Cell(f"{seen:,}", sort=str(seen))]


def _moment(time: int) -> str:
    """Nanoseconds UTC as a date and a time of day."""
    return dt.datetime.fromtimestamp(time // 10**9, dt.UTC).strftime("%Y-%m-%d %H:%M:%S")
