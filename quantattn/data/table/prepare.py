"""Events of a table → outcomes, split, tokens, sequences and baselines, with the audit of what was known when."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
import polars as pl

from quantattn.data.digest import columns_sha256
from quantattn.data.pack import Decisions, Layout, SequenceSet, TokenTable, least_context
from quantattn.data.prepared import PARTS, Prepared
from quantattn.data.protocol import (
    Audit,
    ByEntity,
    Fitted,
    Intervals,
    Split,
    SplitPlan,
    audit,
    choose,
    past_only,
)
from quantattn.data.sources.table import TableSource
from quantattn.data.sources.table_types import duration
from quantattn.data.table.aggregates import Aggregates
from quantattn.data.table.encode import collect_events, of_entities, token_table
from quantattn.data.table.outcomes import Outcomes, decide
from quantattn.data.table.tokens import TableTokenizer, known_fields, require_numbers
from quantattn.data.table.twins import apart_from_twins, history_hashes, twins_check

Objective = Literal["outcome", "masked"]
Ints = npt.NDArray[np.int64]


def prepare_table(
    source: TableSource,
    *,
    label: Outcomes | None = None,
    objective: Objective = "outcome",
    split: SplitPlan | None = None,
    fold: int = -1,
    fields: Sequence[str] | None = None,
    n_bins: int = 32,
    min_count: int = 5,
    max_seq_len: int = 512,
    layout: Layout = "each",
    min_context: int | None = None,
) -> Prepared:
    """Label, split, tokenize and audit the events of a table.

    A decision is made for each outcome, with the entity's events that were known strictly before its date, or with all
    of them when it has none. Tokens and the categories that baselines count are fitted on the histories of training
    decisions. A decision whose history equals one that is held out is taken out of training, and counted.

    Args:
        source: what `scan_table` returns.
        label: the outcomes; needed unless the objective is "masked".
        objective: "outcome": the classes of `label` are the target `label`. "masked": no target; every entity, as of
            its last event, is there to predict its events.
        split: how decisions are parted; by default `ByEntity()`, so that no entity is in two parts.
        fold: which of its folds, the last by default.
        fields: token fields, names among the columns of the source and `CALENDAR`; None is all.
        n_bins: the most bins of a numeric field.
        min_count: training events that a category must have to get a code of its own.
        max_seq_len: tokens of a sequence at most; a longer history loses its beginning.
        layout: how decisions become sequences, see `SequenceSet`. The parts share no entity's tokens by "each".
        min_context: for layout "chunks", see `SequenceSet`.

    Returns:
        Sequences of the three parts; with outcomes, `baselines[part]["aggregates"]` (Q, F) float64, see `Aggregates`.

    Raises:
        ValueError: a setting that cannot be (see `check_table`), an outcome that cannot be read, no decision, a part
            without rows, or training decisions of one class alone.
        LeakError: the audit found a leak.
    """
    check_table(label, objective, n_bins, min_count, max_seq_len, layout, min_context)
    plan = split or ByEntity()
    events = collect_events(source)
    known_fields(source.columns, fields, n_bins, min_count)
    drawn = _Drawn.of(events, label if objective == "outcome" else None)
    folds = plan.split(drawn.intervals)
    cut = choose(folds, fold)
    hashes = history_hashes(events, tuple(source.columns), drawn.first, drawn.row)
    cut, twins = apart_from_twins(cut, hashes)
    _require_classes(drawn, cut)
    seen = _rows_of(drawn, cut.train, events.height)
    tokenizer = TableTokenizer.fit(
        events[seen], source.columns, fields=fields, n_bins=n_bins, min_count=min_count, zone=source.zone
    )
    table = token_table(events, tokenizer)
    proof = _audit(events, table, drawn, cut, plan, seen, tokenizer, tuple(each.test for each in folds[: cut.fold]))
    columns_of = partial(_columns, tokenizer=tokenizer)
    middle = int(np.quantile(table.time, 0.5, method="lower"))
    again = past_only(columns_of, events, columns_of(events), middle)
    proof = Audit((*proof.checks, twins_check(cut, hashes, drawn.entity), again)).require()
    parts = {name: _Part.of(drawn, getattr(cut, name), table, max_seq_len, layout, min_context) for name in PARTS}
    aggregates = {}
    if objective == "outcome":
        for name in PARTS:
            rows = getattr(cut, name)
            aggregates[name] = Aggregates.of(events, tokenizer, drawn.first[rows], drawn.row[rows])
    return Prepared(
        train=parts["train"].sequences,
        valid=parts["valid"].sequences,
        test=parts["test"].sequences,
        codes=tokenizer.codes,
        values=tokenizer.values,
        vocabulary_json=tokenizer.to_json(),
        classes=drawn.classes,
        audit=proof,
        counts=_counts(source, events, drawn, parts),
        dropped=drawn.dropped | {why: len(rows) for why, rows in cut.left_out.items()} | twins,
        notes=(*source.report.notes, *(() if label is None else label.notes())),
        hashes=dict(source.report.files) | drawn.files | _hashes(tokenizer, table, drawn),
        baselines={name: {"aggregates": found.values} for name, found in aggregates.items()},
        as_of={name: part.as_of for name, part in parts.items()},
        entity={name: part.entity for name, part in parts.items()},
        block_kind="entity" if cut.per_entity else "auto",
    )


def check_table(
    label: object = None,
    objective: str = "outcome",
    n_bins: int = 32,
    min_count: int = 5,
    max_seq_len: int = 512,
    layout: str = "each",
    min_context: int | None = None,
    **_: object,
) -> None:
    """Refuse settings of `prepare_table` that no data could be prepared with; nothing is read for it.

    Raises:
        ValueError: naming the setting.
    """
    if objective not in get_args(Objective):
        raise ValueError(f"objective must be one of {', '.join(get_args(Objective))}, got {objective!r}")
    if objective == "outcome" and not isinstance(label, Outcomes):
        raise ValueError("a table needs labels=outcome with its file of outcomes; only labels=none does without")
    require_numbers(n_bins, min_count)
    least_context(max_seq_len, layout, min_context)


@dataclass(frozen=True)
class _Drawn:
    """Decisions in canonical order, Q of them.

    Attributes:
        entity: (Q,) names.
        as_of: (Q,) ns UTC.
        first: (Q,) row of the entity's first event.
        row: (Q,) row of the last event that is input.
        target: (Q,) classes; empty when there is none.
        classes: their names.
        end: (Q,) when the outcome is known, ns UTC.
        outcomes: rows of the file of outcomes.
        files: name → sha256 of that file.
        dropped: reason → outcomes left out.
    """

    entity: pl.Series
    as_of: Ints
    first: Ints
    row: Ints
    target: Ints
    classes: tuple[str, ...]
    end: Ints
    outcomes: int
    files: dict[str, str]
    dropped: dict[str, int]

    @staticmethod
    def of(events: pl.DataFrame, label: Outcomes | None) -> _Drawn:
        if label is None:
            everybody = events.select(pl.col("entity").unique(maintain_order=True), label=pl.lit(""))
            outcomes = everybody.with_columns(as_of=pl.lit(None, dtype=pl.Int64))
            names: tuple[str, ...] = ()
        else:
            outcomes = label.read()
            names = label.names(outcomes["label"])
            outcomes = outcomes.with_columns(label.codes(outcomes["label"]).alias("label"))
        found, dropped = decide(events, outcomes)
        if not found.height:
            raise ValueError(
                f"none of {outcomes.height} outcomes can be used: "
                f"{', '.join(f'{why} ({n})' for why, n in dropped.items()) or 'there is none'}"
            )
        as_of, first, row = (found[name].to_numpy().astype(np.int64) for name in ("as_of", "first", "row"))
        target = np.zeros(0, np.int64) if label is None else found["label"].to_numpy().astype(np.int64)
        end = as_of + (0 if label is None else duration(label.horizon))
        files = {} if label is None else label.hashes
        return _Drawn(found["entity"], as_of, first, row, target, names, end, outcomes.height, files, dropped)

    @property
    def intervals(self) -> Intervals:
        """From the moment of the decision until the outcome is known, as far as somebody says when."""
        stratum = self.target if self.classes else None
        return Intervals(self.as_of, self.as_of, self.end, self.entity.to_numpy(), stratum)


@dataclass(frozen=True)
class _Part:
    """Decisions of one part, row by row."""

    sequences: SequenceSet
    as_of: Ints
    entity: npt.NDArray[np.generic]

    @staticmethod
    def of(
        drawn: _Drawn, rows: Ints, table: TokenTable, max_seq_len: int, layout: Layout, min_context: int | None
    ) -> _Part:
        """Sequences of histories alone: what follows an entity's last decision is not among their tokens."""
        own = drawn.row[rows]
        stop = np.zeros(len(table.entities), np.int64)
        np.maximum.at(stop, table.entity_of(own), own + 1)
        histories, at = of_entities(table, stop, own)
        targets = {"label": drawn.target[rows]} if drawn.classes else {}
        sequences = SequenceSet(histories, Decisions(at, targets), max_seq_len, layout, min_context)
        return _Part(sequences, drawn.as_of[rows], drawn.entity.gather(rows).to_numpy())


