"""What happens next, and when: the type of the next event, or the time until it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import numpy.typing as npt
import polars as pl

from quantattn.data.market.sessions import Sessions
from quantattn.data.protocol.findings import Fitted
from quantattn.data.protocol.labels.prices import has_book
from quantattn.data.protocol.labels.reasons import any_within, first_reason
from quantattn.data.protocol.labels.stretch import Measured, Stretch, over_sessions
from quantattn.data.schema import CANCEL, DELETE, EXECUTE, NEW

Int64Array = npt.NDArray[np.int64]

KIND_NAMES: tuple[str, ...] = (
    *("missing", "new", "cancel", "delete", "execute", "execute hidden", "cross", "halt", "marker", "update", "clear"),
    "filing",
)
"""Name of each code of `kind`, by code."""


@dataclass(frozen=True)
class NextEventLabel:
    """The type of the next event of certain kinds, or the time until it.

    Attributes:
        target: "kind": a class; "time": log(1 + nanoseconds until that event becomes available), a value.
        kinds: kinds of event that are waited for (codes of `quantattn.data.schema`); all others are passed over.
        sides: whether bid and ask are classes of their own; events of unknown side are then passed over.
    """

    target: Literal["kind", "time"] = "kind"
    kinds: Sequence[int] = (NEW, CANCEL, DELETE, EXECUTE)
    sides: bool = False

    def __post_init__(self) -> None:
        if self.target not in ("kind", "time"):
            raise ValueError(f"target must be 'kind' or 'time', got {self.target!r}")
        known = [kind for kind in self.kinds if isinstance(kind, int) and 0 < kind < len(KIND_NAMES)]
        if not self.kinds or len(set(known)) != len(self.kinds):
            raise ValueError(f"kinds must be some of 1 … {len(KIND_NAMES) - 1}, each once, got {list(self.kinds)}")
        if self.target == "kind" and len(self.class_names) < 2:
            raise ValueError(f"two types of event or more must be told apart, got {', '.join(self.class_names)}")

    @property
    def name(self) -> str:
        """Says what: "kind of the next new, cancel, delete or execute"."""
        what = "kind of" if self.target == "kind" else "time to"
        return f"{what} the next {' or '.join(KIND_NAMES[kind] for kind in self.kinds)}"

    @property
    def class_names(self) -> tuple[str, ...]:
        """Kinds in the order asked for, each as bid and ask when there are sides; none for a time."""
        if self.target == "time":
            return ()
        names = [KIND_NAMES[kind] for kind in self.kinds]
        return tuple(f"{name} {side}" for name in names for side in ("bid", "ask")) if self.sides else tuple(names)

    def measure(self, events: pl.DataFrame, sessions: Sessions | None = None) -> pl.DataFrame:
        """Add `next_type` (Int8), `wait` and `past_wait` (Int64 nanoseconds), with interval and reason.

        `wait` is the time until the next event, whose `available_time` is `label_end`; `past_wait` the time between
        the two such events before, the decision's own included ("no data" where there were fewer than two). There is
        "no data" either where a table with a book shows none on both sides: before and within a feed's first snapshot
        what comes next is a listing of what stood already, and no event of the market.

        Raises:
            ValueError: the table has no `kind`, or no `side` when sides are asked for.
        """
        for name in ("kind", *(("side",) if self.sides else ())):
            if name not in events.columns:
                raise ValueError(f"the next event needs column {name!r}; the table has {', '.join(events.columns)}")
        columns: dict[str, type[np.generic]] = {"next_type": np.int8, "wait": np.int64, "past_wait": np.int64}
        unknown = np.zeros(events.height, np.bool_)
        if has_book(events):
            unknown = (events["ask_price_1"].is_null() & events["bid_price_1"].is_null()).to_numpy()
        measure = partial(_measure, types=self._types(events), unknown=unknown, timed=self.target == "time")
        return over_sessions(events, sessions, columns, measure)

    def finish(self, measured: pl.DataFrame, train: Int64Array) -> tuple[pl.DataFrame, Fitted]:
        """The type as a class, or the logarithms of both waits; nothing is fitted."""
        record = Fitted("next event", None, 0)
        if self.target == "kind":
            return measured.with_columns(label="next_type"), record
        return measured.with_columns(label=(1 + pl.col("wait")).log(), history=(1 + pl.col("past_wait")).log()), record

    def _types(self, events: pl.DataFrame) -> npt.NDArray[np.int8]:
        """(R,) class of every event, −1 for those that are passed over."""
        kind = events["kind"].to_numpy()
        types = np.full(events.height, -1, np.int8)
        for code, asked in enumerate(self.kinds):
            types[kind == asked] = code
        if self.sides:
            side = events["side"].to_numpy()
            types = np.where((types < 0) | (side == 0), -1, 2 * types + (side < 0)).astype(np.int8)
        return types


def _measure(stretch: Stretch, types: npt.NDArray[np.int8], unknown: npt.NDArray[np.bool_], timed: bool) -> Measured:
    size, time, row = len(stretch), stretch.time, stretch.row
    here = slice(stretch.first, stretch.first + size)
    own = types[here]
    waited = np.flatnonzero(own >= 0)
    place = np.searchsorted(waited, row, side="right")
    none, short = place >= len(waited), place < 2
    # One more event, at the end, stands for those that there are not; its rows are given a reason below.
    waited = np.append(waited, size - 1)
    following = waited[place]
    past_wait = time[waited[np.maximum(place - 1, 0)]] - time[waited[np.maximum(place - 2, 0)]]
    reason = first_reason(
        size,
        {
            "session end": none,
            "halt": any_within(stretch.prices.halted, row - 1, following),
            "no data": (short & timed) | unknown[here],
        },
    )
    values = {"next_type": own[following], "wait": time[following] - time, "past_wait": past_wait}
    return values, time[following], reason
