"""The checks of the audit, one function each: what may not happen, and the first row where it does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from quantattn.data.market.sessions import Sessions
from quantattn.data.protocol.findings import Check, Fitted, utc
from quantattn.data.protocol.splits import Split

Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

DECISION_COLUMNS: tuple[str, ...] = ("entity", "as_of", "label_start", "label_end", "input_time")
_LATER = {"train": ("valid", "test"), "valid": ("test",)}


@dataclass(frozen=True)
class Facts:
    """Columns of the decisions and the parts of the split, as arrays."""

    entity: pl.Series
    as_of: Int64Array
    start: Int64Array
    end: Int64Array
    input_time: Int64Array
    parts: dict[str, Int64Array]
    blocks: tuple[Int64Array, ...]
    per_entity: bool

    @staticmethod
    def of(decisions: pl.DataFrame, split: Split | Mapping[str, Int64Array]) -> Facts:
        """The columns of decisions that are complete where a part uses them; ValueError where they are not."""
        size = decisions.height
        parts = {
            name: np.asarray(getattr(split, name) if isinstance(split, Split) else split.get(name, ()), np.int64)
            for name in ("train", "valid", "test")
        }
        used = np.zeros(size, np.bool_)
        for name, rows in parts.items():
            if rows.size and (rows.min() < 0 or rows.max() >= size):
                raise ValueError(f"part {name!r} names rows {rows.min()} … {rows.max()} of {size} decisions")
            used[rows] = True
        for name in DECISION_COLUMNS[1:]:
            if decisions.schema[name] != pl.Int64:
                raise ValueError(f"{name} of the decisions is {decisions.schema[name]}, expected Int64 nanoseconds")
        for name in DECISION_COLUMNS:
            empty = decisions[name].is_null().to_numpy() & used
            if empty.any():
                raise ValueError(f"decision {np.flatnonzero(empty)[0]} is in a part of the split but has no {name}")
        times = {name: decisions[name].fill_null(0).to_numpy() for name in DECISION_COLUMNS[1:]}
        return Facts(
            entity=decisions["entity"],
            as_of=times["as_of"],
            start=times["label_start"],
            end=times["label_end"],
            input_time=times["input_time"],
            parts=parts,
            blocks=split.test_blocks if isinstance(split, Split) else (parts["test"],),
            per_entity=isinstance(split, Split) and split.per_entity,
        )

    def held_out(self, part: str) -> tuple[Int64Array, ...]:
        """Rows of each stretch of a part that is held out, empty ones left out."""
        blocks = self.blocks if part == "test" else (self.parts[part],)
        return tuple(block for block in blocks if len(block))

    def codes(self) -> Int64Array:
        """(Q,) a number for every entity, or 0 where entities are not told apart."""
        if not self.per_entity:
            return np.zeros(len(self.as_of), np.int64)
        return self.entity.rank("dense").fill_null(0).cast(pl.Int64).to_numpy()

    def used(self) -> Int64Array:
        """Rows that are in some part, ascending."""
        rows = np.zeros(len(self.as_of), np.bool_)
        for own in self.parts.values():
            rows[own] = True
        return np.flatnonzero(rows)

    def where(self, row: int) -> str:
        """Names a row so that somebody can find it."""
        return f"row {row} ({self.entity[int(row)]}, as of {utc(self.as_of[row])})"


def _verdict(name: str, looked_at: int, bad: Int64Array, sentence: str) -> Check:
    if not bad.size:
        return Check(name, "passed", looked_at)
    return Check(name, "failed", looked_at, int(bad.size), sentence)


def times_sorted(facts: Facts, events: pl.DataFrame | None) -> Check:
    """Decisions and events stand in order of time within each entity."""
    name = "times out of order"
    for what, entity, time in (
        ("decision", facts.entity, facts.as_of),
        *(() if events is None else (("event", events["entity"], events["available_time"].to_numpy()),)),
    ):
        same = (entity == entity.shift(1)).fill_null(False).to_numpy()
        bad = np.flatnonzero(same[1:] & (np.diff(time) < 0)) + 1
        if bad.size:
            row = int(bad[0])
            sentence = f"{what} {row} ({entity[row]}) at {utc(time[row])} follows one at {utc(time[row - 1])}"
            return Check(name, "failed", len(time), int(bad.size), sentence)
    return Check(name, "passed", len(facts.as_of) + (0 if events is None else events.height))


def known_after_event(events: pl.DataFrame | None) -> Check:
    """No event is available before it happens."""
    name = "available before it happened"
    if events is None:
        return Check(name, "not run", sentence="no event table was given")
    bad = events.select((pl.col("available_time") < pl.col("event_time")).arg_true())["available_time"]
    if not bad.len():
        return Check(name, "passed", events.height)
    entity, event, available = events.select("entity", "event_time", "available_time").row(bad[0])
    sentence = f"event {bad[0]} ({entity}) is available at {utc(available)} but happens at {utc(event)}"
    return Check(name, "failed", events.height, bad.len(), sentence)


def input_known(facts: Facts) -> Check:
    """Nothing that a decision's input uses became available later than the decision."""
    rows = facts.used()
    bad = rows[facts.input_time[rows] > facts.as_of[rows]]
    sentence = (
        f"{facts.where(bad[0])} uses a value available only at {utc(facts.input_time[bad[0]])}" if bad.size else ""
    )
    return _verdict("feature later than the decision", len(rows), bad, sentence)


