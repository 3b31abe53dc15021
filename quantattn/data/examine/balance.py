"""How the classes of a label would be balanced, for a few horizons, before anybody trains on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from quantattn.data.market.sessions import Sessions, exchange_sessions
from quantattn.data.protocol.labels.mid import MidMove, mid_moves

HORIZONS = (10, 100, 1000)


@dataclass(frozen=True)
class Balance:
    """What becomes of the price over a horizon, from its events to the last of them.

    Attributes:
        horizon: events.
        down, flat, up: rows after which the price was lower, the same, higher.
        unlabelled: reason → rows whose horizon cannot be looked at.
    """

    horizon: int
    down: int
    flat: int
    up: int
    unlabelled: Mapping[str, int] = field(default_factory=dict)


def measure_balance(events: pl.DataFrame, calendar: str | None) -> tuple[list[Balance], str]:
    """The balance for every horizon, and why there is none, or none by sessions, in a sentence.

    Args:
        events: in canonical order, with a book, prices of trades or closes of bars.
        calendar: exchange whose sessions no horizon leaves.
    """
    if not {"ask_price_1", "price", "close"} & set(events.columns):
        return [], ""
    try:
        sessions = _sessions(events, calendar)
        return [_one(events, horizon, sessions) for horizon in HORIZONS], ""
    except ValueError as error:
        return [], f"no class balance: {error}"


def count_outside(events: pl.DataFrame, calendar: str | None) -> int:
    """Rows outside every session of an exchange; 0 without one, or where its calendar does not reach."""
    if calendar is None:
        return 0
    try:
        sessions = _sessions(events, calendar)
    except ValueError:
        return 0
    assert sessions is not None
    return int(np.count_nonzero(sessions.locate(events["available_time"].to_numpy()) < 0))


def _one(events: pl.DataFrame, horizon: int, sessions: Sessions | None) -> Balance:
    moved = mid_moves(events, MidMove(horizon, method=0), sessions)
    move = moved["move_num"].drop_nulls().to_numpy()
    reasons = moved.filter(pl.col("label_reason").is_not_null())["label_reason"].cast(pl.String).value_counts(sort=True)
    return Balance(
        horizon,
        down=int(np.count_nonzero(move < 0)),
        flat=int(np.count_nonzero(move == 0)),
        up=int(np.count_nonzero(move > 0)),
        unlabelled=dict(reasons.iter_rows()),
    )


def _sessions(events: pl.DataFrame, calendar: str | None) -> Sessions | None:
    if calendar is None:
        return None
    times = events["available_time"]
    return exchange_sessions(calendar, int(times.min()), int(times.max()))  # type: ignore[arg-type]
