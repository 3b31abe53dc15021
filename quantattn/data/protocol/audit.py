"""The proof, made on every run, that nothing known only later was used: counts, verdicts, and the row of any leak."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import polars as pl

from quantattn.data.market.sessions import Sessions
from quantattn.data.protocol.checks import (
    DECISION_COLUMNS,
    Facts,
    embargo_kept,
    fitted_on_training,
    input_known,
    known_after_event,
    label_after_decision,
    label_in_session,
    labels_apart,
    parts_disjoint,
    parts_in_order,
    times_sorted,
)
from quantattn.data.protocol.findings import Audit, Check, Fitted, LeakError, utc
from quantattn.data.protocol.splits import Split

__all__ = ["Audit", "Check", "Fitted", "LeakError", "audit", "utc"]

Int64Array = npt.NDArray[np.int64]


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
        split: the parts train, valid and test, as row numbers of `decisions`. Of a `Split`, each test block is looked
            at by itself; and where it is `per_entity`, labels of one entity are compared with those of its own alone,
            and no entity may be in two parts.
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
    facts = Facts.of(decisions, split)
    return Audit(
        (
            times_sorted(facts, events),
            known_after_event(events),
            input_known(facts),
            label_after_decision(facts),
            label_in_session(facts, sessions),
            parts_disjoint(facts),
            parts_in_order(facts) if walk_forward else Check("train after test", "not run", sentence="not asked for"),
            labels_apart(facts),
            embargo_kept(facts, embargo, earlier_tests),
            fitted_on_training(facts, fitted, walk_forward, events),
        )
    )
