"""The proof, made on every run, that nothing known only later was used: counts, verdicts, and the row of any leak."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import polars as pl

from quantattn.data.market.sessions import Sessions
from quantattn.data.protocol.splits import Split

Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

DECISION_COLUMNS: tuple[str, ...] = ("entity", "as_of", "label_start", "label_end", "input_time")
_LATER = {"train": ("valid", "test"), "valid": ("test",)}


class LeakError(ValueError):
    """A check of the audit failed; the message is one sentence that names the check and the row."""


@dataclass(frozen=True)
class Fitted:
    """Something that was fitted: a vocabulary, bins, a threshold, a scaler.

    Attributes:
        name: what it is called in the report.
        fitted_until: ns UTC; it saw nothing at or after this time. None if nothing was fitted.
        fitted_rows: how many rows it saw.
        rows: numbers of the decisions it was fitted on, when it was fitted on decisions.
    """

    name: str
    fitted_until: int | None
    fitted_rows: int
    rows: Int64Array | None = None


@dataclass(frozen=True)
class Check:
    """One check.

    Attributes:
        name: what may not happen.
        verdict: "passed", "failed", or "not run" when the audit was not given what it needs.
        looked_at: how many rows or objects were looked at.
        leaks: how many of them break the rule.
        sentence: the first of those, or why the check was not run; empty when passed.
    """

    name: str
    verdict: Literal["passed", "failed", "not run"]
    looked_at: int = 0
    leaks: int = 0
    sentence: str = ""


@dataclass(frozen=True)
class Audit:
    """All checks of one split."""

    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return all(check.verdict != "failed" for check in self.checks)

    def require(self) -> Audit:
        """The audit itself if it passed.

        Raises:
            LeakError: the first check that failed, with the row.
        """
        for check in self.checks:
            if check.verdict == "failed":
                raise LeakError(f"{check.name}: {check.sentence} ({check.leaks} of {check.looked_at})")
        return self

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON and for the report."""
        return {"passed": self.passed, "checks": [asdict(check) for check in self.checks]}


def audit(
    decisions: pl.DataFrame,
    split: Split | Mapping[str, Int64Array],
    *,
    fitted: Sequence[Fitted] = (),
    events: pl.DataFrame | None = None,
    sessions: Sessions | None = None,
    embargo: int = 0,
    earlier_tests: Sequence[Int64Array] = (),
    walk_forward: bool = True,
) -> Audit:
    """Check a split and what it was made from.

    Args:
        decisions: one row a decision: `entity`, `as_of`, `label_start`, `label_end` (the interval is open at its
            start) and `input_time`, the latest `available_time` of anything that its input uses; Int64 ns UTC.
        split: the parts train, valid and test, as row numbers of `decisions`.
        fitted: everything that was fitted.
        events: the table that inputs were made from (`entity`, `event_time`, `available_time`), in its own order.
        sessions: the sessions that no label may leave.
        embargo: ns after a test block in which nothing may be trained on.
        earlier_tests: test rows of earlier folds, after which the embargo holds too.
        walk_forward: whether training must be earlier than validation, and validation earlier than the test.

    Returns:
        Every check with its counts, also those that were not run; call `require` to stop on a leak.
    """
    missing = [name for name in DECISION_COLUMNS if name not in decisions.columns]
    if missing:
        raise ValueError(f"decisions lack {', '.join(missing)}; the table has {', '.join(decisions.columns)}")
    facts = _Facts.of(decisions, split)
    return Audit(
        (
            _times_sorted(facts, events),
            _known_after_event(events),
            _input_known(facts),
            _label_after_decision(facts),
            _label_in_session(facts, sessions),
            _parts_disjoint(facts),
            _parts_in_order(facts) if walk_forward else Check("train after test", "not run", sentence="not asked for"),
            _labels_apart(facts),
            _embargo_kept(facts, embargo, earlier_tests),
            _fitted_on_training(facts, fitted, walk_forward),
        )
    )


@dataclass(frozen=True)
class _Facts:
    """Columns of the decisions and the parts of the split, as arrays."""

    entity: pl.Series
    as_of: Int64Array
    start: Int64Array
    end: Int64Array
    input_time: Int64Array
    parts: dict[str, Int64Array]

    @staticmethod
    def of(decisions: pl.DataFrame, split: Split | Mapping[str, Int64Array]) -> _Facts:
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
        return _Facts(
            entity=decisions["entity"],
            as_of=times["as_of"],
            start=times["label_start"],
            end=times["label_end"],
            input_time=times["input_time"],
            parts=parts,
        )

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


def _times_sorted(facts: _Facts, events: pl.DataFrame | None) -> Check:
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


def _known_after_event(events: pl.DataFrame | None) -> Check:
    name = "available before it happened"
    if events is None:
        return Check(name, "not run", sentence="no event table was given")
    bad = events.select((pl.col("available_time") < pl.col("event_time")).arg_true())["available_time"]
    if not bad.len():
        return Check(name, "passed", events.height)
    entity, event, available = events.select("entity", "event_time", "available_time").row(bad[0])
    sentence = f"event {bad[0]} ({entity}) is available at {utc(available)} but happens at {utc(event)}"
    return Check(name, "failed", events.height, bad.len(), sentence)


