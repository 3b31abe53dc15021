"""Events of a market as a token table, and the events at which decisions are made: what training and scoring share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

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
    """

    sequences: SequenceSet
    as_of: Ints
    entity: tuple[str, ...]
    hashes: Mapping[str, str]
    events: Mapping[str, npt.NDArray[np.integer[Any]]] = field(default_factory=dict, kw_only=True)
    merged: bool = field(default=False, kw_only=True)


def encode_market(
    source: Source | SyntheticMarket,
    vocabulary_json: str,
    *,
    max_seq_len: int = 512,
    layout: Layout = "chunks",
    min_context: int | None = None,
    decision_every: int = 1,
    decision_kinds: Sequence[int] | None = None,
) -> Unlabelled:
    """Decisions of a source in the tokens of a tokenizer that was fitted before; see `prepare_market` for the settings.

    Raises:
        ValueError: see `collect_events`; or no event is a decision, or each is one, and tokens are merged.
    """
    source = source.source() if isinstance(source, SyntheticMarket) else source
    events = collect_events(source)
    rows = decision_rows(events, decision_every, decision_kinds)
    tokenizer = Tokenizer.from_json(vocabulary_json)
    table = token_table(events, tokenizer, source.instruments)
    if tokenizer.merges is not None:
        require_stretches(len(tokenizer.merges.pairs), decision_every, decision_kinds)
    merged = MergedTokens.of(carrying(table, events, source), tokenizer, rows)
    return Unlabelled(
        sequences=SequenceSet(merged.table, Decisions(merged.rows(rows)), max_seq_len, layout, min_context),
        as_of=table.time[rows],
        entity=tuple(events["entity"].gather(rows)),
        hashes=dict(source.report.files),
        events={
            name: events[name].to_numpy() if tokenizer.merges is None else events[name].to_numpy()[merged.last]
            for name in ("event_time", "kind")
            if name in events.columns
        },
        merged=tokenizer.merges is not None,
    )


def collect_events(source: Source) -> pl.DataFrame:
    """The event table of a source, checked by value and order.

    Raises:
        ValueError: the table breaks its schema or is empty, or an entity in it has no instrument.
    """
    frame = source.frame.collect()
    events = check(frame, schema_of(frame.columns))
    if not events.height:
        raise ValueError("the source holds no event")
    given = {instrument.entity for instrument in source.instruments}
    without = sorted(set(events["entity"].unique()) - given)
    if without:
        more = f" and {len(without) - 3} more" if len(without) > 3 else ""
        raise ValueError(f"no instrument is given for {', '.join(without[:3])}{more}, so its tick is unknown")
    return events


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
    if every < 1:
        raise ValueError(f"decision_every must be at least 1, got {every}")
    chosen = events.select(pl.col("^(entity|kind)$"), row=pl.int_range(pl.len()))
    if kinds is not None:
        if "kind" not in events.columns:
            raise ValueError(f"decision_kinds = {list(kinds)}, but these events have no kinds")
        chosen = chosen.filter(pl.col("kind").is_in(list(kinds)))
    if every > 1:
        chosen = chosen.filter(pl.int_range(pl.len()).over("entity") % every == 0)
    if not chosen.height:
        raise ValueError(f"none of {events.height} events is a decision: decision_kinds = {kinds}")
    return chosen["row"].to_numpy()


def token_table(
    events: pl.DataFrame, tokenizer: Tokenizer, instruments: Iterable[Instrument] | None = None
) -> TokenTable:
    """The columns of `Tokenizer.transform` as arrays, made on as many threads as polars has.

    Raises:
        ValueError: as `Tokenizer.transform`.
    """
    names = (*tokenizer.codes, *tokenizer.values)
    known = None if instruments is None else tuple(instruments)

    def made(rows: tuple[int, int]) -> pl.DataFrame:
        # A token looks at the row before, and at no other.
        before = min(rows[0], 1)
        tokens = tokenizer.transform(events[rows[0] - before : rows[1]].lazy(), known).select(names)
        # In memory columns come out whole; the streaming engine gives pieces, which arrays have to be copied from.
        return tokens.collect(engine="in-memory")[before:]

    parts = spans(events.height, LEAST_ROWS)
    if len(parts) == 1:
        tokens = made(parts[0])
    else:
        whole = {n: np.empty(events.height, np.uint16 if n in tokenizer.codes else np.float32) for n in names}

        def put(rows: tuple[int, int]) -> None:
            for column in made(rows):
                whole[column.name][slice(*rows)] = column.to_numpy()

        each(put, parts)
        tokens = pl.DataFrame(whole)
    return TokenTable.of_frame(events.select("entity", "available_time").hstack(tokens), names)
