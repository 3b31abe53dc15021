"""Decisions without a score: rows apart, each with its reason, so that one of them stops no others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from arro3.core import Array, DataType, RecordBatch, Table

from quantattn.score.worker import Begun


def judged(begun: Begun) -> tuple[Table, Table | None]:
    """The rows of a shard that have a score, and of the others what they are and why they have none.

    It was begun with a place for what is refused, and all of it was fetched.

    The second has the columns entity, as_of, key, reason, model_sha and plan_sha; None where every row has a score. A
    row of several pieces has none if one of them has none. In the mode "batch" the others keep their bits.

    Raises:
        ValueError: no decision of the shard has a score, so that nothing shows which columns it would have.
    """
    work, begin, end = begun.worker.work, begun.first, begun.last
    rows, refused = RecordBatch.from_pydict(begun.rows()), begun.refused
    if not refused:
        return Table.from_batches([rows]), None
    if len(refused) == end - begin:
        raise ValueError(
            f"none of the {end - begin} decisions of {begun.shard.name} has a score: {refused[min(refused)]}"
        )
    first = work.span(begin, end)[0]
    reasons: dict[int, str] = {}
    for key in sorted(refused):
        for row in range(*work.span(key, key + 1)):
            reasons.setdefault(row - first, refused[key])
    kept = [row for row in range(rows.num_rows) if row not in reasons]
    apart = rows.select(["entity", "as_of", "key", "model_sha", "plan_sha"]).take(_numbers(reasons))
    said = Array(list(reasons.values()), type=DataType.string())
    apart = apart.add_column(3, "reason", said)
    return Table.from_batches([rows.take(_numbers(dict.fromkeys(kept)))]), Table.from_batches([apart])


def _numbers(rows: Mapping[int, Any]) -> Array:
    return Array(list(rows), type=DataType.uint64())
