"""What a row of scores is: every event, every sequence, or an entity at a moment that somebody asked for.

Each of them replaces the decisions that a source was encoded with. A row depends on no token after its own: where a
bidirectional encoder would let it, its sequence ends there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from quantattn.data.filed import Room, Texts, blocks
from quantattn.data.market.encode import Ints, Unlabelled
from quantattn.data.pack import Decisions, Layout, SequenceSet

Column = npt.NDArray[np.integer[Any]]


@dataclass(frozen=True)
class Chosen(Unlabelled):
    """Decisions that were chosen after the source had been encoded.

    Attributes:
        described: name → further columns of the rows, int64.
        notes: sentences about what was left out.
        copies: (Q,) how many rows each decision becomes, None: one.
    """

    described: Mapping[str, Column]
    notes: tuple[str, ...] = ()
    copies: Ints | None = None


def every_event(made: Unlabelled, causal: bool) -> Chosen:
    """Every token a decision.

    Under a causal encoder sequences are shared: each event sees `min_context` tokens or more, itself included, or all
    that exist, as in layout "chunks". Under a bidirectional one each event has a sequence of its own, which ends with
    it.

    `described`: event_time, and place, the number of the event in its entity's stream, from 0.

    Raises:
        ValueError: tokens are merged events.
    """
    _require_single(made, "event")
    cut = made.sequences
    layout: Layout = "chunks" if causal else "each"
    rows = made.room.column(np.int64, (np.arange(here.start, here.stop) for here in blocks(len(cut.table))))
    sequences = SequenceSet(cut.table, Decisions(rows), cut.max_seq_len, layout, cut.min_context, room=made.room)
    return chosen(made, sequences, {"event_time": made.events["event_time"], "place": places(sequences, made.room)})


def every_sequence(made: Unlabelled) -> Chosen:
    """Each entity cut every `max_seq_len` events, and a row for each piece as of its last event.

    `described`: event_time and place of that event, `since`, the event time of the first one, and `events`, how many.

    Raises:
        ValueError: tokens are merged events.
    """
    _require_single(made, "sequence")
    table, length = made.sequences.table, made.sequences.max_seq_len
    cut = SequenceSet(table, Decisions(np.empty(0, np.int64)), length, "windows")
    sequences = SequenceSet(table, Decisions(cut.stop - 1), length, "windows")
    time = made.events["event_time"]
    described = {"event_time": time[cut.stop - 1], "place": places(sequences), "since": time[cut.start]}
    return chosen(made, sequences, {**described, "events": cut.lengths})


def places(sequences: SequenceSet, room: Room | None = None) -> Ints:
    """(Q,) the number of each decision's event in its entity's stream, from 0."""
    row, table = sequences.decisions.row, sequences.table
    parts = (row[here] - table.offsets[table.entity_of(row[here])] for here in blocks(len(row)))
    return (room or Room()).column(np.int64, parts)


def chosen(made: Unlabelled, sequences: SequenceSet, described: Mapping[str, Column]) -> Chosen:
    """The decisions of these sequences, one row each, as of when their events became available."""
    row, table, room = sequences.decisions.row, sequences.table, made.room
    as_of = room.column(np.int64, (table.time[row[here]] for here in blocks(len(row))))
    names = Texts(table.entities, room.column(np.int32, (table.entity_of(row[here]) for here in blocks(len(row)))))
    return Chosen(
        sequences, as_of, names, made.hashes, described, events=made.events, merged=made.merged, room=made.room
    )


def _require_single(made: Unlabelled, unit: str) -> None:
    if made.merged:
        raise ValueError(
            f"unit={unit} needs a model of one token an event: what a merged token of this one says depends on the "
            "events after it, up to the next decision"
        )