def _require_classes(drawn: _Drawn, cut: Split) -> None:
    if not drawn.classes:
        return
    found = np.unique(drawn.target[cut.train])
    if len(found) < 2:
        raise ValueError(
            f"every one of the {len(cut.train)} training decisions is {drawn.classes[found[0]]!r}: nothing can be "
            "learned; use more data or another fold"
        )


def _rows_of(drawn: _Drawn, decisions: Ints, height: int) -> Ints:
    """Numbers of the events that these decisions see, ascending."""
    steps = np.zeros(height + 1, np.int64)
    np.add.at(steps, drawn.first[decisions], 1)
    np.add.at(steps, drawn.row[decisions] + 1, -1)
    return np.flatnonzero(np.cumsum(steps)[:-1] > 0)


def _columns(events: pl.DataFrame, tokenizer: TableTokenizer) -> dict[str, pl.Series]:
    table = token_table(events, tokenizer)
    return {name: pl.Series(name, column) for name, column in table.fields.items()}


def _audit(
    events: pl.DataFrame,
    table: TokenTable,
    drawn: _Drawn,
    cut: Split,
    plan: SplitPlan,
    seen: Ints,
    tokenizer: TableTokenizer,
    earlier_tests: tuple[Ints, ...],
) -> Audit:
    decisions = pl.DataFrame(
        {
            "entity": drawn.entity,
            "as_of": drawn.as_of,
            "label_start": drawn.as_of,
            "label_end": drawn.end,
            "input_time": table.time[drawn.row],
        }
    )
    fitted = (
        Fitted("tokenizer", tokenizer.fitted_last + 1, tokenizer.fitted_rows, cut.train, seen),
        Fitted("baselines", None, 0, cut.train),
    )
    return audit(
        decisions,
        cut,
        fitted=fitted,
        events=events,
        embargo=plan.embargo,
        earlier_tests=earlier_tests,
        walk_forward=plan.in_order,
    )


