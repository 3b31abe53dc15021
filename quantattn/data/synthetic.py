"""A synthetic order book whose best possible log loss is known for every length of context; see docs/synthetic.md."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import polars as pl

from quantattn.data.bayes import Bayes, Ints, OutcomeLaw
from quantattn.data.schema import Instrument
from quantattn.data.sources.source import Source, SourceReport
from quantattn.data.stream import SIZES, TICK, Columns, Drawn, generate

EXPONENT = -4
GENERATOR = 1  # raise it whenever the streams change


@dataclass(frozen=True)
class SyntheticMarket:
    """Event streams with decisions whose outcome law is known.

    A stream is made of cycles of `cycle` events: a quote that closes the gap left by the last price move, ordinary
    orders, and an execution that takes out a best quote and so moves the price. Every epoch has a burst of markers,
    one sign for each of `channels` numbers of lots; at least `marker_distance` events of ordinary trading; then as many
    decisions, one in each cycle. A decision goes by the most recent marker of its own number of lots. Each sign is used
    by one decision, so that earlier outcomes tell nothing of it.

    Attributes:
        entities: number of streams, or their names in alphabetical order.
        events_per_entity: rows of each stream.
        marker_distance: the nearest that a decision's marker may lie, in rows (see `distances` for the farthest).
        channels: signs in an epoch, and decisions; a sign's markers are for 1, 2, … lots.
        copies: how often the markers of a burst are repeated, which makes them easier to find.
        flow_events: F, how many events before the decision make its flow.
        flow_weight: a in P(up) = σ(a·flow + b·marker).
        marker_weight: b.
        removals: share of ordinary orders that take from the book (half cancellations, half executions) instead of
            adding to it, in steps of 1/256. The sign of such an order is the opposite of its side.
        cycle: rows from one price move to the next, at least flow_events + 3.
        levels: levels of the book in the table.
        events_per_session: rows in one trading day.
        seed: of all randomness. Stream i is a function of (seed, i) and the settings, not of how many there are.
    """

    entities: int | tuple[str, ...] = 32
    events_per_entity: int = 65_536
    marker_distance: int = 200
    channels: int = 8
    copies: int = 2
    flow_events: int = 8
    flow_weight: float = 0.7
    marker_weight: float = 2.4
    removals: float = 1 / 64
    cycle: int = 12
    levels: int = 1
    events_per_session: int = 2_048
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("events_per_entity", "marker_distance", "copies", "flow_events", "levels", "events_per_session"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 1 <= self.channels <= SIZES:
            raise ValueError(f"channels must lie in 1 … {SIZES}, one for each number of lots, got {self.channels}")
        if self.cycle < self.flow_events + 3:
            raise ValueError(f"cycle must be at least flow_events + 3 = {self.flow_events + 3}, got {self.cycle}")
        if not 0 <= self.removals <= 1:
            raise ValueError(f"removals is a share of the orders and must lie in [0, 1], got {self.removals}")
        if not self.names or list(self.names) != sorted(set(self.names)):
            raise ValueError(f"entities must be a positive number or sorted names, each once, got {self.entities!r}")

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the entities, in order."""
        if isinstance(self.entities, int):
            return tuple(f"SYN{i:06d}" for i in range(self.entities))
        return tuple(self.entities)

    @property
    def law(self) -> OutcomeLaw:
        """How outcomes are drawn."""
        return OutcomeLaw(self.flow_events, self.flow_weight, self.marker_weight)

    @property
    def epoch_cycles(self) -> tuple[int, int, int]:
        """Cycles of an epoch that hold markers, that hold neither, and that hold decisions."""
        markers = -(-self.channels * self.copies // (self.cycle - 3))
        quiet = -(-(self.marker_distance - self.cycle - 1) // self.cycle)
        return markers, max(quiet, 0), self.channels

    @property
    def distances(self) -> Ints:
        """(channels²,) every distance from a marker to its decision; all pairs of places are equally likely."""
        place = np.arange(self.channels)
        last = place + self.channels * (self.copies - 1)
        marker = last // (self.cycle - 3) * self.cycle + 1 + last % (self.cycle - 3)
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

    def stream(self, index: int) -> tuple[Columns, Drawn]:
        """The columns of one entity's table, without its name, and what was drawn at its decisions."""
        rng = np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(index,)))
        return generate(self, rng)

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
        """The market as a source of book events; made now and held in memory, about 100 bytes an event."""
        settings = json.dumps({"generator": GENERATOR, **asdict(self)}, sort_keys=True)
        report = SourceReport(
            rows_read=len(self.names) * self.events_per_entity,
            files={"synthetic": hashlib.sha256(settings.encode()).hexdigest()},
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


def long_market(marker_distance: int = 20_000, **settings: Any) -> SyntheticMarket:
    """A market whose markers lie 2,000 … 50,000 events back: few decisions, for encoders of long sequences.

    Raises:
        ValueError: when marker_distance is outside that range.
    """
    if not 2_000 <= marker_distance <= 50_000:
        raise ValueError(f"marker_distance of the long market must lie in 2,000 … 50,000, got {marker_distance}")
    return SyntheticMarket(
        **{"marker_distance": marker_distance, "entities": 8, "events_per_entity": 20 * marker_distance, **settings}
    )