def label_after_decision(facts: Facts) -> Check:
    """No label looks at a time before its decision."""
    rows = facts.used()
    bad = rows[(facts.start[rows] < facts.as_of[rows]) | (facts.end[rows] < facts.start[rows])]
    sentence = f"the label of {facts.where(bad[0])} looks at {_interval(facts, bad[0])}" if bad.size else ""
    return _verdict("label starts before the decision", len(rows), bad, sentence)


def label_in_session(facts: Facts, sessions: Sessions | None) -> Check:
    """Every label ends in the session in which its decision was made."""
    name, rows = "label crosses a session end", facts.used()
    if sessions is None:
        return Check(name, "not run", sentence="no sessions were given")
    began = sessions.locate(facts.as_of[rows])
    bad = rows[(began < 0) | (began != sessions.locate(facts.end[rows]))]
    sentence = f"the label of {facts.where(bad[0])} looks at {_interval(facts, bad[0])}" if bad.size else ""
    return _verdict(name, len(rows), bad, sentence)


def parts_disjoint(facts: Facts) -> Check:
    """No entity has the same instant in two parts; where parts are cut by entity, no entity is in two parts."""
    name, rows = "entity and time in two parts", np.concatenate(list(facts.parts.values()))
    part = np.repeat(np.arange(len(facts.parts)), [len(own) for own in facts.parts.values()])
    table = pl.DataFrame({"row": rows, "part": part, "entity": facts.entity.gather(rows), "as_of": facts.as_of[rows]})
    by = ["entity"] if facts.per_entity else ["entity", "as_of"]
    moments = table.group_by(by).agg(first=pl.col("part").min(), last=pl.col("part").max())
    shared = moments.filter(pl.col("first") != pl.col("last"))
    bad = table.join(shared, on=by, how="semi")
    bad = pl.concat([bad, table.filter(pl.col("row").is_duplicated())]).unique().sort("row", "part")
    sentence = ""
    if bad.height:
        row = bad["row"][0]
        twins = bad.filter(pl.all_horizontal(pl.col(key) == bad[key][0] for key in by))
        names = [tuple(facts.parts)[code] for code in twins["part"].unique().sort()]
        sentence = f"{facts.where(row)} is in {' and in '.join(names)}" + (" twice" if len(names) == 1 else "")
        if facts.per_entity and len(names) > 1:
            sentence = f"the entity of {facts.where(row)} is in {' and in '.join(names)}"
    return _verdict(name, len(rows), bad["row"].to_numpy(), sentence)


def parts_in_order(facts: Facts) -> Check:
    """Training is earlier than validation, and validation earlier than the test."""
    name, looked_at = "train after test", 0
    for part, later_parts in _LATER.items():
        rows = facts.parts[part]
        for later in later_parts:
            if not rows.size or not facts.parts[later].size:
                continue
            first = facts.as_of[facts.parts[later]].min()
            bad = rows[facts.as_of[rows] >= first]
            looked_at += len(rows)
            if bad.size:
                sentence = f"{facts.where(bad[0])} is in {part}, but {later} begins at {utc(first)}"
                return _verdict(name, len(rows), bad, sentence)
    return Check(name, "passed", looked_at)


