"""Equal histories: two entities whose events are the same, which would let a model recognise what it has learned."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import polars as pl

from quantattn.data.protocol import Check, Split

Ints = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.bytes_]
TWINS = "same history as one that is held out"


def history_hashes(events: pl.DataFrame, columns: Sequence[str], first: Ints, row: Ints) -> Hashes:
    """(Q,) a hash of rows first[q] … row[q]: times and columns, in order; not whose they are."""
    rows = events.select(pl.struct("event_time", "available_time", *columns).hash()).to_series().to_numpy()
    spans = zip(first.tolist(), row.tolist(), strict=True)
    return np.asarray([hashlib.sha256(rows[a : b + 1].tobytes()).digest() for a, b in spans], "S32")


def apart_from_twins(cut: Split, hashes: Hashes) -> tuple[Split, dict[str, int]]:
    """The split without training rows whose history equals a held-out one, nor validation rows equal to a test one.

    Returns:
        The split, and reason → rows taken out.

    Raises:
        ValueError: no training row is left.
    """
    train = cut.train[np.isin(hashes[cut.train], hashes[np.concatenate([cut.valid, cut.test])], invert=True)]
    valid = cut.valid[np.isin(hashes[cut.valid], hashes[cut.test], invert=True)]
    gone = len(cut.train) + len(cut.valid) - len(train) - len(valid)
    if not len(train):
        raise ValueError(f"every one of the {len(cut.train)} training histories equals one that is held out")
    return replace(cut, train=train, valid=valid), ({TWINS: gone} if gone else {})


def twins_check(cut: Split, hashes: Hashes, entity: pl.Series) -> Check:
    """A check for an audit: no history of training stands in another part, and none of validation in the test."""
    name, looked_at = "same history in two parts", len(cut.train) + len(cut.valid)
    for part, rows, later in (
        ("train", cut.train, np.concatenate([cut.valid, cut.test])),
        ("valid", cut.valid, cut.test),
    ):
        bad = rows[np.isin(hashes[rows], hashes[later])]
        if len(bad):
            twin = later[hashes[later] == hashes[bad[0]]][0]
            sentence = (
                f"{entity[int(bad[0])]!r} of {part} and {entity[int(twin)]!r}, which is held out, have the same events"
            )
            return Check(name, "failed", looked_at, len(bad), sentence)
    return Check(name, "passed", looked_at)
