"""A synthetic order book whose best possible log loss is known for every length of context; see docs/synthetic.md."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from quantattn.data.bayes import Bayes, Ints, OutcomeLaw
from quantattn.data.schema import CANCEL, EXECUTE, EXECUTE_HIDDEN, MARKER, NEW, Instrument
from quantattn.data.sources.source import Source, SourceReport

TICK = 100
EXPONENT = -4
FIRST_PRICE = 50_000  # ticks
SIZES = 8  # an ordinary event is for 1 … SIZES lots
LOT = 100
MINUTE = 60 * 10**9
OPEN, CLOSE = 14 * 60 * MINUTE + 30 * MINUTE, 20 * 60 * MINUTE  # UTC; inside New York's session all year round
FIRST_DAY = "2024-01-02"
Columns = dict[str, npt.NDArray[np.generic]]
GENERATOR = 1  # raise it whenever the streams change


@dataclass(frozen=True)
class Decisions:
    """The decision events of one entity, n of them, in order of time.

    Attributes:
        seq: (n,) row of the event in the entity's stream.
        signs: (n, F) signs of the F events before it, the nearest last: +1 for an order that adds to the bid or
            takes from the ask, −1 for the mirror image. Their sum is the flow.
        marker: (n,) sign of the most recent marker for its number of lots.
        distance: (n,) rows from that marker to the decision.
        outcome: (n,) +1 when the mid rises one tick with the next event, −1 when it falls.
    """

    seq: Ints
    signs: Ints
    marker: Ints
    distance: Ints
    outcome: Ints


@dataclass(frozen=True)
class SyntheticMarket:
    """Event streams with decisions whose outcome law is known.

    A stream is made of cycles of `cycle` events: a quote that closes the gap left by the last price move, ordinary
    orders, and an execution that takes out a best quote and so moves the price. Every epoch has `channels` marker
    events, at least `marker_distance` events of ordinary trading, then `channels` decisions, one in each cycle.

    Attributes:
        entities: number of streams, or their names.
        events_per_entity: rows of each stream.
        marker_distance: the nearest that a decision's marker may lie, in rows (see `distances` for the farthest).
        channels: markers in an epoch, one for each number of lots 1 … channels; each is used by one decision.
        flow_events: F, how many events before the decision make its flow.
        flow_weight: a in P(up) = σ(a·flow + b·marker).
        marker_weight: b.
        cycle: rows from one price move to the next, at least flow_events + 3.
        levels: levels of the book in the table.
        events_per_session: rows in one trading day.
        seed: of all randomness. Stream i is a function of (seed, i) and the settings, not of how many there are.
    """

    entities: int | tuple[str, ...] = 16
    events_per_entity: int = 65_536
    marker_distance: int = 200
    channels: int = 8
    flow_events: int = 8
    flow_weight: float = 0.6
    marker_weight: float = 1.8
    cycle: int = 11
    levels: int = 1
    events_per_session: int = 2_048
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("events_per_entity", "marker_distance", "flow_events", "levels", "events_per_session"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 1 <= self.channels <= SIZES:
            raise ValueError(f"channels must lie in 1 … {SIZES}, one for each number of lots, got {self.channels}")
        if self.cycle < self.flow_events + 3:
            raise ValueError(f"cycle must be at least flow_events + 3 = {self.flow_events + 3}, got {self.cycle}")
        if not self.names:
            raise ValueError("a market needs at least one entity")

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the entities, in order."""
        if isinstance(self.entities, int):
            return tuple(f"SYN{i:04d}" for i in range(self.entities))
        return self.entities

    @property
    def law(self) -> OutcomeLaw:
        """How outcomes are drawn."""
        return OutcomeLaw(self.flow_events, self.flow_weight, self.marker_weight)

    @property
    def epoch_cycles(self) -> tuple[int, int, int]:
        """Cycles of an epoch that hold markers, that hold neither, and that hold decisions."""
        markers = -(-self.channels // (self.cycle - 3))
        quiet = -(-(self.marker_distance - self.cycle) // self.cycle)
        return markers, max(quiet, 0), self.channels

    @property
    def distances(self) -> Ints:
        """(channels²,) every distance from a marker to its decision; all pairs of places are equally likely."""
        place = np.arange(self.channels)
        marker = place // (self.cycle - 3) * self.cycle + 1 + place % (self.cycle - 3)
        decision = (sum(self.epoch_cycles[:2]) + place) * self.cycle + self.cycle - 2
        return np.asarray(decision[:, None] - marker[None, :], np.int64).ravel()

    def bayes(self, context: int | None = None) -> Bayes:
        """The best expected figures with the last `context` events in view, the decision's own included (None: all).

        Raises:
            ValueError: when context is less than 1.
        """
        seen = self._flow_seen(context)
        share = 1.0 if context is None else float((self.distances < context).mean())
        with_marker, without = self.law.expected(seen, True), self.law.expected(seen, False)
        log_loss, accuracy, brier = (share * x + (1 - share) * y for x, y in zip(with_marker, without, strict=True))
        return Bayes(log_loss, accuracy, float(np.log(2)), brier, context, share)

    def stream(self, index: int) -> tuple[dict[str, npt.NDArray[np.generic]], Decisions]:
        """The columns of one entity's table, without its name, and its decisions whose outcome is in the table."""
        rng = np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(index,)))
        return _generate(self, rng)

    def truth(self, context: int | None = None) -> pl.DataFrame:
        """One row a decision: `entity, seq, flow, marker, distance, outcome, probability_up`.

        `probability_up` is what the best predictor that sees the last `context` events (None: all) says of this
        decision; its mean log loss over many decisions tends to `bayes(context).log_loss`.
        """
        seen = self._flow_seen(context)
        tables = np.stack([self.law.table(seen, False), self.law.table(seen, True)])
        frames = []
        for index, name in enumerate(self.names):
            _, made = self.stream(index)
            ups = (made.signs[:, self.flow_events - seen :] > 0).sum(axis=1)
            in_view = np.ones(made.seq.shape, bool) if context is None else made.distance < context
            columns = {
                "entity": np.full(made.seq.shape, name),
                "seq": made.seq,
                "flow": made.signs.sum(axis=1, dtype=np.int64),
                "marker": made.marker,
                "distance": made.distance,
                "outcome": made.outcome,
                "probability_up": tables[in_view.astype(np.int64), ups, made.marker + 1],
            }
            frames.append(pl.DataFrame(columns))
        return pl.concat(frames)

    def source(self) -> Source:
        """The market as a source of book events, made one entity at a time when the frame is collected."""
        settings = json.dumps({"generator": GENERATOR, **asdict(self)}, sort_keys=True)
        report = SourceReport(
            rows_read=len(self.names) * self.events_per_entity,
            files={"synthetic": hashlib.sha256(settings.encode()).hexdigest()},
            notes=(f"synthetic market: {settings}",),
        )
        instruments = tuple(Instrument(name, EXPONENT, TICK) for name in self.names)
        frames = [pl.DataFrame({"entity": name, **self.stream(i)[0]}).lazy() for i, name in enumerate(self.names)]
        return Source(pl.concat(frames), instruments, report)

    def _flow_seen(self, context: int | None) -> int:
        if context is None:
            return self.flow_events
        if context < 1:
            raise ValueError(f"context counts events and the decision is one of them: at least 1, got {context}")
        return min(self.flow_events, context - 1)


