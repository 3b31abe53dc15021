"""Events of a market as a token table, and the events at which decisions are made: what training and scoring share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from quantattn.data.compiled import pays
from quantattn.data.filed import Room, Texts
from quantattn.data.grown_tokens import GrownTokens, event_runs
from quantattn.data.market.filed import carrying
from quantattn.data.market.merged import MergedTokens, require_stretches
from quantattn.data.pack import Decisions, Layout, SequenceSet, TokenTable
from quantattn.data.schema import Bars, BookEvents, Events, Instrument, Trades, check
from quantattn.data.sources.source import Source
from quantattn.data.synthetic import SyntheticMarket
from quantattn.data.threads import LEAST_ROWS, each, spans
from quantattn.data.tokens import Tokenizer

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Unlabelled:
    """Decisions to score.

    Attributes:
        sequences: every decision in exactly one of them, without targets.
        as_of: (Q,) int64 ns UTC.
        entity: (Q,) names.
        hashes: name → sha256 of what went in.
        events: `event_time` (int64 ns UTC) and, where there are kinds, `kind` (uint8) → (R,), those of the tokens.
        merged: whether a token may be several events, of which it ends with the last one.
        room: where columns of their length are kept.
    """

    sequences: SequenceSet
    as_of: Ints
    entity: Sequence[str | None]
    hashes: Mapping[str, str]
    events: Mapping[str, npt.NDArray[np.integer[Any]]] = field(default_factory=dict, kw_only=True)
    merged: bool = field(default=False, kw_only=True)
    room: Room = field(default_factory=Room, kw_only=True)


def encode_market(
    source: Source | SyntheticMarket,
    vocabulary_json: str,
    *,
    max_seq_len: int = 512,
    layout: Layout = "chunks",
    min_context: int | None = None,
    decision_every: int = 1,
    decision_kinds: Sequence[int] | None = None,
    room: Room | None = None,
    progress: Callable[[int], None] | None = None,
) -> Unlabelled:
    """Decisions of a source in the tokens of a tokenizer that was fitted before; see `prepare_market` for the settings.

    The source is read in bounded runs. `room` says where what is made of it is kept, in memory if it is not given;
    `progress` is told how many events were read.

    Raises:
        ValueError: see `collect_events`; or no event is a decision, or each is one, and tokens are merged.
    """
    source = source.source() if isinstance(source, SyntheticMarket) else source
    tokenizer, room = Tokenizer.from_json(vocabulary_json), room or Room()
    if tokenizer.merges is not None:
        require_stretches(len(tokenizer.merges.pairs), decision_every, decision_kinds)
    decider, grown, seen, decided = _Decider(decision_every, decision_kinds), GrownTokens(room), 0, 0
    schema = schema_of(source.frame.collect_schema().names())
    # Tokens that are merged end with a decision or an entity, and so does a run of them.
    for run, before in event_runs(source.frame, schema, len if tokenizer.merges is None else decider.closed):
        events = run[before:]
        _require_instruments(events, source)
        table = carrying(token_table(run, tokenizer, source.instruments, before), events, source)
        rows = decider.rows(events)
        _add(grown, MergedTokens.of(table, tokenizer, rows), events, table, rows)
        decider.take(events)
        seen, decided = seen + events.height, decided + len(rows)
        if progress is not None:
            progress(seen)
    if not decided:
        raise ValueError(_none_decided(seen, decision_kinds))
    table, made = grown.table(), grown.whole("decision")
    return Unlabelled(
        sequences=SequenceSet(table, Decisions(made["row"]), max_seq_len, layout, min_context, room=room),
        as_of=made["as_of"],
        entity=Texts(table.entities, made["entity"]),
        hashes=dict(source.report.files),
        events=grown.whole("event"),
        merged=tokenizer.merges is not None,
        room=room,
    )


def _add(grown: GrownTokens, merged: MergedTokens, events: pl.DataFrame, table: TokenTable, rows: Ints) -> None:
    """Add a run of tokens, what is told of the events that they end with, and the decisions at rows of `table`."""
    told: dict[str, npt.NDArray[Any]] = {
        name: events[name].to_numpy()[merged.last] for name in ("event_time", "kind") if name in events.columns
    }
    decisions: dict[str, npt.NDArray[Any]] = {
        "row": merged.rows(rows) + grown.tokens,
        "as_of": table.time[rows],
        "entity": (table.entity_of(rows) + grown.entities(table)).astype(np.int32),
    }
    grown.add(merged.table, {"event": told, "decision": decisions})


def collect_events(source: Source) -> pl.DataFrame:
    """The event table of a source, checked by value and order.

    Raises:
        ValueError: the table breaks its schema or is empty, or an entity in it has no instrument.
    """
    frame = source.frame.collect()
    events = check(frame, schema_of(frame.columns))
    if not events.height:
        raise ValueError("the source holds no event")
    _require_instruments(events, source)
    return events


def _require_instruments(events: pl.DataFrame, source: Source) -> None:
    given = {instrument.entity for instrument in source.instruments}
    without = sorted(set(events["entity"].unique()) - given)
    if without:
        more = f" and {len(without) - 3} more" if len(without) > 3 else ""
        raise ValueError(f"no instrument is given for {', '.join(without[:3])}{more}, so its tick is unknown")


def schema_of(columns: Sequence[str]) -> type[Events]:
    """What a table of a market is by its columns: bars have a close, trades a price without a book, or there are
    shipped features alone."""
    if "feature_1" in columns:
        return Events
    if "ask_price_1" in columns:
        return BookEvents
    if "close" in columns:
        return Bars
    return Trades if "price" in columns else BookEvents


def decision_rows(events: pl.DataFrame, every: int = 1, kinds: Sequence[int] | None = None) -> Ints:
    """Row numbers of the decisions, ascending: of the events of these kinds, every `every`-th of each entity.

    Raises:
        ValueError: `every` is less than 1, kinds are given for a table without them, or no event qualifies.
    """
    rows = _Decider(every, kinds).rows(events)
    if not len(rows):
        raise ValueError(_none_decided(events.height, kinds))
    return rows


def _none_decided(events: int, kinds: Sequence[int] | None) -> str:
    return f"none of {events} events is a decision: decision_kinds = {kinds}"


@dataclass
class _Decider:
    """Which events are decisions, of a table that comes in runs; `seen` events of `last`, of these kinds, came before.

    Raises:
        ValueError: `every` is less than 1.
    """

    every: int
    kinds: Sequence[int] | None
    last: str | None = None
    seen: int = 0

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ValueError(f"decision_every must be at least 1, got {self.every}")

    def rows(self, events: pl.DataFrame) -> Ints:
        """Row numbers within these events, ascending."""
        chosen = self._of_kinds(events)
        if self.every > 1:
            before = pl.when(pl.col("entity") == pl.lit(self.last, pl.String)).then(self.seen).otherwise(0)
            chosen = chosen.filter((pl.int_range(pl.len()).over("entity") + before) % self.every == 0)
        return chosen["row"].to_numpy()

    def closed(self, events: pl.DataFrame) -> int:
        """How many of these events come up to the last decision or the last end of an entity among them."""
        last = self.rows(events)[-1:] + 1
        return max(int(last.sum()), int(events["entity"].rle().struct.field("len")[:-1].sum()))

    def take(self, events: pl.DataFrame) -> None:
        """Go on behind these events."""
        last = events["entity"][-1]
        seen = int((self._of_kinds(events)["entity"] == last).sum())
        self.last, self.seen = last, seen + (self.seen if last == self.last else 0)

    def _of_kinds(self, events: pl.DataFrame) -> pl.DataFrame:
        chosen = events.select(pl.col("^(entity|kind)$"), row=pl.int_range(pl.len()))
        if self.kinds is None:
            return chosen
        if "kind" not in events.columns:
            raise ValueError(f"decision_kinds = {list(self.kinds)}, but these events have no kinds")
        return chosen.filter(pl.col("kind").is_in(list(self.kinds)))


def token_table(
    events: pl.DataFrame, tokenizer: Tokenizer, instruments: Iterable[Instrument] | None = None, first: int = 0
) -> TokenTable:
    """The columns of `Tokenizer.transform` as arrays, of the events from row `first` on.

    Made on as many threads as polars has.

    Raises:
        ValueError: as `Tokenizer.transform`.
    """
    names, known = (*tokenizer.codes, *tokenizer.values), None if instruments is None else tuple(instruments)
    height = events.height - first
    whole = tokenizer.columns(events, known, first) if pays(height) else None
    if whole is None:
        whole = _transformed(events, tokenizer, known, first)
    tokens = pl.DataFrame({name: whole[name] for name in names})
    return TokenTable.of_frame(events[first:].select("entity", "available_time").hstack(tokens), names)


def _transformed(
    events: pl.DataFrame, tokenizer: Tokenizer, instruments: Sequence[Instrument] | None, first: int
) -> dict[str, npt.NDArray[Any]]:
    names, height = (*tokenizer.codes, *tokenizer.values), events.height - first

    def made(rows: tuple[int, int]) -> pl.DataFrame:
        # A token looks at the row before, and at no other.
        begin, end = rows[0] + first, rows[1] + first
        before = min(begin, 1)
        tokens = tokenizer.transform(events[begin - before : end].lazy(), instruments).select(names)
        # In memory columns come out whole; the streaming engine gives pieces, which arrays have to be copied from.
        return tokens.collect(engine="in-memory")[before:]

    parts = spans(height, LEAST_ROWS)
    if len(parts) == 1:
        return {column.name: column.to_numpy() for column in made(parts[0])}
    whole = {n: np.empty(height, np.uint16 if n in tokenizer.codes else np.float32) for n in names}

    def put(rows: tuple[int, int]) -> None:
        for column in made(rows):
            whole[column.name][slice(*rows)] = column.to_numpy()

    each(put, parts)
    return whole
