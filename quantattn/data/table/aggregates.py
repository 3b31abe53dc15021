"""What a table says of an entity without its order: counts, sums, means and deviations, for baselines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from quantattn.data.table.tokens import FIRST_VALUE, TableTokenizer, raw_fields
from quantattn.data.tokens import MASKED, MISSING

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
MOST_CATEGORIES = 64
"""Categories of one field that are counted, the first by code; a field with more has the others left out."""


@dataclass(frozen=True)
class Aggregates:
    """Features of decisions, over all events from the entity's first to the decision's own.

    The number of events; of each numeric field how many values there are, their sum, mean, standard deviation (over n),
    least and largest; of each category how many events have it, missing and other values among them.

    Attributes:
        names: F names of features.
        values: (Q, F) float64, NaN where a decision has no value of a field.
    """

    names: tuple[str, ...]
    values: Floats

    @staticmethod
    def of(events: pl.DataFrame, tokenizer: TableTokenizer, first: Ints, row: Ints) -> Aggregates:
        """Aggregate rows first[q] … row[q] of `events` for every decision q.

        Args:
            events: in canonical order.
            tokenizer: says which fields there are, and which categories were frequent in training.
            first: (Q,) rows at which histories begin.
            row: (Q,) rows of the decisions.
        """
        length = row + 1 - first
        rows = np.arange(length.sum()) + np.repeat(first - np.concatenate([[0], np.cumsum(length)[:-1]]), length)
        starts = np.concatenate([[0], np.cumsum(length)[:-1]]).astype(np.int64)
        columns: dict[str, Floats] = {"events": length.astype(np.float64)}
        raw = events.select(**raw_fields(tokenizer.numeric, tokenizer.zone))
        for name in tokenizer.numeric:
            value = raw[name].cast(pl.Float64).fill_null(np.nan).to_numpy()[rows]
            columns |= {f"{name} {what}": found for what, found in _numeric(value, starts, length).items()}
        coded = tokenizer.transform(events.lazy()).select(f"{name}_code" for name in tokenizer.categories).collect()
        which = np.repeat(np.arange(len(row)), length)
        for name, known in tokenizer.categories.items():
            size = FIRST_VALUE + len(known)
            cells = which * size + coded[f"{name}_code"].to_numpy()[rows].astype(np.int64)
            counts = np.bincount(cells, minlength=len(row) * size).reshape(len(row), size)
            for code in _counted(size):
                columns[f"{name} = {_said(code, known)}"] = counts[:, code].astype(np.float64)
        return Aggregates(tuple(columns), np.stack(list(columns.values()), axis=1))


def _counted(size: int) -> range | list[int]:
    codes = [code for code in range(size) if code != MASKED]  # no event of the data is masked
    return codes[: FIRST_VALUE + MOST_CATEGORIES]


def _said(code: int, known: tuple[str, ...]) -> str:
    return known[code - FIRST_VALUE] if code >= FIRST_VALUE else "missing" if code == MISSING else "other"


def _numeric(value: Floats, starts: Ints, length: Ints) -> Mapping[str, Floats]:
    """Sums over runs in the order of rows, so that the same rows give the same bits."""
    there = ~np.isnan(value)
    filled = np.where(there, value, 0.0)
    count = np.add.reduceat(there.astype(np.float64), starts)
    total = np.add.reduceat(filled, starts)
    none = count == 0
    mean = np.where(none, np.nan, total / np.maximum(count, 1))
    away = np.where(there, (value - np.repeat(mean, length)) ** 2, 0.0)
    spread = np.sqrt(np.add.reduceat(away, starts) / np.maximum(count, 1))
    least = np.minimum.reduceat(np.where(there, value, np.inf), starts)
    largest = np.maximum.reduceat(np.where(there, value, -np.inf), starts)
    return {
        "count": count,
        "sum": np.where(none, np.nan, total),
        "mean": mean,
        "std": np.where(none, np.nan, spread),
        "min": np.where(none, np.nan, least),
        "max": np.where(none, np.nan, largest),
    }
