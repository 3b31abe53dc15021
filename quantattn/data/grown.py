"""Streams that have grown since they were last read: which decisions are new, and that the past is as it was."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from quantattn.data.pack import Decisions, Ints, SequenceSet, TokenTable


def only_new(cut: SequenceSet, done: Ints) -> tuple[SequenceSet, npt.NDArray[np.bool_]]:
    """The decisions at places from done[e] on of each entity e, in the sequences that all decisions were cut into.

    Sequences without one of them are left out. Cutting again for the new decisions alone would begin sequences
    elsewhere; as they are cut here, from the first decision on, none begins elsewhere because more events follow.

    Args:
        cut: all decisions.
        done: (E,) how many events of each entity were there before.

    Returns:
        The sequences, and (Q,) which decisions of `cut` are new.
    """
    row, table = cut.decisions.row, cut.table
    entity = table.entity_of(row)
    new = row - table.offsets[entity] >= done[entity]
    before = np.concatenate([[0], np.cumsum(new)])[cut.first]
    kept = np.diff(before) > 0
    made = copy.copy(cut)
    targets = {name: target[new] for name, target in cut.decisions.targets.items()}
    first = np.concatenate([[0], before[1:][kept]])
    changed = {"decisions": Decisions(row[new], targets), "start": cut.start[kept], "stop": cut.stop[kept]}
    for name, value in (changed | {"first": first}).items():
        object.__setattr__(made, name, value)
    return made, new


def last_sequences(cut: SequenceSet) -> npt.NDArray[np.bool_]:
    """(S,) whether a sequence is the last one of its entity."""
    entity = cut.table.entity_of(cut.start)
    return np.append(entity[1:] != entity[:-1], len(entity) > 0)[: len(entity)]


def past_sha256(table: TokenTable, events: Mapping[str, npt.NDArray[np.integer[Any]]], entity: int, count: int) -> str:
    """Sha256 of the first `count` events of an entity as a model sees them, and of what is told of them."""
    begin = int(table.offsets[entity])
    end = begin + count
    digest = hashlib.sha256(f"{table.entities[entity]}\n{count}\n".encode())
    columns: dict[str, npt.NDArray[Any]] = {
        **{f"field {name}": column for name, column in table.fields.items()},
        "time": table.time,
    }
    columns |= {f"event {name}": column for name, column in events.items()}
    for name, each in table.vectors.items():
        own = slice(*np.searchsorted(each.rows, (begin, end)))
        _add(digest, f"rows of {name}", each.rows[own] - begin)
        _add(digest, f"vectors {name}", each.values[own])
    for name, column in sorted(columns.items()):
        _add(digest, name, column[begin:end])
    return digest.hexdigest()


def _add(digest: hashlib._Hash, name: str, column: npt.NDArray[Any]) -> None:
    plain = np.ascontiguousarray(column, column.dtype.newbyteorder("<"))
    digest.update(f"{name} {plain.dtype.str} {plain.shape}\n".encode())
    digest.update(plain.tobytes())
