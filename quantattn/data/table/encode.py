"""Events of a table as a token table, and each entity's last event as a decision: what training and scoring share."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

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
) -> Unlabelled:
    """Every entity as of its last event, in the tokens of a tokenizer that was fitted before.

    Raises:
        ValueError: the source is no table, or a column that the tokens are made of is missing or of another type.
    """
    events = collect_events(source)
    tokenizer = TableTokenizer.from_json(vocabulary_json)
    tokenizer.require(source.columns)
    table = token_table(events, tokenizer)
    rows = table.offsets[1:] - 1
    return Unlabelled(
        sequences=SequenceSet(table, Decisions(rows), max_seq_len, layout, min_context),
        as_of=table.time[rows],
        entity=table.entities,
        hashes=dict(source.report.files),
        events={"event_time": events["event_time"].to_numpy()},
    )


def collect_events(source: Source) -> pl.DataFrame:
    """The event table of a source, checked by value and order.

    Raises:
        ValueError: the source is no table, the table breaks its schema, or it is empty.
    """
    if not isinstance(source, TableSource):
        raise ValueError("this preparation needs a table with typed columns, as scan_table gives it")
    events = check(source.frame.collect(), Events)
    if not events.height:
        raise ValueError("the source holds no event")
    return events


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