def _generate(market: SyntheticMarket, rng: np.random.Generator) -> tuple[Columns, Decisions]:
    width, rows = market.cycle, market.events_per_entity
    cycles = -(-rows // width)
    calendar = _Calendar.draw(market, rng, cycles)
    kind, side, lots, sign = _ordinary_orders(rng, cycles, width)
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
    decisions = Decisions(
        seq=seq[kept],
        signs=flow_signs[chosen],
        marker=calendar.marker[chosen],
        distance=calendar.distance[chosen],
        outcome=direction[chosen],
    )
    return {"event_time": times, "available_time": times, **columns}, decisions


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


def _ordinary_orders(rng: np.random.Generator, cycles: int, width: int) -> tuple[npt.NDArray[np.int64], ...]:
    """Kind, side, lots and sign of an order in every place, (cycles, width) each; six fair bits make one order."""
    bits = rng.integers(0, 64, (cycles, width), dtype=np.uint8)
    sign = ((bits & 1).astype(np.int64) << 1) - 1
    kind = np.array([NEW, NEW, CANCEL, EXECUTE], np.int64)[(bits >> 1) & 3]
    side = np.where(kind == NEW, sign, -sign)
    return kind, side, (bits >> 3).astype(np.int64) + 1, sign


def _place_markers(market: SyntheticMarket, calendar: _Calendar, kind: Ints, side: Ints, lots: Ints) -> None:
    """Write the markers of every epoch into its first cycles."""
    slots = market.cycle - 3
    for at in range(market.channels):
        cycle = np.flatnonzero(calendar.place == at // slots)
        epoch, row = calendar.epoch[cycle], 1 + at % slots
        kind[cycle, row] = MARKER
        side[cycle, row] = calendar.burst_signs[epoch, at]
        lots[cycle, row] = calendar.burst_tags[epoch, at] + 1


def _book(
    market: SyntheticMarket, rng: np.random.Generator, kind: Ints, side: Ints, lots: Ints, direction: Ints
) -> dict[str, npt.NDArray[np.generic]]:
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

    columns: dict[str, npt.NDArray[np.generic]] = {
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
    days = np.busday_offset(np.datetime64(FIRST_DAY), np.arange(sessions)).astype("datetime64[ns]").astype(np.int64)
    inside = OPEN + (part * (CLOSE - OPEN)).astype(np.int64)
    return np.asarray((days[:, None] + inside).reshape(-1)[:rows], np.int64)


def long_market(marker_distance: int = 20_000, **settings: Any) -> SyntheticMarket:
    """A market whose markers lie 2,000 to 50,000 events back: few decisions, for encoders of long sequences.

    Raises:
        ValueError: when marker_distance is outside that range.
    """
    if not 2_000 <= marker_distance <= 50_000:
        raise ValueError(f"marker_distance of the long market must lie in 2,000 … 50,000, got {marker_distance}")
    defaults = {"marker_distance": marker_distance, "entities": 8, "events_per_entity": 20 * marker_distance}
    return SyntheticMarket(**{**defaults, **settings})
