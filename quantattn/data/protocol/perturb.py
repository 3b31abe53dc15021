"""Another future for the same past, or none: the instruments that show whether a computation looks ahead."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import numpy as np
import polars as pl

from quantattn.data.protocol.findings import Check, utc


def perturb_future(frame: pl.DataFrame, as_of: int, seed: int = 0) -> pl.DataFrame:
    """The same past and another future, to prove that what was computed for the past did not look ahead.

    Rows available after `as_of` get shuffled values, larger integers, flipped sides and later times, and about one in
    ten of them is gone; rows available by then keep every bit. The order of the table is kept.

    Args:
        frame: an event table in canonical order.
        as_of: ns UTC.
        seed: of the perturbation.
    """
    random = np.random.default_rng(seed)
    future = frame["available_time"] > as_of
    past, later = frame.filter(~future), frame.filter(future)
    later = later.filter(pl.Series(random.random(later.height) >= 0.1))
    delay = pl.Series(np.cumsum(random.integers(1, 1_000, later.height)))
    changed: list[pl.Series] = []
    for series in later.get_columns():
        if series.name in ("entity", "seq"):
            changed.append(series)
        elif series.name in ("event_time", "available_time"):
            changed.append(series + delay)
        else:
            changed.append(_shuffled(series, random))
    both = pl.concat([past, pl.DataFrame(changed, schema=frame.schema)])
    return both.sort("entity", maintain_order=True)


def past_only(
    compute: Callable[[pl.DataFrame], Mapping[str, pl.Series]],
    frame: pl.DataFrame,
    whole: Mapping[str, pl.Series],
    as_of: int,
) -> Check:
    """Compute the past again with its future cut off; every value must come out the same.

    Args:
        compute: event table → name of an input → its values, one an event.
        frame: the whole event table.
        whole: what `compute` gave for it.
        as_of: ns UTC; rows available later are cut off.

    Returns:
        A check for an audit that names the first event whose value changed; `leaks` counts values.
    """
    known = frame["available_time"] <= as_of
    rows, alone = known.arg_true(), compute(frame.filter(known))
    leaks, sentence = 0, ""
    for name, column in whole.items():
        before = column.gather(rows)
        changed = before.ne_missing(alone[name]).arg_true()
        if len(changed) and not leaks:
            row = changed[0]
            sentence = (
                f"{name} of event {rows[row]} is {before[row]}, and {alone[name][row]} when nothing after {utc(as_of)} "
                f"is known"
            )
        leaks += len(changed)
    verdict: Literal["passed", "failed"] = "failed" if leaks else "passed"
    return Check("input depends on the future", verdict, len(rows) * len(whole), leaks, sentence)


def _shuffled(series: pl.Series, random: np.random.Generator) -> pl.Series:
    mixed = series.gather(random.permutation(series.len()))
    if series.dtype == pl.Int64:
        return mixed + pl.Series(random.integers(1, 100, series.len()) * 100)
    if series.dtype.is_signed_integer() or series.dtype.is_float():
        return -mixed
    return mixed
