"""Events of a table as a token table, and each entity's last event as a decision: what training and scoring share."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import polars as pl

from quantattn.data.filed import Room
from quantattn.data.grown_tokens import GrownTokens, event_runs
from quantattn.data.market.encode import Unlabelled
from quantattn.data.pack import Decisions, Layout, SequenceSet, TokenTable
from quantattn.data.schema import Events, check
from quantattn.data.sources.source import Source
from quantattn.data.sources.table import TableSource
from quantattn.data.table.tokens import TableTokenizer

Ints = npt.NDArray[np.int64]


def encode_table(
    source: TableSource,
    vocabulary_json: str,
    *,
    max_seq_len: int = 512,
    layout: Layout = "each",
    min_context: int | None = None,
    room: Room | None = None,
    progress: Callable[[int], None] | None = None,
) -> Unlabelled:
    """Every entity as of its last event, in the tokens of a tokenizer that was fitted before.

    `room` and `progress` are those of `encode_market`.

    Raises:
        ValueError: the source is no table, or a column that the tokens are made of is missing or of another type.
    """
    tokenizer, grown = TableTokenizer.from_json(vocabulary_json), GrownTokens(room or Room())
    _require_table(source)
    tokenizer.require(source.columns)
    for run, before in event_runs(source.frame, Events):
        tokens = tokenizer.transform(run.lazy()).collect()[before:]
        events = {"event_time": run["event_time"].to_numpy()[before:]}
        grown.add(TokenTable.of_frame(tokens, (*tokenizer.codes, *tokenizer.values)), {"event": events})
        if progress is not None:
            progress(grown.tokens)
    table = grown.table()
    rows = table.offsets[1:] - 1
    return Unlabelled(
        sequences=SequenceSet(table, Decisions(rows), max_seq_len, layout, min_context),
        as_of=table.time[rows],
        entity=table.entities,
        hashes=dict(source.report.files),
        events=grown.whole("event"),
    )


def collect_events(source: Source) -> pl.DataFrame:
    """The event table of a source, checked by value and order.

    Raises:
        ValueError: the source is no table, the table breaks its schema, or it is empty.
    """
    _require_table(source)
    events = check(source.frame.collect(), Events)
    if not events.height:
        raise ValueError("the source holds no event")
    return events


def _require_table(source: Source) -> None:
    if not isinstance(source, TableSource):
        raise ValueError("this preparation needs a table with typed columns, as scan_table gives it")


def token_table(events: pl.DataFrame, tokenizer: TableTokenizer) -> TokenTable:
    """The columns of a tokenizer as arrays; the events must be in canonical order."""
    return TokenTable.of_frame(tokenizer.transform(events.lazy()).collect(), (*tokenizer.codes, *tokenizer.values))


def of_entities(table: TokenTable, stop: Ints, rows: Ints) -> tuple[TokenTable, Ints]:
    """Of each entity e the rows before stop[e] (0 leaves the entity out), and the new numbers of `rows` among them."""
    lengths = np.maximum(stop - table.offsets[:-1], 0)
    chosen = lengths > 0
    starts = table.offsets[:-1][chosen]
    offsets = np.concatenate([[0], np.cumsum(lengths[chosen])]).astype(np.int64)
    kept = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths[chosen])
    fields = {name: column[kept] for name, column in table.fields.items()}
    names = tuple(name for name, there in zip(table.entities, chosen, strict=True) if there)
    return TokenTable(fields, table.time[kept], offsets, names), np.searchsorted(kept, rows)
