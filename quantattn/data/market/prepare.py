"""Events of a market → labels, split, tokens, sequences and baselines, with the audit that proves the order of time."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from quantattn.data.bayes import Bayes
from quantattn.data.digest import columns_sha256
from quantattn.data.market.book import count_flags
from quantattn.data.market.cut import Cut
from quantattn.data.market.encode import collect_events, decision_rows, token_table
from quantattn.data.market.features import feature_table
from quantattn.data.market.filed import carrying, fitted_filings, latest_known
from quantattn.data.market.merged import MergedTokens, merged_past, require_stretches, with_merges
from quantattn.data.market.price_features import price_features
from quantattn.data.market.sessions import Sessions, exchange_sessions, exchange_zone
from quantattn.data.merges import require_merges
from quantattn.data.pack import Decisions, Layout, SequenceSet, TokenTable, least_context
from quantattn.data.prepared import PARTS, Prepared
from quantattn.data.protocol.audit import Audit, Fitted, audit
from quantattn.data.protocol.labels import Label, MidLabel
from quantattn.data.protocol.labels.prices import has_book
from quantattn.data.protocol.perturb import past_only
from quantattn.data.protocol.splits import SplitPlan, WalkForward
from quantattn.data.raw_fields import FEATURE
from quantattn.data.schema import EXECUTE_HIDDEN
from quantattn.data.sources.source import Source
from quantattn.data.synthetic import SyntheticMarket
from quantattn.data.tokens import Tokenizer, known_fields

__all__ = ["MidLabel", "check_market", "prepare_market"]

_FLAGS: Mapping[str, str] = {
    "crossed": "events with a crossed book",
    "locked": "events with a locked book",
    "one_sided": "events with a one-sided book",
    "halted": "events during a halt",
}
"""Flag of `count_flags` → its name among the counts."""


def prepare_market(
    source: Source | SyntheticMarket,
    *,
    label: Label | None = None,
    split: SplitPlan | None = None,
    fold: int = -1,
    fields: Sequence[str] | None = None,
    n_bins: int = 32,
    max_seq_len: int = 512,
    layout: Layout = "chunks",
    min_context: int | None = None,
    decision_every: int = 1,
    decision_kinds: Sequence[int] | None = None,
    calendar: str | None = None,
    joint: Sequence[str] | None = None,
    merges: int = 0,
) -> Prepared:
    """Label, split, tokenize and audit the events of a source: of a book, or trades or bars without one.

    Decisions are events; each is made as of the time at which its event became available, from that event and earlier
    ones. They are split by time and purged by label interval; threshold and tokenizer are fitted on training rows.

    Args:
        source: events. A synthetic market also tells the best possible log loss, when `label` and `decision_kinds`
            ask for what it draws: the next event's move, two classes, at hidden executions.
        label: what is predicted, a class or a value; `MidLabel()` when not given.
        split: how time is cut; `WalkForward()` when not given.
        fold: which of its folds, the last by default.
        fields: token fields, names among those of `quantattn.data.raw_fields`; None is all that the table has.
        n_bins: the most bins of a numeric field.
        max_seq_len: tokens of a sequence at most.
        layout: how decisions become sequences, see `SequenceSet`. With "windows" the parts share no token.
        min_context: for layout "chunks", see `SequenceSet`.
        decision_every: of the events that qualify, every how many-th of each entity is a decision.
        decision_kinds: kinds of event that qualify (codes of `quantattn.data.schema`); None is all.
        calendar: exchange whose sessions no label and no feature window may leave ("XNAS"), and by whose time the clock
            among the tokens goes; None: an entity's whole table is one session, and the clock is UTC.
        joint: token fields whose codes become one, the type of an event; None leaves every field its own.
        merges: pairs of types, or of what was joined before, that become one token; see `quantattn.data.merges` and,
            for what it means for decisions, `quantattn.data.market.merged`. Lengths and contexts count tokens.

    Returns:
        Sequences of the three parts with the target `label`; `baselines[part]` holds one row a decision: `features`
        (Q, F) float64 (`FEATURES`; those of `price_features` where there is no book; or those that the table has),
        `imbalance` (Q,) of a book, and what was last known of the label: `persistence` (Q,), the class of the last one
        that had ended, −1 for none; or `last_value` (Q,), the same quantity before.

    Raises:
        ValueError: a setting that cannot be (see `check_market`), an event table that breaks its schema, no labelled
            decision, a part without rows.
        LeakError: the audit found a leak.
    """
    check_market(
        fields, n_bins, max_seq_len, layout, min_context, decision_every, calendar, decision_kinds, joint, merges
    )
    label, split = label or MidLabel(), split or WalkForward()
    if layout == "windows" and not split.in_order:
        raise ValueError("layout windows shares no token between parts, which needs a split whose parts follow in time")
    market, source = (source, source.source()) if isinstance(source, SyntheticMarket) else (None, source)
    events = collect_events(source)
    sessions = _sessions(events, calendar)
    rows = decision_rows(events, decision_every, decision_kinds)
    measured = label.measure(events, sessions)[rows].with_columns(row=rows)
    cut = Cut.of(measured, label, split, fold)
    may_fit = cut.events_to_fit_on(events)
    zone = "UTC" if calendar is None else exchange_zone(calendar)
    tokenizer = _tokenizer(events, source, cut, may_fit, rows, (fields, n_bins, zone), joint, merges)
    inputs_of = partial(_Inputs.of, source=source, sessions=sessions, tokenizer=tokenizer)
    inputs = inputs_of(events)
    merged = MergedTokens.of(inputs.table, tokenizer, rows)
    fitted = (*_fitted(tokenizer, may_fit, cut), *fitted_filings(source))
    proof = _audit(events, inputs, cut, fitted, sessions, split.embargo)
    again = past_only(lambda past: inputs_of(past).columns, events, inputs.columns, cut.look_back_from)
    decide = partial(decision_rows, every=decision_every, kinds=decision_kinds)
    joined = merged_past(lambda past: inputs_of(past).table, decide, tokenizer, events, cut.look_back_from)
    proof = Audit((*proof.checks, again, *joined)).require()
    decisions = cut.decisions.with_columns(token=merged.rows(cut.decisions["row"].to_numpy()))
    made = {name: _Part.of(decisions[cut.parts[name]], inputs.features) for name in PARTS}
    sets: dict[str, Any] = {n: part.cut(merged.table, max_seq_len, layout, min_context) for n, part in made.items()}
    return Prepared(
        **sets,
        codes=tokenizer.codes,
        values=tokenizer.values,
        vocabulary_json=tokenizer.to_json(),
        classes=label.class_names,
        audit=proof,
        counts=_counts(source, events, measured.height, cut.decisions.height, sets),
        dropped=cut.dropped,
        notes=source.report.notes,
        hashes=dict(source.report.files) | _hashes(tokenizer, merged.table, cut.decisions),
        baselines={name: part.baselines for name, part in made.items()},
        as_of={name: part.rows["available_time"].to_numpy() for name, part in made.items()},
        entity={name: part.rows["entity"].to_numpy() for name, part in made.items()},
        **_known_law(None if merges else market, label, decision_kinds, sets["test"]),
    )


def check_market(
    fields: Sequence[str] | None = None,
    n_bins: int = 32,
    max_seq_len: int = 512,
    layout: str = "chunks",
    min_context: int | None = None,
    decision_every: int = 1,
    calendar: str | None = None,
    decision_kinds: Sequence[int] | None = None,
    joint: Sequence[str] | None = None,
    merges: int = 0,
    **_: object,
) -> None:
    """Refuse settings of `prepare_market` that no data could be prepared with; nothing is read for it.

    Raises:
        ValueError: naming the setting.
    """
    least_context(max_seq_len, layout, min_context)
    if decision_every < 1:
        raise ValueError(f"decision_every must be at least 1, got {decision_every}")
    require_merges(joint, merges, known_fields(fields, n_bins))
    require_stretches(merges, decision_every, decision_kinds)
    if calendar is not None:
        exchange_zone(calendar)


@dataclass(frozen=True)
class _Inputs:
    """What models and baselines see of every event; `carried` has the number of its vector, where events have some."""

    table: TokenTable
    features: pl.DataFrame
    carried: pl.DataFrame

    @staticmethod
    def of(events: pl.DataFrame, source: Source, sessions: Sessions | None, tokenizer: Tokenizer) -> _Inputs:
        if has_book(events):
            features = feature_table(events, source.instruments, sessions=sessions).lazy()
        elif "feature_1" in events.columns:
            features = events.lazy().select(pl.col(f"^{FEATURE}.*$").cast(pl.Float64))
        else:
            features = price_features(events.lazy(), sessions=sessions)
        table = token_table(events, tokenizer)
        return _Inputs(carrying(table, events, source), features.collect(engine="in-memory"), events.select("^filing$"))

    @property
    def columns(self) -> dict[str, pl.Series]:
        """Every column by name."""
        tokens = {name: pl.Series(name, column) for name, column in self.table.fields.items()}
        return tokens | {each.name: each for each in (*self.features.get_columns(), *self.carried.get_columns())}


@dataclass(frozen=True)
class _Part:
    """Decisions of one part, and their baselines, row by row."""

    rows: pl.DataFrame
    baselines: dict[str, npt.NDArray[np.generic]]

    @staticmethod
    def of(rows: pl.DataFrame, features: pl.DataFrame) -> _Part:
        own = features[rows["row"].to_numpy()]
        return _Part(
            rows,
            {
                "features": own.cast(pl.Float64).to_numpy(),
                **({"imbalance": own["imbalance"].to_numpy()} if "imbalance" in own.columns else {}),
                **_last_known(rows),
            },
        )

    def cut(self, table: TokenTable, max_seq_len: int, layout: Layout, min_context: int | None) -> SequenceSet:
        row = self.rows["token"].to_numpy()
        if layout == "windows":
            # Every token of the table would be in a sequence, those of the other parts too.
            as_of = self.rows["available_time"].to_numpy()
            table, row = table.between(int(as_of.min()), int(as_of.max()), row)
        label = self.rows["label"]
        target = label.to_numpy().astype(np.float32 if label.dtype.is_float() else np.int64)
        return SequenceSet(table, Decisions(row, {"label": target}), max_seq_len, layout, min_context)


def _last_known(rows: pl.DataFrame) -> dict[str, npt.NDArray[np.generic]]:
    if "persistence" in rows.columns:
        return {"persistence": rows["persistence"].to_numpy().astype(np.int64)}
    return {"last_value": rows["history"].to_numpy()}


def _sessions(events: pl.DataFrame, calendar: str | None) -> Sessions | None:
    if calendar is None:
        return None
    time = events["available_time"].to_numpy()
    return exchange_sessions(calendar, int(time.min()), int(time.max()))


def _counts(
    source: Source, events: pl.DataFrame, decisions: int, labelled: int, sets: Mapping[str, SequenceSet]
) -> dict[str, int]:
    """Rows at each stage; books that give no price and what the source set aside when there are any."""
    flags = count_flags(events.lazy()) if has_book(events) else {}
    return (
        {"events": events.height}
        | {_FLAGS[flag]: rows for flag, rows in flags.items() if rows}
        | {"decisions": decisions, "labelled": labelled}
        | {f"{name} tokens in sequences": int(each.lengths.sum()) for name, each in sets.items()}
        | {f"set aside by the source: {why}": rows for why, rows in source.report.rows_set_aside.items()}
    )


def _audit(
    events: pl.DataFrame,
    inputs: _Inputs,
    cut: Cut,
    fitted: Sequence[Fitted],
    sessions: Sessions | None,
    embargo: int,
) -> Audit:
    latest = pl.Series("input_time", latest_known(events, inputs.table)[cut.decisions["row"].to_numpy()])
    known = cut.decisions.select("entity", "label_start", "label_end", latest, as_of="available_time")
    return audit(
        known,
        cut.split,
        fitted=fitted,
        events=events,
        sessions=sessions,
        embargo=embargo,
        earlier_tests=cut.earlier_tests,
        walk_forward=cut.in_order,
    )


def _tokenizer(
    events: pl.DataFrame,
    source: Source,
    cut: Cut,
    may_fit: npt.NDArray[np.bool_],
    decisions: npt.NDArray[np.int64],
    settings: tuple[Sequence[str] | None, int, str],
    joint: Sequence[str] | None,
    merges: int,
) -> Tokenizer:
    """Fitted on the events that may be seen until training ends; `settings` are fields, bins and zone."""
    fields, n_bins, zone = settings
    until = cut.end_of_training
    seen = may_fit & (events["available_time"].to_numpy() < until)
    past = events.lazy().filter(pl.lit(pl.Series(may_fit)))
    tokenizer = Tokenizer.fit(past, source.instruments, fitted_until=until, fields=fields, n_bins=n_bins, zone=zone)
    return with_merges(tokenizer, events, seen, decisions, joint, merges)


def _fitted(tokenizer: Tokenizer, may_fit: npt.NDArray[np.bool_], cut: Cut) -> tuple[Fitted, ...]:
    train = cut.split.train
    return (
        Fitted("tokenizer", tokenizer.fitted_until, tokenizer.fitted_rows, train, np.flatnonzero(may_fit)),
        replace(cut.fitted, rows=train),
        Fitted("baselines", None, 0, train),
    )


def _known_law(
    market: SyntheticMarket | None, label: Label, kinds: Sequence[int] | None, test: SequenceSet
) -> dict[str, Any]:
    """The best that is possible, and the same in the context that decisions have, which is one of events."""
    if market is None or not _is_drawn(label, kinds):
        return {}
    return {"bayes": market.bayes(), "bayes_in_context": bayes_in_context(market, test)}


def _is_drawn(label: Label, kinds: Sequence[int] | None) -> bool:
    """Whether the label of a synthetic market is what the market drew, so that its Bayes bound applies."""
    if not isinstance(label, MidLabel) or kinds is None or tuple(kinds) != (EXECUTE_HIDDEN,):
        return False
    asked = (label.horizon, label.unit, label.classes, label.rule) == (1, "events", 2, "fixed") and label.method != 2
    return asked and Fraction(label.theta) == 0


def bayes_in_context(market: SyntheticMarket, sequences: SequenceSet) -> Bayes:
    """What is possible with the tokens that each decision sees in its own sequence, averaged over the decisions."""
    seen, count = np.unique(sequences.contexts, return_counts=True)
    return Bayes.mixture([market.bayes(int(context)) for context in seen], count)


def _hashes(tokenizer: Tokenizer, table: TokenTable, decisions: pl.DataFrame) -> dict[str, str]:
    label = pl.col("label") if decisions["label"].dtype.is_float() else pl.col("label").cast(pl.Int64)
    drawn = decisions.select("row", label, "label_start", "label_end")
    return {
        "vocabulary": hashlib.sha256(tokenizer.to_json().encode()).hexdigest(),
        "tokens": columns_sha256({**table.fields, "time": table.time, "offsets": table.offsets}),
        "decisions": columns_sha256({name: drawn[name].to_numpy() for name in drawn.columns}),
    }