def _counts(source: TableSource, events: pl.DataFrame, drawn: _Drawn, parts: Mapping[str, _Part]) -> dict[str, int]:
    """Rows at each stage; what may surprise, when it occurs."""
    twice = events.select(pl.struct(pl.exclude("seq")).is_duplicated().sum()).item()
    cut_short = sum(int((part.sequences.contexts < _length(part)).sum()) for part in parts.values())
    silent = events["entity"].n_unique() - drawn.entity.n_unique()
    return (
        {"events": events.height, "entities": events["entity"].n_unique()}
        | ({"entities without a decision": silent} if silent else {})
        | ({"events equal to another of their entity, all kept": twice} if twice else {})
        | {"outcomes": drawn.outcomes, "decisions": len(drawn.row)}
        | ({"histories longer than a sequence": cut_short} if cut_short else {})
        | {f"{name} tokens in sequences": int(part.sequences.lengths.sum()) for name, part in parts.items()}
        | {f"set aside by the source: {why}": rows for why, rows in source.report.rows_set_aside.items()}
    )


def _length(part: _Part) -> Ints:
    """(Q,) events of each decision's whole history."""
    table, row = part.sequences.table, part.sequences.decisions.row
    return row + 1 - table.offsets[table.entity_of(row)]


def _hashes(tokenizer: TableTokenizer, table: TokenTable, drawn: _Drawn) -> dict[str, str]:
    return {
        "vocabulary": hashlib.sha256(tokenizer.to_json().encode()).hexdigest(),
        "tokens": columns_sha256({**table.fields, "time": table.time, "offsets": table.offsets}),
        "decisions": columns_sha256({"row": drawn.row, "as_of": drawn.as_of, "label": drawn.target}),
    }