def _input_known(facts: _Facts) -> Check:
    rows = facts.used()
    bad = rows[facts.input_time[rows] > facts.as_of[rows]]
    sentence = (
        f"{facts.where(bad[0])} uses a value available only at {utc(facts.input_time[bad[0]])}" if bad.size else ""
    )
    return _verdict("feature later than the decision", len(rows), bad, sentence)


def _label_after_decision(facts: _Facts) -> Check:
    rows = facts.used()
    bad = rows[(facts.start[rows] < facts.as_of[rows]) | (facts.end[rows] < facts.start[rows])]
    sentence = f"the label of {facts.where(bad[0])} looks at {_interval(facts, bad[0])}" if bad.size else ""
    return _verdict("label starts before the decision", len(rows), bad, sentence)


def _label_in_session(facts: _Facts, sessions: Sessions | None) -> Check:
    name, rows = "label crosses a session end", facts.used()
    if sessions is None:
        return Check(name, "not run", sentence="no sessions were given")
    began = sessions.locate(facts.as_of[rows])
    bad = rows[(began < 0) | (began != sessions.locate(facts.end[rows]))]
    sentence = f"the label of {facts.where(bad[0])} looks at {_interval(facts, bad[0])}" if bad.size else ""
    return _verdict(name, len(rows), bad, sentence)


def _parts_disjoint(facts: _Facts) -> Check:
    rows = np.concatenate(list(facts.parts.values()))
    part = np.repeat(np.arange(len(facts.parts)), [len(own) for own in facts.parts.values()])
    table = pl.DataFrame({"row": rows, "part": part, "entity": facts.entity.gather(rows), "as_of": facts.as_of[rows]})
    moments = table.group_by("entity", "as_of").agg(first=pl.col("part").min(), last=pl.col("part").max())
    shared = moments.filter(pl.col("first") != pl.col("last"))
    twins = table.join(shared, on=("entity", "as_of"), how="semi")
    bad = pl.concat([twins, table.filter(pl.col("row").is_duplicated())]).unique().sort("row", "part")
    sentence = ""
    if bad.height:
        row = bad["row"][0]
        twins = bad.filter((pl.col("entity") == bad["entity"][0]) & (pl.col("as_of") == bad["as_of"][0]))
        names = [tuple(facts.parts)[code] for code in twins["part"].unique().sort()]
        sentence = f"{facts.where(row)} is in {' and in '.join(names)}" + (" twice" if len(names) == 1 else "")
    return _verdict("entity and time in two parts", len(rows), bad["row"].to_numpy(), sentence)


def _parts_in_order(facts: _Facts) -> Check:
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


def _labels_apart(facts: _Facts) -> Check:
    name, looked_at = "label reaches over the split", 0
    for part, later_parts in _LATER.items():
        rows = facts.parts[part]
        for later in later_parts:
            if not rows.size or not facts.parts[later].size:
                continue
            first, last = facts.start[facts.parts[later]].min(), facts.end[facts.parts[later]].max()
            bad = rows[(facts.end[rows] >= first) & (facts.start[rows] <= last)]
            looked_at += len(rows)
            if bad.size:
                sentence = (
                    f"the label of {facts.where(bad[0])} in {part} looks at {_interval(facts, bad[0])}, "
                    f"and the labels of {later} at {utc(first)} … {utc(last)}"
                )
                return _verdict(name, len(rows), bad, sentence)
    return Check(name, "passed", looked_at)


def _embargo_kept(facts: _Facts, embargo: int, earlier_tests: Sequence[Int64Array]) -> Check:
    name, rows = "trained on during the embargo", facts.parts["train"]
    if not embargo:
        return Check(name, "not run", sentence="no embargo was asked for")
    for block in (*earlier_tests, facts.parts["test"]):
        if not len(block):
            continue
        last = facts.end[block].max()
        bad = rows[(facts.as_of[rows] > last) & (facts.as_of[rows] - last <= embargo)]
        if bad.size:
            sentence = f"{facts.where(bad[0])} is in train, but the embargo lasts {embargo:,} ns from {utc(last)}"
            return _verdict(name, len(rows), bad, sentence)
    return Check(name, "passed", len(rows))


def _fitted_on_training(facts: _Facts, fitted: Sequence[Fitted], walk_forward: bool) -> Check:
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
    return Check(name, "failed" if bad else "passed", len(fitted), len(bad), bad[0] if bad else "")


def _interval(facts: _Facts, row: int) -> str:
    return f"{utc(facts.start[row])} … {utc(facts.end[row])}"


def utc(time: int) -> str:
    """A time in ns UTC as ISO 8601 with all nine decimals."""
    seconds, rest = divmod(int(time), 10**9)
    return f"{dt.datetime.fromtimestamp(seconds, dt.UTC):%Y-%m-%dT%H:%M:%S}.{rest:09d}Z"