def labels_apart(facts: Facts) -> Check:
    """No label of a part touches [min start, max end] of a later part, or of a block of it."""
    name, looked_at, codes = "label reaches over the split", 0, facts.codes()
    for part, later_parts in _LATER.items():
        rows = facts.parts[part]
        for later, block in ((each, block) for each in later_parts for block in facts.held_out(each)):
            if not rows.size:
                continue
            first, last = _spans(facts, block, codes)
            own = codes[rows]
            bad = rows[(facts.end[rows] >= first[own]) & (facts.start[rows] <= last[own])]
            looked_at += len(rows)
            if bad.size:
                span = f"{utc(first[codes[bad[0]]])} … {utc(last[codes[bad[0]]])}"
                sentence = (
                    f"the label of {facts.where(bad[0])} in {part} looks at {_interval(facts, bad[0])}, "
                    f"and the labels of {later} at {span}"
                )
                return _verdict(name, len(rows), bad, sentence)
    return Check(name, "passed", looked_at)


def _spans(facts: Facts, block: Int64Array, codes: Int64Array) -> tuple[Int64Array, Int64Array]:
    """By code of entity: [min start, max end] of a block; of an entity that is not in it, nothing touches it."""
    first = np.full(int(codes.max()) + 1, np.iinfo(np.int64).max)
    last = np.full(len(first), np.iinfo(np.int64).min)
    np.minimum.at(first, codes[block], facts.start[block])
    np.maximum.at(last, codes[block], facts.end[block])
    return first, last


def embargo_kept(facts: Facts, embargo: int, earlier_tests: Sequence[Int64Array]) -> Check:
    """Nothing is trained on within the embargo after a test block."""
    name, rows = "trained on during the embargo", facts.parts["train"]
    if not embargo:
        return Check(name, "not run", sentence="no embargo was asked for")
    for block in (*earlier_tests, *facts.held_out("test")):
        if not len(block):
            continue
        last = facts.end[block].max()
        bad = rows[(facts.as_of[rows] > last) & (facts.as_of[rows] - last <= embargo)]
        if bad.size:
            sentence = f"{facts.where(bad[0])} is in train, but the embargo lasts {embargo:,} ns from {utc(last)}"
            return _verdict(name, len(rows), bad, sentence)
    return Check(name, "passed", len(rows))


def fitted_on_training(
    facts: Facts, fitted: Sequence[Fitted], walk_forward: bool, events: pl.DataFrame | None
) -> Check:
    """What was fitted saw training rows alone, and no event of a held-out stretch of time."""
    name = "fitted on rows outside training"
    held_out = np.concatenate([facts.parts["valid"], facts.parts["test"]])
    first = facts.as_of[held_out].min() if held_out.size and walk_forward else None
    bad: list[str] = []
    for thing in fitted:
        strays = np.setdiff1d(np.zeros(0, np.int64) if thing.rows is None else thing.rows, facts.parts["train"])
        if strays.size:
            bad.append(f"{thing.name} was fitted on {facts.where(strays[0])}, which is not in train")
        elif thing.fitted_until is None and thing.fitted_rows:
            bad.append(f"{thing.name} was fitted on {thing.fitted_rows} rows but does not say until when")
        elif thing.fitted_until is not None and first is not None and thing.fitted_until > first:
            row = held_out[np.argmin(facts.as_of[held_out])]
            bad.append(f"{thing.name} was fitted until {utc(thing.fitted_until)}, and {facts.where(row)} is held out")
        elif thing.events is not None and events is not None:
            bad += _events_held_out(facts, thing, events)
        elif first is None and held_out.size and thing.fitted_rows and thing.rows is None:
            bad.append(f"{thing.name} was fitted on {thing.fitted_rows} rows but does not say on which")
    return Check(name, "failed" if bad else "passed", len(fitted), len(bad), bad[0] if bad else "")


def _events_held_out(facts: Facts, thing: Fitted, events: pl.DataFrame) -> list[str]:
    """A sentence about the first event that something was fitted on and that lies in a held-out stretch of time."""
    assert thing.events is not None
    seen = events.select("entity", "available_time")[thing.events].with_columns(event=thing.events)
    for part in ("valid", "test"):
        for block in facts.held_out(part):
            first, last = facts.as_of[block].min(), facts.end[block].max()
            inside = seen.filter(pl.col("available_time").is_between(first, last))
            if facts.per_entity:
                inside = inside.filter(pl.col("entity").is_in(facts.entity.gather(block).unique().implode()))
            if inside.height:
                entity, time, event = inside.row(0)
                return [f"{thing.name} was fitted on event {event} ({entity}, {utc(time)}), which lies in {part}"]
    return []


def _interval(facts: Facts, row: int) -> str:
    return f"{utc(facts.start[row])} … {utc(facts.end[row])}"
