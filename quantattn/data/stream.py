"""One entity's stream of a synthetic market: orders, markers, decisions, and the book that follows from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from quantattn.data.bayes import Ints
from quantattn.data.schema import CANCEL, EXECUTE, EXECUTE_HIDDEN, MARKER, NEW

if TYPE_CHECKING:
    from quantattn.data.synthetic import SyntheticMarket

TICK = 100
FIRST_PRICE = 50_000  # ticks
SIZES = 8  # an order is for 1 … SIZES lots
LOT = 100
HOUR = 3_600 * 10**9
OPEN, CLOSE = 14 * HOUR + HOUR // 2, 20 * HOUR  # UTC; inside New York's session all year round
FIRST_DAY = np.datetime64("2024-01-02")

Columns = dict[str, npt.NDArray[np.generic]]


@dataclass(frozen=True)
class Drawn:
    """The decision events of one entity whose outcome is in its table, n of them, in order of time.

    Attributes:
        seq: (n,) row of the event in the entity's stream.
        signs: (n, F) signs of the F events before it, the nearest last: +1 for an order that adds to the bid or
            takes from the ask, −1 for the mirror image. Their sum is the flow.
        marker: (n,) sign of the most recent marker for its number of lots.
        distance: (n,) rows from that marker to the decision.
        outcome: (n,) +1 when the mid rises with the next event, −1 when it falls.
    """

    seq: Ints
    signs: Ints
    marker: Ints
    distance: Ints
    outcome: Ints


def generate(market: SyntheticMarket, rng: np.random.Generator) -> tuple[Columns, Drawn]:
    """The columns of one entity's table, without its name, and what was drawn at its decisions."""
    width, rows = market.cycle, market.events_per_entity
    cycles = -(-rows // width)
    calendar = _Calendar.draw(market, rng, cycles)
    kind, side, lots, sign = _ordinary_orders(market, rng, cycles)
    last = width - 2  # the row of a decision, in the cycles that have one
    flow_signs = sign[:, last - market.flow_events : last]
    lifted = rng.random(cycles)
    chance = np.full(cycles, 0.5)
    chance[calendar.deciding] = market.law.probability_up(flow_signs.sum(axis=1), calendar.marker)[calendar.deciding]
    direction = np.where(lifted < chance, 1, -1)
    _place_markers(market, calendar, kind, side, lots)
    kind[calendar.deciding, last], side[calendar.deciding, last] = EXECUTE_HIDDEN, 0
    lots[calendar.deciding, last] = calendar.tag[calendar.deciding] + 1
    columns = _book(market, rng, kind, side, lots, direction)
    columns = {"seq": np.arange(rows), **{name: column.reshape(-1)[:rows] for name, column in columns.items()}}
    times = _times(rng, rows, market.events_per_session)
    seq = np.flatnonzero(calendar.deciding) * width + last
    kept = seq + 1 < rows
    chosen = np.flatnonzero(calendar.deciding)[kept]
    drawn = Drawn(
        seq=seq[kept],
        signs=flow_signs[chosen],
        marker=calendar.marker[chosen],
        distance=calendar.distance[chosen],
        outcome=direction[chosen],
    )
    return {"event_time": times, "available_time": times, **columns}, drawn


@dataclass(frozen=True)
class _Calendar:
    """What each cycle of a stream is for; arrays over its cycles, or (epochs, channels)."""

    epoch: Ints
    place: Ints
    deciding: npt.NDArray[np.bool_]
    tag: Ints  # of the decision, 0 … channels − 1
    marker: Ints  # sign that belongs to the tag, in this epoch
    distance: Ints
    burst_tags: Ints  # (epochs, channels), in order of appearance
    burst_signs: Ints

    @staticmethod
    def draw(market: SyntheticMarket, rng: np.random.Generator, cycles: int) -> _Calendar:
        with_markers, quiet, deciding = market.epoch_cycles
        length = with_markers + quiet + deciding
        first = int(rng.integers(length))
        epoch, place = np.divmod(first + np.arange(cycles), length)
        shape = (int(epoch[-1]) + 1, market.channels)
        tags = np.broadcast_to(np.arange(market.channels), shape)
        burst_tags, decision_tags = rng.permuted(tags, axis=1), rng.permuted(tags, axis=1)
        burst_signs = 2 * rng.integers(0, 2, shape) - 1
        turn = np.clip(place - with_markers - quiet, 0, None)
        tag = decision_tags[epoch, turn]
        slot = np.argmax(burst_tags[epoch] == tag[:, None], axis=1)
        return _Calendar(
            epoch=epoch,
            place=place,
            # The stream opens in the middle of an epoch whose markers nobody saw.
            deciding=(place >= with_markers + quiet) & ((epoch > 0) | (first == 0)),
            tag=tag,
            marker=burst_signs[epoch, slot],
            distance=market.distances.reshape(shape[1], shape[1])[turn, slot],
            burst_tags=burst_tags,
            burst_signs=burst_signs,
        )


def _ordinary_orders(market: SyntheticMarket, rng: np.random.Generator, cycles: int) -> tuple[Ints, Ints, Ints, Ints]:
    """Kind, side, lots and sign of an order in every place, (cycles, cycle) each."""
    bits = rng.integers(0, 2**16, (cycles, market.cycle), dtype=np.uint16)
    sign = ((bits & 1).astype(np.int64) << 1) - 1
    # Eight bits decide whether the order takes away, a ninth how.
    removes = (bits >> 4) & 0xFF < round(256 * market.removals)
    kind = np.where(removes, np.where(bits >> 12 & 1, EXECUTE, CANCEL), NEW)
    return kind, np.where(removes, -sign, sign), (bits >> 1 & 7).astype(np.int64) + 1, sign


def _place_markers(market: SyntheticMarket, calendar: _Calendar, kind: Ints, side: Ints, lots: Ints) -> None:
    """Write the markers of every epoch into its first cycles."""
    slots = market.cycle - 3
    for at in range(market.channels * market.copies):
        cycle = np.flatnonzero(calendar.place == at // slots)
        epoch, row = calendar.epoch[cycle], 1 + at % slots
        kind[cycle, row] = MARKER
        side[cycle, row] = calendar.burst_signs[epoch, at % market.channels]
        lots[cycle, row] = calendar.burst_tags[epoch, at % market.channels] + 1


def _book(
    market: SyntheticMarket, rng: np.random.Generator, kind: Ints, side: Ints, lots: Ints, direction: Ints
) -> Columns:
    """Prices, sizes and order numbers of (cycles, width) events that make the mid move by `direction` (cycles,).

    Every cycle opens at a mid of its own with a spread of two ticks. Its first event is the quote that restores that
    spread, its last one takes out the quote on the side of the move. Depths follow from the orders; they start high
    enough that the orders of one cycle cannot empty a level.
    """
    cycles, width = kind.shape
    mid = FIRST_PRICE + np.concatenate([[0], np.cumsum(direction[:-1])])
    if int(mid.min()) <= market.levels + 2:
        raise ValueError(f"the price would fall to {int(mid.min())} ticks: ask for fewer than {cycles * width} events")
    before = np.concatenate([[1], direction[:-1]])
    kind[:, 0], side[:, 0] = NEW, before
    kind[:, -1], side[:, -1] = EXECUTE, -direction
    bid, ask = np.repeat(mid - 1, width).reshape(kind.shape), np.repeat(mid + 1, width).reshape(kind.shape)
    price = np.where(side > 0, bid, ask)
    np.copyto(price, mid[:, None], where=kind == EXECUTE_HIDDEN)

    least = SIZES * (width - 2) + 1
    standing = rng.integers(least, 2 * least, (2, 4096))  # lots, by price; [0] bids, [1] asks
    change = np.where(kind == NEW, lots, -lots)
    change[(kind == MARKER) | (kind == EXECUTE_HIDDEN)] = 0
    change[:, [0, -1]] = 0
    depth = []
    for which, quote, taken in ((0, bid, direction < 0), (1, ask, direction > 0)):
        moved = np.where(side == (1, -1)[which], change, 0)
        level = standing[which][quote[:, 0] % 4096][:, None] + np.cumsum(moved, axis=1)
        lots[taken, -1] = level[taken, -1]
        quote[:, -1] += np.where(taken, (-1, 1)[which], 0)
        level[taken, -1] = standing[which][quote[taken, -1] % 4096]
        depth.append(level)
    lots[:, 0] = np.where(before > 0, depth[0][:, 0], depth[1][:, 0])

    columns: Columns = {
        "kind": kind.astype(np.uint8),
        "side": side.astype(np.int8),
        "price": price * TICK,
        "size": lots * LOT,
        "order_id": _order_ids(kind, side, before),
    }
    for level in range(market.levels):
        for name, which, quote, away in (("ask", 1, ask, level), ("bid", 0, bid, -level)):
            columns[f"{name}_price_{level + 1}"] = (quote + away) * TICK
            lots_there = depth[which] if level == 0 else standing[which][(quote + away) % 4096]
            columns[f"{name}_size_{level + 1}"] = lots_there * LOT
    return columns


def _order_ids(kind: Ints, side: Ints, before: Ints) -> Ints:
    """New orders are numbered by their row; the others refer to the order that opened the level they act on."""
    cycles, width = kind.shape
    row = 2 + np.arange(cycles * width).reshape(cycles, width)
    quoted, revealed = row[:, :1], row[:, :1] - 1
    bid_order = np.where(before[:, None] > 0, quoted, revealed)
    ask_order = np.where(before[:, None] > 0, revealed, quoted)
    order = np.where(kind == NEW, row, np.where(side > 0, bid_order, ask_order))
    order[(kind == MARKER) | (kind == EXECUTE_HIDDEN)] = 0
    return np.asarray(order, np.int64)


def _times(rng: np.random.Generator, rows: int, per_session: int) -> Ints:
    """Int64 nanoseconds UTC: sessions on successive weekdays, events inside one a Poisson process of known count."""
    sessions = -(-rows // per_session)
    gaps = rng.standard_exponential((sessions, per_session + 1))
    part = np.cumsum(gaps[:, :-1], axis=1) / gaps.sum(axis=1, keepdims=True)
    days = np.busday_offset(FIRST_DAY, np.arange(sessions)).astype("datetime64[ns]").astype(np.int64)
    inside = OPEN + (part * (CLOSE - OPEN)).astype(np.int64)
    return np.asarray((days[:, None] + inside).reshape(-1)[:rows], np.int64)
